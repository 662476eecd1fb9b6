package acceptance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// What is missing where a half of the line was not found out, and what to do.
const (
	nobodyElse = "whether an approval lets a task go on was not found out, as nobody approves their own task: give a token of somebody else with the role approver (--approver-token-file)"
	noAdmin    = "whether a guard rule stops a task was not found out, as saving a rule takes the role admin: give a token of an admin (--token or --token-file)"
)

// tqp8 has a handler ask twice, and a rule stop two tasks: one of each is
// approved and one rejected. Only an admin may save the rule, and only somebody
// else may approve: without them the line is not known.
func tqp8(ctx context.Context, r *run, f *finding) error {
	asks := script{Ask: r.name}
	for _, d := range []decision{{"handler", "approved"}, {"handler", "rejected"}} {
		if err := d.run(ctx, r, f, r.request(asks, nil)); err != nil {
			return err
		}
	}
	missing, err := guarded(ctx, r, f)
	if err != nil {
		return err
	}
	if r.o.Approver == nil {
		missing = append(missing, nobodyElse)
	}
	f.lacks(missing)
	return nil
}

// guarded saves a rule that is about one type on this acceptance's queue only, or
// says what is missing for that.
func guarded(ctx context.Context, r *run, f *finding) (missing []string, err error) {
	rule := &penstockv1.GuardRule{Name: r.name, Expression: fmt.Sprintf("task.type == %q && task.queue == %q", typeGuarded, r.name), Description: "of an acceptance that runs"}
	_, err = r.o.Client.Approvals().SaveRule(ctx, connect.NewRequest(&penstockv1.SaveRuleRequest{Name: r.name, Rule: rule}))
	// Who sends no token and lacks the role is told to send one.
	if code := connect.CodeOf(err); code == connect.CodePermissionDenied || code == connect.CodeUnauthenticated {
		return []string{noAdmin + ": " + err.Error()}, nil
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTime)
		defer cancel()
		_, derr := r.o.Client.Approvals().DeleteRule(last, connect.NewRequest(&penstockv1.DeleteRuleRequest{Name: r.name}))
		if derr != nil && connect.CodeOf(derr) != connect.CodeNotFound {
			err = errors.Join(err, fmt.Errorf("the guard rule %s stays behind: %w", r.name, derr))
		}
	}()
	if err != nil {
		return nil, fmt.Errorf("save a guard rule: %w", err)
	}
	for _, d := range []decision{{"guard", "approved"}, {"guard", "rejected"}} {
		if err := d.run(ctx, r, f, r.request(script{}, func(t *task.Request) { t.Type = typeGuarded })); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// decision is a task that is stopped, and what is decided about it.
type decision struct {
	kind string // guard or handler
	what string // approved or rejected
}

func (d decision) run(ctx context.Context, r *run, f *finding, req *task.Request) error {
	e, err := r.enqueue(ctx, req)
	if err == nil {
		err = r.reach(ctx, e.TaskID, protocol.StateWaitingApproval)
	}
	if err != nil {
		return err
	}
	asked, err := r.o.Client.Approvals().ListApprovals(ctx, connect.NewRequest(&penstockv1.ListApprovalsRequest{Tenant: Tenant, TaskId: e.TaskID}))
	if err != nil {
		return fmt.Errorf("list the approvals that are pending: %w", err)
	}
	if n := len(asked.Msg.Approvals); n != 1 || asked.Msg.Approvals[0].Kind != d.kind || asked.Msg.Approvals[0].Digest == "" {
		f.wrongf("task %s waits for approval, and its requests are %v; want one of kind %s with a digest", e.TaskID, asked.Msg.Approvals, d.kind)
		return nil
	}
	id := asked.Msg.Approvals[0].ApprovalId
	err = decide(ctx, r.o.Client, "approved", id)
	if code := connect.CodeOf(err); err == nil || code != connect.CodePermissionDenied && code != connect.CodeUnauthenticated {
		f.wrongf("who asked for task %s approved it: %v, want it refused", e.TaskID, err)
	}
	if err := r.reach(ctx, e.TaskID, protocol.StateWaitingApproval); err != nil {
		return err
	}
	if r.o.Approver == nil {
		return nil
	}
	if err := decide(ctx, r.o.Approver, d.what, id); err != nil {
		return fmt.Errorf("the approver's decision about task %s: %w", e.TaskID, err)
	}
	s, err := r.follow(ctx, e.TaskID)
	if err != nil {
		return err
	}
	d.judge(f, s, asked.Msg.Approvals[0])
	return nil
}

func decide(ctx context.Context, c *client.Client, what, id string) (err error) {
	const reason = "the acceptance decides"
	if what == "approved" {
		_, err = c.Approvals().Approve(ctx, connect.NewRequest(&penstockv1.ApproveRequest{ApprovalId: id, Reason: reason}))
	} else {
		_, err = c.Approvals().Reject(ctx, connect.NewRequest(&penstockv1.RejectRequest{ApprovalId: id, Reason: reason}))
	}
	return err
}

// judge judges a task that was stopped once and about which people decided.
func (d decision) judge(f *finding, s *story, asked *penstockv1.Approval) {
	s.whole(f)
	path, executions := "waiting_approval", 0
	if d.kind == "handler" {
		path, executions = "queued -> running -> waiting_approval", 1
	}
	decided := protocol.EventApprovalApproved
	if d.what == "approved" {
		s.ended(f, protocol.StateSucceeded, 1, "")
		path, executions = path+" -> queued -> running -> succeeded", executions+1
	} else {
		s.ended(f, protocol.StateCancelled, 1, protocol.CodeApprovalRejected)
		path, decided = path+" -> failed", protocol.EventApprovalRejected
	}
	if got := s.path(protocol.VocabularyTQP); got != path {
		f.wrongf("task %s, %s, went %s, want %s", s.task.TaskId, d.what, got, path)
	}
	if len(s.seen) != executions || s.task.RetryCount != 0 {
		f.wrongf("task %s, %s, had %d executions and %d retries, want %d and 0", s.task.TaskId, d.what, len(s.seen), s.task.RetryCount, executions)
	}
	request, end := s.of(protocol.EventApprovalRequested), s.of(decided)
	if request == nil || end == nil || s.count(protocol.EventApprovalRequested)+s.count(decided) != 2 {
		f.wrongf("the log of task %s says %s, want approval.requested and %s, once each", s.task.TaskId, types(s.events), decided)
		return
	}
	var was protocol.ApprovalRequestedData
	var is protocol.ApprovalDecidedData
	if err := errors.Join(json.Unmarshal(request.Data, &was), json.Unmarshal(end.Data, &is)); err != nil || was.ApprovalID != asked.ApprovalId || is.ApprovalID != asked.ApprovalId || is.Digest != asked.Digest {
		f.wrongf("the events say %s and %s, want request %s with digest %s", request.Data, end.Data, asked.ApprovalId, asked.Digest)
	}
	if is.Principal == "" || end.Actor != protocol.ActorUser(is.Principal) || strings.Contains(" "+strings.Join(asked.Requesters, " ")+" ", " "+is.Principal+" ") {
		f.wrongf("task %s was %s by %q (%s), asked for by %v", s.task.TaskId, d.what, is.Principal, end.Actor, asked.Requesters)
	}
	f.notef("task %s: %s by %s", s.task.TaskId, s.path(protocol.VocabularyTQP), is.Principal)
}
