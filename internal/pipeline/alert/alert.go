// Package alert evaluates the three alert rules: too many tasks retrying, one
// tenant's dead letters growing, and outcomes refused in a row. An alert that
// becomes true is one event and one record in the process log; it fires until
// it resolves, and may be raised again after that.
package alert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/protocol"
)

// Options are the settings of a Stage; those of the rules are config.Alerts.
type Options struct {
	Store *store.Store
	// Interval is the time between two evaluations; all replicas together make
	// one. 0: nothing is evaluated or counted.
	Interval time.Duration
	// RetryingPercent of the tasks under way, and at least RetryingMinimum
	// tasks, must be retrying to raise retrying_share.
	RetryingPercent, RetryingMinimum int
	// DLQGrowth is how many new dead letters of a tenant within Window raise no
	// dlq_growth yet.
	DLQGrowth int
	// InvalidInARow refused outcomes in a row within Window raise
	// invalid_transitions.
	InvalidInARow int
	// Window is a whole number of milliseconds, at least 1.
	Window  time.Duration
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Stage evaluates the rules. Any number of replicas may run at once.
type Stage struct {
	o       Options
	row     row
	kick    chan struct{}
	raised  *prometheus.CounterVec
	figures *figures
}

// New makes a Stage; Run works until its context ends.
func New(o Options) *Stage {
	s := &Stage{o: o, kick: make(chan struct{}, 1), raised: newRaised(), figures: newFigures()}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.raised, s.figures)
	}
	return s
}

// Raised counts an alert that another stage of this process raised.
func (s *Stage) Raised(kind protocol.AlertKind) { s.raised.WithLabelValues(string(kind)).Inc() }

const (
	// lease is how long the evaluation of one replica keeps the others from
	// theirs; one that died is replaced after it.
	lease = time.Minute
	// abandonTimeout bounds the giving back of an evaluation while stopping.
	abandonTimeout = 2 * time.Second
	// minWait is the shortest time between two looks.
	minWait = 10 * time.Millisecond
)

// Run evaluates until ctx ends.
func (s *Stage) Run(ctx context.Context) error {
	if s.o.Interval == 0 {
		<-ctx.Done()
		return nil
	}
	for {
		wait, err := s.Look(ctx)
		if err != nil && ctx.Err() == nil {
			s.o.Log.Warn("alerts not evaluated; trying again", "error", err, "retry_in", wait)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.kick:
		case <-time.After(wait):
		}
	}
}

// Look raises what this process saw refused in a row, evaluates the other rules
// if that is due and no other replica does it, and reads the figures for the
// metrics. It returns how long to wait before the next look, also with an error.
func (s *Stage) Look(ctx context.Context) (time.Duration, error) {
	err := errors.Join(s.report(ctx), s.evaluateIfDue(ctx))
	wait, ferr := s.readFigures(ctx)
	if err = errors.Join(err, ferr); err != nil {
		return s.o.Interval, err
	}
	return min(max(wait, minWait), s.o.Interval), nil
}

func (s *Stage) evaluateIfDue(ctx context.Context) error {
	n, err := s.o.Store.ClaimAlertRound(ctx, lease.Milliseconds(), s.o.Interval.Milliseconds())
	if err != nil {
		return fmt.Errorf("take the evaluation of alerts: %w", err)
	}
	if n == 0 {
		return nil
	}
	if err := s.evaluate(ctx); err != nil {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
		defer cancel()
		return errors.Join(err, s.o.Store.AbandonAlertRound(back, s.o.Interval.Milliseconds()))
	}
	return nil
}

// evaluate reads outside of transactions: one that writes and counts for long
// would hold up everyone who watches events.
func (s *Stage) evaluate(ctx context.Context) error {
	start := time.Now()
	tasks, err := s.countLive(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(s.retryingShare(ctx, tasks), s.dlqGrowth(ctx), s.invalidTransitions(ctx)); err != nil {
		return err
	}
	counts, err := json.Marshal(tasks)
	if err != nil {
		return fmt.Errorf("store the counts of tasks: %w", err)
	}
	if err := s.o.Store.FinishAlertRound(ctx, time.Since(start).Milliseconds(), string(counts)); err != nil {
		return fmt.Errorf("store the counts of tasks: %w", err)
	}
	return nil
}
