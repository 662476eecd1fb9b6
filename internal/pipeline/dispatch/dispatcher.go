package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Reconciler decides what becomes of tasks whose entry is absent.
type Reconciler interface {
	Pass(ctx context.Context, ids []protocol.ID) error
}

// Options are the settings of a Dispatcher.
type Options struct {
	Store      *store.Store
	Redis      *streams.Client
	Reconciler Reconciler
	// Rules are the guard's; nil: there are none.
	Rules *guard.Rules
	// Instance identifies this process; InstanceTTL is how long another one
	// may be silent before its outbox rows are taken over.
	Instance    protocol.ID
	InstanceTTL time.Duration
	// Window is the most unacknowledged entries of one stream, MaxBatch the
	// most tasks of one transaction, Poll how often to look for tasks that
	// other replicas left.
	Window, MaxBatch int
	Poll             time.Duration
	// Lost is told the queue whose stream had to be made anew.
	Lost func(queue string)
	// Expired is told which tasks were cancelled instead, because their time to
	// start was over when they became due.
	Expired func(ids []protocol.ID)
	// Held, if set, tells that nothing may be dispatched for the moment: tasks
	// wait in Postgres.
	Held func() bool
	// Pulse, if set, is told how the loops fare.
	Pulse   *lifecycle.Pulse
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Dispatcher moves due tasks into their streams. It is safe for concurrent use.
type Dispatcher struct {
	store      *store.Store
	redis      *streams.Client
	reconciler Reconciler
	rules      *guard.Rules
	expired    func(ids []protocol.ID)
	isHeld     func() bool
	window     *window
	instance   pgid.ID
	ttl        time.Duration
	maxBatch   int
	poll       time.Duration
	pulse      *lifecycle.Pulse
	log        *slog.Logger
	metrics    metrics

	limits   map[string]int // see limit
	held     []held         // see hold
	look     look
	stalls   stalls
	backlogs map[string]backlog
	wake     chan struct{}
	resolve  chan struct{}
	alive    chan struct{} // closed once this instance's sign of life is written

	inflight   sync.Map // outbox ids whose XADD is under way
	mu         sync.Mutex
	nextWake   time.Time
	done       []int64
	unresolved map[int64]bool
	strange    map[int64]int64 // outbox rows that are not known here; see findForgotten
	commits    commits
	suspects   []protocol.ID
}

type metrics struct {
	dispatched prometheus.Counter
	lateness   prometheus.Histogram
	takenOver  prometheus.Counter
}

// New makes a Dispatcher; Run works until its context ends.
func New(o Options) *Dispatcher {
	d := &Dispatcher{
		store: o.Store, redis: o.Redis, reconciler: o.Reconciler, rules: o.Rules, expired: o.Expired, isHeld: o.Held,
		instance: pgid.ID(o.Instance), ttl: o.InstanceTTL, maxBatch: o.MaxBatch, poll: o.Poll, pulse: o.Pulse, log: o.Log,
		limits: map[string]int{}, backlogs: map[string]backlog{}, wake: make(chan struct{}, 1), resolve: make(chan struct{}, 1), alive: make(chan struct{}), unresolved: map[int64]bool{},
		metrics: metrics{
			dispatched: prometheus.NewCounter(prometheus.CounterOpts{
				Name: "penstock_entries_dispatched_total", Help: "Entries added to task streams.",
			}),
			lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
				Name: "penstock_dispatch_lateness_seconds", Help: "Time from a task's due time to its dispatch.",
				Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .5, 1, 5, 30, 300},
			}),
			takenOver: prometheus.NewCounter(prometheus.CounterOpts{
				Name: "penstock_dispatches_taken_over_total", Help: "Open dispatches taken over from dead orchestrators.",
			}),
		},
	}
	d.window = newWindow(o.Redis, o.Window, o.Lost, func() { signal(d.wake) })
	if o.Metrics != nil {
		o.Metrics.MustRegister(d.metrics.dispatched, d.metrics.lateness, d.metrics.takenOver)
	}
	return d
}

// Run dispatches due tasks, finishes open dispatches and takes over those of
// dead replicas until ctx ends.
func (d *Dispatcher) Run(ctx context.Context) error {
	host, _ := os.Hostname()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.runDone(gctx) })
	g.Go(func() error { return d.runTakeover(gctx, host) })
	g.Go(func() error { return d.runDue(gctx) })
	err := g.Wait()
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := d.flushDone(leave); err != nil {
		d.log.Warn("outbox rows not removed; others take them over", "error", err)
	}
	d.resolveAll(leave)
	if err := d.store.RemoveInstance(leave, d.instance); err != nil {
		d.log.Warn("instance not signed off; others wait for its expiry", "error", err)
	}
	return err
}

// Queues lists the queues that this process has seen.
func (d *Dispatcher) Queues() []string { return d.window.queues() }

// Wake makes the dispatcher look for due tasks at a moment, if it would sleep
// beyond it.
func (d *Dispatcher) Wake(at time.Time) {
	d.mu.Lock()
	earlier := at.Before(d.nextWake)
	d.mu.Unlock()
	if earlier {
		signal(d.wake)
	}
}

// blockedPause is how long to wait for room in a full window, or for a store
// that does not answer.
const (
	blockedPause = 10 * time.Millisecond
	errorPause   = 500 * time.Millisecond
	// heldPause is how often to ask whether dispatch is still held.
	heldPause = 20 * time.Millisecond
	// batchLimit bounds one batch.
	batchLimit = time.Minute
	// quiet is how long a batch may take, and how long nothing can be dispatched
	// at all, before this process is not taken for ready.
	quiet = 10 * time.Second
)

func (d *Dispatcher) runDue(ctx context.Context) error {
	select { // nothing is dispatched by an instance that others take for dead
	case <-ctx.Done():
		return nil
	case <-d.alive:
	}
	beat := d.pulse.Watch("dispatch", d.poll+quiet, quiet)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
		case <-timer.C:
		}
		if d.isHeld != nil && d.isHeld() {
			d.sleepUntil(time.Now().Add(heldPause))
			timer.Reset(heldPause)
			continue
		}
		d.sleepUntil(lookAgain)
		pause, err := d.tick(ctx)
		if err == nil {
			beat.Mark()
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			beat.Fail("due tasks cannot be dispatched")
			d.log.Warn("dispatch stopped for a moment", "error", err, "retry_in", errorPause)
			pause = errorPause
		}
		d.sleepUntil(time.Now().Add(pause))
		timer.Reset(pause)
	}
}

// lookAgain stands for a look at the due times that has just begun: whatever
// becomes due at any time may have been missed by it.
var lookAgain = time.Unix(1<<40, 0)

// sleepUntil sets the moment before which a Wake is heard.
func (d *Dispatcher) sleepUntil(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nextWake = at
}

// tick dispatches one batch of each queue that has due tasks and room, and
// returns how long to sleep. One batch, so that a long backlog of one queue does
// not hold up the others; and a queue in trouble stops only itself.
func (d *Dispatcher) tick(ctx context.Context) (time.Duration, error) {
	queues, look, err := d.lookAround(ctx)
	if err != nil {
		return 0, err
	}
	// A batch that was begun is finished even while stopping, so that nothing is
	// left for another orchestrator to take over.
	work := context.WithoutCancel(ctx)
	defer d.sendHeld(work, true)
	d.stalls.begin(len(queues))
	pause := d.poll
	var errs error
	for i, q := range queues {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if q.at.IsZero() {
			pause = min(pause, max(time.Until(d.look.next), 0))
			continue
		}
		if wait := time.Until(q.at) - ahead; wait > 0 {
			pause = min(pause, wait)
			continue
		}
		d.sendHeld(work, false)
		again, err := d.next(work, q.queue)
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("queue %s: %w", q.queue, err))
			again = errorPause
		}
		if _, more := d.backlogs[q.queue]; again == 0 && !more {
			queues[i].at = time.Time{}
		}
		pause = min(pause, again)
	}
	if errs != nil && pause < errorPause { // other queues go on
		d.log.Debug("dispatch of some queues stopped for a moment", "error", errs)
		errs = nil
	}
	return min(pause, look), errs
}

// next dispatches one batch of a queue, if its window has room, and returns
// when to look at the queue again.
func (d *Dispatcher) next(ctx context.Context, queue string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, batchLimit)
	defer cancel()
	room, afterID, err := d.window.room(ctx, queue)
	if err != nil {
		return 0, err
	}
	// A nearly full window is left to empty a little, so that transactions
	// stay large.
	if room < min(d.maxBatch, d.window.size)/4 || room == 0 {
		return d.stalls.pause(queue, room), nil
	}
	d.stalls.over(queue)
	n, err := d.dispatch(ctx, queue, min(room, d.limit(queue)), afterID)
	if n == 0 { // another replica is taking what is due
		return blockedPause, err
	}
	return 0, err
}

// limit is how many tasks of a queue to ask for: fewer after their payloads
// turned out to be large, since what is asked for is locked and measured.
func (d *Dispatcher) limit(queue string) int {
	if n, ok := d.limits[queue]; ok {
		return n
	}
	return d.maxBatch
}

// adapt sets the next limit after n tasks were taken; cut tells that there were
// more than fit. Only the loop of due tasks comes here.
func (d *Dispatcher) adapt(queue string, n int, cut bool) {
	next := 2 * d.limit(queue)
	if cut {
		next = 2 * n
	}
	if delete(d.limits, queue); next < d.maxBatch {
		d.limits[queue] = next
	}
}

// less has half as many tasks of a queue be tried next, after a batch of n came to
// nothing: maybe it was too much for the time that there is.
func (d *Dispatcher) less(queue string, n int) {
	if n > 0 {
		d.limits[queue] = max(n/2, 1)
	}
}
