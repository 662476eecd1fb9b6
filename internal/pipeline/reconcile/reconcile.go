// Package reconcile compares live tasks with what Redis holds. A live task
// that was dispatched must be undelivered in its stream, pending there, in the
// unapplied part of stream:result, or in the outbox; one that is nowhere was
// lost by Redis and is dispatched anew under the next delivery.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Options are the settings of a Reconciler.
type Options struct {
	Store *store.Store
	Redis *streams.Client
	// Interval is the time between full passes.
	Interval time.Duration
	// VisibilityTimeout: a running task absent from Redis for this long is
	// interrupted.
	VisibilityTimeout time.Duration
	Env               protocol.Env // Seed and MaxInterruptions; Now is Postgres'
	// Wake is told when tasks were made due.
	Wake    func(at time.Time)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Reconciler runs passes. It is safe for concurrent use.
type Reconciler struct {
	o    Options
	now  chan struct{}
	lost *prometheus.CounterVec
	// after is called by a pass after each of its readings, for tests of their
	// order.
	after func(reading string)

	mu sync.Mutex
	// absent remembers since when a running task has been missing.
	absent map[protocol.Pair]time.Time
}

// applyDeadline bounds the wait for outcomes that are under way.
const applyDeadline = 30 * time.Second

// chunk is how many tasks one transaction changes.
const chunk = 500

// New makes a Reconciler.
func New(o Options) *Reconciler {
	r := &Reconciler{
		o: o, now: make(chan struct{}, 1), absent: map[protocol.Pair]time.Time{}, after: func(string) {},
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_entries_lost_total", Help: "Live tasks found absent from Redis, by what was done.",
		}, []string{"action"}),
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(r.lost)
	}
	return r
}

// Kick asks for a full pass soon.
func (r *Reconciler) Kick() {
	select {
	case r.now <- struct{}{}:
	default:
	}
}

// Run makes a full pass at start, then every Interval and on each Kick.
func (r *Reconciler) Run(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.now:
		case <-time.After(pause):
		}
		pause = r.o.Interval
		if err := r.Pass(ctx, nil); err != nil && ctx.Err() == nil {
			pause = min(pause, 2*time.Second)
			r.o.Log.Warn("reconcile pass not finished; trying again", "error", err, "retry_in", pause)
		}
	}
}

type candidate struct {
	protocol.Pair
	queue string
	state protocol.State
}

// Pass looks for the given tasks, or all live ones if ids is nil, and repairs
// those that are nowhere. The order of reading is what makes it sound: Postgres
// first; then undelivered entries, then pending ones (an entry moves from the
// former to the latter); then outcomes; at last a compare-and-set against what
// was read first. A task that moved meanwhile is left alone.
func (r *Reconciler) Pass(ctx context.Context, ids []protocol.ID) error {
	cands, err := r.candidates(ctx, ids)
	if err != nil {
		return fmt.Errorf("read live tasks: %w", err)
	}
	r.after("candidates")
	if ids == nil {
		defer r.forget(cands)
	}
	if len(cands) == 0 {
		return nil
	}
	present := map[protocol.Pair]bool{}
	byQueue := map[string]bool{}
	for _, c := range cands {
		byQueue[c.queue] = true
	}
	for queue := range byQueue {
		if err := r.scan(ctx, queue, present); err != nil {
			return err
		}
	}
	var missing []candidate
	for _, c := range cands {
		if !present[c.Pair] {
			missing = append(missing, c)
		}
	}
	r.found(cands, present)
	if len(missing) == 0 {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, applyDeadline)
	defer cancel()
	if err := r.o.Redis.WaitApplied(wait, protocol.StreamResult, protocol.GroupOrchestrators); err != nil {
		return err
	}
	r.after("outcomes")
	for len(missing) > 0 {
		n := min(len(missing), chunk)
		if err := r.repair(ctx, missing[:n]); err != nil {
			return err
		}
		missing = missing[n:]
	}
	return nil
}

func (r *Reconciler) candidates(ctx context.Context, ids []protocol.ID) ([]candidate, error) {
	var out []candidate
	if ids != nil {
		rows, err := r.o.Store.CandidatesAmong(ctx, pgid.Slice(ids))
		for _, c := range rows {
			out = append(out, candidate{protocol.Pair{ID: protocol.ID(c.ID), Delivery: c.Delivery}, c.Queue, protocol.State(c.State)})
		}
		return out, err
	}
	rows, err := r.o.Store.Candidates(ctx)
	for _, c := range rows {
		out = append(out, candidate{protocol.Pair{ID: protocol.ID(c.ID), Delivery: c.Delivery}, c.Queue, protocol.State(c.State)})
	}
	return out, err
}

// scan adds what one task stream holds to present.
func (r *Reconciler) scan(ctx context.Context, queue string, present map[protocol.Pair]bool) error {
	stream := protocol.TaskStream(queue)
	see := func(e streams.Entry) bool {
		if p, ok := protocol.PairOf(e.Values); ok {
			present[p] = true
		}
		return true
	}
	info, err := r.o.Redis.Info(ctx, stream, protocol.GroupWorkers)
	if errors.Is(err, streams.ErrNoGroup) {
		var made bool
		if made, err = r.o.Redis.CreateTaskGroup(ctx, stream, protocol.GroupWorkers); made {
			r.Kick() // this pass may be about a few tasks only; all of the queue's are concerned
		}
		info = streams.GroupInfo{LastDelivered: "0-0"}
	}
	if err != nil {
		return err
	}
	if err := r.o.Redis.Range(ctx, stream, info.LastDelivered, see); err != nil {
		return err
	}
	r.after("undelivered")
	after := ""
	for more := true; more; {
		var ps []streams.Pending
		if ps, more, err = r.o.Redis.PendingAfter(ctx, stream, protocol.GroupWorkers, after, 0); err != nil {
			return err
		}
		ids := make([]string, len(ps))
		for i, p := range ps {
			ids[i], after = p.ID, p.ID
		}
		es, err := r.o.Redis.Fetch(ctx, stream, ids)
		if err != nil {
			return err
		}
		for _, e := range es {
			see(e)
		}
	}
	r.after("pending")
	return nil
}

// repair makes absent tasks due again, if they still are as they were read.
func (r *Reconciler) repair(ctx context.Context, missing []candidate) error {
	want := make(map[protocol.ID]candidate, len(missing))
	ids := make([]protocol.ID, len(missing))
	for i, c := range missing {
		want[c.ID], ids[i] = c, c.ID
	}
	var redispatched, interrupted int
	err := r.o.Store.Decide(ctx, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
		redispatched, interrupted = 0, 0
		env := r.o.Env
		env.Now = now
		for _, t := range tasks {
			c := want[t.ID]
			if t.State != c.state || t.Delivery != c.Delivery || !t.DueAt.IsZero() {
				continue
			}
			var ev []*protocol.Event
			var ok bool
			if t.State == protocol.StateRunning {
				if !r.absentFor(c.Pair, r.o.VisibilityTimeout) {
					continue
				}
				ev, ok = t.Lost(env, protocol.ActorReconciler, "its stream entry is gone and no outcome came for a visibility timeout", nil)
				interrupted++
			} else {
				ev, ok = t.Redispatch(env, "its stream entry is not in Redis")
				redispatched++
			}
			if ok {
				changed, events = append(changed, t), append(events, ev...)
			}
		}
		return changed, events
	})
	if err != nil {
		return err
	}
	if redispatched+interrupted > 0 {
		r.lost.WithLabelValues("redispatched").Add(float64(redispatched))
		r.lost.WithLabelValues("interrupted").Add(float64(interrupted))
		r.o.Log.Warn("live tasks were absent from Redis", "redispatched", redispatched, "interrupted", interrupted)
		r.o.Wake(time.Now())
	}
	return nil
}

// absentFor notes that a running task is missing and reports whether it has
// been for at least d.
func (r *Reconciler) absentFor(p protocol.Pair, d time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, ok := r.absent[p]
	if !ok {
		r.absent[p] = time.Now()
		time.AfterFunc(d+time.Millisecond, r.Kick)
		return d <= 0
	}
	return time.Since(since) >= d
}

func (r *Reconciler) found(cands []candidate, present map[protocol.Pair]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range cands {
		if present[c.Pair] {
			delete(r.absent, c.Pair)
		}
	}
}

// forget drops what is remembered of tasks that are no candidates any more.
func (r *Reconciler) forget(cands []candidate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.absent) == 0 {
		return
	}
	live := make(map[protocol.Pair]bool, len(cands))
	for _, c := range cands {
		live[c.Pair] = true
	}
	for p := range r.absent {
		if !live[p] {
			delete(r.absent, p)
		}
	}
}
