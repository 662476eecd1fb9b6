// Package app wires the stages to their stores and to each other: the only
// place where they meet.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock-dev/penstock/internal/api"
	"github.com/penstock-dev/penstock/internal/auth"
	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/internaljobs"
	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/metrics"
	"github.com/penstock-dev/penstock/internal/pipeline/alert"
	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/pipeline/cancel"
	"github.com/penstock-dev/penstock/internal/pipeline/deadletter"
	"github.com/penstock-dev/penstock/internal/pipeline/dependency"
	"github.com/penstock-dev/penstock/internal/pipeline/dispatch"
	"github.com/penstock-dev/penstock/internal/pipeline/effect"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/erasure"
	"github.com/penstock-dev/penstock/internal/pipeline/heartbeat"
	"github.com/penstock-dev/penstock/internal/pipeline/reclaim"
	"github.com/penstock-dev/penstock/internal/pipeline/reconcile"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/pipeline/result"
	"github.com/penstock-dev/penstock/internal/pipeline/retention"
	"github.com/penstock-dev/penstock/internal/pipeline/schedule"
	"github.com/penstock-dev/penstock/internal/pipeline/timeout"
	"github.com/penstock-dev/penstock/internal/pipeline/unknown"
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
	foreign  bool     // of watchStores: Redis was another deployment's at the last look
	gone     []string // streams whose groups prepare found gone from epoch goneIn
	goneIn   string
	limits   enqueue.Limits

	enqueue    *enqueue.Stage
	dispatch   *dispatch.Dispatcher
	result     *result.Stage
	deadletter *deadletter.Stage
	reclaim    *reclaim.Reclaimer
	reconcile  *reconcile.Reconciler
	timeout    *timeout.Backstop
	unknown    *unknown.Stage
	heartbeat  *heartbeat.Stage
	effect     *effect.Stage
	cancel     *cancel.Stage
	rules      *guard.Rules
	approval   *approval.Stage
	dependency *dependency.Stage
	schedule   *schedule.Stage
	janitor    *retention.Janitor
	alerts     *alert.Stage
	waiting    *metrics.Queues
	replay     *replay.Stage
	erasure    *erasure.Stage
	waits      *api.Waits

	entrance entrance
	debug    *debug // nil: none
	gate     *gate
	serving  chan struct{} // closed once Run answers calls
	server   *http.Server
	served   chan error // what Serve returned

	pulse    *lifecycle.Pulse
	hurry    context.Context
	setHurry context.CancelFunc
}

// NewOrchestrator opens the listener at once, answering not ready, waits until
// both stores can be used, and wires everything. Run serves. The error says
// which store could not be reached, or which setting is wrong.
func NewOrchestrator(ctx context.Context, cfg config.Orchestrator, log *slog.Logger) (*Orchestrator, error) {
	limits, err := Limits(cfg)
	if err := errors.Join(err, cfg.RequirePostgres(), cfg.RequireRedis()); err != nil {
		return nil, err
	}
	e, err := openEntrance(cfg, log)
	if err != nil {
		return nil, err
	}
	d, err := openDebug(cfg.Debug.Listen, log)
	if err != nil {
		return nil, errors.Join(err, e.listener.Close())
	}
	o := &Orchestrator{
		cfg: cfg, log: log, instance: protocol.ID(uuid.Must(uuid.NewV7())), registry: prometheus.NewRegistry(), limits: limits, entrance: e, debug: d,
	}
	o.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	o.hurry, o.setHurry = context.WithCancel(context.Background())
	o.pulse = &lifecycle.Pulse{}
	o.gate, o.served, o.serving = newGate(), make(chan error, 1), make(chan struct{})
	o.server = rpc.NewServer(auth.Certificates(o.gate), log)
	go func() { o.served <- e.serve(o.server) }()
	if err := o.open(ctx); err != nil {
		_ = o.server.Close()
		o.debug.close()
		if o.redis != nil {
			_ = o.redis.Close()
		}
		o.closeStores()
		return nil, err
	}
	o.wire()
	if err := o.configureGuard(ctx); err != nil {
		_ = o.server.Close()
		o.debug.close()
		_ = o.redis.Close()
		o.closeStores()
		return nil, err
	}
	return o, nil
}

// Addr is the address of the RPC port.
func (o *Orchestrator) Addr() string { return o.entrance.listener.Addr().String() }

// URL is the base URL of the RPC port.
func (o *Orchestrator) URL() string {
	if o.entrance.tls != nil {
		return "https://" + o.Addr()
	}
	return "http://" + o.Addr()
}

// sweepInterval is how often dead letters that a crash left are looked for.
const sweepInterval = time.Second

// wire makes the stages.
func (o *Orchestrator) wire() {
	cfg, name := o.cfg, "orchestrator-"+o.instance.String()
	env := protocol.Env{Seed: o.store.Deployment().Seed, MaxInterruptions: cfg.Recovery.MaxInterruptions, MaxUnknown: cfg.Recovery.UnknownTypeTimeout}
	wake := func(at time.Time) { o.dispatch.Wake(at) }
	labels := metrics.NewLabels(cfg.Metrics.Queues, slices.Concat(cfg.Metrics.Types, slices.Sorted(maps.Keys(cfg.Types))))
	tasks := metrics.NewTasks(labels, o.registry)
	o.store.OnSaved(tasks.Saved)
	o.waiting = metrics.NewQueues(metrics.QueuesOptions{Store: o.reads, Redis: o.redis, Labels: labels, Log: o.log, Metrics: o.registry})
	o.waits = api.NewWaits(o.reads, 100*time.Millisecond, o.log)
	lost := func(stream string) { o.reconcile.LostGroup(stream) }
	o.deadletter = deadletter.New(deadletter.Options{
		Store: o.store, Redis: o.redis, Consumer: name, Sweep: sweepInterval, TakeOver: cfg.Result.TakeOver, Env: env,
		Failed: o.waits.Done, Lost: lost, Pulse: o.pulse, Log: o.log, Metrics: o.registry,
	})
	o.reconcile = reconcile.New(reconcile.Options{
		Store: o.store, Redis: o.redis, Interval: cfg.Recovery.ReconcileInterval, VisibilityTimeout: cfg.Recovery.VisibilityTimeout,
		Env: env, DeadLetters: o.deadletter, Wake: wake, Raised: func(k protocol.AlertKind) { o.alerts.Raised(k) }, Pulse: o.pulse, Log: o.log, Metrics: o.registry,
	})
	o.reconcile.FoundGone(o.goneIn, o.gone...)
	o.cancel = cancel.New(cancel.Options{
		Store: o.store, Redis: o.redis, Unacked: func(ctx context.Context, stream string, see func(streams.Entry)) error {
			return reconcile.Scan(ctx, o.redis, stream, protocol.GroupWorkers, see, nil)
		},
		Keep: cfg.Retention.Tombstones, Grace: cfg.Recovery.ExpiryGrace, Done: o.waits.Done, Pulse: o.pulse, Log: o.log, Metrics: o.registry,
	})
	o.rules = guard.NewRules()
	o.approval = approval.New(approval.Options{
		Store: o.store, Rules: o.rules, Named: o.named, Wake: wake, Ended: o.cancel.Ended, Pulse: o.pulse, Log: o.log, Metrics: o.registry,
	})
	expired := func(ids []protocol.ID) { o.cancel.Ended(protocol.CodeExpired, ids) }
	o.dependency = dependency.New(dependency.Options{
		Store: o.store, Poll: cfg.Dispatch.PollInterval, Sweep: cfg.Recovery.ReconcileInterval, Wake: wake,
		Ended: func(ids []protocol.ID) { o.cancel.Ended(protocol.CodeDependencyFailed, ids) }, Pulse: o.pulse, Log: o.log, Metrics: o.registry,
	})
	o.store.OnEnded(o.dependency.Kick)
	o.dispatch = dispatch.New(dispatch.Options{
		Store: o.store, Redis: o.redis, Reconciler: o.reconcile, Rules: o.rules, Instance: o.instance, InstanceTTL: cfg.Recovery.InstanceTTL,
		Window: cfg.Dispatch.Window, MaxBatch: cfg.Dispatch.MaxBatch, Poll: cfg.Dispatch.PollInterval,
		Lost: o.reconcile.GroupMade, Expired: expired, Held: o.dispatchHeld, Pulse: o.pulse, Log: o.log, Metrics: o.registry,
	})
	o.enqueue = enqueue.New(enqueue.Options{
		Store: o.store, Dispatcher: o.dispatch, Rules: o.rules, Named: o.named, Instance: o.instance,
		Limits: o.limits,
		Batch:  batch.Options{Max: cfg.Enqueue.MaxBatch, Flushes: cfg.Enqueue.Flushes, Waiting: cfg.Enqueue.MaxWaiting},
		Log:    o.log, Tasks: tasks, Metrics: o.registry,
	})
	alerts := Alerts(cfg.Alerts)
	alerts.Store, alerts.Log, alerts.Metrics = o.store, o.log, o.registry
	o.alerts = alert.New(alerts)
	o.result = result.New(result.Options{
		Store: o.store, Redis: o.redis, DeadLetters: o.deadletter, Consumer: name, MaxBatch: cfg.Result.MaxBatch,
		Consumers: cfg.Result.Consumers, TakeOver: cfg.Result.TakeOver, Env: env, Notify: o.applied, Judged: o.alerts.Judged, Lost: lost, Pulse: o.pulse, Log: o.log, Metrics: o.registry,
	})
	o.reclaim = reclaim.New(reclaim.Options{
		Store: o.store, Redis: o.redis, DeadLetters: o.deadletter, Consumer: name, VisibilityTimeout: cfg.Recovery.VisibilityTimeout,
		Interval: cfg.Recovery.ReclaimInterval, Env: env, Queues: o.queues, Wake: wake, Dead: o.deadletter.Kick, Pulse: o.pulse, Log: o.log, Metrics: o.registry,
	})
	o.timeout = timeout.New(timeout.Options{
		Store: o.store, Redis: o.redis, Grace: cfg.Recovery.TimeoutGrace, Env: env, Wake: wake, Dead: o.deadletter.Kick, Pulse: o.pulse, Log: o.log, Metrics: o.registry,
	})
	o.unknown = unknown.New(unknown.Options{Store: o.store, Redis: o.redis, Wake: wake, Log: o.log})
	o.effect = effect.New(effect.Options{Store: o.store, Waiting: o.approval, DoubtAfter: cfg.Effects.DoubtAfter, Wake: wake, Log: o.log, Metrics: o.registry})
	o.heartbeat = heartbeat.New(heartbeat.Options{Store: o.store, Interval: cfg.Recovery.HeartbeatInterval, Log: o.log, Metrics: o.registry})
	o.replay = replay.New(replay.Options{
		Store: o.store, Redis: o.redis, CheckPayload: o.enqueue.CheckPayload, ProposalTTL: cfg.Replay.ProposalTTL, DraftTTL: cfg.Replay.DraftTTL,
		Keep: cfg.Retention.DeadLetters, Wake: wake, Log: o.log, Tasks: tasks, Metrics: o.registry,
	})
	o.erasure = erasure.New(erasure.Options{Store: o.store, Forget: o.replay.ForgetEntries, Drop: o.dropEntries, Log: o.log, Metrics: o.registry})
	o.schedule = schedule.New(schedule.Options{
		Store: o.store, Reads: o.reads, Enqueue: ScheduleTasks(o.enqueue), MissedGrace: cfg.Schedules.MissedGrace, KeepFires: cfg.Schedules.KeepFires,
		Wake: wake, Pulse: o.pulse, Log: o.log, Metrics: o.registry,
	})
	o.janitor = retention.New(retention.Options{
		Store: o.store, Redis: o.redis, Trim: cfg.Retention.TrimInterval, Grace: cfg.Retention.TrimGrace, Queues: o.queues,
		Consumers: cfg.Retention.Consumers, Tasks: cfg.Retention.Tasks, Keys: cfg.Retention.IdempotencyKeys, Effects: cfg.Retention.Effects,
		Log: o.log, Metrics: o.registry,
	})
}

// handlers are those beside the RPC.
func (o *Orchestrator) handlers() map[string]http.Handler {
	if !o.cfg.InternalJobs.Enabled {
		return nil
	}
	o.log.Info("the internal run interface is on; it is for development and acceptance", "path", internaljobs.Prefix+"jobs")
	jobs := internaljobs.New(internaljobs.Options{
		Enqueue: o.enqueue, Store: o.store, Waits: o.waits, Env: protocol.Env{Seed: o.store.Deployment().Seed},
		Dead: o.deadletter.Kick, Judged: o.alerts.Judged, Log: o.log, Metrics: o.registry,
	})
	return map[string]http.Handler{internaljobs.Prefix: auth.Middleware(o.entrance.tokens, rpc.WriteProblem, jobs, auth.RoleAdmin)}
}

// applied passes on what a batch of outcomes did.
func (o *Orchestrator) applied(a result.Applied) {
	if len(a.Terminal) > 0 {
		o.waits.Done(a.Terminal)
	}
	o.dispatch.Moved()
	if !a.Due.IsZero() {
		o.dispatch.Wake(a.Due)
	}
	if a.Dead {
		o.deadletter.Kick()
	}
	if len(a.Unknown) > 0 {
		tasks := make([]unknown.Task, len(a.Unknown))
		for i, t := range a.Unknown {
			tasks[i] = unknown.Task{ID: t.ID, Queue: t.Queue, Type: t.Type, Delivery: t.Delivery}
		}
		o.unknown.Note(tasks)
	}
}

// dropEntries removes entries from the stream of a queue.
func (o *Orchestrator) dropEntries(ctx context.Context, queue string, entries []string) error {
	return o.redis.DropDelivered(ctx, protocol.TaskStream(queue), protocol.GroupWorkers, entries)
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

// Run serves until ctx ends, then stops in the order in which work flows:
// first the intake, then the loops that make new work, the appliers of
// outcomes last. It returns after at most ShutdownGrace, or 2 s after Hurry. The
// error is nil after a clean stop.
func (o *Orchestrator) Run(ctx context.Context) error {
	stopping, announce := context.WithCancel(context.Background())
	defer announce()
	handler, err := rpc.NewHandler(rpc.Services{
		Tasks:       api.New(stopping, o.enqueue, o.cancel, o.erasure, o.reads, o.redis, o.waits, auth.Principal),
		DeadLetters: api.NewDeadLetters(o.reads, o.replay, auth.Principal),
		Workers:     api.NewWorkers(o.reads, o.heartbeat, o.reclaim.Evict, auth.Principal),
		Approvals:   api.NewApprovals(o.reads, o.approval, auth.Principal, auth.Roles),
		Schedules:   api.NewSchedules(o.schedule, auth.Principal),
		Effects:     api.NewEffects(o.reads, o.effect, auth.Principal),
	}, rpc.Options{
		Logger: o.log, Ready: o.ready(stopping), Metrics: promhttp.HandlerFor(o.registry, promhttp.HandlerOpts{}),
		Gate: auth.Gate(o.entrance.tokens), Interceptors: []connect.Interceptor{auth.Interceptor(o.entrance.tokens)}, Handlers: o.handlers(),
		MaxMessageBytes: maxMessageBytes(o.cfg), MaxBatchBytes: max(rpc.DefaultMaxBatchBytes, maxMessageBytes(o.cfg)),
		Ambient: o.entrance.tokens.Ambient, AllowedHosts: o.cfg.Server.AllowedHosts,
	})
	if err != nil {
		return fmt.Errorf("wire RPC: %w", err)
	}
	o.gate.open(handler)
	close(o.serving)
	o.log.Info("orchestrator serving", "addr", o.Addr(), "instance", o.instance, "deployment", o.store.Deployment().ID)
	err = lifecycle.Run(ctx, o.hurry, o.log, o.cfg.Server.ShutdownGrace, []lifecycle.Loop{
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
		{Name: "stores", Run: o.watchStores},
		{Name: "waits", Run: o.waits.Run},
		{Name: "tokens", Run: o.entrance.tokens.Run},
		{Name: "tls", Run: o.entrance.tls.Run},
		// What makes new work, before what applies its outcomes.
		{Name: "reclaim", Run: o.reclaim.Run},
		{Name: "reconcile", Run: o.reconcile.Run},
		{Name: "timeout", Run: o.timeout.Run},
		{Name: "unknown-types", Run: o.unknown.Run},
		{Name: "heartbeat", Run: o.heartbeat.Run},
		{Name: "expiry", Run: o.cancel.RunExpiry},
		{Name: "approvals", Run: o.approval.Run},
		{Name: "tombstones", Run: o.cancel.RunTombstones},
		{Name: "dependencies", Run: o.dependency.Run},
		{Name: "replay", Run: o.replay.Run},
		{Name: "schedules", Run: o.schedule.Run},
		{Name: "retention", Run: o.janitor.Run},
		{Name: "dlq-ingest", Run: o.deadletter.RunIngest},
		{Name: "result", Run: o.result.Run},
		{Name: "deadletter", Run: o.deadletter.Run},
		{Name: "alerts", Run: o.alerts.Run},
		{Name: "queues", Run: o.waiting.Run},
		// Last: it removes the outbox rows that the others left, and this
		// instance's sign of life.
		{Name: "dispatch", Run: o.dispatch.Run},
	})
	o.debug.close()
	_ = o.redis.Close()
	o.closeStores()
	o.log.Info("orchestrator stopped", "instance", o.instance)
	return err
}

// maxMessageBytes leaves room for the largest payload and what comes with it.
func maxMessageBytes(cfg config.Orchestrator) int {
	const beside = 1 << 20
	return max(rpc.DefaultMaxMessageBytes, cfg.Enqueue.MaxPayloadBytes+beside)
}

// serve waits until the RPC server ends.
func (o *Orchestrator) serve(context.Context) error {
	if err := <-o.served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", o.Addr(), err)
	}
	return nil
}
