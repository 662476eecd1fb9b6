// Package reclaim takes over what a lost worker left: entries of the task
// streams that nobody renewed for the visibility timeout.
package reclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// DeadLetters keeps stream entries that are no task.
type DeadLetters interface {
	Keep(ctx context.Context, letters []*protocol.DeadLetter) error
}

// Options are the settings of a Reclaimer.
type Options struct {
	Store *store.Store
	Redis *streams.Client
	// DeadLetters keeps garbage that a worker fetched and did not live to report.
	DeadLetters DeadLetters
	// Consumer is this reclaimer's consumer name.
	Consumer string
	// VisibilityTimeout is how long an entry must have been idle.
	VisibilityTimeout time.Duration
	// Interval is the time between scans; 0: a quarter of the visibility
	// timeout, between 100 ms and 30 s.
	Interval time.Duration
	Env      protocol.Env // Seed and MaxInterruptions; Now is Postgres'
	// Queues lists the queues to scan.
	Queues func(ctx context.Context) ([]string, error)
	// Wake is told when tasks were made due, Dead when some were given up.
	Wake func(at time.Time)
	Dead func()
	// Pulse, if set, is told how the loops fare.
	Pulse   *lifecycle.Pulse
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Reclaimer scans task streams. Any number of them may run at once; of one, only
// Evict is safe for concurrent use.
type Reclaimer struct {
	o         Options
	reclaimed prometheus.Counter
	pace      pace
	away      bool // a store was
	beat      *lifecycle.Beat
	failing   time.Duration   // see lifecycle.Pulse.Watch
	trouble   map[string]bool // queues whose last scan failed
	// took remembers who held the entries that were claimed and, because a
	// store was away, not dealt with.
	took map[string]streams.Pending
}

const (
	// applyDeadline bounds the wait for outcomes that are under way.
	applyDeadline = 30 * time.Second
	// errorPause is how often to see whether the stores are back.
	errorPause = 500 * time.Millisecond
)

// ErrBacklog says that Redis answers, but outcomes are applied too slowly.
var ErrBacklog = fmt.Errorf("outcomes that workers had reported were not all applied within %s", applyDeadline)

// New makes a Reclaimer.
func New(o Options) *Reclaimer {
	if o.Interval <= 0 {
		o.Interval = interval(o.VisibilityTimeout)
	}
	r := &Reclaimer{o: o, failing: 2 * applyDeadline, trouble: map[string]bool{}, took: map[string]streams.Pending{}, reclaimed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "penstock_tasks_reclaimed_total", Help: "Tasks taken from lost workers.",
	})}
	if o.Metrics != nil {
		o.Metrics.MustRegister(r.reclaimed)
	}
	return r
}

// interval is how often to look, unless told otherwise.
func interval(visibility time.Duration) time.Duration {
	return min(max(visibility/4, 100*time.Millisecond), 30*time.Second)
}

// Run scans every Interval until ctx ends. While Redis or Postgres can't be
// reached it waits, and for one visibility timeout more: workers could not renew
// their leases meanwhile, and get the time to do so. A Redis that has just been
// started, or stood still, counts as one that was away. What fails in one queue only
// holds up nothing but that queue.
func (r *Reclaimer) Run(ctx context.Context) error {
	r.beat = r.o.Pulse.Watch("reclaim", r.o.Interval+2*applyDeadline, r.failing)
	r.pace.gap = interval(r.o.VisibilityTimeout) + max(r.o.VisibilityTimeout/4, minStill)
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { r.watch(watching) })
	defer watch.Wait()
	defer stop()
	// What the first look finds idle may be so because Redis stood still until just
	// now: workers get the time to renew.
	_ = r.still(ctx)
	r.holdFor(interval(r.o.VisibilityTimeout))
	for {
		pause, err := r.step(ctx)
		if err == nil {
			r.beat.Mark()
		} else {
			r.beat.Fail("dead workers cannot be looked for")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// step scans once, unless workers are given time, and returns how long to wait
// before the next. An error is logged already; that some queues could not be
// scanned is none.
func (r *Reclaimer) step(ctx context.Context) (time.Duration, error) {
	up, err := r.o.Redis.Uptime(ctx)
	if err == nil {
		err = r.o.Store.Ping(ctx)
	}
	if err == nil {
		if r.away {
			r.away = false
			r.holdFor(r.o.VisibilityTimeout)
		}
		r.holdFor(r.o.VisibilityTimeout - up)
		if left, since := r.pace.wait(); left > 0 {
			if since > 3*r.o.VisibilityTimeout { // again and again
				err = errStill
			}
			return min(left, errorPause), err
		}
		var done int
		if done, err = r.scanAll(ctx); errors.Is(err, errStill) {
			return errorPause, nil
		} else if err == nil || !Unreachable(err) {
			if done > 0 {
				err = nil
			}
			return r.o.Interval, err
		}
	}
	if ctx.Err() == nil && !r.away {
		r.o.Log.Warn("reclaiming waits until the stores are back, and a visibility timeout more", "error", err)
	}
	r.away = true
	return errorPause, err
}

// Unreachable reports whether err says that a store did not answer, rather than
// that it refused something.
func Unreachable(err error) bool {
	if store.IsUnavailable(err) {
		return true
	}
	if _, ok := errors.AsType[*pgconn.PgError](err); ok || errors.Is(err, ErrBacklog) {
		return false
	}
	return streams.Ambiguous(err) || streams.Foreign(err)
}

// Scan takes over what is idle in every queue's stream now. It ends early if a
// store does not answer.
func (r *Reclaimer) Scan(ctx context.Context) error {
	_, err := r.scanAll(ctx)
	return err
}

// scanAll is Scan; done is how many queues were scanned.
func (r *Reclaimer) scanAll(ctx context.Context) (done int, err error) {
	queues, err := r.o.Queues(ctx)
	if err != nil {
		return 0, fmt.Errorf("list queues: %w", err)
	}
	var errs error
	for _, q := range queues { // one in trouble must not hide the others
		err := r.scan(ctx, protocol.TaskStream(q))
		r.beat.Alive()
		if err == nil || streams.LostGroup(err) {
			delete(r.trouble, q)
			done++
			continue
		}
		err = fmt.Errorf("queue %s: %w", q, err)
		if Unreachable(err) || errors.Is(err, errStill) {
			return done, err
		}
		if !r.trouble[q] {
			r.o.Log.Warn("tasks of lost workers cannot be reclaimed in a queue", "queue", q, "error", err)
		}
		r.trouble[q] = true
		errs = errors.Join(errs, err)
	}
	return done, errs
}

func (r *Reclaimer) scan(ctx context.Context, stream string) error {
	for from := "0-1"; from != ""; {
		// Who held an entry is known only before it is claimed. Those that reach
		// the visibility timeout between the two commands are listed too.
		ps, _, err := r.o.Redis.PendingAfter(ctx, stream, protocol.GroupWorkers, streams.Before(from), r.o.VisibilityTimeout*9/10)
		if err != nil || len(ps) == 0 {
			return err
		}
		if err := r.still(ctx); err != nil {
			return err
		}
		holders := make(map[string]streams.Pending, len(ps))
		for _, p := range ps {
			if h, ok := r.took[stream+" "+p.ID]; ok && p.Consumer == r.o.Consumer {
				p.Consumer, p.Idle = h.Consumer, p.Idle+h.Idle
			}
			holders[p.ID] = p
		}
		var got []streams.Entry
		var ghosts []string
		got, ghosts, from, err = r.o.Redis.Claim(ctx, stream, protocol.GroupWorkers, r.o.Consumer, ps[0].ID, r.o.VisibilityTimeout)
		if err != nil {
			return err
		}
		for _, e := range got { // Redis gave it away, so by then it was idle for that long
			if h, ok := holders[e.ID]; ok {
				h.Idle = max(h.Idle, r.o.VisibilityTimeout)
				holders[e.ID] = h
			}
		}
		_, err = r.take(ctx, stream, got, ghosts, holders, lapsed)
		for _, e := range got {
			if delete(r.took, stream+" "+e.ID); err != nil {
				r.took[stream+" "+e.ID] = holders[e.ID]
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cause is why entries are taken from a worker, and who says so.
type cause struct{ actor, reason string }

var lapsed = cause{protocol.ActorReclaimer, "its worker did not renew the lease for the visibility timeout"}

// take interrupts the tasks of entries and acknowledges the entries. It returns how
// many tasks it has interrupted, and is safe for concurrent use.
func (r *Reclaimer) take(ctx context.Context, stream string, got []streams.Entry, ghosts []string, holders map[string]streams.Pending, why cause) (n int, err error) {
	acks := ghosts
	byID := map[protocol.ID]streams.Entry{}
	pairs := map[protocol.ID]protocol.Pair{}
	var ids []protocol.ID
	var garbage []*protocol.DeadLetter
	for _, e := range got {
		acks = append(acks, e.ID)
		p, ok := protocol.PairOf(e.Values)
		if !ok { // the worker that fetched it may have reported it, or not
			_, cause := protocol.DecodeTask(e.Values)
			garbage = append(garbage, protocol.Garbage(stream, e.ID, e.Values, cause, time.Now()))
			continue
		}
		if old, dup := pairs[p.ID]; !dup || old.Delivery < p.Delivery {
			byID[p.ID], pairs[p.ID] = e, p
		}
		if !slices.Contains(ids, p.ID) {
			ids = append(ids, p.ID)
		}
	}
	if len(acks) == 0 {
		return 0, nil
	}
	if len(garbage) > 0 {
		if err := r.o.DeadLetters.Keep(ctx, garbage); err != nil {
			return 0, err
		}
	}
	// A worker that finished in time is never overruled: its outcome may be in
	// stream:result already.
	wait, cancel := context.WithTimeout(ctx, applyDeadline)
	defer cancel()
	if err := r.o.Redis.WaitApplied(wait, protocol.StreamResult, protocol.GroupOrchestrators); err != nil {
		if wait.Err() != nil && ctx.Err() == nil {
			return 0, ErrBacklog
		}
		return 0, err
	}
	if len(ids) > 0 {
		if n, err = r.interrupt(ctx, ids, pairs, byID, holders, why); err != nil {
			return 0, err
		}
	}
	return n, r.o.Redis.Ack(ctx, stream, protocol.GroupWorkers, acks)
}

func (r *Reclaimer) interrupt(ctx context.Context, ids []protocol.ID, pairs map[protocol.ID]protocol.Pair, byID map[protocol.ID]streams.Entry, holders map[string]streams.Pending, why cause) (n int, err error) {
	dead := false
	err = r.o.Store.Decide(ctx, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
		n, dead = 0, false
		env := r.o.Env
		env.Now = now
		for _, t := range tasks {
			if t.Delivery != pairs[t.ID].Delivery {
				continue
			}
			e := byID[t.ID]
			h := holders[e.ID]
			ev, ok := t.Lost(env, why.actor, why.reason, &protocol.ReclaimData{
				OriginalConsumer: protocol.Text(h.Consumer), NewConsumer: r.o.Consumer, MessageID: e.ID, IdleMS: h.Idle.Milliseconds(),
			})
			if ok {
				n++
				dead = dead || t.State == protocol.StateDLQPending
				changed, events = append(changed, t), append(events, ev...)
			}
		}
		return changed, events
	})
	if err != nil || n == 0 {
		return 0, err
	}
	crashpoint.Here("reclaim.committed")
	r.reclaimed.Add(float64(n))
	r.o.Log.Warn("reclaimed tasks of lost workers", "tasks", n)
	r.o.Wake(time.Now())
	if dead {
		r.o.Dead()
	}
	return n, nil
}
