package effect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// ErrNobody: only a person who is known may end a doubt.
var ErrNobody = errors.New("resolving an effect needs a known principal: what it decides can't be seen from the outside, so somebody has to answer for it; call with a token")

// ErrRequester: who resolves had a hand in a task that uses the effect.
var ErrRequester = errors.New("had a hand in a task of this effect (asked for it, rescheduled, edited or requeued it): another person must say what became of it")

// Resolution is a person's answer to an effect in doubt.
type Resolution struct {
	ID
	// As is protocol.ResolvedDone or protocol.ResolvedNotDone.
	As protocol.EffectResolution
	// Result is that of an effect that is done, JSON.
	Result []byte
	// Principal is who says so. Required.
	Principal, Reason string
}

// Resolved is what became of it.
type Resolved struct {
	// Already: it was resolved so before.
	Already bool
	// Released are the tasks that waited for it.
	Released []protocol.ID
}

// Resolve ends a doubt by a person's word and lets the tasks that wait for it go
// on, in one transaction. Errors: ErrNobody; ErrRequester, or that of Options.Waiting; TASK_NOT_FOUND if there is no such
// effect; TASK_INVALID_TRANSITION if it is not in doubt.
func (s *Stage) Resolve(ctx context.Context, r *Resolution) (*Resolved, error) {
	if r.Principal == "" || r.Principal == protocol.Anonymous {
		return nil, ErrNobody
	}
	var out *Resolved
	var due time.Time
	err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) (err error) {
		out, due = &Resolved{}, time.Time{}
		if s.o.Waiting != nil { // tasks are locked before effects
			if out.Released, due, err = s.o.Waiting.SettleEffectTx(ctx, q, r.Scope, r.Key, r.Name, r.Principal, r.Reason); err != nil {
				return err
			}
		}
		e, now, err := lock(ctx, q, r.ID)
		if errors.Is(err, pgx.ErrNoRows) {
			return NotFound(r.ID)
		}
		if err != nil {
			return err
		}
		if err := notRequester(ctx, q, e, r); err != nil {
			return err
		}
		live, err := q.ExecutionLive(ctx, pgid.ID(e.Holder.TaskID), e.Holder.Delivery)
		if err != nil {
			return err
		}
		verdict, why := e.Resolve(r.As, r.Principal, r.Reason, r.Result, live, now)
		if why != nil {
			return protocol.Errorf(protocol.CodeInvalidTransition, "", "effect %s %v", r.ID, why)
		}
		if verdict == protocol.Repeated {
			out.Already = true
			return nil
		}
		return save(ctx, q, r.ID, e)
	})
	if err != nil {
		s.calls.WithLabelValues("resolve", "refused").Inc()
		return nil, err
	}
	s.calls.WithLabelValues("resolve", string(r.As)).Inc()
	s.o.Log.Info("effect resolved", "scope", r.Scope, "key", r.Key, "effect", r.Name, "as", r.As, "by", r.Principal, "released", len(out.Released))
	if s.o.Wake != nil && !due.IsZero() {
		s.o.Wake(due)
	}
	return out, nil
}

// notRequester refuses those who had a hand in a task that uses the effect,
// whether one waits for it or not.
func notRequester(ctx context.Context, q *dbsqlc.Queries, e *protocol.Effect, r *Resolution) error {
	names, err := q.EffectRequesters(ctx, pgid.Slice(e.Users))
	if err != nil {
		return fmt.Errorf("read who asked for the tasks of effect %s: %w", r.Name, err)
	}
	if slices.Contains(names, protocol.Person(r.Principal)) {
		return fmt.Errorf("%s %w", r.Principal, ErrRequester)
	}
	return nil
}

// NotFound is the error of an effect that is not in the ledger.
func NotFound(id ID) error {
	return protocol.Errorf(protocol.CodeNotFound, "name", "the ledger has no effect %s", id)
}

// Get returns one effect, and whether it is in doubt. TASK_NOT_FOUND if there is
// none.
func Get(ctx context.Context, s *store.Store, id ID) (e *dbsqlc.Effect, live bool, err error) {
	e, err = s.GetEffect(ctx, dbsqlc.GetEffectParams(id))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, NotFound(id)
	}
	if err != nil {
		return nil, false, err
	}
	live, err = s.ExecutionLive(ctx, e.TaskID, e.Delivery)
	return e, live, err
}
