package api

import (
	"context"
	"encoding/base64"
	"encoding/json"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/pipeline/effect"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/tenancy"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// stateInDoubt is how a reservation is shown whose execution is over.
const stateInDoubt = "in_doubt"

// GetEffect implements the RPC.
func (s *Effects) GetEffect(ctx context.Context, req *connect.Request[penstockv1.GetEffectRequest]) (*connect.Response[penstockv1.GetEffectResponse], error) {
	id, err := s.effectID(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	e, live, err := effect.Get(ctx, s.store, id)
	if err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.GetEffectResponse{Effect: effectOf(e, live)}), nil
}

func effectOf(e *dbsqlc.Effect, live bool) *penstockv1.Effect {
	state := e.State
	if e.State == string(protocol.EffectReserved) && !live {
		state = stateInDoubt
	}
	kind, key := protocol.ParseLedgerKey(e.Key)
	return &penstockv1.Effect{
		Scope: e.Scope, Key: key, KeyKind: kind, Name: e.Name, State: state, TaskId: protocol.ID(e.TaskID).String(), Delivery: e.Delivery,
		WorkerId: e.WorkerID, ReservedAt: timestamppb.New(e.ReservedAt), DoneAt: timeOf(e.DoneAt), Result: e.Result,
		ResultNote: store.Deref(e.ResultNote), Runs: e.Runs, Resolution: store.Deref(e.Resolution), ResolvedBy: store.Deref(e.ResolvedBy),
		ResolutionReason: store.Deref(e.ResolutionReason), ResolvedAt: timeOf(e.ResolvedAt), Conflicts: e.Conflicts, History: e.History,
	}
}

// ListEffects implements the RPC.
func (s *Effects) ListEffects(ctx context.Context, req *connect.Request[penstockv1.ListEffectsRequest]) (*connect.Response[penstockv1.ListEffectsResponse], error) {
	m := req.Msg
	size, err := pageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	switch m.State {
	case "", stateInDoubt, string(protocol.EffectReserved), string(protocol.EffectDone), string(protocol.EffectFree):
	default:
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "state", "is %q, want reserved, in_doubt, done or free", clip(m.State))
	}
	if err := checkFilters(filter{"scope", m.Scope}); err != nil {
		return nil, err
	}
	after, err := decodeEffectToken(m.PageToken)
	if err != nil {
		return nil, err
	}
	if m.TaskId == "" && tenancy.Bound(ctx) {
		if m.Scope == "" {
			m.Scope = m.Tenant
		}
		if ok, err := s.mayReach(ctx, m.Scope); err != nil || !ok {
			return connect.NewResponse(&penstockv1.ListEffectsResponse{}), err
		}
	}
	list, err := s.list(ctx, m, after, size+1)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListEffectsResponse{}
	if len(list) > int(size) {
		list = list[:size]
		last := list[size-1]
		out.NextPageToken = encodeEffectToken(effect.ID{Scope: last.Scope, Key: protocol.LedgerKey(last.KeyKind, last.Key), Name: last.Name})
	}
	for _, e := range list {
		e.Result, e.History = nil, nil
	}
	out.Effects = list
	return connect.NewResponse(out), nil
}

// list reads the next effects that the request admits.
func (s *Effects) list(ctx context.Context, m *penstockv1.ListEffectsRequest, after effect.ID, limit int32) (out []*penstockv1.Effect, err error) {
	state := m.State
	if state == stateInDoubt {
		state = string(protocol.EffectReserved)
	}
	if m.TaskId != "" {
		id, err := s.find(ctx, m.Tenant, m.TaskId)
		if err != nil {
			return nil, err
		}
		keys, err := s.store.EffectKeys(ctx, []pgid.ID{pgid.ID(id)})
		if err != nil || len(keys) == 0 { // retention removed the task just now
			return nil, err
		}
		rows, err := s.store.ListEffectsOfKey(ctx, dbsqlc.ListEffectsOfKeyParams{Scope: keys[0].Scope, Key: keys[0].Key, AfterName: after.Name, State: state, Doubt: m.State == stateInDoubt, MaxRows: limit})
		for _, r := range rows {
			out = append(out, listedEffect((*dbsqlc.ListEffectsRow)(r)))
		}
		return out, err
	}
	if m.State == stateInDoubt {
		rows, err := s.store.ListDoubts(ctx, dbsqlc.ListDoubtsParams{AfterScope: after.Scope, AfterKey: after.Key, AfterName: after.Name, Scope: m.Scope, MaxRows: limit})
		for _, e := range rows {
			out = append(out, effectOf(e, false))
		}
		return out, err
	}
	rows, err := s.store.ListEffects(ctx, dbsqlc.ListEffectsParams{
		AfterScope: after.Scope, AfterKey: after.Key, AfterName: after.Name, Scope: m.Scope, State: state, MaxRows: limit,
	})
	for _, r := range rows {
		out = append(out, listedEffect(r))
	}
	return out, err
}

func listedEffect(r *dbsqlc.ListEffectsRow) *penstockv1.Effect {
	return effectOf(&dbsqlc.Effect{
		Scope: r.Scope, Key: r.Key, Name: r.Name, State: r.State, TaskID: r.TaskID, Delivery: r.Delivery, WorkerID: r.WorkerID, Runs: r.Runs,
		ReservedAt: r.ReservedAt, DoneAt: r.DoneAt, ResultNote: r.ResultNote, Resolution: r.Resolution, ResolvedBy: r.ResolvedBy,
		ResolutionReason: r.ResolutionReason, ResolvedAt: r.ResolvedAt, Conflicts: r.Conflicts,
	}, r.Live)
}

func encodeEffectToken(id effect.ID) string {
	b, _ := json.Marshal(id) // strings always have a JSON form
	return base64.RawURLEncoding.EncodeToString(b)
}

// keyOf is the key of an id as callers see it.
func keyOf(id effect.ID) string {
	_, key := protocol.ParseLedgerKey(id.Key)
	return key
}

func decodeEffectToken(s string) (id effect.ID, err error) {
	if s == "" {
		return id, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &id)
	}
	if err != nil || checkFilters(filter{"scope", id.Scope}, filter{"key", keyOf(id)}, filter{"name", id.Name}) != nil {
		return id, protocol.Errorf(protocol.CodeInputInvalid, "page_token", "is not a next_page_token of an earlier page")
	}
	return id, nil
}
