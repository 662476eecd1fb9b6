// Package execute runs one task handler and decides what its end means. The
// worker and package tasktest share it, so that a test sees what production
// would do.
package execute

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// InfoOf describes the execution of an entry to its handler.
func InfoOf(t *protocol.TaskEntry, queue, messageID string) task.Info {
	return task.Info{
		TaskID: t.TaskID, ID: t.ID.String(), Type: t.Type, Tenant: t.Tenant, Queue: queue,
		Attempt: t.Attempt, RetryCount: t.Attempt - 1, MaxRetries: t.MaxRetries, Delivery: t.Delivery,
		IdempotencyKey: t.IdempotencyKey, TraceID: t.TraceID, Timeout: t.Timeout, HeartbeatTimeout: t.HeartbeatTimeout,
		IdempotencyKeyOwn: t.KeyOwn, IdempotencyScope: t.IdempotencyScope,
		EnqueuedAt: t.EnqueuedAt, ScheduledAt: t.ScheduledAt, MessageID: messageID,
	}
}

// PanicError is what became of a handler that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

// Error returns the panic's value and its stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// ErrAbandoned is in the error of a handler whose process counts as dead from
// then on (package inject): its outcome must not be reported, nor its entry
// acknowledged or its lease renewed.
var ErrAbandoned = errors.New("the execution was left as by the death of its process")

// Run calls the handler under its timeouts, a panic becoming a *PanicError, and
// fills in the outcome. It returns the handler's error. progress gets what the
// handler reports, nil for a heartbeat without a detail, possibly from several
// goroutines at once.
func Run(ctx context.Context, h task.Handler, r *task.Raw, progress func(detail json.RawMessage), o func() *protocol.Outcome) error {
	ctx, stop := context.WithTimeoutCause(ctx, r.Timeout, task.ErrTimeout)
	defer stop()
	beat := func() {}
	if d := r.HeartbeatTimeout; d > 0 {
		watched, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		watch := time.AfterFunc(d, func() { cancel(HeartbeatTimeout(d)) })
		defer watch.Stop()
		ctx, beat = watched, func() { watch.Reset(d) }
	}
	ctx = task.WithRecorder(ctx, func(detail json.RawMessage) error {
		beat() // one that can't be kept is a sign of life, too
		if detail != nil {
			if err := protocol.CheckProgress(detail); err != nil {
				return task.InvalidInput(fmt.Errorf("task: %w", err))
			}
		}
		progress(detail)
		return nil
	})
	result, err := call(ctx, h, r)
	if o := o(); o != nil {
		classify(o, result, err, context.Cause(ctx))
	}
	return err
}

// HeartbeatTimeout is the cause of the end of a context whose handler has not
// reported progress for d.
func HeartbeatTimeout(d time.Duration) error {
	return fmt.Errorf("%w: no progress for %s", task.ErrHeartbeatTimeout, d)
}

func call(ctx context.Context, h task.Handler, r *task.Raw) (result json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return h(ctx, r)
}

// classify fills in the outcome. A handler that succeeded in spite of a
// cancelled context has succeeded, unless it was its task that was cancelled:
// that is final.
func classify(o *protocol.Outcome, result json.RawMessage, err, cause error) {
	if errors.Is(cause, task.ErrCancelled) {
		if o.Kind, o.Error = protocol.OutcomeSkipped, "cancelled"; err != nil {
			o.Error = protocol.Text("cancelled: " + err.Error())
		}
		return
	}
	if err == nil {
		if len(result) == 0 {
			result = json.RawMessage("null")
		}
		if err = checkResult(result); err == nil {
			o.Kind, o.Result = protocol.OutcomeSucceeded, result
			return
		}
		err = task.Permanent(err)
	}
	o.Error = protocol.Text(err.Error())
	if ask, ok := approvalOf(err); ok {
		if _, err := protocol.ParseApproval(ask); err != nil {
			o.Kind, o.Code, o.Error = protocol.OutcomeFailed, protocol.CodeInputInvalid, protocol.Text("the handler asks for approval: "+err.Error())
			return
		}
		o.Kind, o.Approval = protocol.OutcomeApprovalNeeded, ask
		return
	}
	if d, ok := task.SnoozeDelay(err); ok {
		o.Kind, o.Delay = protocol.OutcomeSnoozed, min(d, maxDelay)
		return
	}
	o.Kind, o.Code, o.Retryable = protocol.OutcomeFailed, protocol.CodeExecutionFailed, true
	switch {
	case task.IsInvalidInput(err):
		o.Code, o.Retryable = protocol.CodeInputInvalid, false
	case task.IsPermanent(err):
		o.Retryable = false
	case errors.Is(cause, task.ErrShutdown):
		release(o, "the worker stopped: ")
	case errors.Is(cause, task.ErrLeaseLost):
		// The fence refuses it as soon as the task has been reclaimed. If it
		// has not, no retry is spent on an execution that was only cancelled.
		release(o, "lease lost: ")
	case errors.Is(cause, task.ErrTimeout):
		o.Code = protocol.CodeTimeout
		o.Error = protocol.Text("start-to-close timeout: " + o.Error)
	case errors.Is(cause, task.ErrHeartbeatTimeout):
		o.Code = protocol.CodeTimeout
		o.Error = protocol.Text(strings.TrimPrefix(cause.Error(), "task: ") + ": " + o.Error)
	}
	if d, ok := task.RetryDelay(err); ok && o.Kind == protocol.OutcomeFailed {
		o.Delay = min(d, maxDelay)
	}
}

func release(o *protocol.Outcome, why string) {
	o.Kind, o.Code, o.Retryable = protocol.OutcomeReleased, "", false
	o.Error = protocol.Text(why + o.Error)
}

// Bounds of what a handler may return, so that its outcome can be read and
// stored: an outcome that can't would leave its task running for ever.
const (
	maxDelay  = 365 * 24 * time.Hour
	maxResult = 8 << 20
	maxDepth  = 1000
)

// checkResult returns an error that a handler's author understands.
func checkResult(r json.RawMessage) error {
	switch {
	case len(r) > maxResult:
		return fmt.Errorf("the handler succeeded, but its result has %d bytes, at most %d are allowed; store large data elsewhere and return a reference", len(r), maxResult)
	case !json.Valid(r) || !utf8.Valid(r):
		return errors.New("the handler succeeded, but its result is not JSON in UTF-8")
	}
	depth, inString := 0, false
	for i := 0; i < len(r); i++ {
		switch c := r[i]; {
		case inString && c == '\\':
			if bytes.HasPrefix(r[i:], []byte(`\u0000`)) {
				return errors.New(`the handler succeeded, but its result contains the character NUL (\u0000), which can't be stored`)
			}
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return fmt.Errorf("the handler succeeded, but its result is nested deeper than %d levels", maxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}
