package worker

import (
	"context"
	"time"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

const (
	// cancelInterval is how often tombstones of what runs are looked for.
	cancelInterval = 500 * time.Millisecond
	// cancelMinAge: while nothing has run for longer than this, nobody looks.
	cancelMinAge = 200 * time.Millisecond
)

// tombstoned tells, for each entry that was fetched, whether its task was
// cancelled: it must not be started. some is false if there were no tombstones
// after the entries had been delivered.
func (w *Worker) tombstoned(ctx context.Context, es []streams.Entry, some bool) ([]bool, error) {
	dead := make([]bool, len(es))
	if !some || len(es) == 0 {
		return dead, nil
	}
	var pairs []protocol.Pair
	var at []int
	for i, e := range es {
		if p, ok := protocol.PairOf(e.Values); ok {
			pairs, at = append(pairs, p), append(at, i)
		}
	}
	found, err := w.redis.Tombstoned(context.WithoutCancel(ctx), pairs)
	if err != nil {
		return nil, err
	}
	for i, yes := range found {
		dead[at[i]] = yes
	}
	return dead, nil
}

// skip ends an entry whose task was cancelled before it started; a slot and a
// place among the unsettled are held.
func (w *Worker) skip(stream string, e streams.Entry) {
	x := &execution{key: stream + " " + e.ID, stream: stream, entryID: e.ID, worker: w.id, cancel: func(error) {}}
	p, _ := protocol.PairOf(e.Values)
	w.add(x)
	w.release(1)
	w.o.Log.Debug("entry skipped: its task was cancelled", "id", p.ID, "delivery", p.Delivery, "message_id", e.ID)
	w.submit(x, &protocol.Outcome{
		ID: p.ID, Delivery: p.Delivery, Kind: protocol.OutcomeSkipped, WorkerID: w.id, MessageID: e.ID, Delay: -1,
		Error: "the task was cancelled before it started",
	})
}

// watchTombstones calls off executions whose task was cancelled until ctx ends.
// While Redis does not answer, everything runs on.
func (w *Worker) watchTombstones(ctx context.Context) {
	tick := time.NewTicker(cancelInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if err := w.lookForTombstones(ctx, now); err != nil {
				w.o.Log.Debug("cancelled tasks not looked for; trying again", "error", err)
			}
		}
	}
}

func (w *Worker) lookForTombstones(ctx context.Context, now time.Time) error {
	xs := w.cancellable(now)
	if len(xs) == 0 {
		return nil
	}
	if some, err := w.redis.HasTombstones(ctx); err != nil || !some {
		return err
	}
	pairs := make([]protocol.Pair, len(xs))
	for i, x := range xs {
		pairs[i] = protocol.Pair{ID: x.task.ID, Delivery: x.task.Delivery}
	}
	found, err := w.redis.Tombstoned(ctx, pairs)
	if err != nil {
		return err
	}
	for i, yes := range found {
		if yes {
			w.callOff(xs[i], task.ErrCancelled)
		}
	}
	return nil
}

// cancellable lists what runs, or waits here to run, if any of it has done so
// for long enough.
func (w *Worker) cancellable(now time.Time) (xs []*execution) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := false
	for _, x := range w.running {
		if x.task == nil {
			continue
		}
		x.mu.Lock()
		if !x.concluded && !x.lost && !x.calledOff {
			xs = append(xs, x)
			old = old || now.Sub(x.started) > cancelMinAge // a suspect that waits has not started
		}
		x.mu.Unlock()
	}
	if !old {
		return nil
	}
	return xs
}

// isCancelled reports whether the execution was called off because its task was
// cancelled.
func (x *execution) isCancelled() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.cancelledAt.IsZero()
}
