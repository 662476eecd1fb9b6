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
//	log.Fatal(w.Run(context.Background()))
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// Options are the settings of a Worker. Zero fields take the defaults named.
type Options struct {
	// RedisURL is redis://, rediss:// or unix://. Required.
	RedisURL string
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
	// Name is the first part of the worker's id, at most 128 bytes; default:
	// the host name.
	Name string
	// Log defaults to slog.Default().
	Log *slog.Logger
	// IgnoreSignals: Run does not stop on SIGTERM and SIGINT by itself.
	IgnoreSignals bool

	err error // of FromEnv
}

// FromEnv reads PENSTOCK_REDIS_URL, PENSTOCK_QUEUES (comma-separated),
// PENSTOCK_CONCURRENCY, PENSTOCK_VISIBILITY_TIMEOUT, PENSTOCK_SHUTDOWN_GRACE
// and PENSTOCK_START_DEADLINE. New returns the error of a value that does not
// parse.
func FromEnv() Options {
	o := Options{RedisURL: os.Getenv("PENSTOCK_REDIS_URL")}
	if qs := os.Getenv("PENSTOCK_QUEUES"); qs != "" {
		for _, q := range strings.Split(qs, ",") {
			o.Queues = append(o.Queues, strings.TrimSpace(q))
		}
	}
	if c := os.Getenv("PENSTOCK_CONCURRENCY"); c != "" {
		n, err := strconv.Atoi(c)
		if err != nil {
			o.err = fmt.Errorf("PENSTOCK_CONCURRENCY: %q is not a whole number", c)
		}
		o.Concurrency = n
	}
	for name, d := range map[string]*time.Duration{
		"PENSTOCK_VISIBILITY_TIMEOUT": &o.VisibilityTimeout,
		"PENSTOCK_SHUTDOWN_GRACE":     &o.ShutdownGrace,
		"PENSTOCK_START_DEADLINE":     &o.StartDeadline,
	} {
		if s := os.Getenv(name); s != "" {
			v, err := time.ParseDuration(s)
			if err != nil {
				o.err = fmt.Errorf("%s: %q is not a duration such as 30s", name, s)
			}
			*d = v
		}
	}
	return o
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
	case len(o.Name) > 128 || !utf8.ValidString(o.Name) || strings.IndexByte(o.Name, 0) >= 0:
		return fmt.Errorf("worker: name has %d bytes, want at most 128 of UTF-8 without NUL", len(o.Name))
	}
	if _, err := redis.ParseURL(o.RedisURL); err != nil {
		return fmt.Errorf("worker: redis.url: %w", err)
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
	handlers map[string]task.Handler
	outcomes *batch.Batcher[*report, struct{}]

	slots     chan struct{} // one token a free slot
	unsettled chan struct{} // bounds outcomes that Redis has not taken
	ready     atomic.Bool
	started   atomic.Bool

	mu      sync.Mutex
	running map[string]*execution // by stream and message id, until settled
	done    sync.WaitGroup        // handlers
}

// maxUnsettled bounds how many outcomes may wait for Redis besides one a slot.
const maxUnsettled = 2000

// New makes a Worker. The error names the setting that is wrong.
func New(o Options) (*Worker, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	id := fmt.Sprintf("%s-%d-%s", o.Name, os.Getpid(), uuid.NewString()[:8])
	w := &Worker{
		o: o, id: id, handlers: map[string]task.Handler{}, running: map[string]*execution{},
		slots: make(chan struct{}, o.Concurrency), unsettled: make(chan struct{}, o.Concurrency+maxUnsettled),
	}
	for range o.Concurrency {
		w.slots <- struct{}{}
	}
	w.outcomes = batch.New(batch.Options{Max: 512, Flushes: 2}, w.flush)
	return w, nil
}

// ID is the worker's consumer name, unique to the process.
func (w *Worker) ID() string { return w.id }

// Ready reports whether the worker is fetching from Redis.
func (w *Worker) Ready() bool { return w.ready.Load() }

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
// the rest, flushes outcomes and leaves the group. A second signal ends the
// grace at once. The error is nil after a clean drain; it is about Redis if
// that could not be reached within StartDeadline. Run may be called once.
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
		defer signal.Stop(sig)
		go func() {
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
	var err error
	if w.redis, err = streams.New(streams.Options{URL: w.o.RedisURL, Readers: len(w.o.Queues), Name: "worker", Log: w.o.Log}); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	defer func() { _ = w.redis.Close() }()
	if err := w.connect(ctx); err != nil {
		return err
	}
	w.o.Log.Info("worker started", "worker_id", w.id, "queues", w.o.Queues, "concurrency", w.o.Concurrency, "types", len(w.handlers))
	leases, stopLeases := context.WithCancel(context.Background())
	var g, l errgroup.Group
	l.Go(func() error { w.keepLeases(leases); return nil })
	for _, q := range w.o.Queues {
		g.Go(func() error { w.fetch(ctx, q); return nil })
	}
	_ = g.Wait()
	w.ready.Store(false)
	err = w.drain(hurry)
	stopLeases()
	_ = l.Wait()
	return err
}

// connect waits until Redis answers.
func (w *Worker) connect(ctx context.Context) error {
	deadline := time.Now().Add(w.o.StartDeadline)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := w.redis.Ping(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		if time.Now().Add(pause).After(deadline) {
			return fmt.Errorf("worker: Redis not reached within %s: %w", w.o.StartDeadline, err)
		}
		w.o.Log.Warn("Redis not reached; trying again", "error", err, "retry_in", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// drain ends the worker after fetching has stopped.
func (w *Worker) drain(hurry context.Context) error {
	w.o.Log.Info("worker draining", "running", w.count())
	finished := make(chan struct{})
	go func() { w.done.Wait(); close(finished) }()
	grace, cancel := context.WithTimeout(hurry, w.o.ShutdownGrace)
	defer cancel()
	select {
	case <-finished:
	case <-grace.Done():
		w.handBack(finished)
	}
	flush, cancel2 := context.WithTimeout(context.Background(), flushDeadline)
	defer cancel2()
	if err := w.outcomes.Close(flush); err != nil {
		return fmt.Errorf("worker: %d outcomes could not be reported within %s; their tasks run again after the visibility timeout", w.count(), flushDeadline)
	}
	for _, q := range w.o.Queues {
		if left, err := w.redis.LeaveGroup(flush, protocol.TaskStream(q), protocol.GroupWorkers, w.id); err != nil || !left {
			w.o.Log.Warn("consumer not removed from its group", "queue", q, "worker_id", w.id, "error", err)
		}
	}
	w.o.Log.Info("worker stopped", "worker_id", w.id)
	return nil
}

// Bounds of the last steps of a shutdown.
const (
	flushDeadline  = 10 * time.Second
	handBackWindow = 5 * time.Second // an exec handler kills its program after 2 s
)

// handBack cancels what still runs, waits a moment for handlers to return,
// and releases the tasks of those that do not.
func (w *Worker) handBack(finished <-chan struct{}) {
	w.mu.Lock()
	for _, x := range w.running {
		x.cancel(task.ErrShutdown)
	}
	w.mu.Unlock()
	select {
	case <-finished:
		return
	case <-time.After(handBackWindow):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.running {
		if x.task == nil {
			continue // only its acknowledgement is left
		}
		if o := x.conclude(); o != nil {
			o.Kind, o.Error = protocol.OutcomeReleased, "the worker stopped before the handler returned"
			w.submit(x, o)
		}
	}
}

func (w *Worker) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.running)
}
