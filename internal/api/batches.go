package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/tenancy"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// Most groups of a batch's description.
const (
	maxBatchTypes        = 100
	maxBatchFingerprints = 20
	// maxDescribed is the largest batch whose details come with the answer to
	// the call that made it.
	maxDescribed = 50_000
)

// GetDeadLetterBatch implements the RPC.
func (s *DeadLetters) GetDeadLetterBatch(ctx context.Context, req *connect.Request[penstockv1.GetDeadLetterBatchRequest]) (*connect.Response[penstockv1.GetDeadLetterBatchResponse], error) {
	b, err := s.batch(ctx, req.Msg.BatchId)
	if err != nil {
		return nil, err
	}
	out, err := batchOf(b)
	if err == nil && req.Msg.Details {
		out, err = s.describe(ctx, b)
	}
	if err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.GetDeadLetterBatchResponse{Batch: out}), nil
}

func (s *DeadLetters) batch(ctx context.Context, batchID string) (*dbsqlc.DlqBatch, error) {
	id, err := idOf("batch_id", batchID)
	if err != nil {
		return nil, err
	}
	b, err := s.store.GetBatch(ctx, pgid.ID(id))
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !replay.BatchVisible(ctx, b) {
		return nil, protocol.Errorf(protocol.CodeNotFound, "batch_id", "no batch %s", id)
	}
	return b, failure(err)
}

// ListDeadLetterBatches implements the RPC.
func (s *DeadLetters) ListDeadLetterBatches(ctx context.Context, req *connect.Request[penstockv1.ListDeadLetterBatchesRequest]) (*connect.Response[penstockv1.ListDeadLetterBatchesResponse], error) {
	m := req.Msg
	size, err := pageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	if err := oneOf("kind", m.Kind, "requeue", "discard"); err != nil {
		return nil, err
	}
	if err := oneOf("status", m.Status, "draft", "proposed", "running", "paused", "cancelled", "finished", "rejected", "expired"); err != nil {
		return nil, err
	}
	p := dbsqlc.ListBatchesParams{BeforeAt: farFuture, Kind: m.Kind, Status: m.Status, Tenants: tenancy.Of(ctx)}
	if c, err := cursorOf(m); err != nil {
		return nil, err
	} else if c != nil {
		p.BeforeAt = c.At
		if p.BeforeID, err = c.id(); err != nil {
			return nil, err
		}
	}
	rows, next, short, err := look[*dbsqlc.ListBatchesRow]{
		read: func(q *dbsqlc.Queries, maxLook, maxRows int32) ([]*dbsqlc.ListBatchesRow, error) {
			p.MaxLook, p.MaxRows = maxLook, maxRows
			return q.ListBatches(ctx, p)
		},
		of:   func(r *dbsqlc.ListBatchesRow) looked { return looked{r.Place, r.Admitted} },
		move: func(r *dbsqlc.ListBatchesRow) { p.BeforeAt, p.BeforeID = r.DlqBatch.CreatedAt, r.DlqBatch.ID },
	}.page(ctx, s.store, size)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListDeadLetterBatchesResponse{}
	if next != nil {
		out.NextPageToken = tokenFor(m, after((*next).DlqBatch.CreatedAt, (*next).DlqBatch.ID))
	}
	if short {
		out.SearchedUntil = timestamppb.New((*next).DlqBatch.CreatedAt)
	}
	for _, r := range rows {
		b, err := batchOf(&r.DlqBatch)
		if err != nil {
			return nil, err
		}
		out.Batches = append(out.Batches, b)
	}
	return connect.NewResponse(out), nil
}

func oneOf(field, value string, allowed ...string) error {
	if value == "" {
		return nil
	}
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	return protocol.Errorf(protocol.CodeInputInvalid, field, "is %q, want one of %v", clip(value), allowed)
}

// ListDeadLetterBatchItems implements the RPC.
func (s *DeadLetters) ListDeadLetterBatchItems(ctx context.Context, req *connect.Request[penstockv1.ListDeadLetterBatchItemsRequest]) (*connect.Response[penstockv1.ListDeadLetterBatchItemsResponse], error) {
	m := req.Msg
	size, err := pageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	if err := oneOf("status", m.Status, "pending", "done", "skipped"); err != nil {
		return nil, err
	}
	p := dbsqlc.ListBatchItemsParams{Status: m.Status}
	if c, err := cursorOf(m); err != nil {
		return nil, err
	} else if c != nil {
		if p.AfterID, err = c.id(); err != nil {
			return nil, err
		}
	}
	b, err := s.batch(ctx, m.BatchId)
	if err != nil {
		return nil, err
	}
	p.BatchID = b.ID
	rows, next, _, err := look[*dbsqlc.ListBatchItemsRow]{
		read: func(q *dbsqlc.Queries, maxLook, maxRows int32) ([]*dbsqlc.ListBatchItemsRow, error) {
			p.MaxLook, p.MaxRows = maxLook, maxRows
			return q.ListBatchItems(ctx, p)
		},
		of:   func(r *dbsqlc.ListBatchItemsRow) looked { return looked{r.Place, r.Admitted} },
		move: func(r *dbsqlc.ListBatchItemsRow) { p.AfterID = r.DlqID },
	}.page(ctx, s.store, size)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListDeadLetterBatchItemsResponse{}
	if next != nil {
		out.NextPageToken = tokenFor(m, after(b.CreatedAt, (*next).DlqID))
	}
	for _, r := range rows {
		item := &penstockv1.DeadLetterBatchItem{DlqId: protocol.ID(r.DlqID).String(), Status: r.Status, Detail: store.Deref(r.Detail)}
		if r.TaskID != nil {
			item.TaskId = protocol.ID(*r.TaskID).String()
		}
		out.Items = append(out.Items, item)
	}
	return connect.NewResponse(out), nil
}

// made is the answer to a call that made a batch. A large one is not described:
// that takes longer than making it.
func (s *DeadLetters) made(ctx context.Context, b *dbsqlc.DlqBatch) (*penstockv1.DeadLetterBatch, error) {
	if b.Total > maxDescribed {
		return batchOf(b)
	}
	return s.describe(ctx, b)
}

// describe returns a batch with its details.
func (s *DeadLetters) describe(ctx context.Context, b *dbsqlc.DlqBatch) (*penstockv1.DeadLetterBatch, error) {
	out, err := batchOf(b)
	if err != nil {
		return nil, err
	}
	d := &penstockv1.DeadLetterBatchDetails{}
	if d.ByType, err = s.groupBatch(ctx, b, "type", maxBatchTypes); err != nil {
		return nil, err
	}
	if d.ByFingerprint, err = s.groupBatch(ctx, b, "fingerprint", maxBatchFingerprints); err != nil {
		return nil, err
	}
	changes, err := s.store.BatchChanges(ctx, b.ID)
	if err != nil {
		return nil, err
	}
	d.SettledSince, d.EditedSince = changes.Settled, changes.Edited
	if len(b.Filter) > 0 {
		f := replay.Filter{}
		if err := json.Unmarshal(b.Filter, &f); err != nil {
			return nil, fmt.Errorf("batch %s: its filter: %w", protocol.ID(b.ID), err)
		}
		d.NewMatches, err = s.store.NewMatches(ctx, dbsqlc.NewMatchesParams{
			FailedAfter: f.FailedAfter, FailedBefore: f.Before(), Tenant: f.Tenant, Type: f.Type, ErrorCode: f.ErrorCode,
			Fingerprint: f.Fingerprint, Queue: f.Queue, ItemStatus: f.ItemStatus(), BatchID: b.ID,
		})
		if err != nil {
			return nil, err
		}
	}
	out.Details = d
	return out, nil
}

func (s *DeadLetters) groupBatch(ctx context.Context, b *dbsqlc.DlqBatch, by string, most int32) ([]*penstockv1.DeadLetterGroup, error) {
	rows, err := s.store.GroupBatch(ctx, dbsqlc.GroupBatchParams{GroupBy: by, BatchID: b.ID, MaxRows: most})
	if err != nil {
		return nil, err
	}
	groups := make([]*dbsqlc.GroupDeadRow, len(rows))
	for i, r := range rows {
		groups[i] = (*dbsqlc.GroupDeadRow)(r)
	}
	return s.groups(ctx, groups)
}

func batchOf(b *dbsqlc.DlqBatch) (*penstockv1.DeadLetterBatch, error) {
	out := &penstockv1.DeadLetterBatch{
		BatchId: protocol.ID(b.ID).String(), Kind: b.Kind, Status: b.Status, Digest: b.Digest, Total: b.Total, Done: b.Done, Skipped: b.Skipped,
		Rate: b.Rate, Again: b.Again, Original: b.Original, Reason: b.Reason, CreatedBy: b.CreatedBy, DecidedBy: store.Deref(b.DecidedBy),
		DecisionReason: store.Deref(b.DecisionReason), ControlledBy: store.Deref(b.ControlledBy), CreatedAt: timestamppb.New(b.CreatedAt), ExpiresAt: timeOf(b.ExpiresAt),
		StartedAt: timeOf(b.StartedAt), FinishedAt: timeOf(b.FinishedAt),
	}
	if len(b.Filter) == 0 {
		return out, nil
	}
	var f replay.Filter
	if err := json.Unmarshal(b.Filter, &f); err != nil {
		return nil, fmt.Errorf("batch %s: its filter: %w", protocol.ID(b.ID), err)
	}
	out.Filter = &penstockv1.DeadLetterFilter{
		Tenant: f.Tenant, Type: f.Type, ErrorCode: f.ErrorCode, Fingerprint: f.Fingerprint, Queue: f.Queue, Status: f.Status,
		FailedAfter: stampOf(f.FailedAfter), FailedBefore: stampOf(f.FailedBefore),
	}
	return out, nil
}

func stampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
