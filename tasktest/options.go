package tasktest

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// Option changes the execution that a handler sees.
type Option func(*settings)

type settings struct {
	entry protocol.TaskEntry
	queue string
	ctx   context.Context
	cause error           // the context ends with it
	when  <-chan struct{} // and when; nil: before the handler starts

	effects *Effects
	grants  []protocol.Grant

	mu       sync.Mutex
	progress []json.RawMessage
}

// TaskID sets the task's id; default "test-task".
func TaskID(id string) Option { return func(s *settings) { s.entry.TaskID = id } }

// IdempotencyScope sets the scope of the producer's key; default: the tenant.
func IdempotencyScope(scope string) Option {
	return func(s *settings) { s.entry.IdempotencyScope = scope }
}

// IdempotencyKey sets the producer's key; default: the task's id.
func IdempotencyKey(key string) Option { return func(s *settings) { s.entry.IdempotencyKey = key } }

// Attempt sets the attempt, 1 for the first.
func Attempt(n int) Option { return func(s *settings) { s.entry.Attempt = n } }

// MaxRetries sets the number of attempts after the first; default 3.
func MaxRetries(n int) Option { return func(s *settings) { s.entry.MaxRetries = n } }

// Delivery sets the fencing token; default 1.
func Delivery(n int64) Option { return func(s *settings) { s.entry.Delivery = n } }

// Timeout sets the start-to-close timeout; default 5 minutes. It is fake time
// in a testing/synctest bubble.
func Timeout(d time.Duration) Option { return func(s *settings) { s.entry.Timeout = d } }

// HeartbeatTimeout bounds how long the handler may go without
// task.RecordProgress or task.Heartbeat; default: not at all. It is fake time in a
// testing/synctest bubble.
func HeartbeatTimeout(d time.Duration) Option {
	return func(s *settings) { s.entry.HeartbeatTimeout = d }
}

// Tenant sets whose task it is; default "default".
func Tenant(name string) Option { return func(s *settings) { s.entry.Tenant = name } }

// Queue sets the queue; default "default".
func Queue(name string) Option { return func(s *settings) { s.queue = name } }

// TraceID sets the id under which the run is logged.
func TraceID(id string) Option { return func(s *settings) { s.entry.TraceID = id } }

// Context sets the parent of the handler's context, for its values. A worker
// gives handlers none.
func Context(ctx context.Context) Option { return func(s *settings) { s.ctx = ctx } }

// Cancelled ends the handler's context before the handler starts. cause is
// task.ErrTimeout, task.ErrCancelled, task.ErrLeaseLost or task.ErrShutdown.
func Cancelled(cause error) Option { return func(s *settings) { s.cause, s.when = cause, nil } }

// CancelledWhen ends the handler's context with cause once ch is closed. For a
// timeout in mid-run use Timeout.
func CancelledWhen(ch <-chan struct{}, cause error) Option {
	return func(s *settings) { s.cause, s.when = cause, ch }
}

// context makes the parent of the handler's context.
func (s *settings) context() (context.Context, context.CancelFunc) {
	if s.cause == nil {
		return s.ctx, func() {}
	}
	if s.when == nil && errors.Is(s.cause, task.ErrTimeout) {
		return context.WithDeadlineCause(s.ctx, time.Now(), s.cause)
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	stop := func() { cancel(context.Canceled) }
	if s.when == nil {
		cancel(s.cause)
		return ctx, stop
	}
	go func() {
		select {
		case <-s.when:
			cancel(s.cause)
		case <-ctx.Done():
		}
	}()
	return ctx, stop
}
