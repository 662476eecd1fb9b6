package store

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Due is a locked task with what its stream entry needs besides.
type Due struct {
	*Locked
	Tenant string
	// EffectKey is the idempotency key that the handler sees, where it is not
	// the task's own: that of the task it was requeued from.
	EffectKey string
	// EffectOwn: EffectKey is the id of that task, which has no idempotency key.
	EffectOwn bool
	Payload   []byte
	Timeout   time.Duration
	// HeartbeatTimeout is 0 if the task has none.
	HeartbeatTimeout time.Duration
	// Scope is that of the task's idempotency key.
	Scope string
	// ScheduleType, ScheduledAt and DelayMS are the schedule as it was asked for.
	ScheduleType string
	ScheduledAt  time.Time
	DelayMS      int64
	// RequestedBy is the principal who asked for the task, or anonymous.
	RequestedBy string
	// Scheduled: a schedule made the task.
	Scheduled bool
	// Approvals is what the handler is told of approvals, JSON; nil: nothing.
	Approvals []byte
}

// maxDueBytes bounds the payloads of one dispatch: 16 MiB, or a single larger
// one.
const maxDueBytes = 16 << 20

// LockDueTasks takes up to limit tasks of a queue that are due or will be
// within ahead (whole milliseconds), longest due first, and leaves out those
// that another transaction is taking, and those that were due before from. It takes fewer, and says so with cut,
// where their payloads together would be larger than 16 MiB. now is Postgres'
// clock when it returns, or a little less.
func (s *Store) LockDueTasks(ctx context.Context, q *dbsqlc.Queries, queue string, from time.Time, ahead time.Duration, limit int) (out []*Due, cut bool, now time.Time, err error) {
	rows, err := q.LockDue(ctx, dbsqlc.LockDueParams{Queue: queue, FromAt: from, AheadMs: ahead.Milliseconds(), MaxRows: int32(limit)})
	answered := time.Now()
	if err != nil {
		return nil, false, now, fmt.Errorf("lock due tasks of queue %s: %w", queue, err)
	}
	byID, size := make(map[protocol.ID]*Due, len(rows)), 0
	var read policies
	for _, r := range rows {
		if size += int(r.PayloadBytes); len(out) > 0 && size > maxDueBytes {
			cut = true
			break
		}
		l, err := s.locked(&dbsqlc.LockTasksRow{
			ID: r.ID, State: r.State, Attempt: r.Attempt, MaxRetries: r.MaxRetries, Delivery: r.Delivery,
			Interruptions: r.Interruptions, EventSeq: r.EventSeq, DueAt: r.DueAt, NextRetryAt: r.NextRetryAt,
			RetryPolicy: r.RetryPolicy, AppliedKind: r.AppliedKind, AppliedDelivery: r.AppliedDelivery,
			RejectedDelivery: r.RejectedDelivery, WorkerID: r.WorkerID, LastErrorCode: r.LastErrorCode,
			LastErrorReason: r.LastErrorReason, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, TraceID: r.TraceID,
			Queue: r.Queue, Name: r.Name, IdempotencyKey: r.IdempotencyKey, Type: r.Type, Now: r.Now,
			ExpiresAt: r.ExpiresAt, UnknownSince: r.UnknownSince, StartAt: r.StartAt, OpenDependencies: r.OpenDependencies,
			HasDependants: r.HasDependants, OnDependencyFailure: r.OnDependencyFailure,
			CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, ClaimedAt: r.ClaimedAt, ReadyAt: r.ReadyAt,
		}, &read)
		if err != nil {
			return nil, false, now, err
		}
		now = r.Now
		byID[l.ID] = &Due{Locked: l, Tenant: r.Tenant, EffectKey: Deref(r.EffectKey), EffectOwn: r.EffectOwn, Timeout: time.Duration(r.TimeoutMs) * time.Millisecond,
			HeartbeatTimeout: time.Duration(Deref(r.HeartbeatTimeoutMs)) * time.Millisecond, Scope: r.IdempotencyScope,
			ScheduleType: r.ScheduleType, ScheduledAt: r.ScheduledAt.Time, DelayMS: Deref(r.DelayMs), RequestedBy: r.RequestedBy,
			Scheduled: r.ScheduleID != nil, Approvals: r.Approvals, Payload: r.Payload}
		out = append(out, byID[l.ID])
	}
	var ids []pgid.ID
	for _, t := range out {
		if t.Payload == nil {
			ids = append(ids, pgid.ID(t.ID))
		}
	}
	if len(ids) == 0 {
		return out, cut, now.Add(time.Since(answered)), nil
	}
	payloads, err := q.Payloads(ctx, ids)
	if err != nil {
		return nil, false, now, fmt.Errorf("read %d payloads: %w", len(ids), err)
	}
	for _, p := range payloads {
		byID[protocol.ID(p.ID)].Payload = p.Payload
	}
	return out, cut, now.Add(time.Since(answered)), nil
}
