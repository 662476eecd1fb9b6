// Package timeout ends executions whose worker should have ended them: a worker
// enforces the start-to-close timeout itself, and this is the backstop for one
// that does not answer.
package timeout

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Options are the settings of a Backstop.
type Options struct {
	Store *store.Store
	Redis *streams.Client
	// Grace is how long after its timeout a running task is left to its worker.
	Grace time.Duration
	Env   protocol.Env // Seed and MaxInterruptions; Now is Postgres'
	// Wake is told when tasks were made due, Dead when some were given up.
	Wake func(at time.Time)
	Dead func()
	// Pulse, if set, is told how the loops fare.
	Pulse   *lifecycle.Pulse
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Backstop looks for running tasks whose time is over. Any number of them may
// run at once; one is not safe for concurrent use.
type Backstop struct {
	o        Options
	timedOut prometheus.Counter
	hold     time.Time // nothing is ended before this
	away     bool      // a store was, and that is logged
}

const (
	// applyDeadline bounds the wait for outcomes that are under way.
	applyDeadline = 30 * time.Second
	// chunk is how many tasks one transaction changes.
	chunk = 500
	// Bounds of the time between two looks, where no time is known to be over
	// before; soonest is the least if one is.
	minPause, maxPause = 500 * time.Millisecond, 5 * time.Second
	soonest            = 50 * time.Millisecond
	// Bounds of the time that workers get after Redis was away.
	minHold, maxHold = time.Second, 10 * time.Second
	// minStill: if Redis takes less to answer, it was not away.
	minStill = 500 * time.Millisecond
	// errorPause is how often to see whether Redis is back.
	errorPause = 500 * time.Millisecond
)

// New makes a Backstop; Run works until its context ends.
func New(o Options) *Backstop {
	b := &Backstop{o: o, timedOut: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "penstock_tasks_timed_out_total", Help: "Executions ended because their worker did not answer within the timeout and the grace.",
	})}
	if o.Metrics != nil {
		o.Metrics.MustRegister(b.timedOut)
	}
	return b
}

// Run ends what is over until ctx ends. It sleeps until the next time it knows
// of, but looks at least twice a grace: a task that is claimed meanwhile is not
// due before that. While Redis can't be reached, or stands still, workers can't answer either:
// they get the grace (1 s to 10 s of it) once more when it is back.
func (b *Backstop) Run(ctx context.Context) error {
	began := time.Now()
	if up, err := b.o.Redis.Uptime(ctx); err != nil || up < b.catchUp() || time.Since(began) > b.still() {
		b.hold = time.Now().Add(b.catchUp())
	}
	beat := b.o.Pulse.Watch("timeouts", maxPause+2*applyDeadline, 2*applyDeadline)
	for {
		pause, err := b.step(ctx)
		if err == nil {
			beat.Mark()
		} else {
			beat.Fail("cannot be looked for")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// step looks once, unless workers are given time, and returns how long to wait
// before the next. An error is logged already.
func (b *Backstop) step(ctx context.Context) (time.Duration, error) {
	err := b.o.Redis.Prompt(ctx, b.still())
	if held := time.Until(b.hold); err == nil && held > 0 {
		return min(held, errorPause), nil
	}
	var next time.Duration
	if err == nil {
		next, err = b.Look(ctx)
	}
	if err == nil {
		b.away = false
		return max(soonest, min(next, max(minPause, min(b.o.Grace/2, maxPause)))), nil
	}
	if ctx.Err() == nil && !b.away {
		b.o.Log.Warn("timeouts wait until the stores are back", "error", err)
	}
	b.hold, b.away = time.Now().Add(b.catchUp()), true
	return errorPause, err
}

// still is how long Redis may take to answer: with more it stood still for a good
// part of the grace.
func (b *Backstop) still() time.Duration { return max(b.catchUp()/4, minStill) }

func (b *Backstop) catchUp() time.Duration { return min(max(b.o.Grace, minHold), maxHold) }

// Look ends the executions whose time is over now, and returns how long it is
// until the next one's is.
func (b *Backstop) Look(ctx context.Context) (next time.Duration, err error) {
	for {
		rows, err := b.o.Store.RunningDeadlines(ctx, b.o.Grace.Milliseconds(), chunk)
		if err != nil {
			return 0, fmt.Errorf("read deadlines of running tasks: %w", err)
		}
		next = maxPause
		over := make(map[protocol.ID]candidate, len(rows))
		for _, r := range rows {
			if r.WaitMs > 0 {
				next = time.Duration(r.WaitMs*float64(time.Millisecond)) + time.Millisecond
				break
			}
			over[protocol.ID(r.ID)] = candidate{r.Delivery, time.Duration(r.TimeoutMs) * time.Millisecond}
		}
		if len(over) == 0 {
			return next, nil
		}
		if err := b.end(ctx, over); err != nil {
			return 0, err
		}
		if len(over) < chunk {
			return next, nil
		}
	}
}

// candidate is a task whose time was over when it was read.
type candidate struct {
	delivery int64
	timeout  time.Duration
}

// end decides about the candidates under lock. A worker that answered in time
// is never overruled: its outcome may be in stream:result already.
func (b *Backstop) end(ctx context.Context, over map[protocol.ID]candidate) error {
	wait, cancel := context.WithTimeout(ctx, applyDeadline)
	defer cancel()
	if err := b.o.Redis.WaitApplied(wait, protocol.StreamResult, protocol.GroupOrchestrators); err != nil {
		return err
	}
	ids := make([]protocol.ID, 0, len(over))
	for id := range over {
		ids = append(ids, id)
	}
	n, dead, due := 0, false, time.Time{}
	err := b.o.Store.Decide(ctx, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
		n, dead, due = 0, false, time.Time{}
		env := b.o.Env
		env.Now = now
		for _, t := range tasks {
			c := over[t.ID]
			if t.Delivery != c.delivery { // outcomes of a later one may not have been applied
				continue
			}
			ev, ok := t.TimedOut(env, c.timeout, b.o.Grace)
			if !ok {
				continue
			}
			n++
			if t.State == protocol.StateDLQPending {
				dead = true
			} else if due.IsZero() || t.DueAt.Before(due) {
				due = t.DueAt
			}
			changed, events = append(changed, t), append(events, ev...)
		}
		return changed, events
	})
	if err != nil || n == 0 {
		return err
	}
	crashpoint.Here("timeout.committed")
	b.timedOut.Add(float64(n))
	b.o.Log.Warn("executions timed out without an answer of their worker", "tasks", n)
	if !due.IsZero() {
		b.o.Wake(due)
	}
	if dead {
		b.o.Dead()
	}
	return nil
}
