package e2e

import (
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// approved has a rule stop a task of dora's until some people approve. The
// orchestrator dies after the last of them did.
func approved(people int) func(c *crashed) func() {
	return func(c *crashed) func() {
		c.worker(injectConfig)
		as := func(name string) *client.Client {
			who, err := client.NewWith("http://"+c.addr, client.Options{Token: token(name)})
			must(c.t, err)
			c.t.Cleanup(func() { _ = who.Close() })
			return who
		}
		rule := &penstockv1.GuardRule{Expression: `task.type == "inject"`, Required: int32(people), Approvers: []string{"alice", "bob"}}
		_, err := as("alice").Approvals().SaveRule(c.t.Context(), connect.NewRequest(&penstockv1.SaveRuleRequest{Name: "all", Rule: rule}))
		must(c.t, err)
		_, err = as("dora").EnqueueTask(c.t.Context(), &task.Request{Type: "inject", Payload: []byte(`{"work_ms":1}`)})
		must(c.t, err)
		list, err := as("bob").Approvals().ListApprovals(c.t.Context(), connect.NewRequest(&penstockv1.ListApprovalsRequest{}))
		must(c.t, err)
		if len(list.Msg.Approvals) != 1 {
			c.t.Fatalf("%d requests are pending, want 1", len(list.Msg.Approvals))
		}
		approve := func(name string) (*connect.Response[penstockv1.ApproveResponse], error) {
			return as(name).Approvals().Approve(c.t.Context(), connect.NewRequest(&penstockv1.ApproveRequest{ApprovalId: list.Msg.Approvals[0].ApprovalId}))
		}
		names := []string{"alice", "bob"}[:people]
		for _, name := range names[:people-1] {
			_, err := approve(name)
			must(c.t, err)
		}
		last := names[people-1]
		_, err = approve(last)
		c.unanswered(err)
		events := slices.Concat([]string{"task.created", "approval.requested"}, slices.Repeat([]string{"approval.approved"}, people), []string{"task.claimed", "task.succeeded"})
		c.wants.succeeded, c.wants.events = 1, strings.Join(events, " ")
		return func() { // a caller that had no answer tries again
			res, err := approve(last)
			must(c.t, err)
			if !res.Msg.Already || res.Msg.Approval.Status != "approved" {
				c.t.Errorf("the call repeated: %v", res.Msg)
			}
			if n := c.count("SELECT count(*) FROM approval_votes"); n != people {
				c.t.Errorf("%d approvals are stored, want %d", n, people)
			}
		}
	}
}
