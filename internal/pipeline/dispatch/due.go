package dispatch

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// dispatchDue is one transaction of dispatch; tell completes the entries of tasks
// that depend on others.
func (d *Dispatcher) dispatchDue(ctx context.Context, queue string, limit int, afterID string, tell teller) (int, error) {
	var (
		outboxID int64
		locked   int
		batch    taken
		at       time.Time // when the entries may leave
		last     time.Time // when the last one was due, if there may be more
	)
	from := d.from(queue)
	began, end := d.Begin()
	defer end()
	done := d.TakeDone()
	err := d.store.Tx(ctx, func(q *dbsqlc.Queries) error {
		batch, last = taken{}, time.Time{}
		due, cut, now, err := d.store.LockDueTasks(ctx, q, queue, from, ahead, limit)
		d.adapt(queue, len(due), cut)
		if locked = len(due); err != nil || locked == 0 {
			return err
		}
		at = time.Now()
		if last := due[len(due)-1].DueAt; last.After(now) {
			at, now = at.Add(last.Sub(now)), last
		}
		asks, judged, err := d.judge(ctx, q, due)
		if err != nil {
			return err
		}
		if due = due[:judged]; judged < locked {
			d.adapt(queue, judged, true)
		}
		if cut || judged < locked || locked == limit {
			last = due[judged-1].DueAt
		}
		if err := d.take(&batch, due, asks, now); err != nil {
			return err
		}
		if err := d.save(ctx, q, &batch); err != nil || len(batch.entries) == 0 {
			return err
		}
		if err := tell(ctx, q, dependants(due, batch.entries)); err != nil {
			return err
		}
		outboxID, err = q.InsertOutbox(ctx, dbsqlc.InsertOutboxParams{
			DoneOutbox: done, Owner: d.instance, Queue: queue, AfterID: afterID, TaskIds: batch.ids, Deliveries: batch.deliveries,
		})
		crashpoint.Here("dispatch.locked")
		return err
	})
	if err != nil {
		d.less(queue, locked)
	}
	if err != nil || last.IsZero() {
		d.startOver(queue)
	} else {
		d.readOn(queue, from, last)
	}
	if err == nil && len(batch.expired) > 0 && d.expired != nil {
		d.expired(batch.expired)
	}
	if err != nil || len(batch.entries) == 0 {
		d.GiveBack(done)
		return len(batch.changed), err
	}
	crashpoint.Here("dispatch.committed")
	if time.Until(at) > 0 {
		d.hold(held{at, began, outboxID, queue, batch.entries})
	} else {
		d.Send(ctx, began, outboxID, queue, batch.entries)
	}
	return len(batch.changed), nil
}

// save stores what became of tasks.
func (d *Dispatcher) save(ctx context.Context, q *dbsqlc.Queries, b *taken) error {
	if err := d.store.Save(ctx, q, b.changed, b.events); err != nil {
		return err
	}
	return store.AskAll(ctx, q, b.asks)
}

// taken is what becomes of the due tasks of one transaction.
type taken struct {
	changed []*store.Locked
	events  []*protocol.Event
	// The pairs and entries of those that are dispatched.
	ids        []pgid.ID
	deliveries []int64
	entries    []*protocol.TaskEntry
	// expired are cancelled instead.
	expired []protocol.ID
	// asks are about those that wait for people instead.
	asks []*store.Ask
}

func (d *Dispatcher) take(b *taken, due []*store.Due, asks map[protocol.ID][]*store.Ask, now time.Time) error {
	for _, t := range due {
		dueAt, env := t.DueAt, protocol.Env{Now: now}
		if ev, ok := t.Expire(env, 0); ok {
			b.changed, b.events, b.expired = append(b.changed, t.Locked), append(b.events, ev...), append(b.expired, t.ID)
			continue
		}
		if a := asks[t.ID]; len(a) > 0 {
			if err := b.stop(t, env, a); err != nil {
				return err
			}
			continue
		}
		ev, ok := t.Dispatch(env)
		if !ok { // the CHECK on due_at forbids it
			return fmt.Errorf("task %s waits for dispatch in state %s", t.ID, t.State)
		}
		if t.ReadyAt = dueAt; len(ev) == 0 {
			t.Sent()
		}
		d.metrics.lateness.Observe(now.Sub(dueAt).Seconds())
		b.changed, b.events = append(b.changed, t.Locked), append(b.events, ev...)
		b.entries = append(b.entries, entryOf(t, now))
		b.ids, b.deliveries = append(b.ids, pgid.ID(t.ID)), append(b.deliveries, t.Delivery)
	}
	return nil
}

func entryOf(t *store.Due, now time.Time) *protocol.TaskEntry {
	key, scope, own := protocol.EffectKey(t.EffectKey, t.EffectOwn, t.Key, t.TaskID(), t.Scope, t.Tenant)
	e := &protocol.TaskEntry{
		ID: t.ID, TaskID: t.TaskID(), Type: t.Type, Payload: t.Payload, Tenant: t.Tenant, Attempt: t.Attempt,
		Delivery: t.Delivery, MaxRetries: t.MaxRetries, Timeout: t.Timeout, IdempotencyKey: key,
		KeyOwn: own, IdempotencyScope: scope,
		TraceID: t.TraceID, EnqueuedAt: now, HeartbeatTimeout: t.HeartbeatTimeout, Solo: t.Interruptions >= protocol.SoloAfter,
		Approvals: t.Approvals,
	}
	if t.Scheduled {
		e.ScheduledAt = t.ScheduledAt
	}
	return e
}
