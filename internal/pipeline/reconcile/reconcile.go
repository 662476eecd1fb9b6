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
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
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
	// DeadLetters puts back what stream:dlq lost.
	DeadLetters DeadLetters
	// Wake is told when tasks were made due.
	Wake func(at time.Time)
	// Raised, if set, is told of each alert that this process raised.
	Raised func(kind protocol.AlertKind)
	// Pulse, if set, is told how the loops fare.
	Pulse   *lifecycle.Pulse
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// DeadLetters is what a Reconciler needs of the dead-letter stage.
type DeadLetters interface {
	// PutBack writes dead letters into stream:dlq again whose entry is not there,
	// and returns how many.
	PutBack(ctx context.Context) (int, error)
	// Kick tells that tasks were given up.
	Kick()
}

// Reconciler runs passes. It is safe for concurrent use, but for Run and Round,
// of which one may run at a time.
type Reconciler struct {
	o          Options
	now        chan struct{}
	lost       *prometheus.CounterVec
	losses     *prometheus.CounterVec
	rebuilding prometheus.Gauge
	// after is called by a pass after each of its readings, for tests of their
	// order.
	after func(reading string)

	mu sync.Mutex
	// absent remembers since when a running task has been missing.
	absent map[protocol.Pair]absence
	// groups of these streams were gone, in the epochs that the last round saw.
	groups map[string]string
	made   map[string]string // queues whose group somebody made, likewise
	last   streams.Epoch     // as the last round saw it
	// lossSeen is when a round last saw a loss that is to be made good for.
	lossSeen time.Time
	remade   time.Time // when that was lost for which leases were declared gone last
	looked   bool
	ready    chan struct{} // closed once looked
	held     bool          // see Held
	raised   time.Time     // when that was lost for which deliveries were raised last
}

// applyDeadline bounds the wait for outcomes that are under way.
const applyDeadline = 30 * time.Second

// chunk is how many tasks one transaction changes.
const chunk = 500

// New makes a Reconciler.
func New(o Options) *Reconciler {
	r := &Reconciler{
		o: o, now: make(chan struct{}, 1), absent: map[protocol.Pair]absence{}, groups: map[string]string{}, made: map[string]string{},
		ready: make(chan struct{}), after: func(string) {},
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_entries_lost_total", Help: "Live tasks found absent from Redis, by what was done.",
		}, []string{"action"}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_redis_losses_total", Help: "Losses of what Redis held that this process found first, by kind.",
		}, []string{"kind"}),
		rebuilding: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_redis_rebuilding", Help: "1 while something that Redis lost is being rebuilt.",
		}),
	}
	for _, k := range Losses() {
		r.losses.WithLabelValues(string(k))
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(r.lost, r.losses, r.rebuilding)
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

// Run makes a round at start, then every Interval, on each Kick, and when Redis
// is not what it was.
func (r *Reconciler) Run(ctx context.Context) error {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	beat := r.o.Pulse.Watch("reconcile", r.o.Interval+r.o.VisibilityTimeout/3+3*applyDeadline, 3*applyDeadline)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.now:
		case <-next.C:
		case <-look.C:
			if !r.changed(ctx, r.lastSeen()) {
				continue
			}
		}
		pause := r.o.Interval
		if err := r.Round(ctx); err == nil {
			beat.Mark()
		} else if ctx.Err() == nil {
			beat.Fail("live tasks cannot be compared with Redis")
			pause = min(pause, 2*time.Second)
			r.o.Log.Warn("reconciliation not finished; trying again", "error", err, "retry_in", pause)
		}
		next.Reset(pause)
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
	_, err := r.pass(ctx, ids, nil)
	return err
}

// pass is Pass. rebuild, if not nil, is the loss that is made good for by it; it
// ends with an error if Redis loses more meanwhile. absent is the number of
// running tasks that are nowhere and have more time.
func (r *Reconciler) pass(ctx context.Context, ids []protocol.ID, rebuild *agreement) (absent int, err error) {
	if ids == nil {
		made := r.madeUntil()
		defer func() {
			if err == nil {
				r.notMissed(made)
			}
		}()
	}
	cands, err := r.candidates(ctx, ids)
	if err != nil {
		return 0, fmt.Errorf("read live tasks: %w", err)
	}
	r.after("candidates")
	if ids == nil {
		defer r.forget(cands)
	}
	if len(cands) == 0 {
		return 0, nil
	}
	present := map[protocol.Pair]bool{}
	byQueue := map[string]bool{}
	for _, c := range cands {
		byQueue[c.queue] = true
	}
	for queue := range byQueue {
		if err := r.scan(ctx, queue, present); err != nil {
			return 0, err
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
		return 0, nil
	}
	if rebuild != nil && r.changed(ctx, rebuild.redis) {
		return 0, errChanged
	}
	if missing, err = r.unended(ctx, missing); err != nil {
		return 0, err
	}
	r.after("outcomes")
	if rebuild == nil {
		if err := r.lostGroups(ctx, missing, ids == nil); err != nil {
			return 0, err
		}
	}
	for len(missing) > 0 {
		n := min(len(missing), chunk)
		left, err := r.repair(ctx, missing[:n])
		if err != nil {
			return 0, err
		}
		absent += left
		missing = missing[n:]
	}
	return absent, nil
}

// unended returns those of the missing tasks that no outcome explains: their
// entry may be gone because they ran.
func (r *Reconciler) unended(ctx context.Context, missing []candidate) ([]candidate, error) {
	if err := r.waitApplied(ctx); err != nil {
		return nil, err
	}
	ids := make([]protocol.ID, len(missing))
	for i, c := range missing {
		ids[i] = c.ID
	}
	again, err := r.candidates(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read missing tasks again: %w", err)
	}
	live := make(map[protocol.Pair]bool, len(again)) // a claim changes the state: no end
	for _, c := range again {
		live[c.Pair] = true
	}
	return slices.DeleteFunc(missing, func(c candidate) bool { return !live[c.Pair] }), nil
}

// waitApplied waits until every outcome that is there now is applied.
func (r *Reconciler) waitApplied(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, applyDeadline)
	defer cancel()
	return r.o.Redis.WaitApplied(ctx, protocol.StreamResult, protocol.GroupOrchestrators)
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

// scan adds what one task stream holds to present. A group that is missing is
// made.
func (r *Reconciler) scan(ctx context.Context, queue string, present map[protocol.Pair]bool) error {
	stream := protocol.TaskStream(queue)
	see := func(e streams.Entry) {
		if p, ok := protocol.PairOf(e.Values); ok {
			present[p] = true
		}
	}
	err := Scan(ctx, r.o.Redis, stream, protocol.GroupWorkers, see, r.after)
	if !errors.Is(err, streams.ErrNoGroup) {
		return err
	}
	made, err := r.o.Redis.CreateTaskGroup(ctx, stream, protocol.GroupWorkers)
	if made {
		r.GroupMade(queue)
	}
	if err != nil {
		return err
	}
	return Scan(ctx, r.o.Redis, stream, protocol.GroupWorkers, see, r.after)
}

// repair makes absent tasks due again, if they still are as they were read.
// absent counts running ones that have more time.
func (r *Reconciler) repair(ctx context.Context, missing []candidate) (absent int, err error) {
	want := make(map[protocol.ID]candidate, len(missing))
	ids := make([]protocol.ID, len(missing))
	for i, c := range missing {
		want[c.ID], ids[i] = c, c.ID
	}
	waiting := map[protocol.ID]bool{}
	err = r.decide(ctx, ids, func(now time.Time, t *store.Locked) ([]*protocol.Event, bool) {
		c := want[t.ID]
		if t.State != c.state || t.Delivery != c.Delivery || !t.DueAt.IsZero() {
			return nil, false
		}
		env := r.o.Env
		env.Now = now
		if t.State != protocol.StateRunning {
			return t.Redispatch(env, "its stream entry is not in Redis")
		}
		over, loss := r.absentFor(c.Pair, r.o.VisibilityTimeout)
		if !over {
			waiting[t.ID] = true
			return nil, false
		}
		const reason = "its stream entry is gone and no outcome came for a visibility timeout"
		if loss { // of Redis: nobody's fault
			return t.Redispatch(env, reason)
		}
		return t.Lost(env, protocol.ActorReconciler, reason, nil)
	})
	return len(waiting), err
}

// decide locks tasks, lets fn decide about each, stores what it changed, and
// tells of it. A loss that is being made good for counts what was dispatched.
func (r *Reconciler) decide(ctx context.Context, ids []protocol.ID, fn func(now time.Time, t *store.Locked) ([]*protocol.Event, bool)) error {
	var redispatched, interrupted int64
	var dead bool
	err := r.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		err := r.o.Store.DecideTx(ctx, q, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
			redispatched, interrupted, dead = 0, 0, false
			for _, t := range tasks {
				was := t.State
				ev, ok := fn(now, t)
				if !ok {
					continue
				}
				changed, events = append(changed, t), append(events, ev...)
				switch was {
				case protocol.StatePending, protocol.StateWaitingApproval: // raised, see restored
				case protocol.StateRunning:
					interrupted++
				default:
					redispatched++
				}
				dead = dead || t.State == protocol.StateDLQPending
			}
			return changed, events
		})
		if err != nil || redispatched+interrupted == 0 {
			return err
		}
		return q.CountLoss(ctx, dbsqlc.CountLossParams{Redispatched: redispatched, Interrupted: interrupted})
	})
	if err != nil || redispatched+interrupted == 0 {
		return err
	}
	crashpoint.Here("reconcile.committed")
	r.lost.WithLabelValues("redispatched").Add(float64(redispatched))
	r.lost.WithLabelValues("interrupted").Add(float64(interrupted))
	r.o.Log.Warn("live tasks were absent from Redis", "redispatched", redispatched, "interrupted", interrupted)
	r.o.Wake(time.Now())
	if dead {
		r.o.DeadLetters.Kick()
	}
	return nil
}
