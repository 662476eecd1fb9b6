package api

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// badTime stands for a time that was given but is none, or is the zero time,
// which means "not given" inside: it is out of every range.
var badTime = time.Time{}.Add(time.Second)

func requestOf(m *penstockv1.EnqueueRequest) *enqueue.Request {
	r := &enqueue.Request{
		TaskID: m.TaskId, Type: m.Type, Payload: m.Payload, ScheduleType: m.ScheduleType, DelayMS: m.DelayMs,
		TimeoutMS: m.TimeoutMs, MaxRetries: m.MaxRetries, IdempotencyKey: m.IdempotencyKey,
		IdempotencyScope: m.IdempotencyScope, Tenant: m.Tenant, Queue: m.Queue, TraceID: m.TraceId,
	}
	if m.ScheduledAt != nil {
		r.ScheduledAt = m.ScheduledAt.AsTime()
		if !m.ScheduledAt.IsValid() || r.ScheduledAt.IsZero() {
			r.ScheduledAt = badTime
		}
	}
	if m.ExpiresAt != nil {
		r.ExpiresAt = m.ExpiresAt.AsTime()
		if !m.ExpiresAt.IsValid() || r.ExpiresAt.IsZero() {
			r.ExpiresAt = badTime
		}
	}
	r.StartWithinMS, r.HeartbeatTimeoutMS = m.ScheduleToStartTimeoutMs, m.HeartbeatTimeoutMs
	r.Name, r.OnDependencyFailure = m.Name, m.OnDependencyFailure
	for _, d := range m.DependsOn {
		r.DependsOn = append(r.DependsOn, enqueue.Dependency{TaskID: d.GetTaskId(), Name: d.GetName()})
	}
	if p := m.RetryPolicy; p != nil {
		r.Policy = &enqueue.PolicyOverride{
			Strategy: protocol.Strategy(p.Strategy), BaseMS: p.BaseMs, MaxBackoffMS: p.MaxBackoffMs, JitterMaxMS: p.JitterMaxMs, ScheduleMS: p.ScheduleMs,
		}
	}
	return r
}

func taskOf(t *dbsqlc.Task) *penstockv1.Task {
	id := protocol.ID(t.ID)
	out := &penstockv1.Task{
		TaskId: store.TaskID(id, store.Deref(t.Name)), Type: t.Type, State: t.State, ScheduleType: t.ScheduleType,
		ScheduledAt: timeOf(t.ScheduledAt), Attempt: t.Attempt, RetryCount: t.Attempt - 1, MaxRetries: t.MaxRetries,
		Interruptions: t.Interruptions, Delivery: t.Delivery, TimeoutMs: t.TimeoutMs,
		IdempotencyKey: store.Deref(t.IdempotencyKey), IdempotencyScope: t.IdempotencyScope,
		LastErrorCode: stringOf(t.LastErrorCode), LastErrorReason: stringOf(t.LastErrorReason),
		CreatedAt: timestamppb.New(t.CreatedAt), UpdatedAt: timestamppb.New(t.UpdatedAt),
		StartedAt: timeOf(t.StartedAt), FinishedAt: timeOf(t.FinishedAt), NextRetryAt: timeOf(t.NextRetryAt),
		Tenant: t.Tenant, Queue: t.Queue, TraceId: t.TraceID, WorkerId: store.Deref(t.WorkerID),
		Payload: t.Payload, Result: t.Result, ExpiresAt: timeOf(t.ExpiresAt), HeartbeatTimeoutMs: store.Deref(t.HeartbeatTimeoutMs),
		HeartbeatAt: timeOf(t.HeartbeatAt), Progress: t.Progress, RequestedBy: t.RequestedBy, OpenDependencies: t.OpenDependencies,
		OnDependencyFailure: store.Deref(t.OnDependencyFailure), ErasedAt: timeOf(t.ErasedAt), TypeUnknownSince: timeOf(t.UnknownSince),
	}
	cause, _ := protocol.Cause(protocol.Code(store.Deref(t.LastErrorCode)), store.Deref(t.LastErrorReason))
	out.CauseCode = string(cause)
	if t.GraphID != nil {
		out.GraphId = protocol.ID(*t.GraphID).String()
	}
	if t.ScheduleID != nil {
		out.ScheduleId = protocol.ID(*t.ScheduleID).String()
	}
	if out.IdempotencyKey == "" {
		out.IdempotencyKey = out.TaskId
	}
	switch protocol.State(t.State) {
	case protocol.StateDLQPending, protocol.StateDLQRecorded, protocol.StateFailed:
		out.DlqId = protocol.DLQID(id).String()
	}
	if t.OriginDlqID != nil {
		out.OriginDlqId = protocol.ID(*t.OriginDlqID).String()
	}
	var p protocol.RetryPolicy
	if len(t.RetryPolicy) > 0 && json.Unmarshal(t.RetryPolicy, &p) == nil {
		out.RetryPolicy = &penstockv1.RetryPolicy{
			Strategy: string(p.Strategy), BaseMs: &p.BaseMS, MaxBackoffMs: &p.MaxBackoffMS, JitterMaxMs: &p.JitterMaxMS,
			ScheduleMs: p.ScheduleMS,
		}
	}
	return out
}

// listed is a task of a list, without payload, result and progress.
func listed(r *dbsqlc.ListTasksRow) *penstockv1.Task {
	return taskOf(&dbsqlc.Task{
		ID: r.ID, Name: r.Name, Tenant: r.Tenant, Queue: r.Queue, Type: r.Type, State: r.State, Attempt: r.Attempt,
		MaxRetries: r.MaxRetries, Delivery: r.Delivery, Interruptions: r.Interruptions, ScheduleType: r.ScheduleType,
		ScheduledAt: r.ScheduledAt, TimeoutMs: r.TimeoutMs, NextRetryAt: r.NextRetryAt, IdempotencyScope: r.IdempotencyScope,
		IdempotencyKey: r.IdempotencyKey, TraceID: r.TraceID, LastErrorCode: r.LastErrorCode,
		LastErrorReason: r.LastErrorReason, WorkerID: r.WorkerID, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
		StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, RetryPolicy: r.RetryPolicy, OriginDlqID: r.OriginDlqID, ExpiresAt: r.ExpiresAt,
		RequestedBy: r.RequestedBy, HeartbeatTimeoutMs: r.HeartbeatTimeoutMs, HeartbeatAt: r.HeartbeatAt, GraphID: r.GraphID,
		OpenDependencies: r.OpenDependencies, OnDependencyFailure: r.OnDependencyFailure, ScheduleID: r.ScheduleID,
		ErasedAt: r.ErasedAt, UnknownSince: r.UnknownSince,
	})
}

// eventOf translates an event row; tenant and name are its task's.
func eventOf(e *dbsqlc.WatchEventsRow) *penstockv1.Event {
	id := protocol.ID(e.TaskID)
	taskID := store.TaskID(id, store.Deref(e.Name))
	ev := protocol.Event{TaskID: id, Seq: int(e.Seq)}
	out := &penstockv1.Event{
		EventId: ev.EventID(), Seq: e.Seq, Type: e.Type, TaskId: taskID, RunId: fmt.Sprintf("%s:%d", taskID, e.Attempt),
		PreviousStatus: store.Deref(e.PreviousStatus), Status: e.Status, Attempt: e.Attempt, RetryCount: e.Attempt - 1,
		Delivery: e.Delivery, IdempotencyKey: store.Deref(e.IdempotencyKey), NextRetryAt: timeOf(e.NextRetryAt),
		ErrorCode: store.Deref(e.ErrorCode), Reason: store.Deref(e.Reason), Actor: e.Actor,
		WorkerId: store.Deref(e.WorkerID), MessageId: store.Deref(e.MessageID), TraceId: e.TraceID,
		OccurredAt: timestamppb.New(e.OccurredAt), Data: e.Data, Tenant: e.Tenant,
	}
	if out.IdempotencyKey == "" {
		out.IdempotencyKey = taskID
	}
	if e.BackoffDelayMs != nil {
		out.BackoffDelayMs = wrapperspb.Int64(*e.BackoffDelayMs)
	}
	return out
}

func timeOf(t pgtype.Timestamptz) *timestamppb.Timestamp {
	if !t.Valid {
		return nil
	}
	return timestamppb.New(t.Time)
}

func stringOf(s *string) *wrapperspb.StringValue {
	if s == nil {
		return nil
	}
	return wrapperspb.String(*s)
}
