package api

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// ListTasks implements the RPC.
func (s *Service) ListTasks(ctx context.Context, req *connect.Request[penstockv1.ListTasksRequest]) (*connect.Response[penstockv1.ListTasksResponse], error) {
	size, err := pageSize(req.Msg.PageSize)
	if err != nil {
		return nil, err
	}
	p, err := listTasksParams(req.Msg)
	if err != nil {
		return nil, err
	}
	rows, next, short, err := look[*dbsqlc.ListTasksRow]{
		read: func(q *dbsqlc.Queries, maxLook, maxRows int32) ([]*dbsqlc.ListTasksRow, error) {
			p.MaxLook, p.MaxRows = maxLook, maxRows
			return q.ListTasks(ctx, p)
		},
		of:   func(r *dbsqlc.ListTasksRow) looked { return looked{r.Place, r.Admitted} },
		move: func(r *dbsqlc.ListTasksRow) { p.BeforeAt, p.BeforeID = r.CreatedAt, r.ID },
	}.page(ctx, s.store, size)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListTasksResponse{}
	for _, r := range rows {
		out.Tasks = append(out.Tasks, listed(r))
	}
	if next != nil {
		out.NextPageToken = tokenFor(req.Msg, after((*next).CreatedAt, (*next).ID))
	}
	if short {
		out.SearchedUntil = timestamppb.New((*next).CreatedAt)
	}
	return connect.NewResponse(out), nil
}

// listTasksParams checks a request and turns its filters into parameters.
func listTasksParams(m *penstockv1.ListTasksRequest) (p dbsqlc.ListTasksParams, err error) {
	p = dbsqlc.ListTasksParams{
		BeforeAt: farFuture, CreatedAfter: farPast, Tenant: m.Tenant, Queue: m.Queue, Type: m.Type, States: []string{},
		WorkerID: m.WorkerId, ErrorCode: m.ErrorCode, Error: m.Error, MinDurationMs: m.MinDurationMs, MaxDurationMs: m.MaxDurationMs,
	}
	err = checkFilters(filter{"tenant", m.Tenant}, filter{"queue", m.Queue}, filter{"type", m.Type}, filter{"worker_id", m.WorkerId},
		filter{"error_code", m.ErrorCode}, filter{"error", m.Error})
	if err != nil {
		return p, err
	}
	for _, st := range m.States {
		if !protocol.State(st).Valid() {
			return p, protocol.Errorf(protocol.CodeInputInvalid, "states", "has %q, want any of %v", clip(st), protocol.States())
		}
		p.States = append(p.States, st)
	}
	if err := checkDurations(m.MinDurationMs, m.MaxDurationMs); err != nil {
		return p, err
	}
	if m.CreatedAfter != nil {
		if !m.CreatedAfter.IsValid() {
			return p, protocol.Errorf(protocol.CodeInputInvalid, "created_after", "is not a time from year 1 to 9999")
		}
		p.CreatedAfter = m.CreatedAfter.AsTime()
	}
	if m.CreatedBefore != nil {
		if !m.CreatedBefore.IsValid() {
			return p, protocol.Errorf(protocol.CodeInputInvalid, "created_before", "is not a time from year 1 to 9999")
		}
		p.BeforeAt = m.CreatedBefore.AsTime()
	}
	c, err := cursorOf(m)
	if err != nil || c == nil {
		return p, err
	}
	p.BeforeAt = c.At
	p.BeforeID, err = c.id()
	return p, err
}

// maxDuration bounds the durations of a filter, in milliseconds: 1,000 years.
const maxDuration = 1000 * 365 * 24 * 3600 * 1000

func checkDurations(least, below int64) error {
	for _, d := range []struct {
		field string
		ms    int64
	}{{"min_duration_ms", least}, {"max_duration_ms", below}} {
		if d.ms < 0 || d.ms > maxDuration {
			return protocol.Errorf(protocol.CodeInputInvalid, d.field, "is %d, want 1 to %d, or 0 for no bound", d.ms, int64(maxDuration))
		}
	}
	if below > 0 && least >= below {
		return protocol.Errorf(protocol.CodeInputInvalid, "max_duration_ms", "is %d, which is not more than min_duration_ms (%d)", below, least)
	}
	return nil
}
