package task

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Request is one task to enqueue. Zero fields take the server's defaults; the
// bounds are those of the RPC's EnqueueRequest.
type Request struct {
	// TaskID is the caller's own id; empty: the client makes a UUIDv7.
	TaskID string
	Type   string
	// Payload is one JSON value.
	Payload json.RawMessage
	// At is when to run; Delay is how long to wait. At most one may be set.
	At    time.Time
	Delay time.Duration
	// Timeout is the start-to-close timeout of one execution.
	Timeout time.Duration
	// MaxRetries is the number of additional attempts; nil: the server's
	// default.
	MaxRetries *int
	// Retry spaces the attempts; nil: the server's default.
	Retry *Retry
	// Key and Scope make the request idempotent beyond its TaskID.
	Key, Scope string
	Tenant     string
	Queue      string
	TraceID    string
}

// Retry spaces the attempts of a task.
type Retry struct {
	// Strategy is "exponential" (default), "linear", "fixed" or "schedule".
	Strategy string
	// Base, MaxBackoff and JitterMax default to 1 s, 30 s and 300 ms.
	Base, MaxBackoff, JitterMax time.Duration
	// Schedule lists the delays of strategy "schedule"; the last one repeats.
	Schedule []time.Duration
}

// Enqueued is an accepted task.
type Enqueued struct {
	TaskID string
	// IdempotentHit: the task existed already with the same fields.
	IdempotentHit bool
}

// Enqueuer accepts tasks; package client has one.
type Enqueuer interface {
	EnqueueTask(ctx context.Context, r *Request) (*Enqueued, error)
}

// Option changes a Request.
type Option func(*Request)

// ID sets the caller's own task id.
func ID(id string) Option { return func(r *Request) { r.TaskID = id } }

// Key makes the request idempotent: a second one with the same key and the
// same fields returns the first one's task.
func Key(key string) Option { return func(r *Request) { r.Key = key } }

// Scope says where the key is unique; default: the tenant.
func Scope(scope string) Option { return func(r *Request) { r.Scope = scope } }

// At schedules the task. A past time runs at once.
func At(t time.Time) Option { return func(r *Request) { r.At = t } }

// Delay schedules the task d from now, by the server's clock.
func Delay(d time.Duration) Option { return func(r *Request) { r.Delay = d } }

// Timeout bounds each execution.
func Timeout(d time.Duration) Option { return func(r *Request) { r.Timeout = d } }

// MaxRetries sets the number of additional attempts after the first.
func MaxRetries(n int) Option { return func(r *Request) { r.MaxRetries = &n } }

// WithRetry spaces the attempts.
func WithRetry(p Retry) Option { return func(r *Request) { r.Retry = &p } }

// Queue sends the task to a named queue.
func Queue(name string) Option { return func(r *Request) { r.Queue = name } }

// Tenant says whose task it is.
func Tenant(name string) Option { return func(r *Request) { r.Tenant = name } }

// TraceID sets the id under which the task's runs are logged.
func TraceID(id string) Option { return func(r *Request) { r.TraceID = id } }

// Request makes a request for one task of the type. It fails if args has no
// JSON form.
func (t Type[T]) Request(args T, opts ...Option) (*Request, error) {
	b, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("task: payload of %s has no JSON form: %w", t.name, err)
	}
	r := &Request{Type: t.name, Payload: b}
	for _, o := range opts {
		o(r)
	}
	return r, nil
}

// Enqueue enqueues one task of the type. When it returns without an error the
// task is committed and will run.
func (t Type[T]) Enqueue(ctx context.Context, c Enqueuer, args T, opts ...Option) (*Enqueued, error) {
	r, err := t.Request(args, opts...)
	if err != nil {
		return nil, err
	}
	return c.EnqueueTask(ctx, r)
}
