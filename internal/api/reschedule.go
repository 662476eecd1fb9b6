package api

import (
	"context"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// RescheduleTask implements the RPC.
func (s *Service) RescheduleTask(ctx context.Context, req *connect.Request[penstockv1.RescheduleTaskRequest]) (*connect.Response[penstockv1.RescheduleTaskResponse], error) {
	m := req.Msg
	t, err := s.find(ctx, m.Tenant, m.TaskId)
	if err != nil {
		return nil, err
	}
	err = s.enqueue.Reschedule(ctx, enqueue.Reschedule{
		ID: protocol.ID(t.ID), ScheduleType: m.ScheduleType, ScheduledAt: given(m.ScheduledAt), DelayMS: m.DelayMs, Principal: s.principal(ctx), Reason: m.Reason,
	})
	if err != nil {
		return nil, failure(err)
	}
	if t, err = s.store.GetTask(ctx, t.ID); err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.RescheduleTaskResponse{Task: taskOf(t)}), nil
}
