package app

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/handlers"
	"github.com/penstock-dev/penstock/worker"
)

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
		RedisURL: cfg.Redis.URL, RedisKeyPrefix: cfg.Redis.KeyPrefix, Queues: cfg.Queues, Concurrency: cfg.Concurrency, VisibilityTimeout: cfg.VisibilityTimeout,
		ShutdownGrace: orNone(cfg.ShutdownGrace), StartDeadline: orNone(cfg.StartDeadline), HealthListen: cfg.HealthListen, Log: log,
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
