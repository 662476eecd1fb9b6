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
	// Timeout is the start-to-close timeout of one execution; 0: the server's
	// default for the type.
	Timeout time.Duration
	// ExpiresAt is the time after which no execution starts, a retry's neither: a
	// task that waits then is cancelled (TASK_EXPIRED). StartWithin is the same,
	// counted from when the task is due first. At most one may be set.
	ExpiresAt   time.Time
	StartWithin time.Duration
	// HeartbeatTimeout is how long an execution may go without RecordProgress or
	// Heartbeat; 0: the server's default for the type.
	HeartbeatTimeout time.Duration
	// MaxRetries is the number of additional attempts; nil: the server's
	// default for the type.
	MaxRetries *int
	// Retry spaces the attempts; nil: the server's default for the type, as it
	// is at the time of each failure.
	Retry *Retry
	// Key and Scope make the request idempotent beyond its TaskID.
	Key, Scope string
	// DependsOn are the ids of tasks of the same tenant that must have ended before
	// this one starts, at most 10,000. If one does not succeed this one is cancelled,
	// or runs all the same with DespiteFailures.
	DependsOn       []string
	DespiteFailures bool
	Tenant          string
	Queue           string
	TraceID         string
}

// Retry spaces the attempts of a task. Every zero field takes what the server
// has configured for the task's type.
type Retry struct {
	// Strategy is "exponential", "linear", "fixed" or "schedule".
	Strategy string
	// Base is the delay before the first retry. MaxBackoff bounds a delay before
	// jitter; a Base above the configured bound raises it.
	Base, MaxBackoff time.Duration
	// JitterMax is the largest random addition to a delay. NoJitter asks for
	// none; JitterMax must then be zero.
	JitterMax time.Duration
	NoJitter  bool
	// Schedule lists the delays of strategy "schedule", whole milliseconds; the
	// last one repeats.
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
// same fields returns the first one's task. A key is one task's within its Scope,
// whatever the type: another type with the same key is refused (TASK_DUPLICATE).
func Key(key string) Option { return func(r *Request) { r.Key = key } }

// Scope says where the key is unique; default: the tenant. Types that are to have
// the same keys need a scope each, such as "default/order.ship". A scope belongs
// to one tenant.
func Scope(scope string) Option { return func(r *Request) { r.Scope = scope } }

// At schedules the task. A past time runs at once.
func At(t time.Time) Option { return func(r *Request) { r.At = t } }

// Delay schedules the task d from now, by the server's clock.
func Delay(d time.Duration) Option { return func(r *Request) { r.Delay = d } }

// Timeout bounds each execution.
func Timeout(d time.Duration) Option { return func(r *Request) { r.Timeout = d } }

// ExpiresAt cancels the task if it waits for a worker, or for its next retry, at
// this time.
func ExpiresAt(t time.Time) Option { return func(r *Request) { r.ExpiresAt = t } }

// StartWithin is ExpiresAt counted from when the task is due first.
func StartWithin(d time.Duration) Option { return func(r *Request) { r.StartWithin = d } }

// HeartbeatTimeout bounds how long each execution may go without RecordProgress
// or Heartbeat.
func HeartbeatTimeout(d time.Duration) Option { return func(r *Request) { r.HeartbeatTimeout = d } }

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
