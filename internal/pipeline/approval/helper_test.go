package approval_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

func newRig(t *testing.T) *testkit.Rig {
	t.Helper()
	stores := testkit.NewStores(t)
	return testkit.NewRig(t, stores, testConfig(stores))
}

func testConfig(s testkit.Stores) config.Orchestrator {
	cfg := s.Config()
	cfg.Dispatch.PollInterval = 50 * time.Millisecond
	return cfg
}

// approver is somebody who may approve.
func approver(name string) approval.Person {
	return approval.Person{Principal: name, Roles: []string{"approver"}}
}

var bob, carol = approver("bob"), approver("carol")

// save stores a rule.
func save(t *testing.T, r *testkit.Rig, rule guard.Rule) *guard.Rule {
	t.Helper()
	rule.Enabled = true
	saved, _, err := r.Approval.SaveRule(t.Context(), rule, nil, "root")
	if err != nil {
		t.Fatalf("save rule %s: %v", rule.Name, err)
	}
	return saved
}

// refunds is a rule that stops refunds above 1000.
func refunds(required int) guard.Rule {
	return guard.Rule{Name: "refunds", Expression: `task.type == "payment.refund" && task.payload.amount > 1000`, Required: required}
}

// refund is a request of alice's.
func refund(amount any) *enqueue.Request {
	b, _ := json.Marshal(map[string]any{"amount": amount})
	return &enqueue.Request{Type: "payment.refund", Payload: b, RequestedBy: "alice"}
}

// pending returns the requests that are pending about a task, oldest first.
func pending(t *testing.T, r *testkit.Rig, task protocol.ID) []protocol.ID {
	return requests(t, r, task, "pending")
}

func requests(t *testing.T, r *testkit.Rig, task protocol.ID, status string) (out []protocol.ID) {
	t.Helper()
	rows, err := r.DB.Query(t.Context(), `SELECT id FROM approvals WHERE task_id = $1 AND status = $2 ORDER BY requested_at, id`, pgid.ID(task), status)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id pgid.ID
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		out = append(out, protocol.ID(id))
	}
	return out
}

// one is the only request that is pending about a task.
func one(t *testing.T, r *testkit.Rig, task protocol.ID) protocol.ID {
	t.Helper()
	ids := pending(t, r, task)
	if len(ids) != 1 {
		t.Fatalf("%d requests are pending about task %s, want 1", len(ids), task)
	}
	return ids[0]
}

// events lists the types of a task's events with the states they lead to.
func events(t *testing.T, r *testkit.Rig, task protocol.ID) string {
	t.Helper()
	rows, err := r.DB.Query(t.Context(), `SELECT type || '>' || status FROM event_log WHERE task_id = $1 ORDER BY seq`, pgid.ID(task))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func wantState(t *testing.T, r *testkit.Rig, task protocol.ID, state protocol.State) {
	t.Helper()
	if row := r.Row(t, task); row.State != state {
		t.Fatalf("task is %s (%s), want %s; its events: %s", row.State, row.Reason, state, events(t, r, task))
	}
}

func approve(t *testing.T, r *testkit.Rig, id protocol.ID, who approval.Person, want approval.Decision) {
	t.Helper()
	d, err := r.Approval.Approve(t.Context(), id, who, "looks right")
	if err != nil || d != want {
		t.Fatalf("%s approves: %+v, %v; want %+v", who.Principal, d, err, want)
	}
}

func refused(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("error %v, want one about %q", err, want)
	}
}

var released = approval.Decision{Released: true}

func kind(i int) string { return fmt.Sprintf("test.%d", i) }

func requeueBy(name string) replay.RequeueOptions { return replay.RequeueOptions{Principal: name} }
