package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Loss is a kind of loss, as the metric and the alert name it.
type Loss string

// The kinds.
const (
	// EpochMissing: Redis is empty, or was until another orchestrator noticed:
	// FLUSHALL, or a restart without its data.
	EpochMissing Loss = "epoch_missing"
	// EpochUnknown: Redis holds an epoch that Postgres does not know, and that
	// does not follow the one it knows: an old one.
	EpochUnknown Loss = "epoch_unknown"
	// GroupMissing: a stream or its group is gone, and the rest is there.
	GroupMissing Loss = "group_missing"
	// GenerationBehind: Redis went back: a failover or a restart lost what it
	// had confirmed.
	GenerationBehind Loss = "generation_behind"
	// PostgresRestored: Postgres went back: Redis holds what it has forgotten.
	PostgresRestored Loss = "postgres_restored"
)

// Losses lists every kind.
func Losses() []Loss {
	return []Loss{EpochMissing, EpochUnknown, GroupMissing, GenerationBehind, PostgresRestored}
}

// view is what a look at both stores saw. Postgres was read first.
type view struct {
	row     *dbsqlc.GetEpochRow
	redis   streams.Epoch
	cluster string // of Postgres; empty: not readable
}

func (r *Reconciler) look(ctx context.Context) (v view, err error) {
	if v.row, err = r.o.Store.GetEpoch(ctx); err != nil {
		return v, fmt.Errorf("read the epoch in Postgres: %w", err)
	}
	if v.redis, err = r.o.Redis.Epoch(ctx); err != nil {
		return v, err
	}
	if err = v.redis.Owned(r.deployment()); err != nil {
		return v, err
	}
	v.cluster, _ = r.o.Store.ServerIdentity(ctx) // not every installation tells
	return v, nil
}

func (r *Reconciler) deployment() string { return r.o.Store.Deployment().ID.String() }

func (v view) epoch() string {
	if v.row.ID == nil {
		return ""
	}
	return protocol.ID(*v.row.ID).String()
}

// find tells what was lost since the last look, if anything. A generation is
// committed before Redis is told it, so Redis knows a greater one than Postgres
// only if Postgres went back. It is confirmed after Redis was told, and what
// Redis knows only grows, so Redis knows a smaller one than was confirmed before
// only if Redis went back.
func (v view) find() (kind Loss, why string) {
	switch {
	case v.redis.Generation > v.row.Generation:
		return PostgresRestored, fmt.Sprintf("Postgres went back: Redis knows generation %d, Postgres only %d", v.redis.Generation, v.row.Generation)
	case v.row.Cluster != "" && v.cluster != "" && v.row.Cluster != v.cluster:
		return PostgresRestored, fmt.Sprintf("Postgres may have gone back: it is on cluster/timeline %s, and was on %s", v.cluster, v.row.Cluster)
	case v.row.ID == nil: // nothing is known to have been there
		return "", ""
	case v.redis.ID == "":
		return EpochMissing, "Redis is empty: its epoch is missing"
	case v.redis.ID != v.epoch() && v.redis.After == v.epoch():
		// The same loss, seen by the second who looks.
		return EpochMissing, fmt.Sprintf("Redis was empty: an orchestrator missed its epoch and began epoch %s", v.redis.ID)
	case v.redis.ID != v.epoch():
		return EpochUnknown, fmt.Sprintf("Redis holds epoch %s, which Postgres does not know", v.redis.ID)
	case v.redis.Generation < v.row.Confirmed:
		return GenerationBehind, fmt.Sprintf("Redis went back: it knows generation %d, and had confirmed %d", v.redis.Generation, v.row.Confirmed)
	}
	return "", ""
}

// restarted tells that Redis is another process, or another server, than when
// it was last known to be complete.
func (v view) restarted() bool {
	return v.row.Server != "" && v.redis.Server != "" && v.row.Server != v.redis.Server
}

// agreement is a view that was noted in Postgres, so that every orchestrator
// that looks later knows of it.
type agreement struct {
	view
	generation int64
	// told: Redis was told the generation.
	told bool
}

// healthy reports whether Redis is known to be complete, as far as it is known
// at all.
func (a agreement) healthy() bool {
	return a.row.Lost == nil && a.epoch() == a.redis.ID && !a.restarted()
}

// lost is the kind of loss that is to be made good for; empty: none.
func (a agreement) lost() Loss {
	if a.row.Lost == nil {
		return ""
	}
	return Loss(*a.row.Lost)
}

// waits reports whether leases may be gone that workers will tell of.
func (a agreement) waits() bool { return a.lost().leases() }

// leases reports whether leases of every stream may be gone; else they are
// there, or only those of one stream are not.
func (l Loss) leases() bool {
	return l == EpochMissing || l == EpochUnknown || l == GenerationBehind
}

// errAgain: another orchestrator noted something meanwhile.
var errAgain = errors.New("another orchestrator noted a look at Redis at the same time")

// agree looks at both stores, gives Redis an epoch if it has none, and notes
// what was lost. Of several orchestrators that find the same loss, one notes and
// reports it.
func (r *Reconciler) agree(ctx context.Context) (a agreement, err error) {
	for range 20 {
		if a, err = r.tryAgree(ctx); !errors.Is(err, errAgain) {
			break
		}
	}
	if err == nil {
		r.agreed(a)
	}
	return a, err
}

func (r *Reconciler) tryAgree(ctx context.Context) (a agreement, err error) {
	groups := r.takeGroups() // before the look: it must not have been gone by a loss that the look does not see
	defer func() {
		if err != nil {
			r.putBack(groups)
		}
	}()
	if a.view, err = r.look(ctx); err != nil {
		return a, err
	}
	kind, why := a.find()
	if last := r.lastSeen(); kind == "" && a.row.ID != nil && a.redis.ID == last.ID && a.redis.Generation < last.Generation {
		kind, why = GenerationBehind, fmt.Sprintf("Redis went back: it knows generation %d, and this orchestrator has seen %d", a.redis.Generation, last.Generation)
	}
	if gone := within(groups, a.redis.ID); kind == "" && len(gone) > 0 && a.row.ID != nil {
		kind, why = GroupMissing, fmt.Sprintf("the group of %s was missing", strings.Join(gone, " and of "))
	}
	if a.redis.ID == "" {
		if a.redis.ID, err = r.o.Redis.BeginEpoch(ctx, r.deployment(), uuid.NewString(), a.epoch()); err != nil {
			return a, err
		}
	}
	if _, err = protocol.ParseID(a.redis.ID); err != nil {
		return a, fmt.Errorf("the epoch that Redis holds was not written by an orchestrator: %w; delete the key %s", err, r.o.Redis.Key("penstock:epoch"))
	}
	expected, raised := a.row.Generation, int64(0)
	err = r.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		a.generation, err = q.NextGeneration(ctx, a.redis.Generation, expected)
		if errors.Is(err, pgx.ErrNoRows) {
			return errAgain
		}
		if err == nil && kind != "" {
			raised, err = note(ctx, q, kind, why, a.view)
		}
		if err == nil {
			a.row, err = q.GetEpoch(ctx)
		}
		return err
	})
	if err != nil {
		return a, fmt.Errorf("note the epoch: %w", err)
	}
	groups = nil
	if raised > 0 {
		r.report(kind, why)
	}
	return a, r.tell(ctx, &a)
}

// within returns the streams whose groups were gone in this epoch. Those that
// went with an older one are part of its loss.
func within(groups map[string]string, epoch string) (streams []string) {
	for stream, was := range groups {
		if was == epoch {
			streams = append(streams, stream)
		}
	}
	slices.Sort(streams)
	return streams
}

// note writes down a loss, and raises the alert unless it is firing.
func note(ctx context.Context, q *dbsqlc.Queries, kind Loss, why string, v view) (raised int64, err error) {
	err = q.SetLost(ctx, dbsqlc.SetLostParams{
		Kind: string(kind), Restored: kind == PostgresRestored, Renews: kind.leases(), Epoch: v.redis.ID, Jump: protocol.RestoredJump, Cluster: v.cluster,
	})
	if err != nil {
		return 0, err
	}
	const alert = protocol.AlertRedisLost
	data := protocol.AlertData{Kind: alert, Severity: alert.Severity(), Redis: &protocol.RedisLossData{Found: string(kind)}}
	return q.RaiseAlert(ctx, dbsqlc.RaiseAlertParams{
		Kind: string(alert), ID: pgid.ID(protocol.AlertID(alert, "")), Reason: why, Actor: protocol.ActorReconciler, Data: data.JSON(),
	})
}

// tell writes the generation to Redis. If Redis can't take it now, the
// generation is never confirmed, and nothing is complete until one was.
func (r *Reconciler) tell(ctx context.Context, a *agreement) error {
	told, err := r.o.Redis.RaiseGeneration(ctx, a.redis.ID, a.redis.Generation, a.generation)
	if err != nil {
		r.o.Log.Warn("generation not written to Redis", "generation", a.generation, "error", err)
		return nil
	}
	if !told {
		return errors.New("at this moment Redis began another epoch, or went back")
	}
	a.told, a.redis.Generation = true, max(a.redis.Generation, a.generation)
	id, err := protocol.ParseID(a.redis.ID)
	if err != nil {
		return err
	}
	if err := r.o.Store.ConfirmGeneration(ctx, a.generation, (*pgid.ID)(&id)); err != nil {
		return fmt.Errorf("confirm generation %d: %w", a.generation, err)
	}
	return nil
}

// report tells of a loss that this process noted.
func (r *Reconciler) report(kind Loss, why string) {
	r.losses.WithLabelValues(string(kind)).Inc()
	if r.o.Raised != nil {
		r.o.Raised(protocol.AlertRedisLost)
	}
	r.o.Log.Error("Redis does not hold what it must; rebuilding it from Postgres", "found", kind, "reason", why)
}

// LostGroup tells that the groups of streams were gone and have been made anew.
func (r *Reconciler) LostGroup(streams ...string) {
	r.mu.Lock()
	for _, stream := range streams {
		r.groups[stream] = r.last.ID
	}
	r.mu.Unlock()
	r.Kick()
}

// GroupMade tells that the group of a queue's stream was not there and has been
// made. That is a loss only if tasks were in that stream, as a pass will see.
func (r *Reconciler) GroupMade(queue string) {
	r.mu.Lock()
	r.made[queue] = r.last.ID
	r.mu.Unlock()
	r.Kick()
}

// FoundGone tells that before the first look the groups of streams were not
// there, in an epoch, and have been made.
func (r *Reconciler) FoundGone(epoch string, streams ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, stream := range streams {
		if stream == protocol.StreamTask {
			r.made[protocol.DefaultQueue] = epoch
		} else {
			r.groups[stream] = epoch
		}
	}
}

// lostGroups notes a loss, before anything is repaired, if tasks are missing
// from streams whose group was made: it was lost, with what was in it. It
// returns an error if Redis lost more than that, so that a full pass is made as
// part of a rebuild. Within a rebuild it is not called: what was made until then
// is part of what is made good for.
func (r *Reconciler) lostGroups(ctx context.Context, missing []candidate, full bool) error {
	r.mu.Lock()
	var lost []string
	for _, c := range missing {
		if epoch, ok := r.made[c.queue]; ok {
			lost = append(lost, protocol.TaskStream(c.queue))
			r.groups[protocol.TaskStream(c.queue)] = epoch
			delete(r.made, c.queue)
		}
	}
	r.mu.Unlock()
	if len(lost) == 0 {
		return nil
	}
	r.Kick()
	a, err := r.agree(ctx)
	if err != nil || full && a.waits() {
		return errors.Join(err, errChanged)
	}
	return nil
}

// takeGroups returns the streams whose groups were gone, each with the epoch in
// which that was, and forgets them.
func (r *Reconciler) takeGroups() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	groups := r.groups
	r.groups = map[string]string{}
	return groups
}

// madeUntil returns the queues whose group has been made until now.
func (r *Reconciler) madeUntil() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.made)
}

// notMissed forgets groups that were made before tasks were read, after a pass
// that missed nothing of those: their queues were new.
func (r *Reconciler) notMissed(made map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for queue := range made {
		delete(r.made, queue)
	}
}

func (r *Reconciler) putBack(groups map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.groups, groups)
}
