package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Round looks whether Redis still holds what it must and makes a full pass. If
// something was lost, everything is rebuilt, and only then Redis counts as
// complete. Every step may be repeated, and made by several orchestrators at
// once; after an error or a crash the next round, of any of them, begins anew.
func (r *Reconciler) Round(ctx context.Context) error {
	a, err := r.agree(ctx)
	if err != nil { // what is known to be lost can be found nevertheless
		return errors.Join(err, r.Pass(ctx, nil))
	}
	if a.healthy() {
		r.rebuilding.Set(0)
		return r.Pass(ctx, nil)
	}
	if a.lost() != "" {
		r.rebuilding.Set(1)
	}
	return r.rebuild(ctx, a)
}

func (r *Reconciler) rebuild(ctx context.Context, a agreement) error {
	if err := r.makeGroups(ctx, a); err != nil {
		return err
	}
	if err := r.declareGone(ctx, a); err != nil {
		return err
	}
	crashpoint.Here("reconcile.groups_made")
	if a.row.Floor != nil {
		if err := r.restored(ctx, *a.row.Floor, a.row.LostAt.Time); err != nil {
			return err
		}
		r.release(a.row.LostAt.Time)
		crashpoint.Here("reconcile.restored")
	}
	if err := r.waitForClaims(ctx, a); err != nil {
		return err
	}
	crashpoint.Here("reconcile.waited")
	var loss *agreement
	if a.lost() != "" { // whatever was gone until now is made good for by what follows
		loss = &a
		r.takeGroups()
		r.notMissed(r.madeUntil())
	}
	absent, err := r.pass(ctx, nil, loss)
	if err != nil {
		return err
	}
	stale, err := r.sweep(ctx)
	if err != nil {
		return err
	}
	letters, err := r.o.DeadLetters.PutBack(ctx)
	if err != nil {
		return err
	}
	crashpoint.Here("reconcile.put_back")
	if stale+letters > 0 {
		r.o.Log.Warn("stream entries repaired", "stale_entries_removed", stale, "dead_letters_put_back", letters)
	}
	if absent > 0 && a.lost() != "" { // a later round decides about those, and is told when
		r.o.Log.Info("tasks run without an entry; they have a visibility timeout to end", "tasks", absent)
		return nil
	}
	return r.complete(ctx, a)
}

// makeGroups makes the groups that are missing. If no loss is noted, they are one.
func (r *Reconciler) makeGroups(ctx context.Context, a agreement) error {
	known := a.lost() == "" && a.row.ID != nil
	queues, err := r.o.Store.LiveQueues(ctx)
	if err != nil {
		return fmt.Errorf("list queues: %w", err)
	}
	for _, q := range append(queues, protocol.DefaultQueue) {
		made, err := r.o.Redis.CreateTaskGroup(ctx, protocol.TaskStream(q), protocol.GroupWorkers)
		if err != nil {
			return err
		}
		if made && known {
			r.GroupMade(q)
		}
	}
	for _, stream := range []string{protocol.StreamResult, protocol.StreamDLQ} {
		made, err := r.o.Redis.CreateGroup(ctx, stream, protocol.GroupOrchestrators)
		if err != nil {
			return err
		}
		if made && known {
			r.LostGroup(stream)
		}
	}
	return nil
}

// declareGone has workers look after their leases, once for each time that Redis
// went back: it may have forgotten them, and nothing else tells.
func (r *Reconciler) declareGone(ctx context.Context, a agreement) error {
	if a.lost() != GenerationBehind || r.remade.Equal(a.row.LostAt.Time) {
		return nil
	}
	if err := r.o.Redis.Remade(ctx); err != nil {
		return err
	}
	r.remade = a.row.LostAt.Time
	return nil
}

// waitForClaims waits one renewal interval from the loss: until then workers
// whose entries are gone report what they run, so that it is not taken for
// waiting. It ends early, with an error, if Redis is lost again.
func (r *Reconciler) waitForClaims(ctx context.Context, a agreement) error {
	if !a.waits() {
		return nil
	}
	left := r.o.VisibilityTimeout/3 - a.row.Now.Sub(a.row.LostAt.Time)
	end := time.Now().Add(left)
	for left > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(left, lookInterval)):
		}
		if r.changed(ctx, a.redis) {
			return errChanged
		}
		left = time.Until(end)
	}
	return nil
}

// errChanged: what was rebuilt is not what Redis holds now.
var errChanged = errors.New("during the rebuild Redis was lost again, or changed; beginning anew")

// complete commits the epoch, last of all, and only if Redis still holds it.
func (r *Reconciler) complete(ctx context.Context, a agreement) error {
	now, err := r.o.Redis.Epoch(ctx)
	if err != nil {
		return err
	}
	if now.ID != a.redis.ID || now.Server != a.redis.Server || a.told && now.Generation < a.generation {
		return errChanged
	}
	if !a.told {
		return errors.New("the rebuild can't be completed yet: Redis takes no writes")
	}
	id, err := protocol.ParseID(a.redis.ID)
	if err != nil {
		return err
	}
	var done *dbsqlc.LockEpochRow
	err = r.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		if done, err = q.LockEpoch(ctx); err != nil {
			return err
		}
		if done.LostAt.Valid != a.row.LostAt.Valid || !done.LostAt.Time.Equal(a.row.LostAt.Time) {
			done = nil // completed by another orchestrator, or there is more to do
			return nil
		}
		err := q.CompleteEpoch(ctx, dbsqlc.CompleteEpochParams{ID: (*pgid.ID)(&id), Generation: a.generation, Server: now.Server, Cluster: a.cluster})
		if err == nil && done.Lost != nil {
			err = closeAlert(ctx, q, done)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("commit the epoch: %w", err)
	}
	crashpoint.Here("reconcile.completed")
	if done == nil {
		r.Kick()
		return nil
	}
	r.rebuilding.Set(0)
	if done.Lost != nil {
		r.o.Log.Warn("Redis is rebuilt", "found", *done.Lost, "epoch", a.redis.ID,
			"redispatched", done.Redispatched, "interrupted", done.Interrupted, "dead_letters", done.DeadLetters)
	}
	return nil
}

// closeAlert resolves the alert, with an event that tells what was done.
func closeAlert(ctx context.Context, q *dbsqlc.Queries, done *dbsqlc.LockEpochRow) error {
	const alert = protocol.AlertRedisLost
	data := protocol.AlertData{
		Kind: alert, Severity: alert.Severity(), Value: float64(done.Redispatched + done.Interrupted + done.DeadLetters),
		Redis: &protocol.RedisLossData{
			Found: *done.Lost, Complete: true, Redispatched: done.Redispatched, Interrupted: done.Interrupted, DeadLetters: done.DeadLetters,
		},
	}
	_, err := q.CloseAlert(ctx, dbsqlc.CloseAlertParams{
		Kind: string(alert), Value: data.Value, Actor: protocol.ActorReconciler, Data: data.JSON(),
		Reason: fmt.Sprintf("rebuilt from Postgres (%s): %d tasks dispatched again, %d interrupted, %d dead letters put back",
			*done.Lost, done.Redispatched, done.Interrupted, done.DeadLetters),
	})
	return err
}

// sweep removes undelivered entries whose delivery is not their task's, or
// whose task is over or unknown: of a Redis that went back, or of a Postgres
// that did. Workers would run them for nothing. The order of reading makes it
// sound: a delivery is committed before its entry is added, and deliveries only
// grow, so an entry that the task's row has passed is never needed again. What
// workers have fetched meanwhile stays: it is they who ended its delivery.
func (r *Reconciler) sweep(ctx context.Context) (n int, err error) {
	err = r.eachStale(ctx, func(stream string, stale []place) error {
		ids := make([]string, len(stale))
		for i, e := range stale {
			ids[i] = e.entry
		}
		n += len(ids)
		return r.o.Redis.Drop(ctx, stream, ids)
	})
	return n, err
}

// place is where an entry of a task is. The entry itself is not kept: its payload
// may be large.
type place struct {
	protocol.Pair
	entry string
}

// eachStale calls fn with the entries that sweep removes, some at a time.
func (r *Reconciler) eachStale(ctx context.Context, fn func(stream string, stale []place) error) error {
	names, err := r.o.Redis.TaskStreams(ctx, protocol.StreamTask)
	if err != nil {
		return err
	}
	for _, stream := range names {
		info, err := r.o.Redis.Info(ctx, stream, protocol.GroupWorkers)
		if errors.Is(err, streams.ErrNoGroup) {
			continue
		}
		if err != nil {
			return err
		}
		var page []place
		flush := func() error {
			r.after("entries")
			stale, err := r.stale(ctx, page)
			if page = nil; err == nil && len(stale) > 0 {
				stale, err = r.undelivered(ctx, stream, stale)
			}
			if err != nil || len(stale) == 0 {
				return err
			}
			return fn(stream, stale)
		}
		var ferr error
		err = r.o.Redis.Range(ctx, stream, info.LastDelivered, func(e streams.Entry) bool {
			p, ok := protocol.PairOf(e.Values)
			if !ok {
				return true // a worker keeps it as a dead letter
			}
			if page = append(page, place{p, e.ID}); len(page) == chunk {
				ferr = flush()
			}
			return ferr == nil
		})
		if err == nil && ferr == nil {
			ferr = flush()
		}
		if err := errors.Join(err, ferr); err != nil {
			return err
		}
	}
	return nil
}

// stale returns those of the entries that no task waits for.
func (r *Reconciler) stale(ctx context.Context, es []place) (out []place, err error) {
	ids := make([]protocol.ID, len(es))
	for i, e := range es {
		ids[i] = e.ID
	}
	rows, err := r.o.Store.CurrentDeliveries(ctx, pgid.Slice(ids))
	if err != nil {
		return nil, fmt.Errorf("read the deliveries of %d tasks: %w", len(ids), err)
	}
	current := make(map[protocol.ID]int64, len(rows))
	for _, t := range rows {
		current[protocol.ID(t.ID)] = t.Delivery
	}
	for _, e := range es {
		if !e.ID.IsZero() && current[e.ID] != e.Delivery {
			out = append(out, e)
		}
	}
	return out, nil
}

// undelivered returns those of the entries that no worker has fetched until now.
func (r *Reconciler) undelivered(ctx context.Context, stream string, es []place) ([]place, error) {
	info, err := r.o.Redis.Info(ctx, stream, protocol.GroupWorkers)
	if errors.Is(err, streams.ErrNoGroup) {
		return nil, nil // gone with its stream
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(es, func(e place) bool { return !streams.Less(info.LastDelivered, e.entry) }), nil
}
