package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// judgeLimit is how long the tasks of one transaction are judged, so that queues
// whose rules take long hold up others for a moment only. Those that were not
// judged stay due. One task takes 10 s at most.
const judgeLimit = 500 * time.Millisecond

// judge asks the guard about tasks that were not dispatched yet: rules may have
// been saved since they were enqueued, they may have been rescheduled, and some
// come from a schedule or a dead letter. What was approved in the form that a
// task has now is not asked again. n is how many tasks, from the first, there was
// time for.
func (d *Dispatcher) judge(ctx context.Context, q *dbsqlc.Queries, due []*store.Due) (asks map[protocol.ID][]*store.Ask, n int, err error) {
	if !slices.ContainsFunc(due, isFresh) {
		return nil, len(due), nil
	}
	rules, err := d.rules.Current(ctx, q)
	if err != nil || rules.Empty() {
		return nil, len(due), err
	}
	findings := map[protocol.ID][]guard.Finding{}
	var ids []pgid.ID
	for end := time.Now().Add(judgeLimit); n < len(due) && (n == 0 || time.Now().Before(end)); n++ {
		t := due[n]
		if !isFresh(t) {
			continue
		}
		if f := rules.Judge(subject(t)); len(f) > 0 {
			findings[t.ID] = f
			ids = append(ids, pgid.ID(t.ID))
		}
	}
	if len(ids) == 0 {
		return nil, n, nil
	}
	rows, err := q.ApprovedDigests(ctx, ids)
	if err != nil {
		return nil, n, fmt.Errorf("read what was approved of %d tasks: %w", len(ids), err)
	}
	return open(findings, rows), n, nil
}

// isFresh tells tasks that were not dispatched yet.
func isFresh(t *store.Due) bool { return t.State == protocol.StatePending }

// open are the requests about what was not approved.
func open(findings map[protocol.ID][]guard.Finding, rows []*dbsqlc.ApprovedDigestsRow) map[protocol.ID][]*store.Ask {
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
	return asks
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
