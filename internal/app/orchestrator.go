// Package app wires the stages to their stores and to each other: the only
// place where they meet.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock-dev/penstock/internal/api"
	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/pipeline/deadletter"
	"github.com/penstock-dev/penstock/internal/pipeline/dispatch"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/reclaim"
	"github.com/penstock-dev/penstock/internal/pipeline/reconcile"
	"github.com/penstock-dev/penstock/internal/pipeline/result"
	"github.com/penstock-dev/penstock/internal/pipeline/retention"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Orchestrator is one running orchestrator process.
type Orchestrator struct {
	cfg      config.Orchestrator
	log      *slog.Logger
	instance protocol.ID
	store    *store.Store
	reads    *store.Store // of the API, so that readers never starve the pipeline
	redis    *streams.Client
	registry *prometheus.Registry

	enqueue    *enqueue.Stage
	dispatch   *dispatch.Dispatcher
	result     *result.Stage
	deadletter *deadletter.Stage
	reclaim    *reclaim.Reclaimer
	reconcile  *reconcile.Reconciler
	janitor    *retention.Janitor
	waits      *api.Waits

	listener net.Listener
	gate     *gate
	server   *http.Server
	served   chan error // what Serve returned
}

// NewOrchestrator opens the listener at once, answering not ready, waits until
// both stores can be used, and wires everything. Run serves. The error says
// which store could not be reached, or which setting is wrong.
func NewOrchestrator(ctx context.Context, cfg config.Orchestrator, log *slog.Logger) (*Orchestrator, error) {
	if err := errors.Join(cfg.RequirePostgres(), cfg.RequireRedis()); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", cfg.Server.Listen)
	if err != nil {
		return nil, fmt.Errorf("server.listen: %w", err)
	}
	o := &Orchestrator{
		cfg: cfg, log: log, instance: protocol.ID(uuid.Must(uuid.NewV7())), registry: prometheus.NewRegistry(), listener: l,
	}
	o.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	o.gate, o.served = newGate(), make(chan error, 1)
	o.server = rpc.NewServer(o.gate, log)
	go func() { o.served <- o.server.Serve(l) }()
	if err := o.open(ctx); err != nil {
		_ = o.server.Close()
		if o.redis != nil {
			_ = o.redis.Close()
		}
		o.closeStores()
		return nil, err
	}
	o.wire()
	return o, nil
}

// Addr is the address of the RPC port.
func (o *Orchestrator) Addr() string { return o.listener.Addr().String() }

// open waits for both stores.
func (o *Orchestrator) open(ctx context.Context) error {
	redis, err := streams.New(streams.Options{
		URL: o.cfg.Redis.URL, Readers: o.cfg.Result.Consumers + 2, Name: "orchestrator", Log: o.log,
	})
	if err != nil {
		return err
	}
	o.redis = redis
	err = lifecycle.Retry(ctx, o.log, "Postgres", o.cfg.Server.StartDeadline, func(ctx context.Context) error {
		if o.cfg.Postgres.AutoMigrate {
			applied, err := store.Migrate(ctx, o.cfg.Postgres.URL)
			if err != nil {
				return err
			}
			if len(applied) > 0 {
				o.log.Info("database migrated", "applied", applied)
			}
		} else if err := store.CheckMigrated(ctx, o.cfg.Postgres.URL); err != nil {
			if errors.Is(err, store.ErrPending) {
				return lifecycle.Fatal(err)
			}
			return err
		}
		opts := store.Options{
			URL: o.cfg.Postgres.URL, Role: o.cfg.Postgres.Role, MaxConns: o.cfg.Postgres.MaxConns * 2 / 3, DefaultPolicy: policy(o.cfg.Retry),
		}
		if o.store, err = store.Open(ctx, opts); err != nil {
			return err
		}
		opts.MaxConns = o.cfg.Postgres.MaxConns - opts.MaxConns
		if o.reads, err = store.Open(ctx, opts); err != nil {
			o.store.Close()
			o.store = nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return lifecycle.Retry(ctx, o.log, "Redis", o.cfg.Server.StartDeadline, func(ctx context.Context) error {
		if err := o.redis.Ping(ctx); err != nil {
			return err
		}
		if err := o.redis.Requirements(ctx); err != nil {
			return lifecycle.Fatal(err)
		}
		_, err := o.redis.CreateTaskGroup(ctx, protocol.StreamTask, protocol.GroupWorkers)
		return errors.Join(err,
			o.redis.CreateGroup(ctx, protocol.StreamResult, protocol.GroupOrchestrators),
			o.redis.CreateGroup(ctx, protocol.StreamDLQ, protocol.GroupOrchestrators))
	})
}

func policy(r config.Retry) protocol.RetryPolicy {
	return protocol.RetryPolicy{
		Strategy: protocol.Strategy(r.Strategy), BaseMS: r.Base.Milliseconds(),
		MaxBackoffMS: r.MaxBackoff.Milliseconds(), JitterMaxMS: r.JitterMax.Milliseconds(),
	}
}

// sweepInterval is how often dead letters that a crash left are looked for.
const sweepInterval = time.Second

// wire makes the stages.
func (o *Orchestrator) wire() {
	cfg, name := o.cfg, "orchestrator-"+o.instance.String()
	env := protocol.Env{Seed: o.store.Deployment().Seed, MaxInterruptions: cfg.Recovery.MaxInterruptions}
	wake := func(at time.Time) { o.dispatch.Wake(at) }
	o.waits = api.NewWaits(o.reads, 100*time.Millisecond, o.log)
	o.reconcile = reconcile.New(reconcile.Options{
		Store: o.store, Redis: o.redis, Interval: cfg.Recovery.ReconcileInterval, VisibilityTimeout: cfg.Recovery.VisibilityTimeout,
		Env: env, Wake: wake, Log: o.log, Metrics: o.registry,
	})
	o.dispatch = dispatch.New(dispatch.Options{
		Store: o.store, Redis: o.redis, Reconciler: o.reconcile, Instance: o.instance, InstanceTTL: cfg.Recovery.InstanceTTL,
		Window: cfg.Dispatch.Window, MaxBatch: cfg.Dispatch.MaxBatch, Poll: cfg.Dispatch.PollInterval,
		Lost: func(string) { o.reconcile.Kick() }, Log: o.log, Metrics: o.registry,
	})
	o.enqueue = enqueue.New(enqueue.Options{
		Store: o.store, Dispatcher: o.dispatch, Instance: o.instance,
		Limits: enqueue.Limits{
			MaxPayloadBytes: cfg.Enqueue.MaxPayloadBytes, MaxPayloadDepth: cfg.Enqueue.MaxPayloadDepth,
			MaxScheduleAhead: cfg.Enqueue.MaxScheduleAhead, DefaultTimeout: cfg.Enqueue.DefaultTimeout, MaxRetries: cfg.Retry.MaxRetries,
		},
		Batch: batch.Options{Max: cfg.Enqueue.MaxBatch, Flushes: cfg.Enqueue.Flushes, Waiting: cfg.Enqueue.MaxWaiting},
		Log:   o.log, Metrics: o.registry,
	})
	o.deadletter = deadletter.New(deadletter.Options{
		Store: o.store, Redis: o.redis, Consumer: name, Sweep: sweepInterval, Env: env, Failed: o.waits.Done, Log: o.log, Metrics: o.registry,
	})
	o.result = result.New(result.Options{
		Store: o.store, Redis: o.redis, DeadLetters: o.deadletter, Consumer: name, MaxBatch: cfg.Result.MaxBatch,
		Consumers: cfg.Result.Consumers, TakeOver: cfg.Result.TakeOver, Env: env, Notify: o.applied, Log: o.log, Metrics: o.registry,
	})
	o.reclaim = reclaim.New(reclaim.Options{
		Store: o.store, Redis: o.redis, DeadLetters: o.deadletter, Consumer: name, VisibilityTimeout: cfg.Recovery.VisibilityTimeout,
		Interval: cfg.Recovery.ReclaimInterval, Env: env, Queues: o.queues, Wake: wake, Dead: o.deadletter.Kick, Log: o.log, Metrics: o.registry,
	})
	o.janitor = retention.New(retention.Options{
		Store: o.store, Redis: o.redis, Trim: cfg.Retention.TrimInterval, Grace: cfg.Retention.TrimGrace, Queues: o.queues,
		Log: o.log, Metrics: o.registry,
	})
}

// applied passes on what a batch of outcomes did.
func (o *Orchestrator) applied(a result.Applied) {
	if len(a.Terminal) > 0 {
		o.waits.Done(a.Terminal)
	}
	if !a.Due.IsZero() {
		o.dispatch.Wake(a.Due)
	}
	if a.Dead {
		o.deadletter.Kick()
	}
}

// queues lists the queues whose streams need care: those seen by this process
// and those with live tasks.
func (o *Orchestrator) queues(ctx context.Context) ([]string, error) {
	live, err := o.store.LiveQueues(ctx)
	if err != nil {
		return nil, err
	}
	all := append(live, o.dispatch.Queues()...)
	all = append(all, protocol.DefaultQueue)
	slices.Sort(all)
	return slices.Compact(all), nil
}

// ready reports what is missing to serve.
func (o *Orchestrator) ready(ctx context.Context) error {
	var errs []error
	if o.store.Ping(ctx) != nil {
		errs = append(errs, errors.New("postgres is not reachable"))
	}
	if o.redis.Ping(ctx) != nil {
		errs = append(errs, errors.New("redis is not reachable"))
	}
	return errors.Join(errs...)
}

// Run serves until ctx ends, then stops in the order in which work flows:
// first the intake, then the loops that make new work, the appliers of
// outcomes last. It returns after at most ShutdownGrace.
func (o *Orchestrator) Run(ctx context.Context) error {
	stopping, announce := context.WithCancel(context.Background())
	defer announce()
	handler, err := rpc.NewHandler(api.New(stopping, o.enqueue, o.reads, o.redis, o.waits), rpc.Options{
		Logger: o.log, Ready: o.ready, Metrics: promhttp.HandlerFor(o.registry, promhttp.HandlerOpts{}),
	})
	if err != nil {
		return fmt.Errorf("wire RPC: %w", err)
	}
	o.gate.open(handler)
	o.log.Info("orchestrator serving", "addr", o.Addr(), "instance", o.instance, "deployment", o.store.Deployment().ID)
	err = lifecycle.Run(ctx, o.log, o.cfg.Server.ShutdownGrace, []lifecycle.Loop{
		// Intake first: no new calls; those that wait are answered, those that
		// enqueue are finished.
		{Name: "rpc", Run: o.serve, Stop: func(grace context.Context) {
			announce()
			// A reader that has stopped reading must not use up the others' time.
			calls, cancel := context.WithTimeout(grace, o.cfg.Server.ShutdownGrace/3)
			defer cancel()
			if err := o.server.Shutdown(calls); err != nil {
				o.log.Warn("open calls were cut off", "error", err)
				_ = o.server.Close()
			}
			if err := o.enqueue.Close(grace); err != nil {
				o.log.Warn("enqueue not finished", "error", err)
			}
		}},
		{Name: "waits", Run: o.waits.Run},
		// What makes new work, before what applies its outcomes.
		{Name: "reclaim", Run: o.reclaim.Run},
		{Name: "reconcile", Run: o.reconcile.Run},
		{Name: "retention", Run: o.janitor.Run},
		{Name: "dlq-ingest", Run: o.deadletter.RunIngest},
		{Name: "result", Run: o.result.Run},
		{Name: "deadletter", Run: o.deadletter.Run},
		// Last: it removes the outbox rows that the others left, and this
		// instance's sign of life.
		{Name: "dispatch", Run: o.dispatch.Run},
	})
	_ = o.redis.Close()
	o.closeStores()
	o.log.Info("orchestrator stopped", "instance", o.instance)
	return err
}

// serve waits until the RPC server ends.
func (o *Orchestrator) serve(context.Context) error {
	if err := <-o.served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", o.Addr(), err)
	}
	return nil
}

// closeTimeout bounds the closing of connections.
const closeTimeout = 3 * time.Second

func (o *Orchestrator) closeStores() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, s := range []*store.Store{o.store, o.reads} {
			if s != nil {
				s.Close()
			}
		}
	}()
	select { // closing waits for statements under way, of a Postgres that may not answer
	case <-closed:
	case <-time.After(closeTimeout):
	}
}
