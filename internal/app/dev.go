package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-dev/penstock/internal/auth"
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
	// TokenFiles hold the token of one of DevOptions.Principals each, in their
	// order; nil if a tokens file was configured.
	TokenFiles []string
	// Orchestrator is ready to run.
	Orchestrator *Orchestrator
	worker       *worker.Worker
	temp         string // made for token files alone; removed at the end
}

// DevOptions are the settings of StartDev.
type DevOptions struct {
	// Dir keeps the servers' data; empty: a temporary directory, removed at
	// the end.
	Dir string
	// Principals get a token each, in files in the data directory that are kept
	// with it, unless auth.tokens_file is set; the worker gets one, too. Each is a
	// name and its roles, as auth.MakeFiles takes them. Unless auth.anonymous_roles
	// says otherwise, callers without a token have every role, and people may
	// approve what such callers asked for, as long as only this machine can call.
	Principals   []string
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
	o.Worker.Redis.KeyPrefix = o.Orchestrator.Redis.KeyPrefix
	err := d.makeTokens(&o)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if _, err := NewWorker(o.Worker, o.Log); err != nil { // a fault in it is found before anything listens
		return nil, errors.Join(err, d.Close())
	}
	if d.Orchestrator, err = NewOrchestrator(ctx, o.Orchestrator, o.Log); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if o.Worker.Orchestrator.URL == "" {
		o.Worker.Orchestrator.URL = d.Orchestrator.URL()
	}
	if d.worker, err = NewWorker(o.Worker, o.Log); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// devWorker is the principal of dev's own worker.
const devWorker = "dev-worker"

// makeTokens provides the principals' token files and configures them.
func (d *Dev) makeTokens(o *DevOptions) (err error) {
	if len(o.Orchestrator.Auth.AnonymousRoles) == 0 && (loopback(o.Orchestrator.Server.Listen) || o.Orchestrator.Auth.AllowUnauthenticated) {
		o.Orchestrator.Auth.AnonymousRoles, o.Orchestrator.Guard.AllowAnonymous = auth.AllRoles(), true
	}
	if o.Orchestrator.Auth.TokensFile != "" || len(o.Principals) == 0 {
		return nil
	}
	dir := o.Dir
	switch {
	case d.Stack != nil:
		dir = d.Stack.Dir
	case dir == "":
		if d.temp, err = os.MkdirTemp("", "penstock-tokens-"); err != nil {
			return fmt.Errorf("make a directory for tokens: %w", err)
		}
		dir = d.temp
	}
	made, err := auth.MakeFiles(dir, append(slices.Clone(o.Principals), devWorker+" roles="+auth.RoleWorker)...)
	if err != nil {
		return err
	}
	n := len(o.Principals)
	o.Orchestrator.Auth.TokensFile, d.TokenFiles = made.TokensFile, made.TokenFiles[:n]
	if o.Worker.Orchestrator.Token != "" {
		return nil
	}
	token, err := os.ReadFile(made.TokenFiles[n])
	o.Worker.Orchestrator.Token = strings.TrimSpace(string(token))
	return err
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
		select { // its first heartbeat would be refused
		case <-d.Orchestrator.serving:
		case <-wctx.Done():
		}
		return d.worker.Run(wctx)
	})
	return g.Wait()
}

// Close stops the servers it started.
func (d *Dev) Close() (err error) {
	if d.temp != "" {
		err = os.RemoveAll(d.temp)
	}
	if d.Stack == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return errors.Join(d.Stack.Stop(ctx), err)
}
