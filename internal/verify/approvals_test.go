package verify_test

import (
	"encoding/json"
	"testing"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
)

// A release that fewer people backed than it needs, and a wait that nobody is
// asked about.
func TestTamperedApprovals(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	rule := guard.Rule{Name: "all", Expression: `task.type == "guarded"`, Required: 2, Enabled: true}
	if _, _, err := r.Approval.SaveRule(t.Context(), rule, nil, "root"); err != nil {
		t.Fatal(err)
	}
	guarded := func(approve bool) (task, request protocol.ID) {
		t.Helper()
		task = r.Enqueue(t, &enqueue.Request{Type: "guarded", Payload: json.RawMessage(`{}`), RequestedBy: "alice", ScheduleType: "delay", DelayMS: 3_600_000})[0]
		var id pgid.ID
		if err := r.DB.QueryRow(t.Context(), "SELECT id FROM approvals WHERE task_id = $1", pgid.ID(task)).Scan(&id); err != nil {
			t.Fatal(err)
		}
		for _, who := range []string{"bob", "carol"} {
			if !approve {
				break
			}
			if _, err := r.Approval.Approve(t.Context(), protocol.ID(id), approval.Person{Principal: who, Roles: []string{"approver"}}, "fine"); err != nil {
				t.Fatal(err)
			}
		}
		return task, protocol.ID(id)
	}
	tamper := func(sql string, id protocol.ID) {
		t.Helper()
		if tag, err := r.DB.Exec(t.Context(), sql, pgid.ID(id)); err != nil || tag.RowsAffected() != 1 {
			t.Fatalf("%s: %v rows, %v", sql, tag.RowsAffected(), err)
		}
	}
	guarded(false)
	guarded(true)
	clean(t, s, verify.Options{})

	unasked, request := guarded(false)
	tamper("DELETE FROM approvals WHERE id = $1", request)
	released, halved := guarded(true)
	tamper("DELETE FROM approval_votes WHERE approval_id = $1 AND principal = 'carol'", halved)
	_, found := run(t, s, verify.Options{})
	if len(found) != 2 {
		t.Errorf("%d differences, want 2: task %s is not asked about, task %s was released by one person", len(found), unasked, released)
	}
	for _, d := range found {
		if d.Check != verify.CheckApproval {
			t.Errorf("%s  %s", d.Check, d)
		}
	}
}
