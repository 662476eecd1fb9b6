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
	if r.MaxRetries != nil {
		n := int32(min(max(*r.MaxRetries, -1), 1<<31-1))
		q.MaxRetries = &n
	}
	if p := r.Retry; p != nil {
		if err := checkText([2]string{"retry_policy.strategy", p.Strategy}); err != nil {
			return nil, err
		}
		q.RetryPolicy = &penstockv1.RetryPolicy{Strategy: p.Strategy}
		set := func(d time.Duration, to **int64) {
			if d != 0 {
				ms := d.Milliseconds()
				*to = &ms
			}
		}
		set(p.Base, &q.RetryPolicy.BaseMs)
		set(p.MaxBackoff, &q.RetryPolicy.MaxBackoffMs)
		set(p.JitterMax, &q.RetryPolicy.JitterMaxMs)
		for _, d := range p.Schedule {
			q.RetryPolicy.ScheduleMs = append(q.RetryPolicy.ScheduleMs, d.Milliseconds())
		}
	}
	return q, nil
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
