package worker

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

const (
	// claimReportAfter: the claim of an execution that runs longer than this
	// is reported on its own; a shorter one's travels inside its outcome.
	claimReportAfter = 200 * time.Millisecond
	// timeoutGrace is how long a handler may take to return after its time is
	// over, before the task is reported as timed out without it: an exec handler
	// needs up to 4 s to end its program. Orchestrators wait longer before they
	// do the same (recovery.timeout_grace).
	timeoutGrace = 5 * time.Second
	lookInterval = 50 * time.Millisecond
	// minLeaseTimeout is the least that a renewal waits for Redis, which may be
	// slow. Usually that is a sixth of the visibility timeout: two connections that
	// go silent, one after the other, cost no lease.
	minLeaseTimeout = 500 * time.Millisecond
)

// keepLeases renews the leases of running entries, reports the claims of long
// executions, and gives up executions whose handler ignores its timeout.
func (w *Worker) keepLeases(ctx context.Context) {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	next := time.Now().Add(w.o.VisibilityTimeout / 3)
	beat := w.pulse.Watch("leases", leasesQuiet, leasesQuiet)
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			w.look(now)
			beat.Alive()
			if now.Before(next) {
				continue
			}
			next = now.Add(w.o.VisibilityTimeout / 3)
			if err := w.renew(ctx); err == nil {
				beat.Mark()
				w.counts.renewals.WithLabelValues("renewed").Inc()
			} else {
				beat.Fail("not renewed")
				w.counts.renewals.WithLabelValues("failed").Inc()
				w.o.Log.Warn("leases not renewed; trying again", "error", err)
				next = now.Add(min(w.o.VisibilityTimeout/12, maxPause))
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
		if why := x.ignores(now, w.timeoutGrace); why != "" {
			w.giveUp(x, why)
		} else {
			w.reportClaim(x, now)
		}
	}
}

// giveUp reports the task of a handler that ignores its timeout, and says which.
// The handler can't be ended: it keeps its slot until it returns, so that never
// more than Concurrency run.
func (w *Worker) giveUp(x *execution, why string) {
	x.mu.Lock()
	if x.concluded {
		x.mu.Unlock()
		return
	}
	x.concluded, x.stuck = true, true
	w.stuck.Add(1)
	o, share := x.outcome(), x.share
	x.mu.Unlock()
	if share != nil { // a suspect that never ends must not stop this worker
		share()
	}
	if o.Error = why; x.isCancelled() {
		o.Kind = protocol.OutcomeSkipped
	} else {
		o.Kind, o.Code, o.Retryable = protocol.OutcomeFailed, protocol.CodeTimeout, true
	}
	w.o.Log.Error("handler ignores the end of its context; its task is given up, its slot stays occupied", "type", x.task.Type, "task_id", x.task.TaskID,
		"why", why, "stuck_handlers", w.Stuck())
	w.submit(x, o)
}

// freed notes that the execution's handler has ended.
func (w *Worker) freed(x *execution) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stuck {
		w.stuck.Add(-1)
	}
}

// claimRetry is how long after a claim that could not be written it is
// reported again.
const claimRetry = time.Second

// reportClaim reports the claim of an execution that runs long enough.
func (w *Worker) reportClaim(x *execution, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.claimed || x.concluded || !x.cancelledAt.IsZero() || now.Before(x.claimAt) {
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
	content, err := w.noteContent(ctx) // before the look at who holds what
	if _, silent := errors.AsType[net.Error](err); silent {
		return err // what follows would wait in vain, too
	}
	byStream := map[string][]*execution{}
	w.mu.Lock()
	for _, x := range w.running {
		if !x.isOffered() {
			byStream[x.stream] = append(byStream[x.stream], x)
		}
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
			switch {
			case x.leftBehind():
				if owned[i] != streams.Held {
					w.forget(x)
				}
			case owned[i] == streams.Held:
				held = append(held, ids[i])
				x.heldIn(content)
			case owned[i] == streams.Taken:
				w.lose(x)
			default: // streams.Gone
				if x.running() { // an earlier claim may be lost too
					x.claimAgain(time.Time{})
					w.reportClaim(x, time.Now())
				}
			}
		}
		dropped, err := w.redis.Renew(ctx, stream, protocol.GroupWorkers, w.id, held)
		if err != nil && !streams.LostGroup(err) {
			return err
		}
		for _, x := range xs {
			if slices.Contains(dropped, x.entryID) {
				x.deleted()
			}
		}
	}
	return nil
}

// acknowledged turns Gone into Taken where the entry was acknowledged by
// somebody else: a reclaimer that took it over.
// Executions that have ended are left alone: this worker acknowledged theirs.
func (w *Worker) acknowledged(ctx context.Context, stream string, xs []*execution, ids []string, owned []streams.Ownership) error {
	var gone []string
	var at []int
	var seen []streams.Content
	for i, o := range owned {
		if o == streams.Gone && xs[i].running() {
			gone, at, seen = append(gone, ids[i]), append(at, i), append(seen, xs[i].content())
		}
	}
	if len(gone) == 0 {
		return nil
	}
	acked, err := w.redis.Acked(ctx, stream, protocol.GroupWorkers, gone, seen)
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

// noteContent keeps what entries that are fetched from now on are judged by. An
// older one only makes the worker more careful.
func (w *Worker) noteContent(ctx context.Context) (streams.Content, error) {
	c, err := w.redis.Content(ctx)
	if err != nil {
		return streams.Content{}, err
	}
	w.mu.Lock()
	w.content = c
	w.mu.Unlock()
	return c, nil
}

// heldIn notes that the entry was pending after the content was read.
func (x *execution) heldIn(c streams.Content) {
	if c.Known() {
		x.mu.Lock()
		x.seen = c
		x.mu.Unlock()
	}
}

func (w *Worker) seen() streams.Content {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.content
}

func (x *execution) content() streams.Content {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen
}

// deleted notes that a stranger deleted the entry, which ended its lease: that
// it is gone then tells nothing.
func (x *execution) deleted() {
	x.mu.Lock()
	x.seen = streams.Content{}
	x.mu.Unlock()
}

// running reports whether the handler was started, has no outcome yet, and the
// lease is not known to be another's.
func (x *execution) running() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.started.IsZero() && !x.lost && !x.concluded
}

// abandon leaves the entry pending, as the death of the process would: to be
// reclaimed after the visibility timeout. Until it is, it stays among the
// entries in flight, or this worker would run it again when it reads its own
// history.
func (w *Worker) abandon(x *execution) {
	x.mu.Lock()
	x.abandoned = true
	x.mu.Unlock()
	w.o.Log.Warn("task abandoned as if this process had died; it is reclaimed after the visibility timeout",
		"type", x.task.Type, "task_id", x.task.TaskID, "message_id", x.entryID)
}

func (x *execution) leftBehind() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.abandoned
}

func (w *Worker) lose(x *execution) {
	x.mu.Lock()
	first := !x.lost
	x.lost = true
	x.mu.Unlock()
	if first && x.task != nil {
		w.counts.lost.Inc()
		w.o.Log.Warn("lease lost: the entry was taken over", "type", x.task.Type, "task_id", x.task.TaskID, "message_id", x.entryID)
		x.cancel(task.ErrLeaseLost)
	}
}
