package dispatch

import (
	"context"
	"fmt"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// judge asks the guard about tasks that were not dispatched yet: rules may have
// been saved since they were enqueued, they may have been rescheduled, and some
// come from a schedule or a dead letter. What was approved in the form that a
// task has now is not asked again.
func (d *Dispatcher) judge(ctx context.Context, q *dbsqlc.Queries, due []*store.Due) (map[protocol.ID][]*store.Ask, error) {
	var fresh []*store.Due
	for _, t := range due {
		if t.State == protocol.StatePending {
			fresh = append(fresh, t)
		}
	}
	if len(fresh) == 0 {
		return nil, nil
	}
	rules, err := d.rules.Current(ctx, q)
	if err != nil || rules.Empty() {
		return nil, err
	}
	findings := map[protocol.ID][]guard.Finding{}
	var ids []pgid.ID
	for _, t := range fresh {
		if f := rules.Judge(subject(t)); len(f) > 0 {
			findings[t.ID] = f
			ids = append(ids, pgid.ID(t.ID))
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := q.ApprovedDigests(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read what was approved of %d tasks: %w", len(ids), err)
	}
	type approved struct {
		task   protocol.ID
		digest string
	}
	done := make(map[approved]bool, len(rows))
	for _, r := range rows {
		done[approved{protocol.ID(r.TaskID), r.Digest}] = true
	}
	asks := map[protocol.ID][]*store.Ask{}
	for id, fs := range findings {
		for _, f := range fs {
			if !done[approved{id, f.Digest}] {
				asks[id] = append(asks[id], f.Ask(id))
			}
		}
	}
	return asks, nil
}

// subject is what rules see of a due task.
func subject(t *store.Due) *guard.Task {
	return &guard.Task{
		Type: t.Type, Queue: t.Queue, Tenant: t.Tenant, TaskID: t.TaskID(), Payload: t.Payload, ScheduleType: t.ScheduleType,
		ScheduledAt: t.ScheduledAt, DelayMS: t.DelayMS, StartAt: t.StartAt, MaxRetries: t.MaxRetries, TimeoutMS: t.Timeout.Milliseconds(),
		IdempotencyKey: t.Key, RequestedBy: t.RequestedBy,
	}
}

// stop has a due task wait for people instead.
func (b *taken) stop(t *store.Due, env protocol.Env, asks []*store.Ask) error {
	for _, a := range asks {
		e, ok := a.Event(&t.Task, env, protocol.ActorGuard)
		if !ok {
			return fmt.Errorf("task %s can't wait for approval in state %s", t.ID, t.State)
		}
		b.events = append(b.events, e)
	}
	b.changed, b.asks = append(b.changed, t.Locked), append(b.asks, asks...)
	return nil
}
