package approval_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// system runs an orchestrator with tokens for some people, and returns a client
// for each of them.
func system(t *testing.T) (testkit.Stores, func(name string) *client.Client) {
	t.Helper()
	return systemWith(t)
}

// systemWith gives roles to callers without a token.
func systemWith(t *testing.T, anonymous ...string) (testkit.Stores, func(name string) *client.Client) {
	t.Helper()
	s := testkit.NewStores(t)
	cfg := s.Config()
	token := func(name string) string { return name + "-0123456789abcdef" }
	var lines strings.Builder
	for name, roles := range map[string]string{
		"alice": "producer,approver", "bob": "approver", "carol": "operator,approver", "root": "admin", "vera": "viewer,approver,payloads",
	} {
		fmt.Fprintf(&lines, "%s %s roles=%s\n", name, token(name), roles)
	}
	cfg.Auth.TokensFile = filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(cfg.Auth.TokensFile, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Auth.AnonymousRoles = anonymous
	o := testkit.StartOrchestrator(t, cfg)
	return s, func(name string) *client.Client {
		opts := client.Options{}
		if name != "" {
			opts.Token = token(name)
		}
		c, err := client.NewWith(o.URL, opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// inbox waits until one request is pending, and returns it.
func inbox(t *testing.T, c penstockv1connect.ApprovalServiceClient) *penstockv1.Approval {
	t.Helper()
	var out *penstockv1.Approval
	testkit.Eventually(t, "one request is pending", func() (bool, string) {
		res, err := c.ListApprovals(t.Context(), connect.NewRequest(&penstockv1.ListApprovalsRequest{}))
		if err != nil {
			return false, err.Error()
		}
		if len(res.Msg.Approvals) == 1 {
			out = res.Msg.Approvals[0]
		}
		return out != nil, fmt.Sprintf("%d are", len(res.Msg.Approvals))
	})
	return out
}

// TestAHandlerAsks goes the whole way: a handler asks, two people approve, and a
// fresh execution sees who did.
func TestAHandlerAsks(t *testing.T) {
	t.Parallel()
	s, as := system(t)
	seen := make(chan task.Grant, 1)
	s.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("pay", func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
			g, err := worker.RequireApproval(ctx, "pay it", task.ApprovalPrompt("Pay 5000?"), task.ApprovalsNeeded(2))
			if err != nil {
				return nil, err
			}
			seen <- *g
			return json.Marshal(map[string]any{"delivery": r.Delivery, "attempt": r.Attempt})
		})
		w.HandleRaw("nonsense", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
			_, err := worker.RequireApproval(ctx, "x", task.ApprovalsNeeded(3))
			return nil, err
		})
	})
	if _, err := as("alice").EnqueueTask(t.Context(), &task.Request{TaskID: "p-1", Type: "pay", Payload: []byte(`{}`)}); err != nil {
		t.Fatal(err)
	}
	bob, carol := as("bob").Approvals(), as("carol").Approvals()
	a := inbox(t, bob)
	if a.Kind != "handler" || a.Name != "pay it" || a.Prompt != "Pay 5000?" || a.Required != 2 || a.TaskId != "p-1" || !slices.Equal(a.Requesters, []string{"alice"}) {
		t.Fatalf("the request is %+v", a)
	}
	for i, c := range []penstockv1connect.ApprovalServiceClient{bob, carol} {
		res, err := c.Approve(t.Context(), connect.NewRequest(&penstockv1.ApproveRequest{ApprovalId: a.ApprovalId, Reason: fmt.Sprintf("reason %d", i)}))
		if err != nil || res.Msg.Released != (i == 1) {
			t.Fatalf("approval %d: %+v, %v", i, res, err)
		}
	}
	done, err := as("alice").Wait(t.Context(), "", "p-1")
	if err != nil || done.State != "succeeded" {
		t.Fatalf("the task ended as %+v, %v", done, err)
	}
	if g := <-seen; !slices.Equal(g.ApprovedBy, []string{"bob", "carol"}) || !slices.Equal(g.Reasons, []string{"reason 0", "reason 1"}) || g.ApprovalID != a.ApprovalId {
		t.Errorf("the handler saw %+v", g)
	}
	if string(done.Result) != `{"attempt":1,"delivery":2}` {
		t.Errorf("it ran as %s, want the first attempt's second delivery", done.Result)
	}
	if _, err := as("alice").EnqueueTask(t.Context(), &task.Request{TaskID: "n-1", Type: "nonsense", Payload: []byte(`{}`)}); err != nil {
		t.Fatal(err)
	}
	if done, err := as("alice").Wait(t.Context(), "", "n-1"); err != nil || done.State != "failed" {
		t.Errorf("a request that can't be used: %+v, %v", done, err)
	}
	testkit.VerifyLog(t, s)
}

// TestEveryRouteKnowsThePerson: neither a call for one, repeated or not, nor a
// batch, nor one that repeats a request makes one person two.
func TestEveryRouteKnowsThePerson(t *testing.T) {
	t.Parallel()
	s, as := system(t)
	root := as("root").Approvals()
	testkit.Eventually(t, "the orchestrator serves", func() (bool, string) {
		_, err := root.ListRules(t.Context(), connect.NewRequest(&penstockv1.ListRulesRequest{}))
		return err == nil, fmt.Sprint(err)
	})
	rule := &penstockv1.GuardRule{Expression: `task.payload.amount > 1000`, Required: 2}
	save := func(name string, r *penstockv1.GuardRule) error {
		_, err := root.SaveRule(t.Context(), connect.NewRequest(&penstockv1.SaveRuleRequest{Name: name, Rule: r, ExpectedRevision: wrapperspb.Int64(0)}))
		return err
	}
	if err := save("big", rule); err != nil {
		t.Fatal(err)
	}
	if err := save("big", rule); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("saving over a rule that was not expected: %v", err)
	}
	if err := save("nonsense", &penstockv1.GuardRule{Expression: `task.typ > 1 &&`}); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("nonsense: %v", err)
	}
	if res, err := root.ListRules(t.Context(), connect.NewRequest(&penstockv1.ListRulesRequest{})); err != nil || len(res.Msg.Rules) != 1 {
		t.Errorf("rules %+v, %v; want the one", res, err)
	}
	if _, err := as("bob").Approvals().SaveRule(t.Context(), connect.NewRequest(&penstockv1.SaveRuleRequest{Name: "mine", Rule: rule})); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("an approver saves a rule: %v", err)
	}
	if _, err := as("alice").EnqueueTask(t.Context(), &task.Request{TaskID: "t", Type: "x", Payload: []byte(`{"amount": 5000}`)}); err != nil {
		t.Fatal(err)
	}
	a := inbox(t, as("bob").Approvals())
	one := func() *connect.Request[penstockv1.ApproveRequest] { // a client puts its token into it
		return connect.NewRequest(&penstockv1.ApproveRequest{ApprovalId: a.ApprovalId})
	}
	many := func(name string) *penstockv1.DecisionResult {
		res, err := as(name).Approvals().ApproveMany(t.Context(), connect.NewRequest(&penstockv1.ApproveManyRequest{ApprovalIds: []string{a.ApprovalId, a.ApprovalId}}))
		if err != nil || len(res.Msg.Results) != 2 {
			t.Fatalf("%s: %+v, %v", name, res, err)
		}
		return res.Msg.Results[1]
	}
	if _, err := as("alice").Approvals().Approve(t.Context(), one()); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("the requester: %v", err)
	}
	if r := many("alice"); r.Error == "" || r.Released {
		t.Errorf("the requester, as one of many: %+v", r)
	}
	for _, name := range []string{"bob", "bob"} {
		if _, err := as(name).Approvals().Approve(t.Context(), one()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r := many(name); !r.Already || r.Released || r.Status != "pending" {
			t.Errorf("%s, as one of many: %+v", name, r)
		}
	}
	if _, err := as("").Approvals().Approve(t.Context(), one()); err == nil {
		t.Error("nobody approves")
	}
	got, err := as("vera").Approvals().GetApproval(t.Context(), connect.NewRequest(&penstockv1.GetApprovalRequest{ApprovalId: a.ApprovalId}))
	if err != nil || string(got.Msg.Payload) != `{"amount": 5000}` || got.Msg.Rule.GetExpression() != rule.Expression || len(got.Msg.Votes) != 1 || len(got.Msg.History) != 1 {
		t.Errorf("the request is shown as %+v, %v", got, err)
	}
	res, err := as("carol").Approvals().Approve(t.Context(), one())
	if err != nil || !res.Msg.Released || res.Msg.Approval.Status != "approved" {
		t.Errorf("carol: %+v, %v", res, err)
	}
	_, err = as("carol").Approvals().Reject(t.Context(), connect.NewRequest(&penstockv1.RejectRequest{ApprovalId: a.ApprovalId, Reason: "late"}))
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("rejecting what was approved: %v", err)
	}
	if n := countVotes(t, s); n != 2 {
		t.Errorf("%d votes, want 2", n)
	}
	testkit.VerifyEvents(t, s)
}

func countVotes(t *testing.T, s testkit.Stores) (n int) {
	t.Helper()
	if err := s.SQL(t).QueryRow(t.Context(), `SELECT count(*) FROM approval_votes`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestARequeuedDeadLetterIsGuarded: the requeuer, the editor and the one who asked
// for the original can't let it go.
func TestARequeuedDeadLetterIsGuarded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	r.Start(t, r.DeadLetter.Run)
	id := r.Enqueue(t, refund(5000))[0]
	h := r.Fetch(t, "w", 1)[0]
	o := h.Outcome(protocol.OutcomeFailed)
	o.Error = "no"
	r.Report(t, o)
	r.Ack(t, h)
	r.WaitState(t, protocol.StateFailed, id)
	save(t, r, refunds(1))
	dlq := protocol.DLQID(id)
	if _, err := r.Replay.Edit(t.Context(), dlq, []byte(`{"amount": 6000}`), 0, "Erin", "typo"); err != nil {
		t.Fatal(err)
	}
	out, err := r.Replay.Requeue(t.Context(), []protocol.ID{dlq}, requeueBy("Bob"))
	if err != nil || out[0].Err != nil {
		t.Fatal(err, out)
	}
	r.WaitState(t, protocol.StateWaitingApproval, out[0].Task)
	req := one(t, r, out[0].Task)
	for _, name := range []string{"alice", "erin", "bob"} {
		_, err := r.Approval.Approve(t.Context(), req, approver(name), "")
		refused(t, err, "had a hand in this task")
	}
	approve(t, r, req, carol, released)
	if h := r.Fetch(t, "w", 1)[0]; h.ID != out[0].Task {
		t.Fatalf("fetched %s", h.ID)
	}
	testkit.VerifyEvents(t, r.Stores)
}
