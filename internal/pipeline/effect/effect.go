// Package effect keeps the ledger of side effects: who may run one, what came of
// it, and what nobody knows. Every decision is made under the lock of the
// effect's row; one that lets an execution run it, under that of its task, too.
package effect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/mutant"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Waiting releases the tasks that wait for a person's word about an effect.
type Waiting interface {
	// SettleEffectTx locks the tasks, approves what they wait for and moves them
	// on, within the transaction of q. It returns their ids, none if none waits,
	// and the earliest time at which one is due.
	SettleEffectTx(ctx context.Context, q *dbsqlc.Queries, scope, key, name, principal, reason string) (released []protocol.ID, due time.Time, err error)
	// Undoubt lets the tasks go on that wait for an effect that is not in doubt any
	// more, in transactions of its own. It does so by itself after a while, too.
	Undoubt(ctx context.Context, scope, key, name string) (released []protocol.ID, err error)
}

// Options are the settings of a Stage.
type Options struct {
	Store *store.Store
	// DoubtAfter is how long after its reservation an effect whose execution is over
	// still counts as busy: that execution may be about to tell what came of it, or
	// about to begin.
	DoubtAfter time.Duration
	// Waiting, if set, releases tasks that wait for an effect.
	Waiting Waiting
	// Wake, if set, is told when a task that was released is due.
	Wake    func(at time.Time)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Stage keeps the ledger. It is safe for concurrent use, and any number of
// replicas may run.
type Stage struct {
	o     Options
	calls *prometheus.CounterVec
}

// New makes a Stage.
func New(o Options) *Stage {
	s := &Stage{o: o, calls: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_effects_total", Help: "Calls to the side-effect ledger: reserve, complete, release, resolve; by what became of them.",
	}, []string{"call", "verdict"})}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.calls)
	}
	return s
}

// ID is the full key of an effect. Key is a protocol.LedgerKey.
type ID struct{ Scope, Key, Name string }

// String is the ID for people.
func (id ID) String() string {
	kind, key := protocol.ParseLedgerKey(id.Key)
	return fmt.Sprintf("%q of %s %q in scope %q", id.Name, kind, key, id.Scope)
}

// Reservation is what an execution asks for.
type Reservation struct {
	protocol.EffectHolder
	MessageID string
	Name      string
	// Token is the caller's name for this reservation.
	Token protocol.ID
	// Judgement is nil unless the caller was told that the effect is in doubt.
	Judgement *protocol.EffectJudgement
}

// Answer is what a reservation comes to.
type Answer struct {
	ID
	Verdict protocol.EffectVerdict
	// Effect is the row as it is now.
	Effect *protocol.Effect
}

// insertTries bounds how often a row may be made and removed by others while it
// is looked for.
const insertTries = 5

// Reserve decides about a reservation. The same one may be repeated. Errors have
// the code TASK_NOT_FOUND, if there is no such task, or TASK_INVALID_TRANSITION,
// if the execution is not its current one or does not run; others are Postgres'.
func (s *Stage) Reserve(ctx context.Context, r *Reservation) (*Answer, error) {
	var out *Answer
	err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		if err := s.claim(ctx, q, r); err != nil {
			return err
		}
		id, err := idOf(ctx, q, r.TaskID, r.Name)
		if err != nil {
			return err
		}
		out, err = s.reserve(ctx, q, id, r)
		return err
	})
	if err != nil {
		s.calls.WithLabelValues("reserve", "refused").Inc()
		return nil, err
	}
	s.calls.WithLabelValues("reserve", out.Verdict.String()).Inc()
	return out, nil
}

// claim locks the task and checks that the execution is its current one. If its
// claim has not been recorded yet it is now: a worker reports it after a while
// only.
func (s *Stage) claim(ctx context.Context, q *dbsqlc.Queries, r *Reservation) error {
	var refusal error
	err := s.o.Store.DecideTx(ctx, q, []protocol.ID{r.TaskID}, func(now time.Time, tasks map[protocol.ID]*store.Locked) ([]*store.Locked, []*protocol.Event) {
		t := tasks[r.TaskID]
		if refusal = current(t, r); refusal != nil || t.State == protocol.StateRunning {
			return nil, nil
		}
		events, verdict := t.ApplyOutcome(&protocol.Outcome{
			ID: r.TaskID, Delivery: r.Delivery, Kind: protocol.OutcomeClaimed, WorkerID: r.WorkerID, MessageID: r.MessageID, Delay: -1,
		}, protocol.Env{Now: now})
		if verdict != protocol.Applied {
			refusal = notCurrent(t, r)
			return nil, nil
		}
		return []*store.Locked{t}, events
	})
	return errors.Join(err, refusal)
}

func current(t *store.Locked, r *Reservation) error {
	switch {
	case t == nil:
		return protocol.Errorf(protocol.CodeNotFound, "id", "there is no task %s", r.TaskID)
	case t.Delivery != r.Delivery:
		return notCurrent(t, r)
	}
	switch t.State {
	case protocol.StateRunning, protocol.StateQueued, protocol.StateRetrying:
		return nil
	}
	return notCurrent(t, r)
}

func notCurrent(t *store.Locked, r *Reservation) error {
	return protocol.Errorf(protocol.CodeInvalidTransition, "delivery",
		"delivery %d of task %s does not run any more: the task is %s with delivery %d; stop, without the effect", r.Delivery, t.TaskID(), t.State, t.Delivery)
}

func idOf(ctx context.Context, q *dbsqlc.Queries, task protocol.ID, name string) (ID, error) {
	rows, err := q.EffectKeys(ctx, []pgid.ID{pgid.ID(task)})
	if err != nil {
		return ID{}, fmt.Errorf("read the effect key of task %s: %w", task, err)
	}
	if len(rows) == 0 {
		return ID{}, protocol.Errorf(protocol.CodeNotFound, "id", "there is no task %s", task)
	}
	return ID{Scope: rows[0].Scope, Key: rows[0].Key, Name: name}, nil
}

func (s *Stage) reserve(ctx context.Context, q *dbsqlc.Queries, id ID, r *Reservation) (*Answer, error) {
	for range insertTries {
		e, now, err := lock(ctx, q, id)
		if err == nil {
			return s.decide(ctx, q, id, e, r, now)
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return nil, err
		}
		n, err := q.InsertEffect(ctx, dbsqlc.InsertEffectParams{
			Scope: id.Scope, Key: id.Key, Name: id.Name, Token: pgid.ID(r.Token), TaskID: pgid.ID(r.TaskID), Delivery: r.Delivery, WorkerID: r.WorkerID,
		})
		if err != nil {
			return nil, fmt.Errorf("reserve effect %s: %w", id.Name, err)
		}
		if n == 1 {
			return &Answer{ID: id, Verdict: protocol.EffectGranted, Effect: &protocol.Effect{
				State: protocol.EffectReserved, Token: r.Token, Holder: r.EffectHolder, Users: []protocol.ID{r.TaskID}, Runs: 1,
			}}, nil
		}
	}
	return nil, fmt.Errorf("reserve effect %s: its row comes and goes", id.Name)
}

// decide decides about a reservation of an effect that was reserved before.
func (s *Stage) decide(ctx context.Context, q *dbsqlc.Queries, id ID, e *protocol.Effect, r *Reservation, now time.Time) (*Answer, error) {
	// Asked after the lock was had, so that it is not older than the row.
	live, err := q.ExecutionLive(ctx, pgid.ID(e.Holder.TaskID), e.Holder.Delivery)
	if err != nil {
		return nil, fmt.Errorf("look whether delivery %d of task %s runs: %w", e.Holder.Delivery, e.Holder.TaskID, err)
	}
	live = live || now.Sub(e.ReservedAt) < s.o.DoubtAfter
	before := len(e.Users)
	verdict := e.Reserve(r.EffectHolder, r.Token, live, r.Judgement, now)
	if verdict == protocol.EffectInDoubt && mutant.On(mutant.EffectDoubtIsFree) {
		verdict = e.Reserve(r.EffectHolder, r.Token, live, &protocol.EffectJudgement{Token: e.Token, Resolution: protocol.ResolvedRunAgain}, now)
	}
	if verdict != protocol.EffectInDoubt && verdict != protocol.EffectBusy || len(e.Users) > before || r.Judgement != nil {
		if err := save(ctx, q, id, e); err != nil {
			return nil, err
		}
	}
	return &Answer{ID: id, Verdict: verdict, Effect: e}, nil
}

// Complete records that a reserved effect has happened; see
// protocol.Effect.Complete. The error has the code TASK_INVALID_TRANSITION if the
// reservation was replaced meanwhile, so that the effect may happen twice.
func (s *Stage) Complete(ctx context.Context, by protocol.EffectHolder, name string, token protocol.ID, result []byte, note string) error {
	verdict, id, err := s.settle(ctx, by, name, func(e *protocol.Effect, now time.Time) (protocol.Verdict, bool) {
		v := e.Complete(by, token, result, note, now)
		return v, v != protocol.Repeated
	})
	if err != nil {
		return err
	}
	s.calls.WithLabelValues("complete", verdict.String()).Inc()
	if verdict == protocol.Applied {
		s.undoubt(ctx, id)
	}
	if verdict != protocol.Rejected {
		return nil
	}
	s.o.Log.Error("an effect may have happened twice: a run whose reservation was replaced reports it",
		"scope", id.Scope, "key", id.Key, "effect", id.Name, "task_id", by.TaskID, "delivery", by.Delivery)
	return protocol.Errorf(protocol.CodeInvalidTransition, "token",
		"the reservation of effect %q was replaced by another while this run was at it; the ledger notes that it happened here, too", name)
}

// Release records that a reserved effect has certainly not happened; see
// protocol.Effect.Release. The error has the code TASK_INVALID_TRANSITION if it is
// done, or its reservation was replaced.
func (s *Stage) Release(ctx context.Context, by protocol.EffectHolder, name string, token protocol.ID) error {
	verdict, id, err := s.settle(ctx, by, name, func(e *protocol.Effect, _ time.Time) (protocol.Verdict, bool) {
		v := e.Release(token)
		return v, v == protocol.Applied
	})
	if err != nil {
		return err
	}
	s.calls.WithLabelValues("release", verdict.String()).Inc()
	if verdict == protocol.Applied {
		s.undoubt(ctx, id)
	}
	if verdict == protocol.Rejected {
		return protocol.Errorf(protocol.CodeInvalidTransition, "token", "effect %q is done, or its reservation was replaced by another", name)
	}
	return nil
}

// undoubt releases the tasks that wait for an effect whose run has told what came
// of it. What fails here the approval loop does a little later.
func (s *Stage) undoubt(ctx context.Context, id ID) {
	if s.o.Waiting == nil {
		return
	}
	if _, err := s.o.Waiting.Undoubt(ctx, id.Scope, id.Key, id.Name); err != nil {
		s.o.Log.Warn("tasks that wait for an effect go on a little later", "effect", id.Name, "error", err)
	}
}

// settle decides about an effect of a task under its lock, and stores it if fn
// says so. The task need not be locked: what happened has happened.
func (s *Stage) settle(ctx context.Context, by protocol.EffectHolder, name string, fn func(e *protocol.Effect, now time.Time) (protocol.Verdict, bool)) (verdict protocol.Verdict, id ID, err error) {
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		if id, err = idOf(ctx, q, by.TaskID, name); err != nil {
			return err
		}
		e, now, err := lock(ctx, q, id)
		if errors.Is(err, pgx.ErrNoRows) {
			return protocol.Errorf(protocol.CodeNotFound, "name", "task %s has reserved no effect %q", by.TaskID, name)
		}
		if err != nil {
			return err
		}
		var changed bool
		if verdict, changed = fn(e, now); !changed {
			return nil
		}
		return save(ctx, q, id, e)
	})
	return verdict, id, err
}
