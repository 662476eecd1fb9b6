package app

import (
	"context"

	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// prepare sees to it that Redis is what it must be, and has the groups.
// Groups that are gone from an epoch were lost while no orchestrator ran.
func (o *Orchestrator) prepare(ctx context.Context) error {
	redis, deployment := o.redis, o.store.Deployment().ID.String()
	if err := redis.Ping(ctx); err != nil {
		return err
	}
	if err := redis.Requirements(ctx); streams.Unfit(err) {
		return lifecycle.Fatal(err)
	} else if err != nil {
		return err
	}
	epoch, err := redis.Epoch(ctx)
	if err != nil {
		return err
	}
	if err := epoch.Owned(deployment); err != nil {
		return lifecycle.Fatal(err)
	}
	redis.Bind(deployment)
	gone := func(stream string, made bool) {
		if made && epoch.ID != "" {
			o.gone = append(o.gone, stream)
			o.goneIn = epoch.ID
		}
	}
	made, err := redis.CreateTaskGroup(ctx, protocol.StreamTask, protocol.GroupWorkers)
	gone(protocol.StreamTask, made)
	for _, stream := range []string{protocol.StreamResult, protocol.StreamDLQ} {
		if err == nil {
			made, err = redis.CreateGroup(ctx, stream, protocol.GroupOrchestrators)
			gone(stream, made)
		}
	}
	return err
}

// dispatchHeld reports whether nothing may be dispatched: until the two stores
// have been compared, and while deliveries are raised after a restore.
func (o *Orchestrator) dispatchHeld() bool {
	select {
	case <-o.reconcile.Ready():
		return o.reconcile.Held()
	default:
		return true
	}
}
