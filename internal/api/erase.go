package api

import (
	"context"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// Eraser removes the content of tasks.
type Eraser interface {
	Erase(ctx context.Context, id protocol.ID, principal, reason string) (already bool, requeued []protocol.ID, err error)
}

// EraseTask implements the RPC.
func (s *Service) EraseTask(ctx context.Context, req *connect.Request[penstockv1.EraseTaskRequest]) (*connect.Response[penstockv1.EraseTaskResponse], error) {
	t, err := s.find(ctx, req.Msg.Tenant, req.Msg.TaskId)
	if err != nil {
		return nil, err
	}
	already, requeued, err := s.erase.Erase(ctx, protocol.ID(t.ID), s.principal(ctx), req.Msg.Reason)
	if err != nil {
		return nil, failure(err)
	}
	if t, err = s.store.GetTask(ctx, t.ID); err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.EraseTaskResponse{Task: taskOf(t), AlreadyErased: already}
	for _, id := range requeued {
		out.RequeuedTaskIds = append(out.RequeuedTaskIds, id.String())
	}
	return connect.NewResponse(out), nil
}
