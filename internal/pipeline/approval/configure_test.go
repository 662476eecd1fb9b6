package approval_test

import (
	"fmt"
	"testing"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// stored lists the rules with source and revision.
func stored(t *testing.T, r *testkit.Rig) (out string) {
	t.Helper()
	if err := r.DB.QueryRow(t.Context(), `SELECT COALESCE(string_agg(name || ' ' || source || ' ' || revision, ', ' ORDER BY name), '') FROM guard_rules`).Scan(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRulesOfTheConfiguration: they are replaced as a whole, those of the RPC stay,
// what does not change keeps its revision, and nobody changes them by RPC.
func TestRulesOfTheConfiguration(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, guard.Rule{Name: "mine", Expression: "false"})
	rule := func(name, expression string) guard.Rule {
		return guard.Rule{Name: name, Expression: expression, Enabled: true}
	}
	for _, step := range []struct {
		rules []guard.Rule
		want  string
	}{
		{[]guard.Rule{rule("a", "false"), rule("b", "false")}, "a config 1, b config 1, mine rpc 1"},
		{[]guard.Rule{rule("a", "false"), rule("b", "true")}, "a config 1, b config 2, mine rpc 1"},
		{[]guard.Rule{rule("b", "true")}, "b config 2, mine rpc 1"},
		{[]guard.Rule{}, "mine rpc 1"},
		{[]guard.Rule{rule("a", "true"), rule("mine", "false")}, "a config 3, mine config 2"},
	} {
		if err := r.Approval.Configure(t.Context(), step.rules); err != nil {
			t.Fatal(err)
		}
		if got := stored(t, r); got != step.want {
			t.Errorf("rules %s, want %s", got, step.want)
		}
	}
	revision := r.Rules.Known().Revision
	if err := r.Approval.Configure(t.Context(), []guard.Rule{rule("a", "true"), rule("mine", "false")}); err != nil || r.Rules.Known().Revision != revision {
		t.Errorf("the same rules again: %v, revision %d, was %d", err, r.Rules.Known().Revision, revision)
	}
	refused(t, r.Approval.Configure(t.Context(), []guard.Rule{rule("c", "1 + 1")}), `guard.rules["c"]`)
	_, _, err := r.Approval.SaveRule(t.Context(), rule("a", "false"), nil, "root")
	refused(t, err, "belongs to the configuration")
	refused(t, r.Approval.DeleteRule(t.Context(), "a", "root"), "belongs to the configuration")
	if got := stored(t, r); got != "a config 3, mine config 2" {
		t.Errorf("rules %s after what was refused", got)
	}
	id := r.Enqueue(t, &enqueue.Request{Type: "x", RequestedBy: "alice"})[0]
	wantState(t, r, id, protocol.StateWaitingApproval)
}

// TestDecidedRequestsOfRemovedTasksAreRemoved, with their votes: not pending ones,
// not those of tasks that are there, and not before 48 hours.
func TestDecidedRequestsOfRemovedTasksAreRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(1))
	ids := r.Enqueue(t, refund(5000), refund(5000), refund(5000), refund(5000))
	gone, young, kept, waits := ids[0], ids[1], ids[2], ids[3]
	for _, id := range ids[:3] {
		approve(t, r, one(t, r, id), bob, released)
	}
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := r.DB.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`UPDATE approvals SET decided_at = now() - interval '49 hours' WHERE task_id = ANY ($1::uuid[])`, pgid.Slice([]protocol.ID{gone, kept}))
	exec(`UPDATE approvals SET decided_at = now() - interval '47 hours' WHERE task_id = $1`, pgid.ID(young))
	exec(`DELETE FROM tasks WHERE id = ANY ($1::uuid[])`, pgid.Slice([]protocol.ID{gone, young, waits}))
	if err := r.Approval.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[protocol.ID]int{gone: 0, young: 1, kept: 1, waits: 1} {
		if n := r.Count(t, `SELECT count(*) FROM approvals WHERE task_id = $1`, pgid.ID(id)); n != want {
			t.Errorf("%d requests about task %s are left, want %d", n, id, want)
		}
	}
	if n := r.Count(t, `SELECT count(*) FROM approval_votes`); n != 2 {
		t.Errorf("%d votes are left, want 2", n)
	}
}

// TestSettlingAnEffectLetsTheTaskGoOn, by a person who had no hand in it, and once.
func TestSettlingAnEffectLetsTheTaskGoOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	id := r.Enqueue(t, &enqueue.Request{Type: "pay", TaskID: "k", RequestedBy: "alice"})[0]
	h := r.Fetch(t, "w", 1)[0]
	o := h.Outcome(protocol.OutcomeApprovalNeeded)
	o.Approval = []byte(`{"kind":"effect","name":"charge","effect":{"scope":"default","key":"k","name":"charge"}}`)
	r.Report(t, o)
	r.Ack(t, h)
	r.WaitState(t, protocol.StateWaitingApproval, id)
	var own string // as the ledger writes it
	if err := r.DB.QueryRow(t.Context(), `SELECT effect_key FROM approvals WHERE task_id = $1 AND effect_scope = 'default'`, pgid.ID(id)).Scan(&own); err != nil {
		t.Fatal(err)
	}
	settle := func(key, who string) (freed []protocol.ID, err error) {
		err = r.Store.Tx(t.Context(), func(q *dbsqlc.Queries) error {
			freed, _, err = r.Approval.SettleEffectTx(t.Context(), q, "default", key, "charge", who, "looked it up")
			return err
		})
		return freed, err
	}
	for who, want := range map[string]string{"": approval.ErrNobody.Error(), "Alice": "had a hand in this task"} {
		_, err := settle(own, who)
		refused(t, err, want)
	}
	wantState(t, r, id, protocol.StateWaitingApproval)
	for i, want := range []string{"[]", fmt.Sprint([]protocol.ID{id}), "[]"} {
		key := []string{"another", own, own}[i]
		if freed, err := settle(key, "bob"); err != nil || fmt.Sprint(freed) != want {
			t.Errorf("settled effect %s: %v, %v; want %s", key, freed, err, want)
		}
	}
	if n := r.Count(t, `SELECT count(*) FROM approvals a JOIN approval_votes v ON v.approval_id = a.id WHERE a.status = 'approved' AND v.principal = 'bob'`); n != 1 {
		t.Errorf("%d approved requests with bob's vote, want 1", n)
	}
	if again := r.Fetch(t, "w", 1)[0]; again.ID != id || again.Delivery != 2 {
		t.Errorf("fetched task %s, delivery %d", again.ID, again.Delivery)
	}
	testkit.VerifyEvents(t, r.Stores)
}
