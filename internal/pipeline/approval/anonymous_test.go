package approval_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/auth"
	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// TestAnAnonymousCallerMayBeTheApprover: where callers have names, one without
// can't enqueue what a rule stops, alone or among others, and what such a caller
// asked for before there was the rule can only be rejected.
func TestAnAnonymousCallerMayBeTheApprover(t *testing.T) {
	t.Parallel()
	s, as := systemWith(t, auth.RoleProducer)
	nobody, root, bob := as(""), as("root").Approvals(), as("bob").Approvals()
	testkit.Eventually(t, "the orchestrator serves", func() (bool, string) {
		_, err := nobody.EnqueueTask(t.Context(), &task.Request{TaskID: "before", Type: "x", Payload: []byte(`{"amount": 5000}`), Delay: time.Second})
		return err == nil, errText(err)
	})
	_, err := root.SaveRule(t.Context(), connect.NewRequest(&penstockv1.SaveRuleRequest{Name: "big", Rule: &penstockv1.GuardRule{Expression: `task.payload.amount > 1000`}}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = nobody.EnqueueTask(t.Context(), &task.Request{Type: "x", Payload: []byte(`{"amount": 5000}`)})
	refused(t, err, "rule big stops this task")
	if _, err := nobody.EnqueueTask(t.Context(), &task.Request{Type: "x", Payload: []byte(`{"amount": 5}`)}); err != nil {
		t.Errorf("what no rule stops: %v", err)
	}
	if _, err := as("alice").EnqueueTask(t.Context(), &task.Request{Type: "y", Payload: []byte(`{"amount": 5000}`)}); err != nil {
		t.Errorf("alice: %v", err)
	}
	var before *penstockv1.Approval
	testkit.Eventually(t, "the earlier task is stopped", func() (bool, string) {
		res, err := bob.ListApprovals(t.Context(), connect.NewRequest(&penstockv1.ListApprovalsRequest{}))
		if err != nil {
			return false, err.Error()
		}
		for _, a := range res.Msg.Approvals {
			if a.TaskId == "before" {
				before = a
			}
		}
		return before != nil && len(res.Msg.Approvals) == 2, "not yet"
	})
	_, err = bob.Approve(t.Context(), connect.NewRequest(&penstockv1.ApproveRequest{ApprovalId: before.ApprovalId}))
	if refused(t, err, "without a token"); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("approved with code %s", connect.CodeOf(err))
	}
	if _, err := bob.Reject(t.Context(), connect.NewRequest(&penstockv1.RejectRequest{ApprovalId: before.ApprovalId, Reason: "whose is it?"})); err != nil {
		t.Errorf("rejecting it: %v", err)
	}
	testkit.VerifyEvents(t, s)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Without names nobody can be told apart, and guarded tasks of anonymous callers
// wait as all others do.
func TestAnonymousCallersWithoutATokensFile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	save(t, r, guard.Rule{Name: "all", Expression: "true"})
	id := r.Enqueue(t, &enqueue.Request{Type: "x"})[0]
	wantState(t, r, id, protocol.StateWaitingApproval)
	approve(t, r, one(t, r, id), bob, approval.Decision{Released: true})
}
