package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/internal/execute"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// execution is one entry in this worker's hands, from its fetch until its
// outcome is in stream:result and the entry is acknowledged.
type execution struct {
	key     string
	stream  string
	entryID string
	task    *protocol.TaskEntry // nil if the entry is no task
	worker  string
	started time.Time // zero while a suspect waits; written under both mutexes
	cancel  context.CancelCauseFunc

	mu        sync.Mutex
	concluded bool            // an outcome was decided
	stuck     bool            // that of a handler that ignores its timeout
	claimed   bool            // the claim is being reported on its own, or has been
	claimAt   time.Time       // when to report the claim on its own
	seen      streams.Content // what Redis held before the entry was fetched
	lost      bool            // another consumer owns the entry: never acknowledge it
	offer     bool            // offered to other workers; keepOffers looks after its lease
	abandoned bool            // left to be reclaimed: never renew its lease
	calledOff bool            // it does not count any more
	// cancelledAt is when it was called off because its task was cancelled.
	cancelledAt time.Time
	progress    progress
	share       func() // of a suspect: let others start beside it
}

// conclude returns an empty outcome for the execution the first time it is
// called, and nil after that: each execution has one outcome.
func (x *execution) conclude() *protocol.Outcome {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.concluded {
		return nil
	}
	x.concluded = true
	return x.outcome()
}

func (x *execution) outcome() *protocol.Outcome {
	return &protocol.Outcome{
		ID: x.task.ID, Delivery: x.task.Delivery, WorkerID: x.worker, MessageID: x.entryID,
		StartedAt: x.started, FinishedAt: ended(x.started), Delay: -1,
	}
}

// ended is now, for an execution that began at started, if it did: as much later as
// its monotonic clock says, even if the wall clock was set meanwhile.
func ended(started time.Time) time.Time {
	if started.IsZero() {
		return time.Now()
	}
	return started.Add(time.Since(started))
}

// start begins one entry; a slot and a place among the unsettled are held
// already.
func (w *Worker) start(ctx context.Context, queue, stream string, e streams.Entry, seen streams.Content) {
	x := &execution{key: stream + " " + e.ID, stream: stream, entryID: e.ID, seen: seen, worker: w.id, cancel: func(error) {}}
	if e.Values == nil { // deleted while pending: only to be acknowledged
		w.add(x)
		w.release(1)
		w.settleLater(x, &report{x: x})
		return
	}
	t, err := protocol.DecodeTask(e.Values)
	if err != nil {
		w.o.Log.Warn("entry is no task; kept as a dead letter", "stream", stream, "message_id", e.ID, "error", err)
		w.add(x)
		w.release(1)
		if o := w.unreadable(e, err); o != nil {
			w.settleLater(x, &report{x: x, claim: true, outcome: o})
		}
		w.settleLater(x, &report{x: x, letter: protocol.Garbage(stream, e.ID, e.Values, err, time.Now())})
		return
	}
	x.task = t
	h := w.handlers[t.Type]
	if h == nil || ctx.Err() != nil {
		x.offer = h == nil && ctx.Err() == nil
		w.add(x)
		o := x.conclude()
		o.Kind, o.Error = protocol.OutcomeReleased, "the worker was stopping when it fetched the task"
		if h == nil {
			o.Code, o.Error = protocol.CodeUnknownType, "no worker that lives has a handler for type "+t.Type
		}
		w.release(1)
		if x.offer {
			w.offer(x, queue, o)
		} else {
			w.submit(x, o)
		}
		return
	}
	if t.Solo {
		w.startSolo(ctx, x, h, queue)
		return
	}
	w.done.Add(1)
	run, cancel := context.WithCancelCause(context.Background())
	x.started, x.cancel = time.Now(), cancel
	x.claimAt = x.started.Add(claimReportAfter)
	w.add(x)
	go w.execute(run, x, h, queue)
}

// add makes the execution visible to what looks after leases. Its fields are
// set; those above the mutex never change again, but for a suspect's start.
func (w *Worker) add(x *execution) {
	w.mu.Lock()
	w.running[x.key] = x
	w.mu.Unlock()
}

// unreadable is the outcome of an entry that can't be read but says which task
// it is about. It may be that task's own entry: without an outcome the task
// would be dispatched again, to the same end, for ever. An entry of another
// version is handed back, so that a rolling upgrade ends no task.
func (w *Worker) unreadable(e streams.Entry, cause error) *protocol.Outcome {
	p, ok := protocol.PairOf(e.Values)
	if !ok {
		return nil
	}
	o := &protocol.Outcome{
		ID: p.ID, Delivery: p.Delivery, Kind: protocol.OutcomeFailed, WorkerID: w.id, MessageID: e.ID, Delay: -1,
		Code: protocol.CodeInputInvalid, Error: protocol.Text("the task's entry can't be read: " + cause.Error()),
	}
	if fault, ok := errors.AsType[*protocol.Error](cause); ok && fault.Field == protocol.FieldVersion {
		o.Kind, o.Code = protocol.OutcomeReleased, protocol.CodeUnknownType
	}
	return o
}

// execute runs the handler and reports its outcome.
func (w *Worker) execute(ctx context.Context, x *execution, h task.Handler, queue string) {
	defer w.done.Done()
	defer w.release(1)
	defer x.cancel(context.Canceled)
	defer w.freed(x)
	t := x.task
	returned := false
	defer func() {
		if returned {
			return
		}
		if o := x.conclude(); o != nil { // runtime.Goexit
			o.Kind, o.Code, o.Retryable = protocol.OutcomeFailed, protocol.CodeExecutionFailed, true
			o.Error = "the handler ended its goroutine instead of returning"
			w.submit(x, o)
		}
	}()
	var o *protocol.Outcome
	ctx = execute.WithDependencies(execute.WithApprovals(w.withLedger(ctx, x), t.Approvals), t.Dependencies, w.allDependencies(x))
	err := execute.Run(ctx, h, &task.Raw{Info: execute.InfoOf(t, queue, x.entryID), Payload: t.Payload}, x.report, func() *protocol.Outcome {
		o = x.conclude()
		return o
	})
	returned = true
	if o == nil {
		w.o.Log.Warn("handler returned after its task was given up here; its outcome is dropped", "type", t.Type, "task_id", t.TaskID,
			"ran", time.Since(x.started).Round(time.Millisecond).String())
		return
	}
	if errors.Is(err, execute.ErrAbandoned) {
		w.abandon(x)
		return
	}
	if _, ok := errors.AsType[*execute.PanicError](err); ok { // its words may hold a payload: they are in the outcome only
		w.o.Log.Error("handler panicked", "type", t.Type, "task_id", t.TaskID, "attempt", t.Attempt)
	} else if o.Kind == protocol.OutcomeFailed {
		w.o.Log.Warn("task failed", "type", t.Type, "task_id", t.TaskID, "attempt", t.Attempt, "code", o.Code, "error", protocol.Clip(o.Error, maxLogged), "next", next(t, o))
	} else {
		w.o.Log.Debug("task done", "type", t.Type, "task_id", t.TaskID, "attempt", t.Attempt, "outcome", o.Kind, "code", o.Code)
	}
	w.submit(x, o)
}

// maxLogged is how much of an error's text a log record has, in bytes.
const maxLogged = 500

// next tells what will become of a task that failed, as far as a worker knows.
func next(t *protocol.TaskEntry, o *protocol.Outcome) string {
	switch {
	case !o.Retryable:
		return "dead letter: not retryable"
	case t.Attempt > t.MaxRetries:
		return fmt.Sprintf("dead letter: all %d attempts are used up", 1+t.MaxRetries)
	}
	return fmt.Sprintf("retry as attempt %d of %d", t.Attempt+1, 1+t.MaxRetries)
}
