package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

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
	started time.Time
	cancel  context.CancelCauseFunc

	mu        sync.Mutex
	concluded bool // an outcome was decided
	claimed   bool // the claim was reported on its own
	lost      bool // another consumer owns the entry: never acknowledge it
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
		StartedAt: x.started, FinishedAt: time.Now(), Delay: -1,
	}
}

// start begins one entry; its slot is held already.
func (w *Worker) start(ctx context.Context, queue, stream string, e streams.Entry) {
	w.unsettled <- struct{}{}
	x := &execution{key: stream + " " + e.ID, stream: stream, entryID: e.ID, worker: w.id, cancel: func(error) {}}
	w.mu.Lock()
	w.running[x.key] = x
	w.mu.Unlock()
	if e.Values == nil { // deleted while pending: only to be acknowledged
		w.release(1)
		w.settleLater(x, &report{x: x})
		return
	}
	t, err := protocol.DecodeTask(e.Values)
	if err != nil {
		w.o.Log.Warn("entry is no task; kept as a dead letter", "stream", stream, "message_id", e.ID, "error", err)
		w.release(1)
		w.settleLater(x, &report{x: x, letter: protocol.Garbage(stream, e.ID, e.Values, err, time.Now())})
		return
	}
	x.task = t
	h := w.handlers[t.Type]
	if h == nil || ctx.Err() != nil {
		o := x.conclude()
		o.Kind = protocol.OutcomeReleased
		if o.Error = "the worker was stopping when it fetched the task"; h == nil {
			o.Code, o.Error = protocol.CodeUnknownType, "this worker has no handler for type "+t.Type
			w.o.Log.Warn("task handed back: no handler for its type", "type", t.Type, "task_id", t.TaskID)
		}
		w.release(1)
		w.submit(x, o)
		return
	}
	w.done.Add(1)
	run, cancel := context.WithCancelCause(context.Background())
	x.started, x.cancel = time.Now(), cancel
	go w.execute(run, x, h, queue)
}

// execute runs the handler and reports its outcome.
func (w *Worker) execute(ctx context.Context, x *execution, h task.Handler, queue string) {
	defer w.done.Done()
	defer w.release(1)
	defer x.cancel(context.Canceled)
	ctx, stop := context.WithTimeoutCause(ctx, x.task.Timeout, task.ErrTimeout)
	defer stop()
	t := x.task
	result, err := call(ctx, h, &task.Raw{
		Info: task.Info{
			TaskID: t.TaskID, ID: t.ID.String(), Type: t.Type, Tenant: t.Tenant, Queue: queue,
			Attempt: t.Attempt, RetryCount: t.Attempt - 1, MaxRetries: t.MaxRetries, Delivery: t.Delivery,
			IdempotencyKey: t.IdempotencyKey, TraceID: t.TraceID, Timeout: t.Timeout, EnqueuedAt: t.EnqueuedAt,
			MessageID: x.entryID,
		},
		Payload: t.Payload,
	})
	o := x.conclude()
	if o == nil {
		w.o.Log.Warn("handler returned after its task was given up here; its outcome is dropped", "type", t.Type, "task_id", t.TaskID)
		return
	}
	classify(o, result, err, context.Cause(ctx))
	if err != nil {
		w.o.Log.Debug("handler returned an error", "type", t.Type, "task_id", t.TaskID, "attempt", t.Attempt, "outcome", o.Kind, "code", o.Code)
	}
	w.submit(x, o)
}

// call runs the handler; a panic becomes an error with its stack.
func call(ctx context.Context, h task.Handler, r *task.Raw) (result json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return h(ctx, r)
}

// classify fills in the outcome. A handler that succeeded in spite of a
// cancelled context has succeeded.
func classify(o *protocol.Outcome, result json.RawMessage, err, cause error) {
	if err == nil {
		o.Kind, o.Result = protocol.OutcomeSucceeded, result
		if len(result) == 0 {
			o.Result = []byte("null")
		}
		return
	}
	o.Error = protocol.Text(err.Error())
	if d, ok := task.SnoozeDelay(err); ok {
		o.Kind, o.Delay = protocol.OutcomeSnoozed, d
		return
	}
	o.Kind, o.Code, o.Retryable = protocol.OutcomeFailed, protocol.CodeExecutionFailed, true
	switch {
	case task.IsInvalidInput(err):
		o.Code, o.Retryable = protocol.CodeInputInvalid, false
	case task.IsPermanent(err):
		o.Retryable = false
	case errors.Is(cause, task.ErrShutdown):
		o.Kind, o.Code, o.Retryable = protocol.OutcomeReleased, "", false
		o.Error = "the worker stopped: " + o.Error
	case errors.Is(cause, task.ErrTimeout):
		o.Code = protocol.CodeTimeout
		o.Error = protocol.Text(fmt.Sprintf("start-to-close timeout: %s", o.Error))
	}
	if d, ok := task.RetryDelay(err); ok && o.Kind == protocol.OutcomeFailed {
		o.Delay = d
	}
}
