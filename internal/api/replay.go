package api

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// refusal gives an error of the replay stage its place in the RPC's error
// model.
func refusal(err error) error {
	switch {
	case errors.Is(err, replay.ErrNobody):
		return connect.NewError(connect.CodeUnauthenticated, err)
	case errors.Is(err, replay.ErrSamePerson):
		return connect.NewError(connect.CodePermissionDenied, err)
	}
	return failure(err)
}

func idsOf(field string, list []string, most int) ([]protocol.ID, error) {
	if len(list) > most {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, field, "has %d items, at most %d are allowed", len(list), most)
	}
	out := make([]protocol.ID, len(list))
	for i, s := range list {
		id, err := idOf(fmt.Sprintf("%s[%d]", field, i), s)
		if err != nil {
			return nil, err
		}
		out[i] = id
	}
	return out, nil
}

// RequeueDeadLetters implements the RPC.
func (s *DeadLetters) RequeueDeadLetters(ctx context.Context, req *connect.Request[penstockv1.RequeueDeadLettersRequest]) (*connect.Response[penstockv1.RequeueDeadLettersResponse], error) {
	m := req.Msg
	ids, err := idsOf("dlq_ids", m.DlqIds, replay.MaxRequeue)
	if err != nil {
		return nil, err
	}
	results, err := s.replay.Requeue(ctx, ids, replay.RequeueOptions{
		Principal: s.principal(ctx), Again: m.Again, Original: m.Original, Reason: m.Reason, Graph: m.Graph,
	})
	if err != nil {
		return nil, refusal(err)
	}
	out := &penstockv1.RequeueDeadLettersResponse{Results: make([]*penstockv1.RequeueResult, len(ids))}
	for i, r := range results {
		item := &penstockv1.RequeueResult{DlqId: ids[i].String()}
		if r.Err != nil {
			item.Error = rpc.InfoOf(rpc.ToConnect(r.Err))
		} else {
			item.TaskId, item.Clones = r.Task.String(), int32(r.Clones)
		}
		out.Results[i] = item
	}
	return connect.NewResponse(out), nil
}

// EditDeadLetter implements the RPC.
func (s *DeadLetters) EditDeadLetter(ctx context.Context, req *connect.Request[penstockv1.EditDeadLetterRequest]) (*connect.Response[penstockv1.EditDeadLetterResponse], error) {
	m := req.Msg
	id, err := idOf("dlq_id", m.DlqId)
	if err != nil {
		return nil, err
	}
	diff, err := s.replay.Edit(ctx, id, m.Payload, m.Revision, s.principal(ctx), m.Reason)
	if err != nil {
		return nil, refusal(err)
	}
	d, err := s.read(ctx, id)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&penstockv1.EditDeadLetterResponse{DeadLetter: d, Diff: diff}), nil
}

// batchRequest reads what the calls that make batches have in common.
func (s *DeadLetters) batchRequest(ctx context.Context, batchID string, list []string, f *penstockv1.DeadLetterFilter, reason string) (r replay.BatchRequest, err error) {
	r = replay.BatchRequest{Principal: s.principal(ctx), Reason: reason}
	if batchID != "" {
		if r.ID, err = idOf("batch_id", batchID); err != nil {
			return r, err
		}
		if r.ID.Version() != 7 {
			return r, protocol.Errorf(protocol.CodeInputInvalid, "batch_id", "is %s, want a UUID of version 7", batchID)
		}
	}
	if r.IDs, err = idsOf("dlq_ids", list, replay.MaxIDs); err != nil {
		return r, err
	}
	if f != nil {
		got, err := filterOf(f)
		if err != nil {
			return r, err
		}
		r.Filter = &got
	}
	return r, nil
}

// CreateDeadLetterBatch implements the RPC.
func (s *DeadLetters) CreateDeadLetterBatch(ctx context.Context, req *connect.Request[penstockv1.CreateDeadLetterBatchRequest]) (*connect.Response[penstockv1.CreateDeadLetterBatchResponse], error) {
	m := req.Msg
	r, err := s.batchRequest(ctx, m.BatchId, m.DlqIds, m.Filter, m.Reason)
	if err != nil {
		return nil, err
	}
	if st := m.Filter.GetStatus(); st == "requeued" && !m.Again || st == "discarded" || st == "expired" {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "filter.status", "is %s: such dead letters can't be requeued (requeued ones only with again)", st)
	}
	r.Again, r.Original, r.Rate, r.DryRun = m.Again, m.Original, m.Rate, m.DryRun
	b, err := s.replay.Create(ctx, r)
	if err != nil {
		return nil, refusal(err)
	}
	out, err := s.made(ctx, b)
	if err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.CreateDeadLetterBatchResponse{Batch: out}), nil
}

// ProposeDiscard implements the RPC.
func (s *DeadLetters) ProposeDiscard(ctx context.Context, req *connect.Request[penstockv1.ProposeDiscardRequest]) (*connect.Response[penstockv1.ProposeDiscardResponse], error) {
	m := req.Msg
	r, err := s.batchRequest(ctx, m.BatchId, m.DlqIds, m.Filter, m.Reason)
	if err != nil {
		return nil, err
	}
	if st := m.Filter.GetStatus(); st != "" && st != "open" {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "filter.status", "is %s: only open dead letters can be discarded", st)
	}
	b, err := s.replay.Propose(ctx, r)
	if err != nil {
		return nil, refusal(err)
	}
	out, err := s.made(ctx, b)
	if err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.ProposeDiscardResponse{Batch: out}), nil
}

// ConfirmDiscard implements the RPC.
func (s *DeadLetters) ConfirmDiscard(ctx context.Context, req *connect.Request[penstockv1.ConfirmDiscardRequest]) (*connect.Response[penstockv1.ConfirmDiscardResponse], error) {
	b, err := s.decide(req.Msg.BatchId, func(id protocol.ID) (*dbsqlc.DlqBatch, error) {
		return s.replay.Confirm(ctx, id, s.principal(ctx), req.Msg.Digest)
	})
	return connect.NewResponse(&penstockv1.ConfirmDiscardResponse{Batch: b}), err
}

// RejectDiscard implements the RPC.
func (s *DeadLetters) RejectDiscard(ctx context.Context, req *connect.Request[penstockv1.RejectDiscardRequest]) (*connect.Response[penstockv1.RejectDiscardResponse], error) {
	b, err := s.decide(req.Msg.BatchId, func(id protocol.ID) (*dbsqlc.DlqBatch, error) {
		return s.replay.Reject(ctx, id, s.principal(ctx), req.Msg.Reason)
	})
	return connect.NewResponse(&penstockv1.RejectDiscardResponse{Batch: b}), err
}

// ControlDeadLetterBatch implements the RPC.
func (s *DeadLetters) ControlDeadLetterBatch(ctx context.Context, req *connect.Request[penstockv1.ControlDeadLetterBatchRequest]) (*connect.Response[penstockv1.ControlDeadLetterBatchResponse], error) {
	b, err := s.decide(req.Msg.BatchId, func(id protocol.ID) (*dbsqlc.DlqBatch, error) {
		return s.replay.Control(ctx, id, req.Msg.Action, s.principal(ctx), req.Msg.Reason)
	})
	return connect.NewResponse(&penstockv1.ControlDeadLetterBatchResponse{Batch: b}), err
}

func (s *DeadLetters) decide(batchID string, fn func(id protocol.ID) (*dbsqlc.DlqBatch, error)) (*penstockv1.DeadLetterBatch, error) {
	id, err := idOf("batch_id", batchID)
	if err != nil {
		return nil, err
	}
	b, err := fn(id)
	if err != nil {
		return nil, refusal(err)
	}
	return batchOf(b)
}
