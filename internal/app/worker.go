package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/handlers"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/worker"
)

// RunWorker runs a worker of NewWorker until ctx ends or the process is signalled,
// and drains. The error names the address that can't be listened on, or the store
// that could not be reached.
func RunWorker(ctx context.Context, w *worker.Worker, cfg config.Worker) error {
	if cfg.HealthListen == "" {
		return w.Run(ctx)
	}
	l, err := net.Listen("tcp", cfg.HealthListen)
	if err != nil {
		return fmt.Errorf("health_listen: %w", err)
	}
	// It answers until the worker has drained: alive all the while, but not
	// ready any more.
	server := &http.Server{Handler: healthOf(w), ReadHeaderTimeout: 5 * time.Second}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", cfg.HealthListen, err)
		}
		return nil
	})
	err = w.Run(ctx)
	_ = server.Close()
	return errors.Join(err, g.Wait())
}

// NewWorker makes a worker with the handlers that its configuration declares. The
// error names the setting that is wrong.
func NewWorker(cfg config.Worker, log *slog.Logger) (*worker.Worker, error) {
	if err := cfg.RequireRedis(); err != nil {
		return nil, err
	}
	hs, err := handlers.All(cfg.Handlers, cfg.HTTP, log)
	if err != nil {
		return nil, err
	}
	if len(hs) == 0 {
		return nil, errors.New("handlers: the configuration declares none, so this worker could run nothing; see docs/configuration.md")
	}
	tls, err := cfg.Orchestrator.TLS.Files().Config()
	if err != nil {
		return nil, fmt.Errorf("orchestrator.tls: %w", err)
	}
	w, err := worker.New(worker.Options{
		RedisURL: cfg.Redis.URL, Queues: cfg.Queues, Concurrency: cfg.Concurrency, VisibilityTimeout: cfg.VisibilityTimeout,
		ShutdownGrace: orNone(cfg.ShutdownGrace), StartDeadline: orNone(cfg.StartDeadline), Log: log,
		OrchestratorURL: cfg.Orchestrator.URL, OrchestratorToken: cfg.Orchestrator.Token, OrchestratorTLS: tls, HeartbeatInterval: cfg.HeartbeatInterval,
	})
	if err != nil {
		return nil, err
	}
	for typ, h := range hs {
		w.HandleRaw(typ, h)
	}
	return w, nil
}

// orNone makes a configured 0 mean no time: in worker.Options it means the
// default.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func healthOf(w *worker.Worker) http.Handler {
	return rpc.NewHealthHandler(func(context.Context) error { return w.Check() }, w.Stuck)
}
