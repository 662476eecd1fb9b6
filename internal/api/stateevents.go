package api

import (
	"context"
	"math"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// stateTypes are the types of events that may change a state: heartbeats and
// progress, of which there can be many, are not read.
var stateTypes = []string{
	string(protocol.EventCreated), string(protocol.EventQueued), string(protocol.EventClaimed), string(protocol.EventSucceeded),
	string(protocol.EventRetryScheduled), string(protocol.EventInterrupted), string(protocol.EventDLQ), string(protocol.EventFailed),
	string(protocol.EventCancelled), string(protocol.EventApprovalRequested), string(protocol.EventApprovalApproved), string(protocol.EventApprovalRejected),
}

// ListStateEvents implements the RPC.
func (s *Service) ListStateEvents(ctx context.Context, req *connect.Request[penstockv1.ListStateEventsRequest]) (*connect.Response[penstockv1.ListStateEventsResponse], error) {
	t, err := s.find(ctx, req.Msg.Tenant, req.Msg.TaskId)
	if err != nil {
		return nil, err
	}
	view := protocol.MENView{TaskID: store.TaskID(protocol.ID(t.ID), store.Deref(t.Name))}
	out := &penstockv1.ListStateEventsResponse{}
	for after := int32(0); ; {
		rows, err := s.store.EventsOfTask(ctx, dbsqlc.EventsOfTaskParams{TaskID: t.ID, AfterSeq: after, LastSeq: math.MaxInt32, Types: stateTypes, MaxRows: maxPage})
		if err != nil {
			return nil, failure(err)
		}
		for _, r := range rows {
			e := &protocol.Event{
				TaskID: protocol.ID(r.TaskID), Seq: int(r.Seq), To: protocol.State(r.Status), Attempt: int(r.Attempt),
				Code: protocol.Code(store.Deref(r.ErrorCode)), Reason: store.Deref(r.Reason), OccurredAt: r.OccurredAt,
			}
			if m, ok := view.Add(e); ok {
				out.Events = append(out.Events, stateEvent(&m))
			}
			after = r.Seq
		}
		if len(rows) < maxPage {
			return connect.NewResponse(out), nil
		}
	}
}

func stateEvent(m *protocol.MENEvent) *penstockv1.StateEvent {
	p := m.Payload
	return &penstockv1.StateEvent{
		Type: m.Type, Source: m.Source, SessionKey: m.SessionKey, EventId: m.EventID,
		Payload: &penstockv1.StateChange{
			TaskId: p.TaskID, FromState: p.FromState, ToState: p.ToState, OccurredAt: timestamppb.New(p.OccurredAt), Attempt: int32(p.Attempt),
			ReasonCode: string(p.ReasonCode), ReasonMessage: p.ReasonMessage, IdempotentHit: p.IdempotentHit,
		},
	}
}
