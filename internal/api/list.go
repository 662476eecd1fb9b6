package api

import (
	"context"
	"math"
	"strings"
	"time"
	"unicode"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// Page sizes of the listing RPCs.
const (
	defaultPage = 100
	maxPage     = 1000
)

func pageSize(n int32) (int32, error) {
	if n < 0 || n > maxPage {
		return 0, protocol.Errorf(protocol.CodeInputInvalid, "page_size", "is %d, want 1 to %d", n, maxPage)
	}
	if n == 0 {
		return defaultPage, nil
	}
	return n, nil
}

// filter is a string of the caller's that rows are compared with.
type filter struct{ field, value string }

// checkFilters refuses what no row can hold and Postgres could not compare.
func checkFilters(fs ...filter) error {
	for _, f := range fs {
		if len(f.value) > 255 {
			return protocol.Errorf(protocol.CodeInputInvalid, f.field, "has %d bytes, at most 255 are allowed", len(f.value))
		}
		if strings.ContainsFunc(f.value, unicode.IsControl) {
			return protocol.Errorf(protocol.CodeInputInvalid, f.field, "contains a control character")
		}
	}
	return nil
}

// farFuture is after every task; farPast before.
var (
	farFuture = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	farPast   = time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)
)

// ListEvents implements the RPC.
func (s *Service) ListEvents(ctx context.Context, req *connect.Request[penstockv1.ListEventsRequest]) (*connect.Response[penstockv1.ListEventsResponse], error) {
	size, err := pageSize(req.Msg.PageSize)
	if err != nil {
		return nil, err
	}
	if req.Msg.AfterSeq < 0 {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "after_seq", "is %d, want 0 or more", req.Msg.AfterSeq)
	}
	attempt, runTask, err := attemptOf(req.Msg.Attempt, req.Msg.RunId)
	if err != nil {
		return nil, err
	}
	if err := checkTypes(req.Msg.Types); err != nil {
		return nil, err
	}
	t, err := s.find(ctx, req.Msg.Tenant, req.Msg.TaskId)
	if err != nil {
		return nil, err
	}
	if runTask != "" && runTask != protocol.ID(t.ID).String() && runTask != store.Deref(t.Name) {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "run_id", "%q is a run of another task", clip(req.Msg.RunId))
	}
	p := dbsqlc.EventsOfTaskParams{
		TaskID: t.ID, AfterSeq: req.Msg.AfterSeq, LastSeq: min(req.Msg.AfterSeq, math.MaxInt32-lookRows) + lookRows, Attempt: attempt, Types: append([]string{}, req.Msg.Types...), MaxRows: size + 1,
	}
	rows, err := s.store.EventsOfTask(ctx, p)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListEventsResponse{}
	switch {
	case len(rows) > int(size):
		rows = rows[:size]
		out.NextAfterSeq = rows[size-1].Seq
	case t.EventSeq > p.LastSeq: // an event's seq is its place: so many were looked at
		out.NextAfterSeq = p.LastSeq
	}
	for _, r := range rows {
		out.Events = append(out.Events, eventOf(listedEvent(r, t)))
	}
	return connect.NewResponse(out), nil
}

func listedEvent(r *dbsqlc.EventsOfTaskRow, t *dbsqlc.Task) *dbsqlc.WatchEventsRow {
	return &dbsqlc.WatchEventsRow{
		TaskID: r.TaskID, Seq: r.Seq, Type: r.Type, PreviousStatus: r.PreviousStatus, Status: r.Status, Attempt: r.Attempt,
		Delivery: r.Delivery, IdempotencyKey: r.IdempotencyKey, NextRetryAt: r.NextRetryAt, ErrorCode: r.ErrorCode,
		Reason: r.Reason, BackoffDelayMs: r.BackoffDelayMs, Actor: r.Actor, WorkerID: r.WorkerID, MessageID: r.MessageID,
		TraceID: r.TraceID, Data: r.Data, OccurredAt: r.OccurredAt, Tenant: t.Tenant, Name: t.Name,
	}
}

// clip shortens a caller's text for an error.
func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}
