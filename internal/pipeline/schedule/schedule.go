// Package schedule makes the tasks of recurring schedules. A schedule's row is
// locked while it fires: its task, the record of the fire, and the next fire
// time commit together, so that each fire time makes one task, whoever comes
// first and whatever is killed.
package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// Task is one task to make.
type Task struct {
	Template
	Tenant string
	// ID is the caller's own id, or a UUIDv7.
	ID string
	// At is the fire time.
	At       time.Time
	Schedule protocol.ID
	// RequestedBy is who made the schedule, ChangedBy who had a hand in it since.
	RequestedBy string
	ChangedBy   []string
}

// Enqueuer makes tasks.
type Enqueuer interface {
	// Check validates a task without storing anything. The error is an
	// *protocol.Error with code TASK_INPUT_INVALID that names the field.
	Check(t *Task) error
	// CreateTx stores tasks in a transaction: pending, and due at their time.
	CreateTx(ctx context.Context, q *dbsqlc.Queries, ts []*Task) error
}

// Options are the settings of a Stage.
type Options struct {
	Store *store.Store
	// Reads is for what callers look at; nil: Store.
	Reads   *store.Store
	Enqueue Enqueuer
	// MissedGrace: a fire time that is later than this was missed.
	MissedGrace time.Duration
	// KeepFires is how long the record of fires is kept.
	KeepFires time.Duration
	// Wake tells the dispatcher when a task is due.
	Wake func(at time.Time)
	// Pulse, if set, is told how the loop fares.
	Pulse   *lifecycle.Pulse
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Stage manages schedules and fires them. It is safe for concurrent use; any
// number of replicas may run at once.
type Stage struct {
	o        Options
	wake     chan struct{}
	fires    *prometheus.CounterVec
	lateness prometheus.Histogram
	forgot   time.Time // RunOnce: when nothing was left to forget
}

// New makes a Stage; Run fires until its context ends.
func New(o Options) *Stage {
	if o.Reads == nil {
		o.Reads = o.Store
	}
	s := &Stage{
		o: o, wake: make(chan struct{}, 1),
		fires: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_schedule_fires_total", Help: "Fires of recurring schedules, by what became of them. Fire times that were skipped together count once.",
		}, []string{"kind", "result"}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_schedule_lateness_seconds", Help: "Time from a fire time that was not missed to its commit; 0 if that came first.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .5, 1, 5, 30},
		}),
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.fires, s.lateness)
	}
	return s
}

const (
	// ahead is how long before its time a task is stored: it is then in time for
	// the dispatcher, which keeps it until it is due.
	ahead = 20 * time.Millisecond
	// poll is how often to look for what other replicas changed.
	poll = time.Second
	// busyPause is for schedules that another replica is firing, errorPause for a
	// Postgres that does not answer.
	busyPause  = 5 * time.Millisecond
	errorPause = 500 * time.Millisecond
	// fireLimit bounds one transaction, quiet how long the loop may be silent.
	fireLimit = 30 * time.Second
	quiet     = fireLimit + 10*time.Second
)

// Run fires schedules until ctx ends.
func (s *Stage) Run(ctx context.Context) error {
	beat := s.o.Pulse.Watch("schedules", quiet, quiet)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
		pause, err := s.round(ctx, beat)
		switch {
		case err == nil:
			beat.Mark()
		case ctx.Err() != nil:
			return nil
		default:
			beat.Fail("cannot be fired")
			s.o.Log.Warn("schedules wait for a moment", "error", err, "retry_in", errorPause)
			pause = errorPause
		}
		timer.Reset(pause)
	}
}

// round fires what is due and returns how long to sleep.
func (s *Stage) round(ctx context.Context, beat *lifecycle.Beat) (time.Duration, error) {
	for round, more := (&Round{}), true; more; {
		beat.Alive()
		var err error
		if _, more, err = s.Turn(ctx, round); err != nil {
			return 0, err
		}
	}
	if err := s.forget(ctx); err != nil {
		return 0, err
	}
	waits, err := s.o.Store.NextScheduleWait(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the next fire time: %w", err)
	}
	pause := poll
	for _, ms := range waits {
		pause = min(pause, time.Duration(ms*float64(time.Millisecond))-ahead)
	}
	return max(pause, busyPause), nil
}

// changed has the loop look at once.
func (s *Stage) changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

const (
	forgetEvery = 10 * time.Minute
	forgetBatch = 1000
)

// forget removes old records of fires, a batch a round.
func (s *Stage) forget(ctx context.Context) error {
	if time.Since(s.forgot) < forgetEvery {
		return nil
	}
	n, err := s.o.Store.ForgetFires(ctx, s.o.KeepFires.Milliseconds(), forgetBatch)
	if err != nil {
		return fmt.Errorf("remove old records of fires: %w", err)
	}
	if n < forgetBatch {
		s.forgot = time.Now()
	}
	return nil
}
