package api

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/tenancy"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// DeadLetters implements penstockv1connect.DeadLetterServiceHandler.
type DeadLetters struct {
	store  *store.Store
	replay *replay.Stage
	// principal is who makes the call; empty: anonymous.
	principal func(ctx context.Context) string
}

// NewDeadLetters makes a DeadLetters. principal tells who makes a call.
func NewDeadLetters(s *store.Store, r *replay.Stage, principal func(ctx context.Context) string) *DeadLetters {
	return &DeadLetters{store: s, replay: r, principal: principal}
}

// deadFilter is what the requests that select dead letters have in common.
type deadFilter interface {
	GetTenant() string
	GetType() string
	GetErrorCode() string
	GetFingerprint() string
	GetQueue() string
	GetStatus() string
	GetFailedAfter() *timestamppb.Timestamp
	GetFailedBefore() *timestamppb.Timestamp
}

func filterOf(m deadFilter) (f replay.Filter, err error) {
	f = replay.Filter{
		Tenant: m.GetTenant(), Type: m.GetType(), ErrorCode: m.GetErrorCode(), Fingerprint: m.GetFingerprint(), Queue: m.GetQueue(), Status: m.GetStatus(),
	}
	err = checkFilters(filter{"tenant", f.Tenant}, filter{"type", f.Type}, filter{"error_code", f.ErrorCode},
		filter{"fingerprint", f.Fingerprint}, filter{"queue", f.Queue})
	if err != nil {
		return f, err
	}
	switch f.Status {
	case "", "open", "requeued", "discarded", "expired":
	default:
		return f, protocol.Errorf(protocol.CodeInputInvalid, "status", "is %q, want open, requeued, discarded or expired", clip(f.Status))
	}
	for field, t := range map[string]*timestamppb.Timestamp{"failed_after": m.GetFailedAfter(), "failed_before": m.GetFailedBefore()} {
		if t != nil && !t.IsValid() {
			return f, protocol.Errorf(protocol.CodeInputInvalid, field, "is not a time from year 1 to 9999")
		}
	}
	if t := m.GetFailedAfter(); t != nil {
		f.FailedAfter = t.AsTime()
	}
	if t := m.GetFailedBefore(); t != nil {
		f.FailedBefore = t.AsTime()
	}
	return f, nil
}

// ListDeadLetters implements the RPC.
func (s *DeadLetters) ListDeadLetters(ctx context.Context, req *connect.Request[penstockv1.ListDeadLettersRequest]) (*connect.Response[penstockv1.ListDeadLettersResponse], error) {
	size, err := pageSize(req.Msg.PageSize)
	if err != nil {
		return nil, err
	}
	f, err := filterOf(req.Msg)
	if err != nil {
		return nil, err
	}
	p := dbsqlc.ListDeadParams{
		BeforeAt: farFuture, FailedAfter: f.FailedAfter, FailedBefore: f.Before(), Tenant: f.Tenant, Type: f.Type, ErrorCode: f.ErrorCode,
		Fingerprint: f.Fingerprint, Queue: f.Queue, Status: f.Status,
	}
	if c, err := cursorOf(req.Msg); err != nil {
		return nil, err
	} else if c != nil {
		p.BeforeAt = c.At
		if p.BeforeID, err = c.id(); err != nil {
			return nil, err
		}
	}
	rows, next, short, err := look[*dbsqlc.ListDeadRow]{
		read: func(q *dbsqlc.Queries, maxLook, maxRows int32) ([]*dbsqlc.ListDeadRow, error) {
			p.MaxLook, p.MaxRows = maxLook, maxRows
			return listDead(ctx, q, p)
		},
		of:   func(r *dbsqlc.ListDeadRow) looked { return looked{r.Place, r.Admitted} },
		move: func(r *dbsqlc.ListDeadRow) { p.BeforeAt, p.BeforeID = r.FailedAt, r.DlqID },
	}.page(ctx, s.store, size)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListDeadLettersResponse{}
	if next != nil {
		out.NextPageToken = tokenFor(req.Msg, after((*next).FailedAt, (*next).DlqID))
	}
	if short {
		out.SearchedUntil = timestamppb.New((*next).FailedAt)
	}
	for _, r := range rows {
		out.DeadLetters = append(out.DeadLetters, deadLetterOf(r))
	}
	return connect.NewResponse(out), nil
}

// listDead looks at dead letters along the index that has the fewest.
func listDead(ctx context.Context, q *dbsqlc.Queries, p dbsqlc.ListDeadParams) (out []*dbsqlc.ListDeadRow, err error) {
	switch {
	case p.Fingerprint != "":
		rows, err := q.ListDeadOfFingerprint(ctx, dbsqlc.ListDeadOfFingerprintParams{
			Fingerprint: p.Fingerprint, Tenant: p.Tenant, Type: p.Type, ErrorCode: p.ErrorCode, Queue: p.Queue, Status: p.Status, BeforeAt: p.BeforeAt, BeforeID: p.BeforeID,
			FailedAfter: p.FailedAfter, FailedBefore: p.FailedBefore, MaxLook: p.MaxLook, MaxRows: p.MaxRows,
		})
		for _, r := range rows {
			out = append(out, (*dbsqlc.ListDeadRow)(r))
		}
		return out, err
	case p.ErrorCode != "" && p.ErrorCode != string(protocol.CodeRetryExhausted): // that one is why tasks ended, whatever the cause
		rows, err := q.ListDeadOfCause(ctx, dbsqlc.ListDeadOfCauseParams{
			ErrorCode: p.ErrorCode, Fingerprint: p.Fingerprint, Tenant: p.Tenant, Type: p.Type, Queue: p.Queue, Status: p.Status, BeforeAt: p.BeforeAt, BeforeID: p.BeforeID,
			FailedAfter: p.FailedAfter, FailedBefore: p.FailedBefore, MaxLook: p.MaxLook, MaxRows: p.MaxRows,
		})
		for _, r := range rows {
			out = append(out, (*dbsqlc.ListDeadRow)(r))
		}
		return out, err
	case p.Status == "open":
		rows, err := q.ListOpenDead(ctx, dbsqlc.ListOpenDeadParams{
			Tenant: p.Tenant, Type: p.Type, ErrorCode: p.ErrorCode, Fingerprint: p.Fingerprint, Queue: p.Queue, BeforeAt: p.BeforeAt, BeforeID: p.BeforeID,
			FailedAfter: p.FailedAfter, FailedBefore: p.FailedBefore, MaxLook: p.MaxLook, MaxRows: p.MaxRows,
		})
		for _, r := range rows {
			out = append(out, (*dbsqlc.ListDeadRow)(r))
		}
		return out, err
	}
	return q.ListDead(ctx, p)
}

// GroupDeadLetters implements the RPC.
func (s *DeadLetters) GroupDeadLetters(ctx context.Context, req *connect.Request[penstockv1.GroupDeadLettersRequest]) (*connect.Response[penstockv1.GroupDeadLettersResponse], error) {
	m := req.Msg
	switch m.GroupBy {
	case "", "fingerprint", "type", "tenant", "error_code":
	default:
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "group_by", "is %q, want fingerprint, type, tenant or error_code", clip(m.GroupBy))
	}
	if m.Limit < 0 || m.Limit > maxPage {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "limit", "is %d, want 1 to %d", m.Limit, maxPage)
	}
	f, err := filterOf(m)
	if err != nil {
		return nil, err
	}
	limit := m.Limit
	if limit == 0 {
		limit = defaultPage
	}
	rows, err := s.store.GroupDead(ctx, dbsqlc.GroupDeadParams{
		GroupBy: m.GroupBy, FailedAfter: f.FailedAfter, FailedBefore: f.Before(), Tenant: f.Tenant, Type: f.Type, ErrorCode: f.ErrorCode,
		Fingerprint: f.Fingerprint, Queue: f.Queue, Status: f.Status, MaxRows: limit,
	})
	if err != nil {
		return nil, failure(err)
	}
	groups, err := s.groups(ctx, rows)
	if err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.GroupDeadLettersResponse{Groups: groups}), nil
}

// groups adds the samples.
func (s *DeadLetters) groups(ctx context.Context, rows []*dbsqlc.GroupDeadRow) ([]*penstockv1.DeadLetterGroup, error) {
	ids := make([]pgid.ID, len(rows))
	for i, r := range rows {
		ids[i] = r.Sample
	}
	found, err := s.store.DeadByIDs(ctx, ids)
	if err != nil {
		return nil, err
	}
	samples := make(map[pgid.ID]*penstockv1.DeadLetter, len(found))
	for _, d := range found {
		samples[d.DlqID] = deadLetterOf((*dbsqlc.ListDeadRow)(d))
	}
	out := make([]*penstockv1.DeadLetterGroup, len(rows))
	for i, r := range rows {
		out[i] = &penstockv1.DeadLetterGroup{
			Key: r.Key, Count: r.Count, FirstFailedAt: timestamppb.New(r.FirstAt), LastFailedAt: timestamppb.New(r.LastAt), Sample: samples[r.Sample],
		}
	}
	return out, nil
}

// GetDeadLetter implements the RPC.
func (s *DeadLetters) GetDeadLetter(ctx context.Context, req *connect.Request[penstockv1.GetDeadLetterRequest]) (*connect.Response[penstockv1.GetDeadLetterResponse], error) {
	id, err := idOf("dlq_id", req.Msg.DlqId)
	if err != nil {
		return nil, err
	}
	d, err := s.read(ctx, id)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&penstockv1.GetDeadLetterResponse{DeadLetter: d}), nil
}

func idOf(field, s string) (protocol.ID, error) {
	id, err := protocol.ParseID(s)
	if err != nil {
		return id, protocol.Errorf(protocol.CodeInputInvalid, field, "%v", err)
	}
	return id, nil
}

// read returns a dead letter with everything about it.
func (s *DeadLetters) read(ctx context.Context, id protocol.ID) (*penstockv1.DeadLetter, error) {
	rows, err := s.store.DeadByIDs(ctx, []pgid.ID{pgid.ID(id)})
	if err != nil {
		return nil, failure(err)
	}
	if len(rows) == 0 || !tenancy.May(ctx, rows[0].Tenant) {
		return nil, protocol.Errorf(protocol.CodeNotFound, "dlq_id", "no dead letter %s", id)
	}
	d := deadLetterOf((*dbsqlc.ListDeadRow)(rows[0]))
	content, err := s.store.DeadContent(ctx, pgid.ID(id))
	if err != nil {
		return nil, failure(err)
	}
	d.Error, d.Payload, d.EditedPayload, d.Raw = content.Error, content.Payload, content.EditedPayload, content.Raw
	if d.Errors, err = attemptErrors(content.Errors); err != nil {
		return nil, fmt.Errorf("dead letter %s: %w", id, err)
	}
	requeues, err := s.store.RequeuesOf(ctx, pgid.ID(id))
	if err != nil {
		return nil, failure(err)
	}
	for _, r := range requeues {
		q := &penstockv1.Requeue{
			N: r.N, TaskId: protocol.ID(r.TaskID).String(), Revision: r.Revision, Principal: r.Principal, CreatedAt: timestamppb.New(r.CreatedAt),
		}
		if r.BatchID != nil {
			q.BatchId = protocol.ID(*r.BatchID).String()
		}
		d.Requeues = append(d.Requeues, q)
	}
	edits, err := s.store.EditsOf(ctx, pgid.ID(id))
	if err != nil {
		return nil, failure(err)
	}
	for _, e := range edits {
		d.Edits = append(d.Edits, &penstockv1.Edit{
			Revision: e.Revision, Payload: e.Payload, Diff: e.Diff, Principal: e.Principal, Reason: e.Reason, CreatedAt: timestamppb.New(e.CreatedAt),
		})
	}
	return d, nil
}

// attemptErrors reads the column errors.
func attemptErrors(b []byte) ([]*penstockv1.AttemptError, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var list []struct {
		Attempt  int32     `json:"attempt"`
		At       time.Time `json:"at"`
		Code     string    `json:"code"`
		Error    string    `json:"error"`
		WorkerID string    `json:"worker_id"`
		DelayMS  *int64    `json:"delay_ms"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("its errors: %w", err)
	}
	out := make([]*penstockv1.AttemptError, len(list))
	for i, e := range list {
		out[i] = &penstockv1.AttemptError{Attempt: e.Attempt, At: timestamppb.New(e.At), ErrorCode: e.Code, Error: e.Error, WorkerId: e.WorkerID}
		if e.DelayMS != nil {
			out[i].BackoffDelayMs = wrapperspb.Int64(*e.DelayMS)
		}
	}
	return out, nil
}

func deadLetterOf(r *dbsqlc.ListDeadRow) *penstockv1.DeadLetter {
	out := &penstockv1.DeadLetter{
		DlqId: protocol.ID(r.DlqID).String(), Tenant: r.Tenant, Queue: store.Deref(r.Queue), Type: store.Deref(r.Type),
		ErrorCode: r.ErrorCode, Error: r.Error, RetryCount: r.RetryCount,
		FailedAt: timestamppb.New(r.FailedAt), Stream: store.Deref(r.Stream), MessageId: store.Deref(r.MessageID),
		RecordedAt: timeOf(r.RecordedAt), Status: r.Status, Fingerprint: r.Fingerprint, RequeueCount: r.Requeues,
		Revision: r.Revision, SettledAt: timeOf(r.SettledAt), DiscardReason: store.Deref(r.DiscardReason),
		DiscardProposedBy: store.Deref(r.DiscardProposedBy), DiscardConfirmedBy: store.Deref(r.DiscardConfirmedBy), ErasedAt: timeOf(r.ErasedAt),
	}
	cause, _ := protocol.Cause(protocol.Code(r.ErrorCode), r.Error)
	out.CauseCode = string(cause)
	if r.DiscardBatchID != nil {
		out.DiscardBatchId = protocol.ID(*r.DiscardBatchID).String()
	}
	if r.TaskID != nil {
		out.TaskId = store.TaskID(protocol.ID(*r.TaskID), store.Deref(r.Name))
	}
	return out
}
