package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/streams"
)

const (
	// pingInterval is how often each store is asked whether it answers.
	pingInterval = time.Second
	// pingQuiet is how long it may take with the answer.
	pingQuiet = 3 * time.Second
	// rulesInterval is how often Redis' settings are checked again.
	rulesInterval = 30 * time.Second
)

// Hurry ends the grace period of a Run that is stopping: open calls are cut
// off, and what has not stopped within 2 s is abandoned, which loses nothing:
// other orchestrators take over.
func (o *Orchestrator) Hurry() { o.setHurry() }

// ready makes the check of what is missing to serve. It asks nothing, so that it
// answers at once even if a store hangs: the loops tell how they fare.
func (o *Orchestrator) ready(stopping context.Context) func(context.Context) error {
	return func(context.Context) error {
		if stopping.Err() != nil {
			return errors.New("stopping")
		}
		select {
		case <-o.reconcile.Ready():
		default: // nothing is dispatched before that
			return errors.New("postgres and redis have not been compared yet")
		}
		return o.pulse.Check()
	}
}

// watchStores asks both stores again and again whether they answer.
func (o *Orchestrator) watchStores(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { return watch(ctx, o.pulse.Watch("postgres", pingQuiet, 0), o.store.Ping) })
	g.Go(func() error { return watch(ctx, o.pulse.Watch("redis", pingQuiet, 0), o.pingRedis) })
	g.Go(func() error { return watchRules(ctx, o.redis, rulesInterval, o.log) })
	return g.Wait()
}

// pingRedis also sees to it that nothing is done to another deployment's Redis.
func (o *Orchestrator) pingRedis(ctx context.Context) error {
	err := o.redis.CheckOwner(ctx)
	switch foreign := streams.Foreign(err); {
	case foreign && !o.foreign:
		o.log.Error("nothing is dispatched, read, trimmed or reclaimed until this deployment's own Redis is back", "error", err)
		o.foreign = true
	case err == nil && o.foreign:
		o.log.Warn("this deployment's own Redis is back")
		o.foreign = false
	}
	if streams.Foreign(err) {
		return err
	}
	return o.redis.Ping(ctx) // which tells whether it answers, also where it does not tell whose it is
}

// watch asks one store.
func watch(ctx context.Context, b *lifecycle.Beat, ping func(context.Context) error) error {
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	for {
		// A call that hangs must not hold up the stop: closing the store ends it.
		if err := lifecycle.Detach(ctx, func() error { return ping(ctx) }); err == nil {
			b.Mark()
		} else if foreign, ok := errors.AsType[*streams.ForeignError](err); ok {
			b.Fail(foreign.Error())
		} else if right, ok := errors.AsType[*streams.RightError](err); ok {
			b.Fail(right.Error())
		} else {
			b.Fail("not reachable")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// watchRules warns when Redis is changed, or replaced, so that it could lose
// streams. Going on is better than a stop of every orchestrator at once: the
// record is in Postgres, and what is evicted is dispatched again.
func watchRules(ctx context.Context, redis *streams.Client, every time.Duration, log *slog.Logger) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	broken := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := lifecycle.Detach(ctx, func() error { return redis.Requirements(ctx) })
		switch {
		case streams.Unfit(err) && !broken:
			log.Error("Redis no longer is what it must be; entries may get lost and tasks run twice until that is repaired", "error", err)
			broken = true
		case err == nil && broken:
			log.Info("Redis is what it must be again")
			broken = false
		}
	}
}
