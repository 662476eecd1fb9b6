package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/internal/devstack"
)

// Sizes of the system.
const (
	orchestrators = 3
	workers       = 4
	effectWorkers = 3  // the first ones: they know the orchestrators
	concurrency   = 24 // of each worker
	producers     = 4
)

// harness is one run.
type harness struct {
	options
	began time.Time
	stack *devstack.Stack
	// redis and db go past all proxies.
	redis         *redis.Client
	db            *pgxpool.Pool
	orchestrators []*slot
	workers       []*slot
	spawner       *spawner
	load          *load
	receiver      *receiver
	planned       []planned
	stores        sync.Mutex // held by the fault that stops a store

	// kills and steals count those of workers that have begun.
	kills, steals atomic.Int64

	mu       sync.Mutex
	done     map[string]int // faults by kind
	lossy    []check.Span
	troubled []check.Span
	stalled  []check.Span
	thefts   []check.Theft
	faultLog *os.File
}

// newHarness starts the stores and the processes.
func newHarness(ctx context.Context, o options) (h *harness, err error) {
	h = &harness{options: o, began: time.Now(), done: map[string]int{}, spawner: newSpawner(), load: &load{rate: o.rate, visibility: o.visibility, tasks: map[string]*check.Task{}}}
	if h.planned, err = schedule(o); err != nil {
		return nil, err
	}
	if o.fast > 0 {
		h.load.fast = &fast{rate: o.fast}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if err = os.MkdirAll(o.dir, 0o755); err != nil {
		return h, err
	}
	if err = os.Chmod(o.dir, 0o755); err != nil { // the servers run as another user
		return h, err
	}
	if h.faultLog, err = os.Create(filepath.Join(o.dir, "faults.log")); err != nil {
		return h, err
	}
	if h.receiver, err = newReceiver(); err != nil {
		return h, err
	}
	h.say("starting Postgres and Redis in %s, seed %d", o.dir, o.seed)
	h.stack, err = devstack.Start(ctx, devstack.Options{
		Dir: filepath.Join(o.dir, "stores"), Durable: true, MaxConnections: 200,
		Log: slog.New(slog.NewTextHandler(h.faultLog, nil)),
	})
	if err != nil {
		return h, err
	}
	if err = h.connect(ctx); err != nil {
		return h, err
	}
	return h, h.launch(ctx)
}

// connect opens the harness' own connections.
func (h *harness) connect(ctx context.Context) error {
	ro, err := redis.ParseURL(h.stack.RedisURL)
	if err != nil {
		return err
	}
	redis.SetLogger(quiet{}) // it tells of every attempt to reach a Redis that is stopped
	h.redis = redis.NewClient(ro)
	pc, err := pgxpool.ParseConfig(h.stack.PostgresURL)
	if err != nil {
		return err
	}
	pc.MaxConns = 4
	h.db, err = pgxpool.NewWithConfig(ctx, pc)
	return err
}

// quiet is go-redis' log.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// say tells what goes on.
func (h *harness) say(format string, a ...any) {
	_, _ = fmt.Fprintf(h.progress, "%7s  %s\n", time.Since(h.began).Round(100*time.Millisecond), fmt.Sprintf(format, a...))
}

// run goes through the phases and judges.
func (h *harness) run(ctx context.Context) (*report, error) {
	calm := h.calm()
	faulty := h.duration - 2*calm
	rep := &report{h: h}
	hard, cancel := context.WithCancel(ctx)
	defer cancel()
	loading, stopLoad := context.WithCancel(hard)
	defer stopLoad()
	g, gctx := errgroup.WithContext(hard)
	for i := range producers {
		var urls []string
		for j := range h.orchestrators {
			urls = append(urls, h.orchestrators[(i+j)%orchestrators].proxies["http"].URL)
		}
		g.Go(func() error { return h.load.produce(loading, gctx, h.seed, urls, i) })
		if h.load.fast != nil {
			g.Go(func() error { return h.load.produceFast(loading, gctx, h.seed, urls, i) })
		}
	}
	if h.load.fast != nil {
		g.Go(func() error { h.watchBacklog(loading); return nil })
	}
	answering, stopPerson := context.WithCancel(hard)
	defer stopPerson()
	people, pctx := errgroup.WithContext(answering)
	people.Go(func() error { return h.person(pctx) })
	h.say("load without faults for %s", calm)
	rep.loadFrom = time.Now()
	if err := pause(ctx, calm); err != nil {
		return nil, err
	}
	before := h.census(ctx)
	rep.faultsFrom = time.Now()
	h.say("%d faults within %s", len(h.planned), faulty)
	if err := h.break1(ctx, faulty); err != nil {
		return nil, err
	}
	rep.faultsTo = time.Now()
	if err := h.heal(ctx); err != nil {
		return nil, err
	}
	h.say("load without faults for %s", calm)
	if err := pause(ctx, calm); err != nil {
		return nil, err
	}
	after := h.census(ctx)
	rep.loadTo = time.Now()
	stopLoad()
	rep.endFast()
	time.AfterFunc(h.drainLimit(), cancel)
	if err := g.Wait(); err != nil {
		return nil, err
	}
	h.say("draining")
	rep.quiet = h.drain(ctx)
	stopPerson()
	if err := people.Wait(); err != nil {
		return nil, err
	}
	rep.drained = time.Now()
	h.say("comparing")
	if err := h.judge(ctx, rep); err != nil {
		return nil, err
	}
	rep.Versions = programVersions()
	rep.Versions["redis"], rep.Versions["postgres"] = h.versions(ctx)
	rep.compare(before, after)
	rep.finish()
	return rep, nil
}

// calm is how long there is load without faults, before and after.
func (h *harness) calm() time.Duration { return min(h.duration/8, 20*time.Second) }

// break1 carries out the schedule within d.
func (h *harness) break1(ctx context.Context, d time.Duration) error {
	began := time.Now()
	// Faults that find nothing to break wait for it; those that are late by then
	// are given up.
	ctx, cancel := context.WithDeadline(ctx, began.Add(d+faultLimit))
	defer cancel()
	var wg sync.WaitGroup
	for i, p := range h.planned {
		if err := pause(ctx, time.Until(began.Add(p.at))); err != nil {
			return err
		}
		r := rand.New(rand.NewPCG(h.seed, uint64(i)+1000))
		wg.Go(func() {
			if err := p.kind.do(h, ctx, r); err != nil {
				h.note(p.kind.name, "not done: %v", err)
				return
			}
			h.mu.Lock()
			h.done[p.kind.name]++
			h.mu.Unlock()
		})
	}
	wg.Wait()
	return pause(ctx, time.Until(began.Add(d)))
}

// faultLimit is how late a fault may be done.
const faultLimit = 20 * time.Second

// heal makes sure that everything runs.
func (h *harness) heal(ctx context.Context) error {
	for _, s := range append(h.orchestrators[:orchestrators:orchestrators], h.workers...) {
		for _, p := range s.proxies {
			p.Spare()
			p.Rewrite(nil)
			p.Delay(0)
			p.Hang(false)
			p.Down(false)
		}
		s.signal(syscall.SIGCONT)
		if !s.alive() {
			if err := s.start(); err != nil {
				return err
			}
		}
	}
	return h.waitReady(ctx, h.orchestrators)
}

// note logs what a fault did.
func (h *harness) note(kind, format string, a ...any) {
	_, _ = fmt.Fprintf(h.faultLog, "%s %s: %s\n", time.Now().UTC().Format("15:04:05.000"), kind, fmt.Sprintf(format, a...))
}

// close ends everything.
func (h *harness) close() error {
	var errs []error
	for _, s := range append(h.workers[:len(h.workers):len(h.workers)], h.orchestrators...) {
		if s.cmd != nil {
			errs = append(errs, s.end(syscall.SIGKILL, 10*time.Second))
		}
		for _, p := range s.proxies {
			if p != nil {
				p.Close()
			}
		}
	}
	if h.receiver != nil {
		_ = h.receiver.server.Close()
	}
	if h.db != nil {
		h.db.Close()
	}
	if h.redis != nil {
		_ = h.redis.Close()
	}
	if h.stack != nil {
		errs = append(errs, h.stack.Stop(context.Background()))
	}
	if h.faultLog != nil {
		_ = h.faultLog.Close()
	}
	return errors.Join(errs...)
}
