package app

import (
	"context"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/schedule"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// ScheduleTasks has an enqueue stage make the tasks of schedules.
func ScheduleTasks(e *enqueue.Stage) schedule.Enqueuer { return scheduleTasks{e} }

type scheduleTasks struct{ stage *enqueue.Stage }

// Check implements schedule.Enqueuer.
func (s scheduleTasks) Check(t *schedule.Task) error { return s.stage.Check(requestOf(t)) }

// CreateTx implements schedule.Enqueuer.
func (s scheduleTasks) CreateTx(ctx context.Context, q *dbsqlc.Queries, ts []*schedule.Task) error {
	rs := make([]*enqueue.Request, len(ts))
	for i, t := range ts {
		rs[i] = requestOf(t)
	}
	return s.stage.CreateTx(ctx, q, rs)
}

func requestOf(t *schedule.Task) *enqueue.Request {
	r := &enqueue.Request{
		TaskID: t.ID, Tenant: t.Tenant, Type: t.Type, Payload: t.Payload, Queue: t.Queue, ScheduleType: "at", ScheduledAt: t.At, TimeoutMS: t.TimeoutMS,
		MaxRetries: t.MaxRetries, StartWithinMS: t.StartWithinMS, HeartbeatTimeoutMS: t.HeartbeatTimeoutMS,
		RequestedBy: t.RequestedBy, ScheduleID: t.Schedule, ChangedBy: t.ChangedBy,
	}
	if p := t.Policy; p != nil {
		r.Policy = &enqueue.PolicyOverride{
			Strategy: protocol.Strategy(p.Strategy), BaseMS: p.BaseMS, MaxBackoffMS: p.MaxBackoffMS, JitterMaxMS: p.JitterMaxMS, ScheduleMS: p.ScheduleMS,
		}
	}
	return r
}
