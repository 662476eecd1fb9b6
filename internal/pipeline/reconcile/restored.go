package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// undispatched are the states in which no entry of a task's delivery has been
// made yet, as far as its record knows.
var undispatched = []string{string(protocol.StatePending), string(protocol.StateWaitingApproval)}

// live are all states in which an execution can still count.
var live = func() (out []string) {
	for _, s := range protocol.States() {
		if s.Cancellable() {
			out = append(out, string(s))
		}
	}
	return out
}()

// restored gives the live tasks from before a time deliveries that nothing in
// Redis can have. Outcomes that are there already are applied before: those of
// the delivery that a task still has are honest. Of tasks that were not dispatched
// none is, so they do not wait for that: an approval meanwhile must not let one in.
func (r *Reconciler) restored(ctx context.Context, floor int64, before time.Time) error {
	if err := r.raiseAll(ctx, undispatched, floor, before); err != nil {
		return err
	}
	if err := r.waitApplied(ctx); err != nil {
		return err
	}
	if err := r.raiseAll(ctx, live, floor, before); err != nil {
		return err
	}
	r.o.Wake(time.Now())
	return nil
}

// raiseAll raises the deliveries of tasks in some states, a chunk in a
// transaction.
func (r *Reconciler) raiseAll(ctx context.Context, states []string, floor int64, before time.Time) error {
	n := 0
	err := r.eachBelow(ctx, states, floor, before, func(rows []*dbsqlc.BelowFloorRow) error {
		n += len(rows)
		ids := make([]protocol.ID, len(rows))
		for i, t := range rows {
			ids[i] = protocol.ID(t.ID)
		}
		return r.decide(ctx, ids, func(now time.Time, t *store.Locked) ([]*protocol.Event, bool) {
			env := r.o.Env
			env.Now = now
			return t.Restored(env, floor, "Postgres was restored from before what Redis holds")
		})
	})
	if n > 0 {
		r.o.Log.Warn("Postgres was restored: deliveries of live tasks are raised", "tasks", n, "states", states, "floor", floor)
	}
	return err
}

// eachBelow calls fn with the tasks in some states whose delivery is below a
// floor, a chunk at a time.
func (r *Reconciler) eachBelow(ctx context.Context, states []string, floor int64, before time.Time, fn func([]*dbsqlc.BelowFloorRow) error) error {
	var after pgid.ID
	for {
		rows, err := r.o.Store.BelowFloor(ctx, dbsqlc.BelowFloorParams{States: states, Floor: floor, Before: before, AfterID: after, MaxRows: chunk})
		if err != nil {
			return fmt.Errorf("read live tasks: %w", err)
		}
		if len(rows) > 0 {
			after = rows[len(rows)-1].ID
			if err := fn(rows); err != nil {
				return err
			}
		}
		if len(rows) < chunk {
			return nil
		}
	}
}
