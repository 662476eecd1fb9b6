// Package task defines task types and what a handler sees of an execution. It
// is shared by the code that enqueues (package client) and the code that runs
// tasks (package worker).
//
//	type Email struct{ To, Body string }
//
//	var SendEmail = task.Define[Email]("email.send")
package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Type is a task type whose payload is the JSON form of T. Define it once, in
// a package that producers and workers share.
type Type[T any] struct {
	name string
}

// Define names a task type. The name is 1 to 128 bytes of A-Z a-z 0-9 . _ - :
// and /; it is checked by the server when a task is enqueued.
func Define[T any](name string) Type[T] { return Type[T]{name: name} }

// Name returns the type's name, e.g. "email.send".
func (t Type[T]) Name() string { return t.name }

// Info describes the execution that a handler is called for.
type Info struct {
	// TaskID is the id that the producer knows: its own string or a UUIDv7.
	TaskID string
	// ID is the UUID under which the task is stored.
	ID string
	// Type is the task type's name.
	Type string
	// Tenant and Queue are those of the enqueue request.
	Tenant, Queue string
	// Attempt counts executions that ended in a failure, plus one; it starts
	// at 1. RetryCount is Attempt - 1.
	Attempt, RetryCount int
	// MaxRetries is the number of additional attempts after the first.
	MaxRetries int
	// Delivery is the fencing token: an execution's outcome counts only while
	// the task still has this delivery. It only grows. Pass it to systems that
	// can refuse a lower one.
	Delivery int64
	// IdempotencyKey is what to remove duplicates by: the producer's key, else
	// TaskID. It stays the same over all attempts and requeues. Once keys have
	// expired in a deployment, that of a new task ends in "~" and a generation: a key
	// that is used again is another act. At most 255 bytes.
	IdempotencyKey string
	// IdempotencyKeyOwn: the producer gave no key, so that IdempotencyKey is a task's
	// id: this one's, or that of the one it was requeued from.
	IdempotencyKeyOwn bool
	// IdempotencyScope is where the producer's key is unique; without one, Tenant.
	IdempotencyScope string
	// TraceID is the id under which this run is logged.
	TraceID string
	// Timeout is the start-to-close timeout of this execution.
	Timeout time.Duration
	// HeartbeatTimeout is how long the handler may go without RecordProgress or
	// Heartbeat; 0: as long as it likes.
	HeartbeatTimeout time.Duration
	// EnqueuedAt is when the entry was put into the stream, by the
	// orchestrator's clock.
	EnqueuedAt time.Time
	// ScheduledAt is the fire time for which a recurring schedule made the task,
	// whole milliseconds; zero: none did.
	ScheduledAt time.Time
	// MessageID is the stream entry.
	MessageID string
}

// ExecutionKey identifies this attempt: "task_id:retry_count".
func (i Info) ExecutionKey() string { return fmt.Sprintf("%s:%d", i.TaskID, i.RetryCount) }

// Job is one execution of a task of type T.
type Job[T any] struct {
	Info
	// Args is the decoded payload.
	Args T

	result json.RawMessage
}

// SetResult stores v, as JSON, as the task's result, to be kept if the handler
// returns nil. It fails if v has no JSON form.
func (j *Job[T]) SetResult(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("task: result of %s has no JSON form: %w", j.Type, err)
	}
	j.result = b
	return nil
}

// Result returns what SetResult stored, or nil.
func (j *Job[T]) Result() json.RawMessage { return j.result }

// Raw is one execution with its payload as it was enqueued.
type Raw struct {
	Info
	// Payload is the JSON value that was enqueued.
	Payload json.RawMessage
}

// Handler runs executions of one type. The returned value is the task's
// result; nil is stored as null. An error is classified with Permanent,
// RetryAfter and Snooze; any other is retried by the task's policy. The
// context ends at the start-to-close timeout (cause ErrTimeout), when no progress
// was reported for the heartbeat timeout (ErrHeartbeatTimeout), when the lease is
// lost (ErrLeaseLost), when the task was cancelled (ErrCancelled), or when the
// worker's grace period for shutdown is over (ErrShutdown).
type Handler func(ctx context.Context, r *Raw) (json.RawMessage, error)

// Typed makes a Handler of a function over a decoded payload. A payload that
// does not decode into T is a permanent failure (TASK_INPUT_INVALID).
func Typed[T any](fn func(ctx context.Context, j *Job[T]) error) Handler {
	return func(ctx context.Context, r *Raw) (json.RawMessage, error) {
		j := &Job[T]{Info: r.Info}
		if err := json.Unmarshal(r.Payload, &j.Args); err != nil {
			return nil, &invalidInput{fmt.Errorf("payload does not decode into %T: %w", j.Args, err)}
		}
		if err := fn(ctx, j); err != nil {
			return nil, err
		}
		return j.result, nil
	}
}

// Causes of a cancelled handler context; see context.Cause.
var (
	// ErrLeaseLost: another worker owns the task now; this execution's outcome
	// will be refused.
	ErrLeaseLost = errors.New("task: lease lost: another worker owns the task")
	// ErrCancelled: the task was cancelled; whatever the handler returns changes
	// nothing.
	ErrCancelled = errors.New("task: cancelled")
	// ErrTimeout: the start-to-close timeout passed.
	ErrTimeout = errors.New("task: start-to-close timeout")
	// ErrHeartbeatTimeout: the handler has not called RecordProgress or Heartbeat
	// for its task's heartbeat timeout.
	ErrHeartbeatTimeout = errors.New("task: heartbeat timeout")
	// ErrShutdown: the worker's grace period is over; the task is handed back
	// and restarts elsewhere without spending a retry.
	ErrShutdown = errors.New("task: worker is shutting down")
)

type permanent struct{ err error }

func (e *permanent) Error() string { return e.err.Error() }
func (e *permanent) Unwrap() error { return e.err }

// Permanent marks err as one that no retry can cure: the task becomes a dead
// letter at once. A nil err gives nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanent{err}
}

// IsPermanent reports whether err was marked by Permanent, or is a payload
// that does not decode.
func IsPermanent(err error) bool {
	_, p := errors.AsType[*permanent](err)
	return p || IsInvalidInput(err)
}

type invalidInput struct{ err error }

func (e *invalidInput) Error() string { return e.err.Error() }
func (e *invalidInput) Unwrap() error { return e.err }

// IsInvalidInput reports whether err says that the payload can't be processed.
func IsInvalidInput(err error) bool {
	_, ok := errors.AsType[*invalidInput](err)
	return ok
}

// InvalidInput marks err as a payload that can't be processed: permanent, with
// code TASK_INPUT_INVALID. A nil err gives nil.
func InvalidInput(err error) error {
	if err == nil {
		return nil
	}
	return &invalidInput{err}
}

type retryAfter struct {
	d   time.Duration
	err error
}

func (e *retryAfter) Error() string { return e.err.Error() }
func (e *retryAfter) Unwrap() error { return e.err }

// RetryAfter asks for the next attempt after d instead of the policy's delay.
// It uses an attempt like any failure. d below 0 counts as 0; err must not be
// nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		err = errors.New("task: RetryAfter without an error")
	}
	return &retryAfter{max(d, 0), err}
}

// RetryDelay returns the delay that RetryAfter asked for.
func RetryDelay(err error) (time.Duration, bool) {
	if e, ok := errors.AsType[*retryAfter](err); ok {
		return e.d, true
	}
	return 0, false
}

type snooze struct{ d time.Duration }

func (e *snooze) Error() string { return "snoozed for " + e.d.String() }

// Snooze ends this execution without a failure and asks for another one after
// d. It uses no attempt. d below 0 counts as 0.
func Snooze(d time.Duration) error { return &snooze{max(d, 0)} }

// SnoozeDelay returns the delay that Snooze asked for.
func SnoozeDelay(err error) (time.Duration, bool) {
	if e, ok := errors.AsType[*snooze](err); ok {
		return e.d, true
	}
	return 0, false
}
