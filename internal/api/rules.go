package api

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// maxRevisions is the most of a rule's history that GetRule shows.
const maxRevisions = 100

// ListRules implements the RPC.
func (s *Approvals) ListRules(ctx context.Context, req *connect.Request[penstockv1.ListRulesRequest]) (*connect.Response[penstockv1.ListRulesResponse], error) {
	size, err := pageSize(req.Msg.PageSize)
	if err != nil {
		return nil, err
	}
	afterName, err := nameAfter(req.Msg)
	if err != nil {
		return nil, err
	}
	rows, err := s.store.ListRules(ctx, afterName, size+1)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListRulesResponse{}
	if len(rows) > int(size) {
		rows = rows[:size]
		out.NextPageToken = tokenFor(req.Msg, cursor{Key: []string{rows[size-1].Name}})
	}
	for _, r := range rows {
		out.Rules = append(out.Rules, ruleNow(r))
	}
	return connect.NewResponse(out), nil
}

// GetRule implements the RPC.
func (s *Approvals) GetRule(ctx context.Context, req *connect.Request[penstockv1.GetRuleRequest]) (*connect.Response[penstockv1.GetRuleResponse], error) {
	if err := checkFilters(filter{"name", req.Msg.Name}); err != nil {
		return nil, err
	}
	rows, err := s.store.RuleRevisions(ctx, req.Msg.Name, maxRevisions)
	if err != nil {
		return nil, failure(err)
	}
	if len(rows) == 0 {
		return nil, protocol.Errorf(protocol.CodeNotFound, "name", "no rule %q", clip(req.Msg.Name))
	}
	out := &penstockv1.GetRuleResponse{}
	for _, r := range rows {
		out.Revisions = append(out.Revisions, ruleThen(r))
	}
	if last := out.Revisions[0]; !last.Deleted {
		out.Rule = last
	}
	return connect.NewResponse(out), nil
}

// SaveRule implements the RPC.
func (s *Approvals) SaveRule(ctx context.Context, req *connect.Request[penstockv1.SaveRuleRequest]) (*connect.Response[penstockv1.SaveRuleResponse], error) {
	m := req.Msg.Rule
	switch {
	case m == nil:
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "rule", "is missing")
	case m.Name != "" && m.Name != req.Msg.Name:
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "rule.name", "is %q, but the call is about rule %q", clip(m.Name), clip(req.Msg.Name))
	case m.TimeoutMs < 0 || m.TimeoutMs > protocol.MaxApprovalTimeout.Milliseconds():
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "timeout_ms", "is %d, want 1000 to %d, or 0", m.TimeoutMs, protocol.MaxApprovalTimeout.Milliseconds())
	}
	var expected *int64
	if req.Msg.ExpectedRevision != nil {
		expected = &req.Msg.ExpectedRevision.Value
	}
	saved, unchanged, err := s.stage.SaveRule(ctx, guard.Rule{
		Name: req.Msg.Name, Expression: m.Expression, Required: int(m.Required), Approvers: m.Approvers, Timeout: time.Duration(m.TimeoutMs) * time.Millisecond,
		Enabled: m.Enabled == nil || m.Enabled.Value, Description: m.Description,
	}, expected, s.principal(ctx))
	if err != nil {
		return nil, failure(err)
	}
	row, err := s.store.RuleAt(ctx, saved.Name, saved.Revision)
	if err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.SaveRuleResponse{Rule: ruleThen(row), Unchanged: unchanged}), nil
}

// DeleteRule implements the RPC.
func (s *Approvals) DeleteRule(ctx context.Context, req *connect.Request[penstockv1.DeleteRuleRequest]) (*connect.Response[penstockv1.DeleteRuleResponse], error) {
	if err := checkFilters(filter{"name", req.Msg.Name}); err != nil {
		return nil, err
	}
	if err := s.stage.DeleteRule(ctx, req.Msg.Name, s.principal(ctx)); err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.DeleteRuleResponse{}), nil
}

// maxSamplePayload bounds the payload of a sample task.
const maxSamplePayload = protocol.MaxContent

// TestRule implements the RPC.
func (s *Approvals) TestRule(ctx context.Context, req *connect.Request[penstockv1.TestRuleRequest]) (*connect.Response[penstockv1.TestRuleResponse], error) {
	c, err := (&guard.Rule{Name: "test", Expression: req.Msg.Expression}).Check()
	if err != nil {
		return nil, err
	}
	m := req.Msg.Task
	if m == nil {
		m = &penstockv1.SampleTask{}
	}
	if len(m.Payload) > maxSamplePayload {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "task.payload", "has %d bytes, at most %d are allowed", len(m.Payload), maxSamplePayload)
	}
	t := &guard.Task{
		Type: m.Type, Queue: m.Queue, Tenant: m.Tenant, TaskID: m.TaskId, Payload: m.Payload, ScheduleType: m.ScheduleType, DelayMS: m.DelayMs,
		MaxRetries: int(m.MaxRetries), TimeoutMS: int64(m.TimeoutMs), IdempotencyKey: m.IdempotencyKey, RequestedBy: m.RequestedBy,
	}
	if len(t.Payload) == 0 {
		t.Payload = []byte("null")
	}
	if m.ScheduledAt != nil {
		if !m.ScheduledAt.IsValid() {
			return nil, protocol.Errorf(protocol.CodeInputInvalid, "task.scheduled_at", "is not a time from year 1 to 9999")
		}
		t.ScheduledAt = m.ScheduledAt.AsTime()
	}
	for at, def := range map[*string]string{&t.Queue: protocol.DefaultQueue, &t.Tenant: protocol.DefaultTenant, &t.ScheduleType: "now", &t.RequestedBy: protocol.Anonymous} {
		if *at == "" {
			*at = def
		}
	}
	stops, problem := c.Test(ctx, t)
	if err := ctx.Err(); err != nil {
		return nil, failure(err)
	}
	if errors.Is(problem, guard.ErrDepth) { // no task can have it; what else is wrong is what the rule says
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "task.payload", "is nested deeper than %d levels", guard.MaxDepth)
	}
	out := &penstockv1.TestRuleResponse{Stops: stops}
	if problem != nil {
		out.Error = protocol.Text(problem.Error())
	}
	return connect.NewResponse(out), nil
}

func ruleNow(r *dbsqlc.GuardRule) *penstockv1.GuardRule {
	return &penstockv1.GuardRule{
		Name: r.Name, Expression: r.Expression, Required: r.Required, Approvers: r.Approvers, TimeoutMs: r.TimeoutMs, Enabled: wrapperspb.Bool(r.Enabled),
		Description: r.Description, Source: r.Source, Revision: r.Revision, ChangedAt: timestamppb.New(r.ChangedAt), ChangedBy: r.ChangedBy,
	}
}

// ruleThen is a rule as it was at a revision.
func ruleThen(r *dbsqlc.GuardRuleRevision) *penstockv1.GuardRule {
	return &penstockv1.GuardRule{
		Name: r.Name, Expression: r.Expression, Required: r.Required, Approvers: r.Approvers, TimeoutMs: r.TimeoutMs, Enabled: wrapperspb.Bool(r.Enabled),
		Description: r.Description, Source: r.Source, Revision: r.Revision, ChangedAt: timestamppb.New(r.ChangedAt), ChangedBy: r.ChangedBy, Deleted: r.Deleted,
	}
}
