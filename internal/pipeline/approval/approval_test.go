package approval_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestAGuardedTaskWaitsAndRunsOnceApproved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(1))
	r.StartDispatch(t)
	ids := r.Enqueue(t, refund(1001), refund(1000))
	wantState(t, r, ids[0], protocol.StateWaitingApproval)
	wantState(t, r, ids[1], protocol.StateQueued)
	approve(t, r, one(t, r, ids[0]), bob, released)
	hs := r.Fetch(t, "w", 2)
	var got *protocol.TaskEntry
	for _, h := range hs {
		if h.ID == ids[0] {
			got = h.TaskEntry
		}
	}
	var grants []protocol.Grant
	if got == nil || json.Unmarshal(got.Approvals, &grants) != nil || len(grants) != 1 {
		t.Fatalf("the entry tells of the approvals %s", got.Approvals)
	}
	if g := grants[0]; g.Kind != "guard" || g.Rule != "refunds" || g.Revision != 1 || len(g.ApprovedBy) != 1 || g.ApprovedBy[0] != "bob" || g.Reasons[0] != "looks right" || g.At.IsZero() {
		t.Errorf("the handler is told %+v", g)
	}
	if e := events(t, r, ids[0]); e != "task.created>waiting_approval approval.requested>waiting_approval approval.approved>queued" {
		t.Errorf("events %s", e)
	}
	var data protocol.ApprovalRequestedData
	var raw []byte
	if err := r.DB.QueryRow(t.Context(), `SELECT data FROM event_log WHERE task_id = $1 AND seq = 2`, pgid.ID(ids[0])).Scan(&raw); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &data); err != nil || data.Rule != "refunds" || data.Revision != 1 || len(data.Digest) != 64 || data.Required != 1 || data.RuleError != "" {
		t.Errorf("approval.requested tells %s (%v)", raw, err)
	}
	testkit.VerifyEvents(t, r.Stores)
}

func TestTwoDifferentPeopleAreTwo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(2))
	id := r.Enqueue(t, refund(5000))[0]
	req := one(t, r, id)
	approve(t, r, req, bob, approval.Decision{})
	for _, name := range []string{"bob", "Bob", "BOB", " bob "} { // one person, by whatever spelling
		approve(t, r, req, approver(name), approval.Decision{Already: true})
	}
	wantState(t, r, id, protocol.StateWaitingApproval)
	for _, name := range []string{"alice", "ALICE", "aLice"} {
		_, err := r.Approval.Approve(t.Context(), req, approver(name), "")
		if !errors.Is(err, approval.ErrRequester) {
			t.Fatalf("%s, who asked for the task, approves: %v", name, err)
		}
	}
	for _, name := range []string{"", "anonymous", "Anonymous", " "} {
		if _, err := r.Approval.Approve(t.Context(), req, approver(name), ""); !errors.Is(err, approval.ErrNobody) {
			t.Fatalf("%q approves: %v", name, err)
		}
	}
	if _, err := r.Approval.Approve(t.Context(), req, approval.Person{Principal: "dave", Roles: []string{"viewer"}}, ""); !errors.Is(err, approval.ErrNotApprover) {
		t.Fatalf("a viewer approves: %v", err)
	}
	approve(t, r, req, approval.Person{Principal: "carol", Roles: []string{"admin"}}, released)
	wantState(t, r, id, protocol.StateQueued)
	approve(t, r, req, carol, approval.Decision{Already: true}) // its reply was lost
	_, err := r.Approval.Approve(t.Context(), req, approver("erin"), "")
	if protocol.CodeOf(err) != protocol.CodeInvalidTransition {
		t.Fatalf("approving what is approved: %v", err)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// What the code refuses, the database refuses, too.
func TestTheDatabaseRefusesVotesThatDoNotCount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(2))
	req := one(t, r, r.Enqueue(t, refund(5000))[0])
	vote := `INSERT INTO approval_votes (approval_id, principal, requesters, reason, at) VALUES ($1, $2, $3, '', now())`
	for _, c := range []struct {
		principal  string
		requesters []string
		ok         bool
	}{
		{"bob", []string{"alice"}, true},
		{"bob", []string{"alice"}, false},
		{"Bob", []string{"alice"}, false},
		{" bob", []string{"alice"}, false},
		{"alice", []string{"alice"}, false},
		{"Alice", []string{"alice"}, false},
		{"alice", []string{}, false},
		{"alice", []string{"zoe"}, false},
		{"anonymous", []string{"alice"}, false},
		{"", []string{"alice"}, false},
		{"carol", []string{"alice"}, true},
	} {
		_, err := r.DB.Exec(t.Context(), vote, pgid.ID(req), c.principal, c.requesters)
		if (err == nil) != c.ok {
			t.Errorf("a vote of %q with requesters %v: %v, want ok %v", c.principal, c.requesters, err, c.ok)
		}
	}
	for _, sql := range []string{
		`UPDATE approvals SET requesters = '{zoe}' WHERE id = $1`, // with votes that point at them
		`UPDATE approvals SET requesters = '{Zoe}' WHERE id = $1`,
		`UPDATE approvals SET status = 'rejected', decided_at = now() WHERE id = $1`,
	} {
		if _, err := r.DB.Exec(t.Context(), sql, pgid.ID(req)); err == nil {
			t.Errorf("%s: want a refusal", sql)
		}
	}
	// The role of the application can change none of it.
	for _, sql := range []string{
		`UPDATE approval_votes SET principal = 'x'`, `DELETE FROM approval_votes`, `UPDATE approvals SET required = 1`, `UPDATE approvals SET requesters = '{x}'`,
		`DELETE FROM approvals`, `UPDATE guard_rule_revisions SET required = 1`, `DELETE FROM guard_rule_revisions`,
	} {
		if _, err := r.DB.Exec(t.Context(), `SET ROLE penstock_app`); err != nil {
			t.Fatal(err)
		}
		if _, err := r.DB.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("penstock_app: %s: %v, want permission denied", sql, err)
		}
		if _, err := r.DB.Exec(t.Context(), `RESET ROLE`); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSeveralRulesAreSeveralRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(1))
	save(t, r, guard.Rule{Name: "all", Expression: "true", Approvers: []string{"Carol"}})
	id := r.Enqueue(t, refund(5000))[0]
	reqs := pending(t, r, id)
	if len(reqs) != 2 {
		t.Fatalf("%d requests, want 2", len(reqs))
	}
	free := 0
	for _, req := range reqs {
		if d, err := r.Approval.Approve(t.Context(), req, bob, ""); err == nil && d == (approval.Decision{}) {
			free++
		} else if !errors.Is(err, approval.ErrNotApprover) {
			t.Fatalf("bob approves: %+v, %v", d, err)
		}
	}
	if free != 1 {
		t.Fatalf("bob approved %d requests, want 1", free)
	}
	wantState(t, r, id, protocol.StateWaitingApproval)
	approve(t, r, one(t, r, id), approval.Person{Principal: "carol"}, released)
	wantState(t, r, id, protocol.StateQueued)

	rejected := r.Enqueue(t, refund(5000))[0]
	reqs = pending(t, r, rejected)
	if _, err := r.Approval.Reject(t.Context(), reqs[0], approval.Person{Principal: "carol", Roles: []string{"approver"}}, ""); protocol.CodeOf(err) != protocol.CodeInputInvalid {
		t.Fatalf("rejecting without a reason: %v", err)
	}
	if _, err := r.Approval.Reject(t.Context(), reqs[0], approval.Person{Principal: "carol", Roles: []string{"approver"}}, "no money"); err != nil {
		t.Fatal(err)
	}
	wantState(t, r, rejected, protocol.StateCancelled)
	if row := r.Row(t, rejected); row.Code != string(protocol.CodeApprovalRejected) || row.Reason != "no money" {
		t.Errorf("cancelled with %s: %s", row.Code, row.Reason)
	}
	if n := len(requests(t, r, rejected, "withdrawn")); n != 1 {
		t.Errorf("%d requests were withdrawn, want the other one", n)
	}
	_, err := r.Approval.Approve(t.Context(), reqs[1], approval.Person{Principal: "carol", Roles: []string{"approver"}}, "")
	refused(t, err, "withdrawn")
	testkit.VerifyEvents(t, r.Stores)
}

func TestARuleThatCannotBeEvaluatedStopsAndSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(1))
	id := r.Enqueue(t, &enqueue.Request{Type: "payment.refund", Payload: []byte(`{"sum": 1}`), RequestedBy: "alice"})[0]
	wantState(t, r, id, protocol.StateWaitingApproval)
	var text, reason string
	if err := r.DB.QueryRow(t.Context(), `SELECT a.rule_error, e.reason FROM approvals a JOIN event_log e ON e.task_id = a.task_id AND e.seq = 2 WHERE a.task_id = $1`, pgid.ID(id)).Scan(&text, &reason); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, "no such key: amount") || !strings.Contains(reason, "could not be evaluated") {
		t.Errorf("the request says %q, the event %q", text, reason)
	}
	approve(t, r, one(t, r, id), bob, released)
	testkit.VerifyEvents(t, r.Stores)
}

func TestARuleSavedLaterStopsAScheduledTask(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := refund(5000)
	req.ScheduleType, req.DelayMS = "delay", 700
	id := r.Enqueue(t, req)[0]
	wantState(t, r, id, protocol.StatePending)
	save(t, r, refunds(1))
	r.StartDispatch(t)
	r.WaitState(t, protocol.StateWaitingApproval, id)
	approve(t, r, one(t, r, id), bob, released)
	if h := r.Fetch(t, "w", 1)[0]; h.ID != id {
		t.Fatalf("fetched %s", h.ID)
	}
	if e := events(t, r, id); e != "task.created>pending approval.requested>waiting_approval approval.approved>queued" {
		t.Errorf("events %s", e)
	}
	testkit.VerifyEvents(t, r.Stores)
}

func TestAnApprovedTaskWaitsForItsTimeAndIsNotStoppedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(1))
	r.StartDispatch(t)
	req := refund(5000)
	req.ScheduleType, req.ScheduledAt = "at", time.Now().Add(6*time.Second)
	id := r.Enqueue(t, req)[0]
	approve(t, r, one(t, r, id), bob, released)
	wantState(t, r, id, protocol.StatePending)
	if h := r.Fetch(t, "w", 1)[0]; h.ID != id {
		t.Fatalf("fetched %s", h.ID)
	}
	if e := events(t, r, id); e != "task.created>waiting_approval approval.requested>waiting_approval approval.approved>pending task.queued>queued" {
		t.Errorf("events %s", e)
	}
	testkit.VerifyEvents(t, r.Stores)
}

func TestAChangedTaskIsStoppedAgainAndItsChangerIsARequester(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(1))
	r.StartDispatch(t)
	req := refund(5000)
	req.ScheduleType, req.DelayMS = "delay", 60_000
	id := r.Enqueue(t, req)[0]
	first := one(t, r, id)
	// While it waits: the request that people saw is not about this task any more.
	reschedule(t, r, id, "bob", 50_000)
	_, err := r.Approval.Approve(t.Context(), first, carol, "")
	refused(t, err, "renewed")
	second := one(t, r, id)
	if _, err := r.Approval.Approve(t.Context(), second, bob, ""); !errors.Is(err, approval.ErrRequester) {
		t.Fatalf("who rescheduled the task approves it: %v", err)
	}
	approve(t, r, second, carol, released)
	wantState(t, r, id, protocol.StatePending)
	// Once approved, by the one who approved it: it is stopped when it is due.
	reschedule(t, r, id, "Carol", 100)
	r.WaitState(t, protocol.StateWaitingApproval, id)
	third := one(t, r, id)
	for _, who := range []approval.Person{bob, carol, approver("alice")} {
		if _, err := r.Approval.Approve(t.Context(), third, who, ""); !errors.Is(err, approval.ErrRequester) {
			t.Fatalf("%s, who had a hand in it, approves: %v", who.Principal, err)
		}
	}
	approve(t, r, third, approver("dave"), released)
	r.Fetch(t, "w", 1)
	testkit.VerifyEvents(t, r.Stores)
}

// Who moved a task and moved it back had a hand in it, though it is as it was.
func TestThereAndBackIsAHand(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(2))
	at := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	req := refund(5000)
	req.ScheduleType, req.ScheduledAt = "at", at
	id := r.Enqueue(t, req)[0]
	first := one(t, r, id)
	approve(t, r, first, bob, approval.Decision{})
	for _, to := range []time.Time{at.Add(time.Hour), at} {
		if err := r.Enqueuer.Reschedule(t.Context(), enqueue.Reschedule{ID: id, ScheduleType: "at", ScheduledAt: to, Principal: "Carol"}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := r.Approval.Approve(t.Context(), first, carol, "")
	refused(t, err, "carol had a hand in the task since people were asked")
	second := one(t, r, id)
	if _, err := r.Approval.Approve(t.Context(), second, carol, ""); second == first || !errors.Is(err, approval.ErrRequester) {
		t.Errorf("who moved it approves it: %v", err)
	}
	approve(t, r, second, bob, approval.Decision{})
	approve(t, r, second, approver("dave"), released)
	wantState(t, r, id, protocol.StatePending)
	testkit.VerifyEvents(t, r.Stores)
}

// A task's name is used again once it was removed, and its handler asks at the
// same point: that is another question.
func TestANameThatIsUsedAgainAsksAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	ask := func() protocol.ID {
		id := r.Enqueue(t, &enqueue.Request{TaskID: "daily", Type: "t", Payload: []byte("{}"), RequestedBy: "alice"})[0]
		h := r.Fetch(t, "w", 1)[0]
		o := h.Outcome(protocol.OutcomeApprovalNeeded)
		o.Approval = []byte(`{"name":"go"}`)
		r.Report(t, o)
		r.Ack(t, h)
		r.WaitState(t, protocol.StateWaitingApproval, id)
		return id
	}
	id := ask()
	approve(t, r, one(t, r, id), bob, released)
	h := r.Fetch(t, "w", 1)[0]
	r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
	r.Ack(t, h)
	r.WaitState(t, protocol.StateSucceeded, id)
	for _, sql := range []string{
		"UPDATE tasks SET created_at = created_at - interval '30 days', updated_at = updated_at - interval '30 days', started_at = started_at - interval '30 days', finished_at = finished_at - interval '30 days' WHERE id = $1",
		"UPDATE approvals SET requested_at = requested_at - interval '30 days', decided_at = decided_at - interval '30 days' WHERE task_id = $1",
	} {
		if _, err := r.DB.Exec(t.Context(), sql, pgid.ID(id)); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.Count(t, "SELECT penstock_remove_tasks(ARRAY[$1::uuid], '10 days')", pgid.ID(id)); n != 1 {
		t.Fatalf("%d tasks removed", n)
	}
	again := ask() // before what is decided is swept
	if again != id {
		t.Fatalf("the name is task %s, was %s", again, id)
	}
	if err := r.Approval.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	approve(t, r, one(t, r, again), bob, released)
}

// A decision that comes when there is nothing to decide is refused on record,
// once, and counted each time.
func TestRefusedDecisionsAreOnRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(1))
	id := r.Enqueue(t, refund(5000))[0]
	ask := one(t, r, id)
	if _, err := r.Approval.Reject(t.Context(), ask, bob, "too much"); err != nil {
		t.Fatal(err)
	}
	before := r.Row(t, id)
	for range 2 {
		_, err := r.Approval.Approve(t.Context(), ask, carol, "")
		refused(t, err, "rejected by bob")
		_, err = r.Approval.Reject(t.Context(), ask, carol, "no")
		refused(t, err, "rejected by bob")
	}
	if after := r.Row(t, id); after.State != before.State || after.Delivery != before.Delivery {
		t.Errorf("%+v → %+v", before, after)
	}
	if n := r.Count(t, `SELECT count(*) FROM event_log WHERE task_id = $1 AND type = 'task.transition_rejected' AND actor = 'user:carol'
		AND error_code = 'TASK_INVALID_TRANSITION' AND reason = 'approve in state cancelled'`, pgid.ID(id)); n != 1 {
		t.Errorf("%d refusals on record, want 1", n)
	}
	testkit.VerifyEvents(t, r.Stores)
}

func reschedule(t *testing.T, r *testkit.Rig, id protocol.ID, who string, delayMS int64) {
	t.Helper()
	err := r.Enqueuer.Reschedule(t.Context(), enqueue.Reschedule{ID: id, ScheduleType: "delay", DelayMS: delayMS, Principal: who})
	if err != nil {
		t.Fatalf("reschedule: %v", err)
	}
}

func TestAnEditedRuleRenewsItsRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(2))
	id := r.Enqueue(t, refund(5000))[0]
	first := one(t, r, id)
	approve(t, r, first, bob, approval.Decision{})
	save(t, r, refunds(1)) // bob's approval would be enough now
	_, err := r.Approval.Approve(t.Context(), first, carol, "")
	refused(t, err, "revision 1, now 2")
	if protocol.CodeOf(err) != protocol.CodeInvalidTransition {
		t.Errorf("code %s", protocol.CodeOf(err))
	}
	wantState(t, r, id, protocol.StateWaitingApproval)
	second := one(t, r, id)
	if second == first {
		t.Fatal("the request is the same")
	}
	approve(t, r, second, bob, released)
	wantState(t, r, id, protocol.StateQueued)

	// A rule that is gone releases nothing by itself; the request is decided as it
	// was.
	save(t, r, refunds(2))
	id = r.Enqueue(t, refund(5000))[0]
	if err := r.Approval.DeleteRule(t.Context(), "refunds", "root"); err != nil {
		t.Fatal(err)
	}
	approve(t, r, one(t, r, id), bob, approval.Decision{})
	wantState(t, r, id, protocol.StateWaitingApproval)
	approve(t, r, one(t, r, id), carol, released)
	// A rule that came meanwhile holds it.
	save(t, r, refunds(1))
	id = r.Enqueue(t, refund(5000))[0]
	save(t, r, guard.Rule{Name: "more", Expression: "task.payload.amount > 4000"})
	approve(t, r, one(t, r, id), bob, approval.Decision{})
	wantState(t, r, id, protocol.StateWaitingApproval)
	approve(t, r, one(t, r, id), bob, released)
	testkit.VerifyEvents(t, r.Stores)
}

func TestNobodyDecidesInTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rule := refunds(1)
	rule.Timeout = time.Second
	save(t, r, rule)
	r.Start(t, r.Approval.Run)
	id := r.Enqueue(t, refund(5000))[0]
	req := one(t, r, id)
	r.WaitState(t, protocol.StateCancelled, id)
	if row := r.Row(t, id); row.Code != string(protocol.CodeApprovalRejected) || !strings.Contains(row.Reason, "nobody decided by") {
		t.Errorf("cancelled with %s: %s", row.Code, row.Reason)
	}
	if len(requests(t, r, id, "expired")) != 1 {
		t.Error("the request is not expired")
	}
	_, err := r.Approval.Approve(t.Context(), req, bob, "")
	refused(t, err, "expired")
	if n := r.Count(t, `SELECT count(*) FROM event_log WHERE task_id = $1 AND type = 'approval.rejected' AND actor = 'approval-timeout'`, pgid.ID(id)); n != 1 {
		t.Errorf("%d events of the timeout, want 1", n)
	}
	testkit.VerifyEvents(t, r.Stores)
}

func TestACancelledTaskWithdrawsItsRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, refunds(1))
	id := r.Enqueue(t, refund(5000))[0]
	req := one(t, r, id)
	if _, err := r.Cancel.Cancel(t.Context(), id, cancelBy("alice")); err != nil {
		t.Fatal(err)
	}
	if len(requests(t, r, id, "withdrawn")) != 1 {
		t.Error("the request is not withdrawn")
	}
	_, err := r.Approval.Reject(t.Context(), req, bob, "too late")
	refused(t, err, "withdrawn")
	testkit.VerifyEvents(t, r.Stores)
}
