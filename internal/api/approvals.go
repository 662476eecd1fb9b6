package api

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/tenancy"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// Approvals implements penstockv1connect.ApprovalServiceHandler.
type Approvals struct {
	store *store.Store
	stage *approval.Stage
	// principal and roles are those of who makes a call; "" is anonymous.
	principal func(context.Context) string
	roles     func(context.Context) []string
}

// NewApprovals makes an Approvals.
func NewApprovals(s *store.Store, stage *approval.Stage, principal func(context.Context) string, roles func(context.Context) []string) *Approvals {
	return &Approvals{store: s, stage: stage, principal: principal, roles: roles}
}

// maxDecisions is the most requests of one ApproveMany or RejectMany call.
const maxDecisions = 1000

// who makes a call.
func (s *Approvals) who(ctx context.Context) approval.Person {
	return approval.Person{Principal: s.principal(ctx), Roles: s.roles(ctx)}
}

// undecided gives an error of the approval stage its place in the RPC's error
// model.
func undecided(err error) error {
	switch {
	case errors.Is(err, approval.ErrNobody):
		return connect.NewError(connect.CodeUnauthenticated, err)
	case errors.Is(err, approval.ErrNotApprover), errors.Is(err, approval.ErrRequester), errors.Is(err, approval.ErrAnonymousRequester):
		return connect.NewError(connect.CodePermissionDenied, err)
	}
	return failure(err)
}

// ListApprovals implements the RPC.
func (s *Approvals) ListApprovals(ctx context.Context, req *connect.Request[penstockv1.ListApprovalsRequest]) (*connect.Response[penstockv1.ListApprovalsResponse], error) {
	m := req.Msg
	size, err := pageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	if err := checkFilters(filter{"name", m.Name}, filter{"tenant", m.Tenant}, filter{"task_id", m.TaskId}); err != nil {
		return nil, err
	}
	p := dbsqlc.ListApprovalsOfTaskParams{BeforeAt: farFuture, Status: m.Status, Name: m.Name, Kind: m.Kind, Tenant: m.Tenant}
	switch m.Status {
	case "":
		p.Status = "pending"
	case "all":
		p.Status = ""
	case "pending", "approved", "rejected", "expired", "withdrawn":
	default:
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "status", "is %q, want pending, approved, rejected, expired, withdrawn or all", clip(m.Status))
	}
	switch m.Kind {
	case "", protocol.ApprovalGuard, protocol.ApprovalHandler, protocol.ApprovalEffect:
	default:
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "kind", "is %q, want guard, handler or effect", clip(m.Kind))
	}
	if m.TaskId != "" {
		id, err := s.taskOf(ctx, m.Tenant, m.TaskId)
		if err != nil {
			return nil, err
		}
		p.TaskID = pgid.ID(id)
	}
	if c, err := cursorOf(m); err != nil {
		return nil, err
	} else if c != nil {
		p.BeforeAt = c.At
		if p.BeforeID, err = c.id(); err != nil {
			return nil, err
		}
	}
	rows, next, short, err := look[*dbsqlc.ListApprovalsRow]{
		read: func(q *dbsqlc.Queries, maxLook, maxRows int32) ([]*dbsqlc.ListApprovalsRow, error) {
			p.MaxLook, p.MaxRows = maxLook, maxRows
			return listApprovals(ctx, q, p)
		},
		of:   func(r *dbsqlc.ListApprovalsRow) looked { return looked{r.Place, r.Admitted} },
		move: func(r *dbsqlc.ListApprovalsRow) { p.BeforeAt, p.BeforeID = r.RequestedAt, r.ID },
	}.page(ctx, s.store, size)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListApprovalsResponse{}
	if next != nil {
		out.NextPageToken = tokenFor(m, after((*next).RequestedAt, (*next).ID))
	}
	if short {
		out.SearchedUntil = timestamppb.New((*next).RequestedAt)
	}
	for _, r := range rows {
		out.Approvals = append(out.Approvals, approvalOf(r))
	}
	return connect.NewResponse(out), nil
}

// listApprovals looks at requests along the index that has the fewest.
func listApprovals(ctx context.Context, q *dbsqlc.Queries, p dbsqlc.ListApprovalsOfTaskParams) (out []*dbsqlc.ListApprovalsRow, err error) {
	switch {
	case p.TaskID != pgid.ID{}:
		rows, err := q.ListApprovalsOfTask(ctx, p)
		for _, r := range rows {
			out = append(out, (*dbsqlc.ListApprovalsRow)(r))
		}
		return out, err
	case p.Status == "pending":
		rows, err := q.ListPendingApprovals(ctx, dbsqlc.ListPendingApprovalsParams{
			Name: p.Name, Kind: p.Kind, Tenant: p.Tenant, BeforeAt: p.BeforeAt, BeforeID: p.BeforeID, MaxLook: p.MaxLook, MaxRows: p.MaxRows,
		})
		for _, r := range rows {
			out = append(out, (*dbsqlc.ListApprovalsRow)(r))
		}
		return out, err
	}
	return q.ListApprovals(ctx, dbsqlc.ListApprovalsParams{
		Status: p.Status, Name: p.Name, Kind: p.Kind, Tenant: p.Tenant, BeforeAt: p.BeforeAt, BeforeID: p.BeforeID, MaxLook: p.MaxLook, MaxRows: p.MaxRows,
	})
}

// taskOf is the stored id of a task, whether or not there is one.
func (s *Approvals) taskOf(ctx context.Context, tenant, taskID string) (protocol.ID, error) {
	if tenant == "" {
		tenant = protocol.DefaultTenant
	}
	id, err := protocol.ParseID(taskID)
	if err != nil {
		return protocol.NameID(tenant, taskID), nil
	}
	_, err = s.store.GetTask(ctx, pgid.ID(id))
	if errors.Is(err, pgx.ErrNoRows) { // a name that looks like an id, or a task that is gone
		if _, err := s.store.GetTask(ctx, pgid.ID(protocol.NameID(tenant, taskID))); err == nil {
			return protocol.NameID(tenant, taskID), nil
		}
		return id, nil
	}
	return id, failure(err)
}

func approvalOf(r *dbsqlc.ListApprovalsRow) *penstockv1.Approval {
	out := &penstockv1.Approval{
		ApprovalId: protocol.ID(r.ID).String(), TaskId: store.TaskID(protocol.ID(r.TaskID), store.Deref(r.TaskName)), Tenant: r.Tenant,
		Queue: r.Queue, Type: r.Type, TaskState: r.State, Kind: r.Kind, Name: r.Name,
		RuleRevision: store.Deref(r.RuleRevision), Digest: r.Digest, Required: r.Required, Approvers: r.Approvers, Requesters: r.Requesters,
		Prompt: store.Deref(r.Prompt), RuleError: store.Deref(r.RuleError), Status: r.Status, RequestedAt: timestamppb.New(r.RequestedAt),
		ExpiresAt: timestamppb.New(r.ExpiresAt), DecidedAt: timeOf(r.DecidedAt), DecidedBy: store.Deref(r.DecidedBy), Decision: store.Deref(r.Decision),
		ApprovedBy: r.ApprovedBy, EffectScope: store.Deref(r.EffectScope), EffectName: store.Deref(r.EffectName),
	}
	if r.EffectKey != nil {
		out.EffectKeyKind, out.EffectKey = protocol.ParseLedgerKey(*r.EffectKey)
	}
	return out
}

// GetApproval implements the RPC.
func (s *Approvals) GetApproval(ctx context.Context, req *connect.Request[penstockv1.GetApprovalRequest]) (*connect.Response[penstockv1.GetApprovalResponse], error) {
	id, err := idOf("approval_id", req.Msg.ApprovalId)
	if err != nil {
		return nil, err
	}
	r, err := s.store.GetApproval(ctx, pgid.ID(id))
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !tenancy.May(ctx, r.Tenant) {
		return nil, protocol.Errorf(protocol.CodeNotFound, "approval_id", "no approval request %s", id)
	}
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.GetApprovalResponse{Approval: approvalOf(listedApproval(r)), Payload: r.Payload}
	if r.RuleRevision != nil {
		rule, err := s.store.RuleAt(ctx, r.Name, *r.RuleRevision)
		if err != nil {
			return nil, failure(err)
		}
		out.Rule = ruleThen(rule)
	}
	votes, err := s.store.VotesOf(ctx, []pgid.ID{r.ID})
	if err != nil {
		return nil, failure(err)
	}
	for _, v := range votes {
		out.Votes = append(out.Votes, &penstockv1.ApprovalVote{Principal: v.Principal, Reason: v.Reason, At: timestamppb.New(v.At)})
	}
	history, err := s.store.ListApprovalsOfTask(ctx, dbsqlc.ListApprovalsOfTaskParams{BeforeAt: farFuture, TaskID: r.TaskID, MaxLook: maxPage, MaxRows: maxPage})
	if err != nil {
		return nil, failure(err)
	}
	for _, h := range history {
		out.History = append(out.History, approvalOf((*dbsqlc.ListApprovalsRow)(h)))
	}
	return connect.NewResponse(out), nil
}

func listedApproval(r *dbsqlc.GetApprovalRow) *dbsqlc.ListApprovalsRow {
	return &dbsqlc.ListApprovalsRow{
		ID: r.ID, TaskID: r.TaskID, Tenant: r.Tenant, Kind: r.Kind, Name: r.Name, RuleRevision: r.RuleRevision, Digest: r.Digest,
		Required: r.Required, Approvers: r.Approvers, Requesters: r.Requesters, Prompt: r.Prompt, RuleError: r.RuleError, EffectScope: r.EffectScope,
		EffectKey: r.EffectKey, EffectName: r.EffectName, Status: r.Status, RequestedAt: r.RequestedAt, ExpiresAt: r.ExpiresAt, DecidedAt: r.DecidedAt,
		DecidedBy: r.DecidedBy, Decision: r.Decision, TaskName: r.TaskName, Type: r.Type, Queue: r.Queue, State: r.State, ApprovedBy: r.ApprovedBy,
	}
}

// read returns a request as it is after a decision.
func (s *Approvals) read(ctx context.Context, id protocol.ID) (*penstockv1.Approval, error) {
	r, err := s.store.GetApproval(ctx, pgid.ID(id))
	if err != nil {
		return nil, failure(err)
	}
	return approvalOf(listedApproval(r)), nil
}

// Approve implements the RPC.
func (s *Approvals) Approve(ctx context.Context, req *connect.Request[penstockv1.ApproveRequest]) (*connect.Response[penstockv1.ApproveResponse], error) {
	id, err := idOf("approval_id", req.Msg.ApprovalId)
	if err != nil {
		return nil, err
	}
	d, err := s.stage.Approve(ctx, id, s.who(ctx), req.Msg.Reason)
	if err != nil {
		return nil, undecided(err)
	}
	a, err := s.read(ctx, id)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&penstockv1.ApproveResponse{Approval: a, Already: d.Already, Released: d.Released}), nil
}

// Reject implements the RPC.
func (s *Approvals) Reject(ctx context.Context, req *connect.Request[penstockv1.RejectRequest]) (*connect.Response[penstockv1.RejectResponse], error) {
	id, err := idOf("approval_id", req.Msg.ApprovalId)
	if err != nil {
		return nil, err
	}
	if _, err := s.stage.Reject(ctx, id, s.who(ctx), req.Msg.Reason); err != nil {
		return nil, undecided(err)
	}
	a, err := s.read(ctx, id)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&penstockv1.RejectResponse{Approval: a}), nil
}

// ApproveMany implements the RPC.
func (s *Approvals) ApproveMany(ctx context.Context, req *connect.Request[penstockv1.ApproveManyRequest]) (*connect.Response[penstockv1.ApproveManyResponse], error) {
	results, err := s.many(ctx, req.Msg.ApprovalIds, req.Msg.Reason, s.stage.Approve)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&penstockv1.ApproveManyResponse{Results: results}), nil
}

// RejectMany implements the RPC.
func (s *Approvals) RejectMany(ctx context.Context, req *connect.Request[penstockv1.RejectManyRequest]) (*connect.Response[penstockv1.RejectManyResponse], error) {
	results, err := s.many(ctx, req.Msg.ApprovalIds, req.Msg.Reason, s.stage.Reject)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&penstockv1.RejectManyResponse{Results: results}), nil
}

// many decides about each request for itself. It stops where Postgres does not
// answer: what was decided before is, and deciding again does no harm.
func (s *Approvals) many(ctx context.Context, list []string, reason string,
	decide func(context.Context, protocol.ID, approval.Person, string) (approval.Decision, error)) ([]*penstockv1.DecisionResult, error) {
	if len(list) == 0 {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "approval_ids", "is empty, want 1 to %d ids", maxDecisions)
	}
	ids, err := idsOf("approval_ids", list, maxDecisions)
	if err != nil {
		return nil, err
	}
	out := make([]*penstockv1.DecisionResult, len(ids))
	for i, id := range ids {
		out[i] = &penstockv1.DecisionResult{ApprovalId: id.String()}
		d, err := decide(ctx, id, s.who(ctx), reason)
		if err != nil {
			own := rpc.ToConnect(undecided(err))
			if code := own.Code(); code == connect.CodeUnavailable || code == connect.CodeInternal || code == connect.CodeUnauthenticated || ctx.Err() != nil {
				return nil, undecided(err)
			}
			info := rpc.InfoOf(own)
			out[i].ErrorCode, out[i].Error = info.GetCode(), info.GetMessage()
			continue
		}
		a, err := s.read(ctx, id)
		if err != nil {
			return nil, err
		}
		out[i].Status, out[i].Already, out[i].Released = a.Status, d.Already, d.Released
	}
	return out, nil
}
