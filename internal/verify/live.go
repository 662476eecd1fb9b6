package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/internal/pipeline/reconcile"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// liveTask is a task that must be somewhere in Redis.
type liveTask struct {
	protocol.Pair
	queue, state string
}

// readLive returns those of the tasks that were dispatched, live, and in no
// open batch of the outbox.
func readLive(ctx context.Context, q *dbsqlc.Queries, ids []protocol.ID) ([]liveTask, error) {
	rows, err := q.CandidatesAmong(ctx, pgIDs(ids))
	if err != nil {
		return nil, fmt.Errorf("read live tasks: %w", err)
	}
	out := make([]liveTask, len(rows))
	for i, c := range rows {
		out[i] = liveTask{protocol.Pair{ID: protocol.ID(c.ID), Delivery: c.Delivery}, c.Queue, c.State}
	}
	return out, nil
}

// pauses are waited between looks at what seems to be missing: a task may just
// be on its way from one place to the other by the hand of a repair.
var pauses = []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, time.Second}

// locate looks for the live tasks collected so far, and reports those that are
// nowhere. The order of reading makes it sound, as in a reconcile pass: they
// were read from Postgres first; then undelivered entries, pending ones, and
// outcomes not yet applied; at last the tasks again. A task that moved on
// meanwhile is somewhere.
func (r *run) locate(ctx context.Context) error {
	r.sum.Live += int64(len(r.live))
	missing := r.live
	r.live = map[protocol.Pair]liveTask{}
	for _, pause := range append(slices.Clone(pauses), 0) {
		if err := dropFound(ctx, r.Redis, missing); err != nil || len(missing) == 0 {
			return err
		}
		if err := r.dropMoved(ctx, missing); err != nil || len(missing) == 0 {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	return r.reportMissing(ctx, missing)
}

// dropFound removes from the tasks those that Redis has.
func dropFound(ctx context.Context, redis *streams.Client, tasks map[protocol.Pair]liveTask) error {
	if len(tasks) == 0 {
		return nil
	}
	queues := map[string]bool{}
	for _, t := range tasks {
		queues[t.queue] = true
	}
	see := func(e streams.Entry) {
		if p, ok := protocol.PairOf(e.Values); ok {
			delete(tasks, p)
		}
	}
	for _, q := range slices.Sorted(maps.Keys(queues)) {
		err := reconcile.Scan(ctx, redis, protocol.TaskStream(q), protocol.GroupWorkers, see, nil)
		if err != nil && !errors.Is(err, streams.ErrNoGroup) { // without a group nothing of the stream will be delivered
			return err
		}
	}
	if len(tasks) == 0 {
		return nil
	}
	outcome := func(e streams.Entry) {
		if e.Values[protocol.FieldKind] != string(protocol.OutcomeClaimed) { // a claim ends nothing: its entry must be pending
			see(e)
		}
	}
	err := reconcile.Scan(ctx, redis, protocol.StreamResult, protocol.GroupOrchestrators, outcome, nil)
	if errors.Is(err, streams.ErrNoGroup) { // it will be made at the stream's beginning
		err = redis.Range(ctx, protocol.StreamResult, "", func(e streams.Entry) bool { outcome(e); return true })
	}
	return err
}

// dropMoved removes from the tasks those that need not be in Redis any more
// under the delivery that was looked for.
func (r *run) dropMoved(ctx context.Context, tasks map[protocol.Pair]liveTask) error {
	ids := make([]protocol.ID, 0, len(tasks))
	for p := range tasks {
		ids = append(ids, p.ID)
	}
	var now []liveTask
	err := r.Store.Snapshot(ctx, func(q *dbsqlc.Queries) (err error) {
		now, err = readLive(ctx, q, ids)
		return err
	})
	if err != nil {
		return err
	}
	still := make(map[protocol.Pair]liveTask, len(now))
	for _, t := range now {
		still[t.Pair] = t
	}
	for p := range tasks {
		if t, ok := still[p]; ok {
			tasks[p] = t
		} else {
			delete(tasks, p)
		}
	}
	return nil
}

func (r *run) reportMissing(ctx context.Context, missing map[protocol.Pair]liveTask) error {
	ids := make([]protocol.ID, 0, len(missing))
	for p := range missing {
		ids = append(ids, p.ID)
	}
	slices.SortFunc(ids, compareIDs)
	rows, err := r.Store.VerifyTasks(ctx, pgIDs(ids))
	if err != nil {
		return fmt.Errorf("read tasks: %w", err)
	}
	for _, row := range rows {
		t, ok := missing[protocol.Pair{ID: protocol.ID(row.ID), Delivery: row.Delivery}]
		if !ok {
			continue
		}
		r.report(subjectOf(row).of(Difference{
			Check: CheckRedis, Field: fmt.Sprintf("delivery %d in state %s", t.Delivery, t.state),
			Expected: fmt.Sprintf("an entry of %s that is undelivered or pending, or an outcome that is not applied yet", protocol.TaskStream(t.queue)),
			Found:    none,
		}))
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
