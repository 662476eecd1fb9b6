package approval_test

import (
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// TestARestoredTaskIsJudged: a scheduled task whose time came while Postgres was
// away is not let past a rule that was saved since it was enqueued, and its
// delivery is above every one of the forgotten time.
func TestARestoredTaskIsJudged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := refund(5000)
	req.ScheduleType, req.ScheduledAt = "at", time.Now().Add(time.Hour)
	id := r.Enqueue(t, req)[0]
	save(t, r, refunds(1))
	if _, err := r.DB.Exec(t.Context(), `UPDATE tasks SET due_at = now() - interval '1 second' WHERE id = $1`, pgid.ID(id)); err != nil {
		t.Fatal(err)
	}
	raised := false
	err := r.Store.Tx(t.Context(), func(q *dbsqlc.Queries) error {
		return r.Store.DecideTx(t.Context(), q, []protocol.ID{id}, func(now time.Time, tasks map[protocol.ID]*store.Locked) ([]*store.Locked, []*protocol.Event) {
			events, ok := tasks[id].Restored(protocol.Env{Now: now}, protocol.RestoredJump, "restored")
			raised = ok
			return []*store.Locked{tasks[id]}, events
		})
	})
	if err != nil || !raised {
		t.Fatalf("restored: %t, %v", raised, err)
	}
	r.StartDispatch(t)
	r.WaitState(t, protocol.StateWaitingApproval, id)
	approve(t, r, one(t, r, id), bob, released)
	r.WaitState(t, protocol.StatePending, id) // its time, as it was asked for, has not come
	if _, err := r.DB.Exec(t.Context(), `UPDATE tasks SET due_at = now() WHERE id = $1`, pgid.ID(id)); err != nil {
		t.Fatal(err)
	}
	if h := r.Fetch(t, "w", 1)[0]; h.ID != id || h.Delivery < protocol.RestoredJump {
		t.Errorf("fetched task %s, delivery %d", h.ID, h.Delivery)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// TestRulesOfARestoredDatabase: two histories of one database never come to the
// same revision, so rules that a process knows of the one are not taken for those
// of the other.
func TestRulesOfARestoredDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(1))
	if _, err := r.DB.Exec(t.Context(), `CREATE TABLE backup AS SELECT * FROM guard_rules; CREATE TABLE backup_state AS SELECT * FROM guard_state`); err != nil {
		t.Fatal(err)
	}
	// In one history refunds are let go, which this process comes to know; in the
	// other there is one more rule.
	forgotten := refunds(1)
	forgotten.Expression = "false"
	save(t, r, forgotten)
	known := r.Rules.Known()
	if _, err := r.DB.Exec(t.Context(), `DELETE FROM guard_rules; INSERT INTO guard_rules SELECT * FROM backup;
		UPDATE guard_state g SET revision = b.revision FROM backup_state b`); err != nil {
		t.Fatal(err)
	}
	other := refunds(1)
	other.Name, other.Expression = "other", `task.type == "x"`
	elsewhere := testkit.NewRig(t, r.Stores, testConfig(r.Stores)) // another process
	save(t, elsewhere, other)
	if r.Rules.Known() != known {
		t.Fatal("the process has seen the restored rules already")
	}
	ids := r.Enqueue(t, refund(5000), &enqueue.Request{Type: "x", RequestedBy: "alice"})
	for _, id := range ids {
		wantState(t, r, id, protocol.StateWaitingApproval)
	}
	testkit.VerifyEvents(t, r.Stores)
}
