package client

import (
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// request translates a request and gives it its id.
func request(r *task.Request) (*penstockv1.EnqueueRequest, error) {
	if !r.At.IsZero() && r.Delay != 0 {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "schedule_type", "both At and Delay are set")
	}
	q := &penstockv1.EnqueueRequest{
		TaskId: r.TaskID, Type: r.Type, Payload: r.Payload, IdempotencyKey: r.Key, IdempotencyScope: r.Scope,
		Tenant: r.Tenant, Queue: r.Queue, TraceId: r.TraceID,
	}
	if q.TaskId == "" {
		q.TaskId = uuid.Must(uuid.NewV7()).String()
	}
	err := checkText(
		[2]string{"task_id", q.TaskId}, [2]string{"type", q.Type}, [2]string{"idempotency_key", q.IdempotencyKey},
		[2]string{"idempotency_scope", q.IdempotencyScope}, [2]string{"tenant", q.Tenant}, [2]string{"queue", q.Queue}, [2]string{"trace_id", q.TraceId})
	if err != nil {
		return nil, err
	}
	for _, id := range r.DependsOn {
		if err := checkText([2]string{"depends_on", id}); err != nil {
			return nil, err
		}
		q.DependsOn = append(q.DependsOn, &penstockv1.Dependency{TaskId: id})
	}
	if r.DespiteFailures && len(r.DependsOn) > 0 {
		q.OnDependencyFailure = string(protocol.DependencyRun)
	}
	switch {
	case !r.At.IsZero():
		q.ScheduleType, q.ScheduledAt = "at", timestamppb.New(r.At)
	case r.Delay != 0:
		q.ScheduleType, q.DelayMs = "delay", r.Delay.Milliseconds()
	}
	if r.Timeout != 0 {
		ms := int32(min(max(r.Timeout.Milliseconds(), -1), 1<<31-1))
		q.TimeoutMs = &ms
	}
	if !r.ExpiresAt.IsZero() {
		q.ExpiresAt = timestamppb.New(r.ExpiresAt)
	}
	q.ScheduleToStartTimeoutMs = millis(r.StartWithin)
	if r.HeartbeatTimeout != 0 {
		ms := int32(min(max(r.HeartbeatTimeout.Milliseconds(), -1), 1<<31-1))
		q.HeartbeatTimeoutMs = &ms
	}
	if r.MaxRetries != nil {
		n := int32(min(max(*r.MaxRetries, -1), 1<<31-1))
		q.MaxRetries = &n
	}
	if r.Retry != nil {
		if q.RetryPolicy, err = retryPolicy(r.Retry); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// retryPolicy leaves out what is zero: the server fills it in.
func retryPolicy(r *task.Retry) (*penstockv1.RetryPolicy, error) {
	if err := checkText([2]string{"retry_policy.strategy", r.Strategy}); err != nil {
		return nil, err
	}
	p := &penstockv1.RetryPolicy{Strategy: r.Strategy, BaseMs: millis(r.Base), MaxBackoffMs: millis(r.MaxBackoff), JitterMaxMs: millis(r.JitterMax)}
	if r.NoJitter {
		if r.JitterMax != 0 {
			return nil, protocol.Errorf(protocol.CodeInputInvalid, "retry_policy.jitter_max_ms", "both JitterMax and NoJitter are set")
		}
		p.JitterMaxMs = new(int64)
	}
	for _, d := range r.Schedule {
		p.ScheduleMs = append(p.ScheduleMs, d.Milliseconds())
	}
	return p, nil
}

// millis is d in whole milliseconds; nil if d is zero. A fraction is cut off,
// except that a negative d stays negative, to be refused by the server.
func millis(d time.Duration) *int64 {
	if d == 0 {
		return nil
	}
	ms := d.Milliseconds()
	if d < 0 {
		ms = min(ms, -1)
	}
	return &ms
}

// checkText refuses what protobuf can't carry: it would sink a whole batch.
func checkText(fields ...[2]string) error {
	for _, f := range fields {
		if !utf8.ValidString(f[1]) {
			return protocol.Errorf(protocol.CodeInputInvalid, f[0], "is not valid UTF-8")
		}
	}
	return nil
}
