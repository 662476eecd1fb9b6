package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/once"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

const (
	// reserveFor is how long an execution tries to reach an orchestrator before its
	// effect; nothing has happened yet, and a retry of the task can do it.
	reserveFor = 30 * time.Second
	// completeFor is how long it tries to tell that its effect has happened, and
	// releaseFor that it has not: without it a person is asked.
	completeFor = time.Minute
	releaseFor  = 5 * time.Second
	// lastWords is how long either goes on once the handler's context has ended;
	// less than timeoutGrace, after which the handler counts as stuck.
	lastWords = 3 * time.Second
)

// errNoOrchestrator tells what to set.
var errNoOrchestrator = errors.New("worker.Once: this worker knows no orchestrator, which keeps the ledger of side effects: set Options.OrchestratorURL (PENSTOCK_ORCHESTRATOR_URL, orchestrator.url)")

// withLedger lets the handler of an execution use worker.Once.
func (w *Worker) withLedger(ctx context.Context, x *execution) context.Context {
	if w.rpc == nil {
		return once.Without(ctx, errNoOrchestrator)
	}
	return once.With(ctx, &ledger{rpc: w.rpc, x: x})
}

// ledger asks orchestrators about the effects of one execution.
type ledger struct {
	rpc *orchestrators
	x   *execution
}

// Reserve implements once.Ledger.
func (l *ledger) Reserve(ctx context.Context, r *once.Request) (*once.Answer, error) {
	m := &penstockv1.ReserveEffectRequest{
		Id: l.x.task.ID.String(), Delivery: l.x.task.Delivery, WorkerId: l.x.worker, MessageId: l.x.entryID, Name: r.Name, Token: r.Token.String(),
	}
	if j := r.Judgement; j != nil {
		m.Judgement = &penstockv1.EffectJudgement{Token: j.Token.String(), Resolution: string(j.Resolution), Result: j.Result}
	}
	ctx, cancel := context.WithTimeout(ctx, reserveFor)
	defer cancel()
	res, err := persist(ctx, l.rpc, m, func(ctx context.Context, o orchestrator, req *connect.Request[penstockv1.ReserveEffectRequest]) (*connect.Response[penstockv1.ReserveEffectResponse], error) {
		return o.effects.ReserveEffect(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return answerOf(res)
}

func answerOf(res *penstockv1.ReserveEffectResponse) (*once.Answer, error) {
	a := &once.Answer{Result: res.Result, Note: res.ResultNote, Scope: res.Scope, Key: res.Key, KeyKind: res.KeyKind}
	for _, v := range []protocol.EffectVerdict{protocol.EffectGranted, protocol.EffectKnown, protocol.EffectInDoubt, protocol.EffectBusy} {
		if v.String() == res.Status {
			a.Verdict = v
		}
	}
	switch a.Verdict {
	case 0:
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "status", "the orchestrator answered %q, which this worker does not know: it is older than the orchestrator", res.Status)
	case protocol.EffectInDoubt:
		a.HolderTask, a.HolderDelivery, a.Since = res.HolderTaskId, res.HolderDelivery, res.ReservedAt.AsTime()
		var err error
		if a.HolderToken, err = protocol.ParseID(res.HolderToken); err != nil {
			return nil, fmt.Errorf("the orchestrator's holder_token: %w", err)
		}
	}
	return a, nil
}

// Complete implements once.Ledger.
func (l *ledger) Complete(ctx context.Context, name string, token protocol.ID, result json.RawMessage, note string) error {
	m := &penstockv1.CompleteEffectRequest{Id: l.x.task.ID.String(), Delivery: l.x.task.Delivery, Name: name, Token: token.String(), ResultNote: note}
	if note == "" {
		m.Result = result
	}
	ctx, cancel := outlast(ctx, completeFor)
	defer cancel()
	_, err := persist(ctx, l.rpc, m, func(ctx context.Context, o orchestrator, req *connect.Request[penstockv1.CompleteEffectRequest]) (*connect.Response[penstockv1.CompleteEffectResponse], error) {
		return o.effects.CompleteEffect(ctx, req)
	})
	return err
}

// Release implements once.Ledger.
func (l *ledger) Release(ctx context.Context, name string, token protocol.ID) error {
	m := &penstockv1.ReleaseEffectRequest{Id: l.x.task.ID.String(), Delivery: l.x.task.Delivery, Name: name, Token: token.String()}
	ctx, cancel := outlast(ctx, releaseFor)
	defer cancel()
	_, err := persist(ctx, l.rpc, m, func(ctx context.Context, o orchestrator, req *connect.Request[penstockv1.ReleaseEffectRequest]) (*connect.Response[penstockv1.ReleaseEffectResponse], error) {
		return o.effects.ReleaseEffect(ctx, req)
	})
	return err
}

// outlast returns a context that ends after limit, or soon after ctx has ended: what
// has happened is worth telling even if the execution is over.
func outlast(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lastWords, cancel) })
	return out, func() { stop(); cancel() }
}

// persist repeats a call until an orchestrator answers, or refuses it, or ctx ends.
// The call must be one that may be repeated. The error of a refusal is a
// *protocol.Error where it has a code.
func persist[Req, Res any](ctx context.Context, c *orchestrators, m *Req, call func(context.Context, orchestrator, *connect.Request[Req]) (*connect.Response[Res], error)) (*Res, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		res, err := callAny(ctx, c, m, call, refusal)
		if err == nil {
			return res, nil
		}
		if info := infoOf(err); info != nil && info.Code != "" {
			return nil, &protocol.Error{Code: protocol.Code(info.Code), Field: info.Field, Message: info.Message}
		}
		if refusal(err) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no orchestrator answered: %w", err)
		case <-time.After(pause):
		}
	}
}

// refusal reports whether another orchestrator, or the same one later, would give
// the same answer.
func refusal(err error) bool {
	if info := infoOf(err); info != nil && info.Code != "" {
		return true
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodeFailedPrecondition, connect.CodePermissionDenied,
		connect.CodeUnauthenticated, connect.CodeUnimplemented:
		return true
	}
	return false
}

// infoOf returns the detail that an orchestrator's own errors carry, or nil.
func infoOf(err error) *penstockv1.ErrorInfo {
	e, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return nil
	}
	for _, d := range e.Details() {
		if v, err := d.Value(); err == nil {
			if info, ok := v.(*penstockv1.ErrorInfo); ok {
				return info
			}
		}
	}
	return nil
}
