package api

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/pipeline/cancel"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// Canceller ends tasks before their time.
type Canceller interface {
	Cancel(ctx context.Context, id protocol.ID, why cancel.Reason) (already bool, err error)
	CancelAll(ctx context.Context, f cancel.Filter, why cancel.Reason, limit int, dry bool) (n int, more bool, err error)
}

// CancelTask implements the RPC.
func (s *Service) CancelTask(ctx context.Context, req *connect.Request[penstockv1.CancelTaskRequest]) (*connect.Response[penstockv1.CancelTaskResponse], error) {
	t, err := s.find(ctx, req.Msg.Tenant, req.Msg.TaskId)
	if err != nil {
		return nil, err
	}
	already, err := s.cancel.Cancel(ctx, protocol.ID(t.ID), cancel.Reason{Principal: s.principal(ctx), Text: req.Msg.Reason})
	if err != nil {
		return nil, failure(err)
	}
	if t, err = s.store.GetTask(ctx, t.ID); err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.CancelTaskResponse{Task: taskOf(t), AlreadyCancelled: already}), nil
}

// CancelTasks implements the RPC.
func (s *Service) CancelTasks(ctx context.Context, req *connect.Request[penstockv1.CancelTasksRequest]) (*connect.Response[penstockv1.CancelTasksResponse], error) {
	m := req.Msg
	if err := checkFilters(filter{"tenant", m.Tenant}, filter{"queue", m.Queue}, filter{"type", m.Type}); err != nil {
		return nil, err
	}
	f := cancel.Filter{Tenant: m.Tenant, Queue: m.Queue, Type: m.Type, All: m.AllTasks}
	if f.Tenant == "" {
		f.Tenant = protocol.DefaultTenant
	}
	for _, st := range m.States {
		f.States = append(f.States, protocol.State(st))
	}
	var err error
	if f.CreatedAfter, err = bound("created_after", m.CreatedAfter); err != nil {
		return nil, err
	}
	if f.CreatedBefore, err = bound("created_before", m.CreatedBefore); err != nil {
		return nil, err
	}
	n, more, err := s.cancel.CancelAll(ctx, f, cancel.Reason{Principal: s.principal(ctx), Text: m.Reason}, int(m.MaxTasks), m.DryRun)
	if err != nil {
		if n == 0 {
			return nil, failure(err)
		}
		s.waits.log.Warn("a call to cancel tasks ended early", "cancelled", n, "error", err)
		more = true
	}
	return connect.NewResponse(&penstockv1.CancelTasksResponse{Cancelled: int32(n), More: more}), nil
}

// bound is a caller's bound of a time; zero if there is none.
func bound(field string, t *timestamppb.Timestamp) (time.Time, error) {
	switch {
	case t == nil:
		return time.Time{}, nil
	case !t.IsValid() || t.AsTime().IsZero():
		return time.Time{}, protocol.Errorf(protocol.CodeInputInvalid, field, "is not a time from year 1 to 9999")
	}
	return t.AsTime(), nil
}
