// Package dependency tells tasks that those they depend on have ended. The
// transaction in which a task with dependants ends leaves a note; this stage
// works the notes off: it counts the end in each dependant, once, under lock, and
// lets the state machine decide what becomes of it. A sweep finds ends without a
// note. Any number of replicas may run at once.
package dependency

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/protocol"
)

// Options are the settings of a Stage.
type Options struct {
	Store *store.Store
	// Poll is how often to look for notes that other replicas left, Sweep how often
	// to look for ends without one.
	Poll, Sweep time.Duration
	// Wake is told when tasks become due, Ended which were cancelled.
	Wake  func(at time.Time)
	Ended func(ids []protocol.ID)
	// Pulse, if set, is told how the loop fares.
	Pulse   *lifecycle.Pulse
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Stage tells dependants. It is safe for concurrent use, but Run is to run once.
type Stage struct {
	o       Options
	kick    chan struct{}
	counted prometheus.Counter
	swept   prometheus.Counter
	waiting prometheus.Gauge
}

// New makes a Stage.
func New(o Options) *Stage {
	s := &Stage{
		o: o, kick: make(chan struct{}, 1),
		counted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_dependencies_settled_total", Help: "Ends of tasks counted in tasks that depend on them.",
		}),
		swept: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_dependencies_swept_total", Help: "Ends of tasks that only the sweep found; should stay 0.",
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_dependency_settlements", Help: "Tasks that ended and whose dependants have not all been told.",
		}),
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.counted, s.swept, s.waiting)
	}
	return s
}

const (
	errorPause = 300 * time.Millisecond
	// quiet is how long a round may take, and how long the store may be away,
	// before this process is not taken for ready.
	quiet = 30 * time.Second
)

// Kick has Run look at once: tasks with dependants may have ended. It does not
// block.
func (s *Stage) Kick() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Run works until ctx ends.
func (s *Stage) Run(ctx context.Context) error {
	beat := s.o.Pulse.Watch("dependencies", s.o.Poll+quiet, quiet)
	timer := time.NewTimer(0)
	defer timer.Stop()
	swept, failing := time.Now(), false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.kick:
		case <-timer.C:
		}
		// Under load there may always be more: each round is a sign of life, and the
		// sweep has its turn all the same.
		_, err := s.settle(ctx, func() (err error) {
			if time.Since(swept) >= s.o.Sweep {
				if _, err = s.Sweep(ctx); err == nil {
					swept = time.Now()
				}
			}
			if err == nil {
				beat.Mark()
			}
			return err
		})
		pause := s.o.Poll
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			beat.Fail("dependants cannot be told")
			if !failing {
				s.o.Log.Warn("tasks wait for what they depend on a little longer", "error", err)
			}
			pause = errorPause
		}
		failing = err != nil
		timer.Reset(pause)
	}
}
