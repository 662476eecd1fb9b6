// Package tasktest runs a task handler in a test, without any server, and says
// what would become of the task. It classifies errors, panics and timeouts with
// the code that workers use.
//
//	func TestSendEmail(t *testing.T) {
//		out := tasktest.Run(t, SendEmail, sendEmail, Email{To: "nobody"})
//		if out.Kind != tasktest.Failed || out.Retryable {
//			t.Errorf("got %s, want a permanent failure", out)
//		}
//	}
//
// The handler runs in the calling goroutine, so it may call t.Fatal, and a
// timeout is fake time inside a testing/synctest bubble.
package tasktest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/execute"
	"github.com/penstock-dev/penstock/internal/once"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// Kind says how an execution ended.
type Kind string

// The kinds of outcomes.
const (
	// Succeeded: the handler returned nil.
	Succeeded = Kind(protocol.OutcomeSucceeded)
	// Failed: it returned an error, panicked, or its payload did not decode.
	Failed = Kind(protocol.OutcomeFailed)
	// Snoozed: it asked to be run again, without a failure.
	Snoozed = Kind(protocol.OutcomeSnoozed)
	// Released: it was cancelled by a shutdown or a lost lease; the task
	// restarts elsewhere without spending a retry.
	Released = Kind(protocol.OutcomeReleased)
	// Waiting: it asked a person; the task waits, and runs again once they have
	// decided. See Outcome.Approval.
	Waiting = Kind(protocol.OutcomeApprovalNeeded)
	// Lost: its process counts as dead (package inject), so a worker would
	// report nothing; the task runs again after the visibility timeout, without
	// spending a retry.
	Lost = Kind("lost")
)

// Outcome is what a worker would report, and what it does to the task.
type Outcome struct {
	Kind Kind
	// State is the task's state afterwards: "succeeded", "retrying",
	// "interrupted", "waiting_approval", or "dlq_pending" if the task is given up.
	State string
	// Result is the task's result as JSON; see Decode.
	Result json.RawMessage
	// Err is what the handler returned, for errors.Is; nil after a success. A
	// panic is an error here.
	Err error
	// Message is the error text as it would be recorded.
	Message string
	// Code is the error code, e.g. "TASK_TIMEOUT"; empty unless Failed.
	Code string
	// Retryable tells whether a Failed execution may be followed by another
	// attempt, if the task has one left.
	Retryable bool
	// Delay is what RetryAfter or Snooze asked for; negative if the retry
	// policy decides.
	Delay time.Duration
	// Progress is what the handler reported with task.RecordProgress, in order. A
	// worker sends only the latest report with each of its heartbeats.
	Progress []json.RawMessage
	// Approval is what a Waiting one asked for, a JSON object.
	Approval json.RawMessage
	// Stack is the stack of a panic.
	Stack string
}

// Decode decodes the result into v.
func (o *Outcome) Decode(v any) error {
	if o.Kind != Succeeded {
		return fmt.Errorf("tasktest: the execution has no result: %s", o)
	}
	return json.Unmarshal(o.Result, v)
}

// String describes the outcome in one line.
func (o *Outcome) String() string {
	s := fmt.Sprintf("%s → %s", o.Kind, o.State)
	if o.Code != "" {
		s += " " + o.Code
	}
	if o.Err != nil {
		s += ": " + o.Message
	}
	return s
}

// Run encodes args as a producer would and runs fn on them once.
func Run[T any](t testing.TB, typ task.Type[T], fn func(ctx context.Context, j *task.Job[T]) error, args T, opts ...Option) *Outcome {
	t.Helper()
	r, err := typ.Request(args)
	if err != nil {
		t.Fatalf("tasktest: %v", err)
	}
	return RunRaw(t, typ.Name(), task.Typed(fn), r.Payload, opts...)
}

// RunRaw runs a raw handler once; payload need not be what a producer's types
// would give.
func RunRaw(t testing.TB, typ string, h task.Handler, payload json.RawMessage, opts ...Option) *Outcome {
	t.Helper()
	s := settings{
		entry: protocol.TaskEntry{
			TaskID: "test-task", Type: typ, Payload: payload, Tenant: protocol.DefaultTenant, Attempt: 1, Delivery: 1,
			MaxRetries: 3, Timeout: 5 * time.Minute, TraceID: "test-trace", EnqueuedAt: time.Now(),
		},
		queue: protocol.DefaultQueue, ctx: context.Background(),
	}
	for _, o := range opts {
		o(&s)
	}
	s.entry.ID, _ = protocol.ResolveTaskID(s.entry.Tenant, s.entry.TaskID, time.Now())
	if s.entry.IdempotencyKey == "" {
		s.entry.IdempotencyKey, s.entry.KeyOwn = s.entry.TaskID, true
	}
	if s.entry.IdempotencyScope == "" || s.entry.KeyOwn {
		s.entry.IdempotencyScope = s.entry.Tenant
	}
	if s.entry.Attempt < 1 || s.entry.Delivery < 1 || s.entry.MaxRetries < 0 || s.entry.Timeout <= 0 || s.entry.HeartbeatTimeout < 0 {
		t.Fatalf("tasktest: attempt and delivery start at 1, max retries at 0, and timeouts are above 0; got %d, %d, %d, %s and %s",
			s.entry.Attempt, s.entry.Delivery, s.entry.MaxRetries, s.entry.Timeout, s.entry.HeartbeatTimeout)
	}
	ctx, stop := s.context()
	defer stop()
	o := &protocol.Outcome{ID: s.entry.ID, Delivery: s.entry.Delivery, StartedAt: time.Now(), Delay: -1}
	raw := &task.Raw{Info: execute.InfoOf(&s.entry, s.queue, "0-1"), Payload: payload}
	if s.effects == nil {
		s.effects = NewEffects()
	}
	err := execute.Run(execute.WithApprovals(once.With(ctx, s.effects.begin(&s.entry)), s.entry.Approvals), h, raw, s.record, func() *protocol.Outcome { return o })
	out := s.outcome(o, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Progress = slices.Clone(s.progress)
	return out
}

// record keeps what the handler reports.
func (s *settings) record(detail json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if detail != nil {
		s.progress = append(s.progress, detail)
	}
}

// outcome adds what the state machine makes of the execution.
func (s *settings) outcome(o *protocol.Outcome, err error) *Outcome {
	if errors.Is(err, execute.ErrAbandoned) {
		return &Outcome{Kind: Lost, State: string(protocol.StateInterrupted), Err: err, Message: err.Error(), Delay: -1}
	}
	row := &protocol.Task{
		ID: s.entry.ID, State: protocol.StateRunning, Attempt: s.entry.Attempt, MaxRetries: s.entry.MaxRetries,
		Delivery: s.entry.Delivery, Policy: protocol.DefaultRetryPolicy(),
	}
	row.ApplyOutcome(o, protocol.Env{Now: time.Now()})
	out := &Outcome{
		Kind: Kind(o.Kind), State: string(row.State), Result: o.Result, Err: err, Message: o.Error, Code: string(o.Code),
		Retryable: o.Retryable, Delay: o.Delay, Approval: o.Approval,
	}
	if err == nil && o.Kind != protocol.OutcomeSucceeded { // its result can't be stored
		out.Err = errors.New(o.Error)
	}
	if p, ok := errors.AsType[*execute.PanicError](err); ok {
		out.Stack = string(p.Stack)
	}
	return out
}
