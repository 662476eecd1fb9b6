package worker

import (
	"context"
	"time"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

const (
	// claimReportAfter: the claim of an execution that runs longer than this
	// is reported on its own; a shorter one's travels inside its outcome.
	claimReportAfter = 200 * time.Millisecond
	// timeoutGrace is how long a handler may take to notice that its time is
	// over before the task is reported as timed out without it.
	timeoutGrace = 5 * time.Second
	lookInterval = 50 * time.Millisecond
)

// keepLeases renews the leases of running entries, reports the claims of long
// executions, and gives up executions whose handler ignores its timeout.
func (w *Worker) keepLeases(ctx context.Context) {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	next := time.Now().Add(w.o.VisibilityTimeout / 3)
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			w.look(now)
			if now.Before(next) {
				continue
			}
			next = now.Add(w.o.VisibilityTimeout / 3)
			if err := w.renew(ctx); err != nil {
				w.o.Log.Warn("leases not renewed; trying again", "error", err)
				next = now.Add(w.o.VisibilityTimeout / 12)
			}
		}
	}
}

// look reports claims and timeouts that are due.
func (w *Worker) look(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.running {
		if x.task == nil || x.started.IsZero() {
			continue
		}
		if age := now.Sub(x.started); age > x.task.Timeout+timeoutGrace {
			if o := x.conclude(); o != nil {
				o.Kind, o.Code, o.Retryable = protocol.OutcomeFailed, protocol.CodeTimeout, true
				o.Error = "start-to-close timeout; the handler did not return"
				w.o.Log.Error("handler ignores its timeout; its slot stays occupied", "type", x.task.Type, "task_id", x.task.TaskID)
				w.submit(x, o)
			}
		} else {
			w.reportClaim(x, now)
		}
	}
}

// claimRetry is how long after a claim that could not be written it is
// reported again.
const claimRetry = time.Second

// reportClaim reports the claim of an execution that runs long enough.
func (w *Worker) reportClaim(x *execution, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.claimed || x.concluded || now.Before(x.claimAt) {
		return
	}
	x.claimed = true
	o := x.outcome()
	o.Kind, o.FinishedAt = protocol.OutcomeClaimed, time.Time{}
	w.settleLater(x, &report{x: x, outcome: o, claim: true})
}

// claimAgain makes the claim be reported (again) at the given time.
func (x *execution) claimAgain(at time.Time) {
	x.mu.Lock()
	x.claimed, x.claimAt = false, at
	x.mu.Unlock()
}

// renew keeps the entries that this worker holds from being reclaimed. An
// entry that another consumer owns is lost: its handler is cancelled. An entry
// that nobody owns was lost by Redis: the handler runs on, its claim is
// reported at once, and the fence decides about its outcome.
func (w *Worker) renew(ctx context.Context) error {
	byStream := map[string][]*execution{}
	w.mu.Lock()
	for _, x := range w.running {
		byStream[x.stream] = append(byStream[x.stream], x)
	}
	w.mu.Unlock()
	for stream, xs := range byStream {
		ids := make([]string, len(xs))
		for i, x := range xs {
			ids[i] = x.entryID
		}
		owned, err := w.redis.Owned(ctx, stream, protocol.GroupWorkers, w.id, ids)
		if err != nil {
			return err
		}
		var held []string
		if err := w.acknowledged(ctx, stream, xs, ids, owned); err != nil {
			return err
		}
		for i, x := range xs {
			switch owned[i] {
			case streams.Held:
				held = append(held, ids[i])
			case streams.Taken:
				w.lose(x)
			case streams.Gone:
				if x.running() { // an earlier claim may be lost too
					x.claimAgain(time.Time{})
					w.reportClaim(x, time.Now())
				}
			}
		}
		if err := w.redis.Renew(ctx, stream, protocol.GroupWorkers, w.id, held); err != nil && !streams.LostGroup(err) {
			return err
		}
	}
	return nil
}

// acknowledged turns Gone into Taken where the entry is still in its stream,
// and so was acknowledged by somebody else: a reclaimer that took it over.
// Executions that have ended are left alone: this worker acknowledged theirs.
func (w *Worker) acknowledged(ctx context.Context, stream string, xs []*execution, ids []string, owned []streams.Ownership) error {
	var gone []string
	var at []int
	for i, o := range owned {
		if o == streams.Gone && xs[i].running() {
			gone, at = append(gone, ids[i]), append(at, i)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	acked, err := w.redis.Acked(ctx, stream, protocol.GroupWorkers, gone)
	if err != nil {
		return err
	}
	for i, yes := range acked {
		if yes && xs[at[i]].running() {
			owned[at[i]] = streams.Taken
		}
	}
	return nil
}

// running reports whether the handler was started, has no outcome yet, and the
// lease is not known to be another's.
func (x *execution) running() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.started.IsZero() && !x.lost && !x.concluded
}

func (w *Worker) lose(x *execution) {
	x.mu.Lock()
	first := !x.lost
	x.lost = true
	x.mu.Unlock()
	if first && x.task != nil {
		w.o.Log.Warn("lease lost: the entry was taken over", "type", x.task.Type, "task_id", x.task.TaskID, "message_id", x.entryID)
		x.cancel(task.ErrLeaseLost)
	}
}
