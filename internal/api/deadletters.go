package api

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// ListDeadLetters implements the RPC.
func (s *Service) ListDeadLetters(ctx context.Context, req *connect.Request[penstockv1.ListDeadLettersRequest]) (*connect.Response[penstockv1.ListDeadLettersResponse], error) {
	m := req.Msg
	size, err := pageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	if err := checkFilters(filter{"tenant", m.Tenant}, filter{"type", m.Type}, filter{"error_code", m.ErrorCode}); err != nil {
		return nil, err
	}
	p := dbsqlc.ListDeadParams{BeforeAt: farFuture, Tenant: m.Tenant, Type: m.Type, ErrorCode: m.ErrorCode, MaxRows: size + 1}
	if m.PageToken != "" {
		at, id, err := decodeToken(m.PageToken)
		if err != nil {
			return nil, err
		}
		p.BeforeAt, p.BeforeID = at, pgid.ID(id)
	}
	rows, err := s.store.ListDead(ctx, p)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListDeadLettersResponse{}
	if len(rows) > int(size) {
		rows = rows[:size]
		last := rows[size-1]
		out.NextPageToken = pageToken{last.FailedAt, protocol.ID(last.DlqID).String()}.encode()
	}
	for _, r := range rows {
		out.DeadLetters = append(out.DeadLetters, deadLetterOf(r))
	}
	return connect.NewResponse(out), nil
}

// GetDeadLetter implements the RPC.
func (s *Service) GetDeadLetter(ctx context.Context, req *connect.Request[penstockv1.GetDeadLetterRequest]) (*connect.Response[penstockv1.GetDeadLetterResponse], error) {
	id, err := protocol.ParseID(req.Msg.DlqId)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "dlq_id", "%v", err)
	}
	r, err := s.store.GetDead(ctx, pgid.ID(id))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, protocol.Errorf(protocol.CodeNotFound, "dlq_id", "no dead letter %s", id)
	}
	if err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.GetDeadLetterResponse{DeadLetter: deadLetterOf((*dbsqlc.ListDeadRow)(r))}), nil
}

func deadLetterOf(r *dbsqlc.ListDeadRow) *penstockv1.DeadLetter {
	out := &penstockv1.DeadLetter{
		DlqId: protocol.ID(r.DlqID).String(), Tenant: r.Tenant, Queue: store.Deref(r.Queue), Type: store.Deref(r.Type),
		Payload: r.Payload, ErrorCode: r.ErrorCode, Error: r.Error, RetryCount: r.RetryCount,
		FailedAt: timestamppb.New(r.FailedAt), Stream: store.Deref(r.Stream), MessageId: store.Deref(r.MessageID),
		Raw: r.Raw, RecordedAt: timeOf(r.RecordedAt),
	}
	if r.TaskID != nil {
		out.TaskId = store.TaskID(protocol.ID(*r.TaskID), store.Deref(r.Name))
	}
	return out
}
