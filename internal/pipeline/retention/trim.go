package retention

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// maxHeldBack is how many acknowledged entries of a task stream one old pending
// entry may keep from being trimmed.
const maxHeldBack = 10_000

// TrimStreams removes acknowledged entries from stream:result, and from the
// task streams those older than the grace; stream:dlq is left alone. Nothing
// from the start of an open dispatch on is removed, so that its entries can
// always be looked up. For that the order of reading matters: what has been
// delivered when Redis is read was added for a dispatch that Postgres shows
// afterwards, unless it was resolved.
func (j *Janitor) TrimStreams(ctx context.Context) error {
	queues, err := j.o.Queues(ctx)
	if err != nil {
		return fmt.Errorf("list queues: %w", err)
	}
	bounds, delivered := map[string]string{}, map[string]string{}
	var errs error
	note := func(err error) {
		if err != nil && !streams.LostGroup(err) { // whoever needs the group makes it
			errs = errors.Join(errs, err)
		}
	}
	for _, q := range queues {
		id, last, err := j.o.Redis.Acknowledged(ctx, protocol.TaskStream(q), protocol.GroupWorkers)
		if note(err); err == nil {
			bounds[q], delivered[q] = id, last
		}
	}
	limits := map[string]string{}
	open, err := j.o.Store.OutboxAfterIDs(ctx)
	if err != nil {
		return fmt.Errorf("read outbox: %w", err)
	}
	for _, o := range open {
		limits[o.Queue] = streams.MinID(limits[o.Queue], o.AfterID)
	}
	now, err := j.o.Redis.Now(ctx)
	if err != nil {
		return err
	}
	old := streams.IDAt(now.Add(-j.o.Grace))
	total, err := j.o.Redis.Trim(ctx, protocol.StreamResult, protocol.GroupOrchestrators, "")
	note(err)
	for q, bound := range bounds {
		limit := streams.MinID(old, limits[q])
		n, err := j.o.Redis.TrimBefore(ctx, protocol.TaskStream(q), streams.MinID(bound, limit))
		note(err)
		total += n
		n, err = j.o.Redis.DropAcknowledged(ctx, protocol.TaskStream(q), protocol.GroupWorkers, streams.MinID(delivered[q], limit), maxHeldBack)
		note(err)
		total += n
	}
	j.trimmed.Add(float64(total))
	return errs
}
