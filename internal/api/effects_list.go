package api

import (
	"context"

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
	if m.TaskId == "" && tenancy.Bound(ctx) {
		if m.Scope == "" {
			m.Scope = m.Tenant
		}
		if ok, err := s.mayReach(ctx, m.Scope); err != nil || !ok {
			return connect.NewResponse(&penstockv1.ListEffectsResponse{}), err
		}
	}
	from, err := effectAfter(m)
	if err != nil {
		return nil, err
	}
	out := &penstockv1.ListEffectsResponse{}
	var rows []*dbsqlc.ListEffectsRow
	var next *effect.ID
	if m.TaskId != "" {
		rows, next, err = s.ofTask(ctx, m, from.Name, size)
	} else {
		rows, next, err = s.listed(ctx, m, from, size)
	}
	if err != nil {
		return nil, failure(err)
	}
	if next != nil {
		out.NextPageToken = tokenFor(m, cursor{Key: []string{next.Scope, next.Key, next.Name}})
	}
	for _, r := range rows {
		out.Effects = append(out.Effects, listedEffect(r))
	}
	return connect.NewResponse(out), nil
}

// effectAfter is where a page starts; zero: at the first effect of the scope.
func effectAfter(m *penstockv1.ListEffectsRequest) (effect.ID, error) {
	c, err := cursorOf(m)
	if err != nil || c == nil {
		return effect.ID{Scope: m.Scope}, err
	}
	key, err := c.key(3)
	if err != nil {
		return effect.ID{}, err
	}
	return effect.ID{Scope: key[0], Key: key[1], Name: key[2]}, nil
}

// ofTask reads a page of a task's effects.
func (s *Effects) ofTask(ctx context.Context, m *penstockv1.ListEffectsRequest, afterName string, size int32) (out []*dbsqlc.ListEffectsRow, next *effect.ID, err error) {
	id, err := s.find(ctx, m.Tenant, m.TaskId)
	if err != nil {
		return nil, nil, err
	}
	keys, err := s.store.EffectKeys(ctx, []pgid.ID{pgid.ID(id)})
	if err != nil || len(keys) == 0 { // retention removed the task just now
		return nil, nil, err
	}
	state, doubt := stateAsked(m)
	rows, err := s.store.ListEffectsOfKey(ctx, dbsqlc.ListEffectsOfKeyParams{
		Scope: keys[0].Scope, Key: keys[0].Key, AfterName: afterName, State: state, Doubt: doubt, MaxRows: size + 1,
	})
	if err != nil {
		return nil, nil, err
	}
	for _, r := range rows {
		out = append(out, (*dbsqlc.ListEffectsRow)(r))
	}
	if len(out) > int(size) {
		out = out[:size]
		next = idOfEffect(out[size-1])
	}
	return out, next, nil
}

// listed reads a page of all effects, or those of a scope.
func (s *Effects) listed(ctx context.Context, m *penstockv1.ListEffectsRequest, from effect.ID, size int32) ([]*dbsqlc.ListEffectsRow, *effect.ID, error) {
	state, doubt := stateAsked(m)
	rows, last, _, err := look[*dbsqlc.ListEffectsRow]{
		read: func(q *dbsqlc.Queries, maxLook, maxRows int32) (out []*dbsqlc.ListEffectsRow, err error) {
			if state != string(protocol.EffectReserved) {
				return q.ListEffects(ctx, dbsqlc.ListEffectsParams{
					Scope: m.Scope, State: state, AfterScope: from.Scope, AfterKey: from.Key, AfterName: from.Name, MaxLook: maxLook, MaxRows: maxRows,
				})
			}
			rows, err := q.ListReservedEffects(ctx, dbsqlc.ListReservedEffectsParams{
				Scope: m.Scope, Doubt: doubt, AfterScope: from.Scope, AfterKey: from.Key, AfterName: from.Name, MaxLook: maxLook, MaxRows: maxRows,
			})
			for _, r := range rows {
				out = append(out, (*dbsqlc.ListEffectsRow)(r))
			}
			return out, err
		},
		of: func(r *dbsqlc.ListEffectsRow) looked {
			if m.Scope != "" && r.Scope != m.Scope {
				return looked{} // the scope has ended, and the list with it
			}
			return looked{r.Place, r.Admitted}
		},
		move: func(r *dbsqlc.ListEffectsRow) { from = *idOfEffect(r) },
	}.page(ctx, s.store, size)
	if err != nil || last == nil {
		return rows, nil, err
	}
	return rows, idOfEffect(*last), nil
}

// stateAsked is the stored state that a request admits, and whether only doubts.
func stateAsked(m *penstockv1.ListEffectsRequest) (state string, doubt bool) {
	if m.State == stateInDoubt {
		return string(protocol.EffectReserved), true
	}
	return m.State, false
}

func idOfEffect(r *dbsqlc.ListEffectsRow) *effect.ID {
	return &effect.ID{Scope: r.Scope, Key: r.Key, Name: r.Name}
}

func listedEffect(r *dbsqlc.ListEffectsRow) *penstockv1.Effect {
	return effectOf(&dbsqlc.Effect{
		Scope: r.Scope, Key: r.Key, Name: r.Name, State: r.State, TaskID: r.TaskID, Delivery: r.Delivery, WorkerID: r.WorkerID, Runs: r.Runs,
		ReservedAt: r.ReservedAt, DoneAt: r.DoneAt, ResultNote: r.ResultNote, Resolution: r.Resolution, ResolvedBy: r.ResolvedBy,
		ResolutionReason: r.ResolutionReason, ResolvedAt: r.ResolvedAt, Conflicts: r.Conflicts,
	}, r.Live)
}
