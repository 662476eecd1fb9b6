package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// system is what is measured: a pair of servers and its orchestrators.
type system struct {
	b             *bench
	stack         *devstack.Stack
	dir           string // of logs
	orchestrators []*orchestrator
	client        *client.Client   // of the first orchestrator
	clients       []*client.Client // one of each
	raw           *rawStreams
	db            *pgxpool.Pool // for what no client can see or do
	peak          float64       // RSS of an orchestrator that has ended, MB
}

// start starts a system with one orchestrator.
func (b *bench) start(ctx context.Context) (_ *system, err error) {
	s := &system{b: b}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	o := devstack.Options{Durable: true, TCP: true, Stock: true, Log: log}
	if b.profile != "" {
		o.Preload = "pg_stat_statements"
	}
	if s.stack, err = devstack.Start(ctx, o); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "penstock-bench-"); err != nil {
		return nil, err
	}
	if s.db, err = pgxpool.New(ctx, s.stack.PostgresURL); err != nil {
		return nil, err
	}
	if s.raw, err = newRaw(s.stack.RedisURL, b.payload); err != nil {
		return nil, err
	}
	if err := s.addOrchestrator(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// addOrchestrator starts one more, and a client of it.
func (s *system) addOrchestrator(ctx context.Context) error {
	o, err := startOrchestrator(ctx, s.b.options, s.stack, s.dir, len(s.orchestrators))
	if err != nil {
		return err
	}
	s.orchestrators = append(s.orchestrators, o)
	c, err := client.New(o.url)
	if err != nil {
		return err
	}
	s.clients = append(s.clients, c)
	s.client = s.clients[0]
	return nil
}

// dropOrchestrator stops the one that was started last.
func (s *system) dropOrchestrator() error {
	last := len(s.orchestrators) - 1
	s.peak = max(s.peak, peakRSS(s.orchestrators[last].pid()))
	err := s.orchestrators[last].stop()
	s.orchestrators = s.orchestrators[:last]
	if last < len(s.clients) {
		err = errors.Join(err, s.clients[last].Close())
		s.clients = s.clients[:last]
	}
	return err
}

// close stops what was started.
func (s *system) close() (err error) {
	for len(s.orchestrators) > 0 {
		err = errors.Join(err, s.dropOrchestrator())
	}
	if s.raw != nil {
		s.raw.close()
	}
	if s.db != nil {
		s.db.Close()
	}
	if s.stack != nil {
		err = errors.Join(err, s.stack.Stop(context.Background()))
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

// concurrency is that of workers, unless a measurement is about it.
const concurrency = 100

// work runs a worker in this process until stop is called.
func (s *system) work(ctx context.Context, queues []string, slots int, handlers map[string]task.Handler) (stop func() error, err error) {
	w, err := worker.New(worker.Options{
		RedisURL: s.stack.RedisURL, Queues: queues, Concurrency: slots, IgnoreSignals: true, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	for typ, h := range handlers {
		w.HandleRaw(typ, h)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() error { cancel(); return <-done }, nil
}

// noopWorker runs a worker whose handler only counts, until stop is called.
func (s *system) noopWorker(ctx context.Context, hit func(), queues ...string) (stop func() error, err error) {
	return s.work(ctx, queues, concurrency, map[string]task.Handler{noop.Name(): counting(hit)})
}

// quiesce has Postgres write back and clean up, which it would do later, while
// something is measured.
func (s *system) quiesce(ctx context.Context) error {
	for _, sql := range []string{"VACUUM (ANALYZE)", "CHECKPOINT"} {
		if _, err := s.db.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}
