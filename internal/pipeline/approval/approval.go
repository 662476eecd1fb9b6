// Package approval decides what people are asked: it counts approvals, releases
// and rejects the tasks that wait for them, rejects what nobody decided in time,
// and keeps the guard's rules. A request is bound to a digest of its task and
// rule: when one of them changed, it is renewed instead of counted.
package approval

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/tenancy"
	"github.com/penstock-dev/penstock/protocol"
)

// Options are the settings of a Stage.
type Options struct {
	Store *store.Store
	// Rules are the guard's, as enqueue and dispatch use them.
	Rules *guard.Rules
	// Named, if set, tells whether callers have names, so that one without may be
	// the person who decides: nobody approves then what such a caller asked for.
	Named func() bool
	// Wake is told when tasks became due.
	Wake func(at time.Time)
	// Ended is told which tasks were cancelled, and why.
	Ended func(code protocol.Code, ids []protocol.ID)
	// Pulse, if set, is told how the loop fares.
	Pulse   *lifecycle.Pulse
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Stage decides about tasks that wait for approval. It is safe for concurrent
// use, and any number of replicas may run at once.
type Stage struct {
	o         Options
	decisions *prometheus.CounterVec
	pending   prometheus.Gauge
}

// New makes a Stage; Run works until its context ends.
func New(o Options) *Stage {
	s := &Stage{
		o: o,
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_approval_decisions_total", Help: "Approval requests approved, rejected, expired and renewed, and decisions refused.",
		}, []string{"decision"}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_approvals_pending", Help: "Approval requests that nobody has decided.",
		}),
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.decisions, s.pending)
	}
	return s
}

// maxReason bounds what goes into events, in bytes.
const maxReason = 1000

// Decision is what a person's word did.
type Decision struct {
	// Already: it had been said before; nothing changed.
	Already bool
	// Released: the task goes on.
	Released bool
}

// Approve counts a person's approval of a request; the last one that is needed
// lets the task go on. Errors: ErrNobody, ErrNotApprover, ErrRequester;
// TASK_INPUT_INVALID; TASK_NOT_FOUND; TASK_INVALID_TRANSITION if the request is
// decided, its time is over, or its rule or task was changed since; or Postgres'.
func (s *Stage) Approve(ctx context.Context, id protocol.ID, who Person, reason string) (Decision, error) {
	return s.decide(ctx, id, who, reason, false, s.approve)
}

// Reject cancels the task that a request is about. Errors are those of Approve.
func (s *Stage) Reject(ctx context.Context, id protocol.ID, who Person, reason string) (Decision, error) {
	return s.decide(ctx, id, who, reason, true, s.reject)
}

// verdict is a decision inside a transaction. A refusal is stored with what it
// changed: a renewed request.
type verdict struct {
	Decision
	refusal error
	name    string // for the metric; "": none
}

func (s *Stage) decide(ctx context.Context, id protocol.ID, who Person, reason string, required bool,
	fn func(ctx context.Context, m *matter, a *dbsqlc.Approval, who Person, reason string) (verdict, error)) (Decision, error) {
	if err := checkReason(reason, required); err != nil {
		return Decision{}, err
	}
	if who.anonymous() {
		return Decision{}, ErrNobody
	}
	task, err := s.o.Store.ApprovalTask(ctx, pgid.ID(id))
	if errors.Is(err, pgx.ErrNoRows) {
		return Decision{}, notFound(id)
	}
	if err != nil {
		return Decision{}, err
	}
	var v verdict
	var m *matter
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		if m, err = s.open(ctx, q, protocol.ID(task)); err != nil {
			return err
		}
		a := m.find(id)
		if a == nil || !tenancy.May(ctx, a.Tenant) {
			return notFound(id)
		}
		if err := who.may(a); err != nil {
			return err
		}
		if !required && s.o.Named != nil && s.o.Named() && unknownRequester(a) { // rejecting is harmless
			return ErrAnonymousRequester
		}
		if v, err = fn(ctx, m, a, who, reason); err != nil {
			return err
		}
		return m.save(ctx)
	})
	if err != nil {
		return Decision{}, err
	}
	crashpoint.Here("approval.committed")
	if v.name != "" {
		s.decisions.WithLabelValues(v.name).Inc()
	}
	if v.refusal == nil {
		s.tell(m)
	}
	return v.Decision, v.refusal
}

// tell passes on what became of a task.
func (s *Stage) tell(m *matter) {
	switch {
	case m.task == nil || len(m.events) == 0:
	case m.task.State == protocol.StateCancelled:
		s.o.Ended(protocol.CodeApprovalRejected, []protocol.ID{m.task.ID})
	case !m.task.DueAt.IsZero():
		s.o.Wake(m.task.DueAt)
	}
}

func (s *Stage) approve(ctx context.Context, m *matter, a *dbsqlc.Approval, who Person, reason string) (verdict, error) {
	given := m.votes[a.ID]
	voted := given.has(who)
	if err := m.openFor(a); err != nil {
		if voted && a.Status == statusApproved { // its reply was lost
			return verdict{Decision: Decision{Already: true}}, nil
		}
		return m.refuse(err, who, "approve"), nil
	}
	if voted {
		return verdict{Decision: Decision{Already: true}}, nil
	}
	if renewed, err := m.renew(ctx, a); err != nil || renewed != nil {
		return verdict{refusal: renewed, name: "renewed"}, err
	}
	v := verdict{}
	if a.Kind == protocol.ApprovalEffect {
		if err := noHandIn(ctx, m.q, a, who); err != nil {
			return v, err
		}
	}
	done, err := m.vote(ctx, a, who, reason)
	if err != nil {
		return v, err
	}
	if done && a.Kind == protocol.ApprovalEffect {
		err := freeEffect(ctx, m.q, a, who, reason)
		if err != nil {
			return v, err
		}
	}
	if done {
		v.name = statusApproved
	}
	v.Released, err = m.proceed(ctx, a, who, reason, done)
	return v, err
}

func (s *Stage) reject(ctx context.Context, m *matter, a *dbsqlc.Approval, who Person, reason string) (verdict, error) {
	if err := m.openFor(a); err != nil {
		if a.Status == statusRejected && who.is(store.Deref(a.DecidedBy)) {
			return verdict{Decision: Decision{Already: true}}, nil
		}
		return m.refuse(err, who, "reject"), nil
	}
	return verdict{name: statusRejected}, m.end(ctx, a, statusRejected, who.Principal, protocol.ActorUser(who.Principal), reason)
}

func checkReason(reason string, required bool) error {
	switch {
	case len(reason) > maxReason:
		return bad("reason", "has %d bytes, at most %d are allowed", len(reason), maxReason)
	case protocol.Text(reason) != reason:
		return bad("reason", "contains characters that can't be stored")
	case required && reason == "":
		return bad("reason", "is required: say why the task must not run")
	}
	return nil
}

func bad(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInputInvalid, field, format, args...)
}

func conflict(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidTransition, "approval_id", format, args...)
}

func notFound(id protocol.ID) error {
	return protocol.Errorf(protocol.CodeNotFound, "approval_id", "no approval request %s", id)
}
