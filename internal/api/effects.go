package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/pipeline/effect"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/tenancy"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// Effects implements penstockv1connect.EffectServiceHandler.
type Effects struct {
	store *store.Store
	stage *effect.Stage
	// find reads a task by the id that its caller knows.
	find func(ctx context.Context, tenant, taskID string) (protocol.ID, error)
	// principal is who makes the call; empty: anonymous.
	principal func(ctx context.Context) string
}

// NewEffects makes an Effects. principal tells who makes a call.
func NewEffects(s *store.Store, stage *effect.Stage, principal func(ctx context.Context) string) *Effects {
	find := func(ctx context.Context, tenant, taskID string) (protocol.ID, error) {
		t, err := (&Service{store: s}).find(ctx, tenant, taskID)
		if err != nil {
			return protocol.ID{}, err
		}
		return protocol.ID(t.ID), nil
	}
	return &Effects{store: s, stage: stage, find: find, principal: principal}
}

// ReserveEffect implements the RPC.
func (s *Effects) ReserveEffect(ctx context.Context, req *connect.Request[penstockv1.ReserveEffectRequest]) (*connect.Response[penstockv1.ReserveEffectResponse], error) {
	m := req.Msg
	by, token, err := holderOf(m.Id, m.Delivery, m.Name, m.Token)
	if err != nil {
		return nil, err
	}
	if m.WorkerId == "" {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "worker_id", "is required")
	}
	if err := checkFilters(filter{"worker_id", m.WorkerId}, filter{"message_id", m.MessageId}); err != nil {
		return nil, err
	}
	by.WorkerID = m.WorkerId
	r := &effect.Reservation{EffectHolder: by, MessageID: m.MessageId, Name: m.Name, Token: token}
	if r.Judgement, err = judgementOf(m.Judgement); err != nil {
		return nil, err
	}
	if err := s.mayHold(ctx, by); err != nil {
		return nil, err
	}
	a, err := s.stage.Reserve(ctx, r)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ReserveEffectResponse{Status: a.Verdict.String(), Scope: a.Scope}
	out.KeyKind, out.Key = protocol.ParseLedgerKey(a.Key)
	switch e := a.Effect; a.Verdict {
	case protocol.EffectKnown:
		out.Result, out.ResultNote = e.Result, e.ResultNote
	case protocol.EffectInDoubt, protocol.EffectBusy:
		out.HolderToken, out.HolderTaskId = e.Token.String(), e.Holder.TaskID.String()
		out.HolderDelivery, out.HolderWorkerId, out.ReservedAt = e.Holder.Delivery, e.Holder.WorkerID, timestamppb.New(e.ReservedAt)
	}
	return connect.NewResponse(out), nil
}

func judgementOf(m *penstockv1.EffectJudgement) (*protocol.EffectJudgement, error) {
	if m == nil {
		return nil, nil
	}
	token, err := idOf("judgement.token", m.Token)
	if err != nil {
		return nil, err
	}
	j := &protocol.EffectJudgement{Token: token, Resolution: protocol.EffectResolution(m.Resolution)}
	switch j.Resolution {
	case protocol.CheckedNotDone, protocol.ResolvedRunAgain:
	case protocol.CheckedDone:
		if j.Result, err = effectResult("judgement.result", m.Result); err != nil {
			return nil, err
		}
	default:
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "judgement.resolution", "is %q, want %s, %s or %s", clip(m.Resolution),
			protocol.CheckedDone, protocol.CheckedNotDone, protocol.ResolvedRunAgain)
	}
	return j, nil
}

// holderOf checks what names an execution and its effect.
func holderOf(id string, delivery int64, name, token string) (by protocol.EffectHolder, parsed protocol.ID, err error) {
	task, err := idOf("id", id)
	if err != nil {
		return by, parsed, err
	}
	if delivery < 1 {
		return by, parsed, protocol.Errorf(protocol.CodeInputInvalid, "delivery", "is %d, want 1 or more", delivery)
	}
	if err := protocol.CheckEffectName(name); err != nil {
		return by, parsed, protocol.Errorf(protocol.CodeInputInvalid, "name", "%v", err)
	}
	if parsed, err = idOf("token", token); err != nil {
		return by, parsed, err
	}
	if parsed.IsZero() {
		return by, parsed, protocol.Errorf(protocol.CodeInputInvalid, "token", "is the nil UUID, want one made for this reservation")
	}
	return protocol.EffectHolder{TaskID: task, Delivery: delivery}, parsed, nil
}

// mayHold refuses a task of a tenant that the caller may not reach, as if there
// were none.
func (s *Effects) mayHold(ctx context.Context, by protocol.EffectHolder) error {
	if !tenancy.Bound(ctx) {
		return nil
	}
	tenant, err := s.store.TaskTenant(ctx, pgid.ID(by.TaskID))
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && !tenancy.May(ctx, tenant):
		return protocol.Errorf(protocol.CodeNotFound, "id", "there is no task %s", by.TaskID)
	case err != nil:
		return failure(err)
	}
	return nil
}

// mayReach refuses a scope that is of none of the caller's tenants, as if it had
// no effects.
func (s *Effects) mayReach(ctx context.Context, scope string) (bool, error) {
	if !tenancy.Bound(ctx) || tenancy.May(ctx, scope) {
		return true, nil
	}
	owners, err := s.store.ScopeOwners(ctx, []string{scope})
	if err != nil {
		return false, failure(err)
	}
	return len(owners) == 1 && tenancy.May(ctx, owners[0].Tenant), nil
}

// effectResult is a result to store; JSON null if there is none.
func effectResult(field string, result []byte) ([]byte, error) {
	if len(result) == 0 {
		return []byte("null"), nil
	}
	if err := protocol.CheckEffectResult(result); err != nil {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, field, "%v", err)
	}
	return result, nil
}

// maxEffectText is the most bytes of a reason or note.
const maxEffectText = 1024

func checkText(field, text string) error {
	if len(text) > maxEffectText || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return protocol.Errorf(protocol.CodeInputInvalid, field, "has %d bytes, want at most %d of UTF-8 without NUL", len(text), maxEffectText)
	}
	return nil
}

// CompleteEffect implements the RPC.
func (s *Effects) CompleteEffect(ctx context.Context, req *connect.Request[penstockv1.CompleteEffectRequest]) (*connect.Response[penstockv1.CompleteEffectResponse], error) {
	m := req.Msg
	by, token, err := holderOf(m.Id, m.Delivery, m.Name, m.Token)
	if err != nil {
		return nil, err
	}
	if err := checkText("result_note", m.ResultNote); err != nil {
		return nil, err
	}
	var result []byte
	if m.ResultNote == "" {
		if result, err = effectResult("result", m.Result); err != nil {
			return nil, err
		}
	}
	if err := s.mayHold(ctx, by); err != nil {
		return nil, err
	}
	if err := s.stage.Complete(ctx, by, m.Name, token, result, m.ResultNote); err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.CompleteEffectResponse{}), nil
}

// ReleaseEffect implements the RPC.
func (s *Effects) ReleaseEffect(ctx context.Context, req *connect.Request[penstockv1.ReleaseEffectRequest]) (*connect.Response[penstockv1.ReleaseEffectResponse], error) {
	m := req.Msg
	by, token, err := holderOf(m.Id, m.Delivery, m.Name, m.Token)
	if err != nil {
		return nil, err
	}
	if err := s.mayHold(ctx, by); err != nil {
		return nil, err
	}
	if err := s.stage.Release(ctx, by, m.Name, token); err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.ReleaseEffectResponse{}), nil
}

// ResolveEffect implements the RPC.
func (s *Effects) ResolveEffect(ctx context.Context, req *connect.Request[penstockv1.ResolveEffectRequest]) (*connect.Response[penstockv1.ResolveEffectResponse], error) {
	m := req.Msg
	id, err := s.effectID(ctx, m)
	if err != nil {
		return nil, err
	}
	r := &effect.Resolution{ID: id, As: protocol.EffectResolution(m.Resolution), Principal: s.principal(ctx), Reason: m.Reason}
	switch r.As {
	case protocol.ResolvedDone:
		if r.Result, err = effectResult("result", m.Result); err != nil {
			return nil, err
		}
	case protocol.ResolvedNotDone:
		if len(m.Result) > 0 {
			return nil, protocol.Errorf(protocol.CodeInputInvalid, "result", "is given, but an effect that has not happened has no result")
		}
	default:
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "resolution", "is %q, want %s or %s", clip(m.Resolution), protocol.ResolvedDone, protocol.ResolvedNotDone)
	}
	if strings.TrimSpace(m.Reason) == "" {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "reason", "is required: say how you know")
	}
	if err := checkText("reason", m.Reason); err != nil {
		return nil, err
	}
	res, err := s.stage.Resolve(ctx, r)
	switch {
	case errors.Is(err, effect.ErrNobody):
		return nil, connect.NewError(connect.CodeUnauthenticated, err)
	case errors.Is(err, effect.ErrRequester):
		return nil, connect.NewError(connect.CodePermissionDenied, err)
	case err != nil:
		return nil, undecided(err)
	}
	e, live, err := effect.Get(ctx, s.store, id)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ResolveEffectResponse{Effect: effectOf(e, live), AlreadyResolved: res.Already}
	for _, t := range res.Released {
		out.ReleasedTaskIds = append(out.ReleasedTaskIds, t.String())
	}
	return connect.NewResponse(out), nil
}

// effectID checks the full key of an effect, and finds the one that is meant by a
// caller's own words: where they do not say of which kind the key is, it is that of
// which the ledger has an effect, and a key that was used again is that of the task
// which has it now. Where that could be several, they must say which.
func (s *Effects) effectID(ctx context.Context, m interface {
	GetScope() string
	GetKey() string
	GetKeyKind() string
	GetName() string
}) (effect.ID, error) {
	id := effect.ID{Scope: m.GetScope(), Name: m.GetName()}
	if id.Scope == "" {
		id.Scope = protocol.DefaultTenant
		if own := tenancy.Of(ctx); len(own) == 1 {
			id.Scope = own[0]
		}
	}
	if m.GetKey() == "" {
		return id, protocol.Errorf(protocol.CodeInputInvalid, "key", "is required")
	}
	if err := checkFilters(filter{"scope", id.Scope}, filter{"key", m.GetKey()}); err != nil {
		return id, err
	}
	if err := protocol.CheckEffectName(id.Name); err != nil {
		return id, protocol.Errorf(protocol.CodeInputInvalid, "name", "%v", err)
	}
	kinds := []string{protocol.KeyGiven, protocol.KeyOfTask}
	switch kind := m.GetKeyKind(); kind {
	case protocol.KeyGiven, protocol.KeyOfTask:
		kinds = []string{kind}
	case "":
	default:
		return id, protocol.Errorf(protocol.CodeInputInvalid, "key_kind", "is %q, want %s or %s", clip(kind), protocol.KeyGiven, protocol.KeyOfTask)
	}
	id.Key = protocol.LedgerKey(kinds[0], m.GetKey())
	switch ok, err := s.mayReach(ctx, id.Scope); {
	case err != nil:
		return id, err
	case !ok:
		return id, effect.NotFound(id)
	}
	found, err := s.ledgerKeys(ctx, id, m.GetKey(), kinds)
	switch {
	case err != nil:
		return id, failure(err)
	case len(found) == 0:
	case len(found) == 1 || m.GetKeyKind() != "": // the exact one comes first
		id.Key = found[0]
	default:
		var which []string
		for _, key := range found {
			kind, key := protocol.ParseLedgerKey(key)
			which = append(which, fmt.Sprintf("%s %q", kind, clip(key)))
		}
		return id, protocol.Errorf(protocol.CodeInputInvalid, "key_kind",
			"is needed: the ledger has effect %q of %s: say which by key_kind and key", clip(id.Name), strings.Join(which, ", of "))
	}
	return id, nil
}

// ledgerKeys are the keys under which the ledger has an effect and that may be meant
// by one: the key itself, then that of the task which has it now.
func (s *Effects) ledgerKeys(ctx context.Context, id effect.ID, key string, kinds []string) (found []string, err error) {
	current, err := s.store.CurrentEffectKeys(ctx, dbsqlc.CurrentEffectKeysParams{Scope: id.Scope, Key: key, Named: pgid.ID(protocol.NameID(id.Scope, key))})
	if err != nil {
		return nil, err
	}
	var all []string
	for _, kind := range kinds {
		all = append(all, protocol.LedgerKey(kind, key))
	}
	for _, c := range current {
		if kind, _ := protocol.ParseLedgerKey(c); slices.Contains(kinds, kind) && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	for _, id.Key = range all {
		switch _, _, err := effect.Get(ctx, s.store, id); {
		case err == nil:
			found = append(found, id.Key)
		case protocol.CodeOf(err) != protocol.CodeNotFound:
			return nil, err
		}
	}
	return found, nil
}
