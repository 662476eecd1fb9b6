// Package reclaim takes over what a lost worker left: entries of the task
// streams that nobody renewed for the visibility timeout.
package reclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	Wake    func(at time.Time)
	Dead    func()
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Reclaimer scans task streams. Any number of them may run at once; one is not
// safe for concurrent use.
type Reclaimer struct {
	o         Options
	reclaimed prometheus.Counter
	hold      time.Time // no reclaiming before this
	// took remembers who held the entries that were claimed and, because a
	// store was away, not dealt with.
	took map[string]streams.Pending
}

// applyDeadline bounds the wait for outcomes that are under way.
const applyDeadline = 30 * time.Second

// New makes a Reclaimer.
func New(o Options) *Reclaimer {
	if o.Interval <= 0 {
		o.Interval = min(max(o.VisibilityTimeout/4, 100*time.Millisecond), 30*time.Second)
	}
	r := &Reclaimer{o: o, took: map[string]streams.Pending{}, reclaimed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "penstock_tasks_reclaimed_total", Help: "Tasks taken from lost workers.",
	})}
	if o.Metrics != nil {
		o.Metrics.MustRegister(r.reclaimed)
	}
	return r
}

// Run scans every Interval until ctx ends. After a failure to reach Redis or
// Postgres it waits one visibility timeout, so that workers that could not
// renew their leases meanwhile can catch up; for the same reason it does not
// start sooner than a renewal interval after Redis did.
func (r *Reclaimer) Run(ctx context.Context) error {
	if up, err := r.o.Redis.Uptime(ctx); err == nil && up < r.o.VisibilityTimeout {
		r.hold = time.Now().Add(r.o.VisibilityTimeout / 2)
	}
	tick := time.NewTicker(r.o.Interval)
	defer tick.Stop()
	for {
		if !time.Now().Before(r.hold) {
			if err := r.Scan(ctx); err != nil && ctx.Err() == nil {
				r.hold = time.Now().Add(r.o.VisibilityTimeout)
				r.o.Log.Warn("reclaiming pauses for a visibility timeout", "error", err, "until", r.hold)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Scan takes over what is idle in every queue's stream now.
func (r *Reclaimer) Scan(ctx context.Context) error {
	queues, err := r.o.Queues(ctx)
	if err != nil {
		return fmt.Errorf("list queues: %w", err)
	}
	var errs error
	for _, q := range queues { // one in trouble must not hide the others
		if err := r.scan(ctx, protocol.TaskStream(q)); err != nil && !streams.LostGroup(err) {
			errs = errors.Join(errs, fmt.Errorf("queue %s: %w", q, err))
		}
	}
	return errs
}

func (r *Reclaimer) scan(ctx context.Context, stream string) error {
	for from := "0-1"; from != ""; {
		// Who held an entry is known only before it is claimed. Those that reach
		// the visibility timeout between the two commands are listed too.
		ps, _, err := r.o.Redis.PendingAfter(ctx, stream, protocol.GroupWorkers, streams.Before(from), r.o.VisibilityTimeout*9/10)
		if err != nil || len(ps) == 0 {
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
		err = r.take(ctx, stream, got, ghosts, holders)
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

// take interrupts the tasks of claimed entries and acknowledges the entries.
func (r *Reclaimer) take(ctx context.Context, stream string, got []streams.Entry, ghosts []string, holders map[string]streams.Pending) error {
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
		return nil
	}
	if len(garbage) > 0 {
		if err := r.o.DeadLetters.Keep(ctx, garbage); err != nil {
			return err
		}
	}
	// A worker that finished in time is never overruled: its outcome may be in
	// stream:result already.
	wait, cancel := context.WithTimeout(ctx, applyDeadline)
	defer cancel()
	if err := r.o.Redis.WaitApplied(wait, protocol.StreamResult, protocol.GroupOrchestrators); err != nil {
		return err
	}
	if len(ids) > 0 {
		if err := r.interrupt(ctx, ids, pairs, byID, holders); err != nil {
			return err
		}
	}
	return r.o.Redis.Ack(ctx, stream, protocol.GroupWorkers, acks)
}

func (r *Reclaimer) interrupt(ctx context.Context, ids []protocol.ID, pairs map[protocol.ID]protocol.Pair, byID map[protocol.ID]streams.Entry, holders map[string]streams.Pending) error {
	n, dead := 0, false
	err := r.o.Store.Decide(ctx, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
		n, dead = 0, false
		env := r.o.Env
		env.Now = now
		for _, t := range tasks {
			if t.Delivery != pairs[t.ID].Delivery {
				continue
			}
			e := byID[t.ID]
			h := holders[e.ID]
			ev, ok := t.Lost(env, protocol.ActorReclaimer, "its worker did not renew the lease for the visibility timeout", &protocol.ReclaimData{
				OriginalConsumer: h.Consumer, NewConsumer: r.o.Consumer, MessageID: e.ID, IdleMS: h.Idle.Milliseconds(),
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
		return err
	}
	r.reclaimed.Add(float64(n))
	r.o.Log.Warn("reclaimed tasks of lost workers", "tasks", n)
	r.o.Wake(time.Now())
	if dead {
		r.o.Dead()
	}
	return nil
}
