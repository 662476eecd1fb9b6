// Package worker runs tasks. A worker needs Redis only: it fetches entries of
// its queues' streams, runs them, and reports outcomes.
//
//	w, err := worker.New(worker.FromEnv())
//	if err != nil {
//		log.Fatal(err)
//	}
//	worker.Handle(w, SendEmail, func(ctx context.Context, j *task.Job[Email]) error {
//		return smtp.Send(ctx, j.Args)
//	})
//	if err := w.Run(context.Background()); err != nil {
//		log.Fatal(err)
//	}
package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// Options are the settings of a Worker. Zero fields take the defaults named.
type Options struct {
	// RedisURL is redis://, rediss:// or unix://. Required.
	RedisURL string
	// RedisKeyPrefix must equal the orchestrators' redis.key_prefix; default: none.
	// A worker with another one gets nothing.
	RedisKeyPrefix string
	// Queues to work on; default: "default". At most Concurrency many.
	Queues []string
	// Concurrency is the most tasks that run at once, 1 to 10,000; default 10.
	Concurrency int
	// VisibilityTimeout must equal the orchestrators'; default 300 s, at least
	// 300 ms. Leases are renewed every third of it.
	VisibilityTimeout time.Duration
	// ShutdownGrace is how long running tasks may finish after a stop before
	// they are handed back; default 20 s, negative: no time.
	ShutdownGrace time.Duration
	// StartDeadline is how long Run tries to reach Redis; default 60 s,
	// negative: it tries once.
	StartDeadline time.Duration
	// OrchestratorURL is the base URL of the orchestrators' RPC, several separated
	// by commas. A worker that has one sends heartbeats: the progress of its tasks
	// is kept, it learns sooner that a task was cancelled or taken from it, and it
	// is listed and can be told to drain. Empty: it needs Redis only.
	OrchestratorURL string
	// OrchestratorToken says who the worker is, if the orchestrators have a token
	// file. Empty: it is anonymous.
	OrchestratorToken string
	// OrchestratorTLS is for https URLs: which authorities the orchestrators'
	// certificates must come from, and the certificate to show. Default: the
	// system's authorities, no certificate, TLS 1.2 or newer.
	OrchestratorTLS *tls.Config
	// HeartbeatInterval is the time between two heartbeats; default 30 s, 10 ms to
	// 24 h.
	HeartbeatInterval time.Duration
	// Name is the first part of the worker's id, at most 128 bytes; default:
	// the host name.
	Name string
	// HealthListen is the address (host:port) where the worker answers /livez,
	// /readyz and /metrics while it runs, to anyone who reaches it. Without a host
	// it is 127.0.0.1; 0.0.0.0 or [::] listens on every address. Empty: none.
	HealthListen string
	// Log defaults to slog.Default().
	Log *slog.Logger
	// IgnoreSignals: Run does not stop on SIGTERM and SIGINT by itself.
	IgnoreSignals bool

	err error // of FromEnv
}

func (o *Options) complete() error {
	if o.err != nil {
		return o.err
	}
	if o.RedisURL == "" {
		return errors.New("worker: no Redis URL: set Options.RedisURL or PENSTOCK_REDIS_URL")
	}
	if len(o.Queues) == 0 {
		o.Queues = []string{protocol.DefaultQueue}
	}
	for d, def := range map[*time.Duration]time.Duration{
		&o.VisibilityTimeout: 300 * time.Second, &o.ShutdownGrace: 20 * time.Second, &o.StartDeadline: 60 * time.Second,
		&o.HeartbeatInterval: 30 * time.Second,
	} {
		if *d == 0 {
			*d = def
		}
	}
	if o.Concurrency == 0 {
		o.Concurrency = 10
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Name == "" {
		o.Name, _ = os.Hostname()
	}
	switch {
	case o.Concurrency < 1 || o.Concurrency > 10_000:
		return fmt.Errorf("worker: concurrency is %d, want 1 to 10000", o.Concurrency)
	case len(o.Queues) > o.Concurrency:
		return fmt.Errorf("worker: %d queues need a concurrency of at least as many, it is %d", len(o.Queues), o.Concurrency)
	case o.VisibilityTimeout < 300*time.Millisecond:
		return fmt.Errorf("worker: visibility timeout is %s, want at least 300ms", o.VisibilityTimeout)
	case o.HeartbeatInterval < 10*time.Millisecond || o.HeartbeatInterval > 24*time.Hour:
		return fmt.Errorf("worker: heartbeat interval is %s, want 10ms to 24h", o.HeartbeatInterval)
	case strings.ContainsFunc(o.OrchestratorToken, func(r rune) bool { return r <= ' ' || r > '~' }): // the error does not repeat it
		return errors.New("worker: the orchestrator token must be visible ASCII characters without spaces")
	case len(o.Name) > 128 || !utf8.ValidString(o.Name) || strings.IndexByte(o.Name, 0) >= 0:
		return fmt.Errorf("worker: name has %d bytes, want at most 128 of UTF-8 without NUL", len(o.Name))
	}
	if _, err := redis.ParseURL(o.RedisURL); err != nil {
		return fmt.Errorf("worker: redis.url: %w", err)
	}
	if o.HealthListen != "" {
		if _, _, err := net.SplitHostPort(o.HealthListen); err != nil {
			return fmt.Errorf("worker: health_listen: %q is no address such as 127.0.0.1:8081", o.HealthListen)
		}
	}
	if err := streams.CheckPrefix(o.RedisKeyPrefix); err != nil {
		return fmt.Errorf("worker: redis key prefix %w", err)
	}
	for i, q := range o.Queues {
		if !queueName.MatchString(q) {
			return fmt.Errorf("worker: queue %q: want 1 to 64 of A-Z a-z 0-9 . _ -", q)
		}
		if slices.Contains(o.Queues[:i], q) {
			return fmt.Errorf("worker: queue %q is named twice", q)
		}
	}
	return nil
}

var queueName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// Worker runs tasks of the types it has handlers for.
type Worker struct {
	o        Options
	id       string
	redis    *streams.Client // opened by Run, so that a worker that never runs holds nothing
	rpc      *orchestrators  // nil: it knows none
	handlers map[string]task.Handler
	outcomes *batch.Batcher[*report, struct{}]

	slots     chan struct{} // one token a free slot
	unsettled chan struct{} // bounds outcomes that Redis has not taken
	pulse     lifecycle.Pulse
	reporting *lifecycle.Beat // of flush
	phase     atomic.Int32    // see Check
	started   atomic.Bool
	stuck     atomic.Int64 // handlers that ignore their timeout
	counts    counts
	moveLimit time.Duration // see the constant; shorter in tests

	offers offers            // of entries whose type it does not know
	takers map[string]*taker // by queue; of what others offer
	waking atomic.Bool       // see wake

	gate         gate          // closed for and by a suspect
	timeoutGrace time.Duration // see the constant; shorter in tests
	soloWait     time.Duration // likewise

	mu       sync.Mutex
	running  map[string]*execution // by stream and message id, until settled
	content  streams.Content       // what Redis held lately; zero: not known
	draining bool                  // nothing is started any more
	done     sync.WaitGroup        // handlers
}

// maxUnsettled bounds how many outcomes may wait for Redis besides one a slot.
const maxUnsettled = 2000

// New makes a Worker. The error names the setting that is wrong.
func New(o Options) (*Worker, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	rpc, err := newOrchestrators(&o)
	if err != nil {
		return nil, err
	}
	id := fmt.Sprintf("%s-%d-%s", o.Name, os.Getpid(), uuid.NewString()[:8])
	w := &Worker{
		o: o, id: id, rpc: rpc, handlers: map[string]task.Handler{}, running: map[string]*execution{}, timeoutGrace: timeoutGrace, soloWait: soloWait, moveLimit: moveLimit, counts: newCounts(),
		slots: make(chan struct{}, o.Concurrency), unsettled: make(chan struct{}, o.Concurrency+maxUnsettled),
	}
	for range o.Concurrency {
		w.slots <- struct{}{}
	}
	w.offers.kick, w.takers = make(chan struct{}, 1), map[string]*taker{}
	for _, q := range o.Queues {
		w.takers[q] = &taker{types: map[string]bool{}}
	}
	w.reporting = w.pulse.Watch("outcomes", never, outcomesPatience)
	w.outcomes = batch.New(batch.Options{Max: 512, Flushes: 2}, w.flush)
	return w, nil
}

// ID is the worker's consumer name, unique to the process.
func (w *Worker) ID() string { return w.id }

// Stuck is the number of handlers that ignore their timeout, or that their task
// was cancelled: they have not returned within 5 s of the end of their context.
// What became of their tasks is reported; each of them occupies one of Concurrency slots until it
// returns.
func (w *Worker) Stuck() int { return int(w.stuck.Load()) }

// HandleRaw sets the handler of a type. It panics if Run was called before, or
// the type has a handler already: both are mistakes in the program.
func (w *Worker) HandleRaw(typ string, h task.Handler) {
	if w.started.Load() {
		panic("worker: handler for " + typ + " set after Run")
	}
	if _, ok := w.handlers[typ]; ok {
		panic("worker: two handlers for " + typ)
	}
	w.handlers[typ] = h
}

// Handle sets the handler of a defined type; see task.Handler for what its
// errors mean.
func Handle[T any](w *Worker, t task.Type[T], fn func(ctx context.Context, j *task.Job[T]) error) {
	w.HandleRaw(t.Name(), task.Typed(fn))
}

// Run works until ctx ends or the process gets SIGTERM or SIGINT, then drains:
// it stops fetching, lets running tasks finish for ShutdownGrace, hands back
// the rest, flushes outcomes and leaves the group; 17 s after the grace it has
// ended, whatever handlers and Redis do. After a second signal it hands back and
// ends within 8 s; a third one ends the process. The error is nil after a clean
// drain; it is about Redis if that could not be reached within StartDeadline, or
// would not take outcomes; it is ErrSecondSignal after a second signal. Run may
// be called once.
func (w *Worker) Run(ctx context.Context) error {
	if !w.started.CompareAndSwap(false, true) {
		return errors.New("worker: Run was called before")
	}
	hurry, cancelHurry := context.WithCancel(context.Background())
	defer cancelHurry()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if !w.o.IgnoreSignals {
		sig := make(chan os.Signal, 2)
		signal.Notify(sig, syscall.SIGTERM, syscall.SIGINT)
		go func() {
			defer signal.Stop(sig)
			for _, then := range []func(){stop, cancelHurry} {
				select {
				case <-sig:
					then()
				case <-hurry.Done():
					return
				}
			}
		}()
	}
	closeHealth, err := w.serveHealth()
	if err != nil {
		return err
	}
	defer closeHealth() // it answers until the worker has drained
	if w.redis, err = streams.New(streams.Options{
		URL: w.o.RedisURL, Prefix: w.o.RedisKeyPrefix, Readers: len(w.o.Queues), Name: "worker", Log: w.o.Log, LeaseTimeout: max(w.o.VisibilityTimeout/6, minLeaseTimeout),
	}); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	w.redis.Bind("") // the deployment that it starts with
	defer func() { _ = w.redis.Close() }()
	defer w.rpc.close()
	if err := w.connect(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	w.o.Log.Info("worker started", "worker_id", w.id, "queues", w.o.Queues, "concurrency", w.o.Concurrency, "types", len(w.handlers))
	leases, stopLeases := context.WithCancel(context.Background())
	var fetchers, keepers sync.WaitGroup
	_ = lifecycle.Detach(ctx, func() error {
		_ = w.redis.CheckOwner(ctx)
		_, err := w.noteContent(ctx)
		return err
	})
	keepers.Go(func() { w.watchOwner(leases) })
	keepers.Go(func() { w.keepLeases(leases) })
	keepers.Go(func() { w.keepBeating(leases, stop) })
	keepers.Go(func() { w.watchTombstones(leases) })
	keepers.Go(func() { w.keepOffers(leases) })
	keepers.Go(func() { w.keepTypes(ctx) })
	for _, q := range w.o.Queues {
		fetchers.Go(func() { w.fetch(ctx, q) })
	}
	fetched := make(chan struct{})
	unblocked := w.redis.UnblockAt(ctx)
	go func() { fetchers.Wait(); unblocked(); close(fetched) }()
	w.phase.Store(consuming)
	<-ctx.Done()
	w.phase.Store(stopping)
	err = w.drain(hurry, fetched)
	stopLeases()
	_ = w.redis.Close() // ends calls that Redis does not answer
	keepers.Wait()
	<-fetched
	return err
}

// connect waits until Redis answers.
func (w *Worker) connect(ctx context.Context) error {
	deadline := time.Now().Add(w.o.StartDeadline)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := lifecycle.Detach(ctx, func() error { return w.redis.Ping(ctx) })
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if time.Now().Add(pause).After(deadline) {
			return fmt.Errorf("worker: Redis not reached within %s: %w", w.o.StartDeadline, err)
		}
		w.o.Log.Warn("Redis not reached; trying again", "error", err, "retry_in", pause.String())
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (w *Worker) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.running)
}
