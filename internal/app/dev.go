package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/worker"
)

// Dev is a whole system in one process: an orchestrator and a worker, on
// Postgres and Redis servers of its own unless URLs are given.
type Dev struct {
	// Stack holds the servers it supervises; nil if both URLs were given.
	Stack *devstack.Stack
	// PostgresURL and RedisURL are the servers in use.
	PostgresURL, RedisURL string
	// Orchestrator is ready to run.
	Orchestrator *Orchestrator
	worker       *worker.Worker
}

// DevOptions are the settings of StartDev.
type DevOptions struct {
	// Dir keeps the servers' data; empty: a temporary directory, removed at
	// the end.
	Dir          string
	Orchestrator config.Orchestrator
	Worker       config.Worker
	Log          *slog.Logger
}

// StartDev starts the servers that no URL is given for, migrates, and opens
// the orchestrator. Close must be called. The error is a
// *devstack.MissingError if a server is not installed.
func StartDev(ctx context.Context, o DevOptions) (*Dev, error) {
	d := &Dev{PostgresURL: o.Orchestrator.Postgres.URL, RedisURL: o.Orchestrator.Redis.URL}
	if d.PostgresURL == "" || d.RedisURL == "" {
		s, err := devstack.Start(ctx, devstack.Options{
			Dir: o.Dir, Postgres: d.PostgresURL == "", Redis: d.RedisURL == "", Durable: true, TCP: true, Log: o.Log,
		})
		if err != nil {
			return nil, err
		}
		d.Stack = s
		if d.PostgresURL == "" {
			d.PostgresURL = s.PostgresURL
		}
		if d.RedisURL == "" {
			d.RedisURL = s.RedisURL
		}
	}
	o.Orchestrator.Postgres.URL, o.Orchestrator.Redis.URL, o.Worker.Redis.URL = d.PostgresURL, d.RedisURL, d.RedisURL
	var err error
	if d.worker, err = NewWorker(o.Worker, o.Log); err != nil { // first: it opens nothing that would have to be closed
		return nil, errors.Join(err, d.Close())
	}
	if d.Orchestrator, err = NewOrchestrator(ctx, o.Orchestrator, o.Log); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Run runs the orchestrator and the worker until ctx ends; the worker stops
// first, so that its last outcomes are applied.
func (d *Dev) Run(ctx context.Context) error {
	octx, stopOrchestrator := context.WithCancel(context.WithoutCancel(ctx))
	defer stopOrchestrator()
	wctx, stopWorker := context.WithCancel(ctx)
	defer stopWorker()
	var g errgroup.Group
	g.Go(func() error {
		defer stopWorker()
		return d.Orchestrator.Run(octx)
	})
	g.Go(func() error {
		defer stopOrchestrator()
		return d.worker.Run(wctx)
	})
	return g.Wait()
}

// Close stops the servers it started.
func (d *Dev) Close() error {
	if d.Stack == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return d.Stack.Stop(ctx)
}
