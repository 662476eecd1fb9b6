package app

import (
	"context"
	"errors"
	"time"

	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/streams"
)

// open waits for both stores.
func (o *Orchestrator) open(ctx context.Context) error {
	redis, err := streams.New(streams.Options{
		URL: o.cfg.Redis.URL, Prefix: o.cfg.Redis.KeyPrefix, Readers: o.cfg.Result.Consumers + 2, Name: "orchestrator", Log: o.log,
	})
	if err != nil {
		return err
	}
	o.redis = redis
	err = lifecycle.Retry(ctx, o.log, "Postgres", o.cfg.Server.StartDeadline, func(ctx context.Context) (err error) {
		defer func() {
			if store.Unfit(err) {
				err = lifecycle.Fatal(err)
			}
		}()
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
			URL: o.cfg.Postgres.URL, Role: o.cfg.Postgres.Role, MaxConns: o.cfg.Postgres.MaxConns * 2 / 3, Policy: Policies(o.cfg),
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
		return lifecycle.Detach(ctx, func() error { return o.prepare(ctx) })
	})
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
	case <-o.hurry.Done():
	case <-time.After(closeTimeout):
	}
}
