// Package retention keeps Redis and Postgres tidy without ever touching live
// work: it trims acknowledged stream entries, makes partitions ahead of time,
// and forgets dead orchestrators.
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Options are the settings of a Janitor.
type Options struct {
	Store *store.Store
	Redis *streams.Client
	// Trim is the time between trims; Grace is how long acknowledged task
	// entries are kept.
	Trim, Grace time.Duration
	// Queues lists the queues whose streams are trimmed.
	Queues  func(ctx context.Context) ([]string, error)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Janitor tidies. Any number may run at once.
type Janitor struct {
	o       Options
	trimmed prometheus.Counter
}

// New makes a Janitor.
func New(o Options) *Janitor {
	j := &Janitor{o: o, trimmed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "penstock_entries_trimmed_total", Help: "Acknowledged stream entries removed.",
	})}
	if o.Metrics != nil {
		o.Metrics.MustRegister(j.trimmed)
	}
	return j
}

// partitionInterval is how often partitions are made; they are made a week
// ahead.
const partitionInterval = time.Hour

// Run tidies until ctx ends.
func (j *Janitor) Run(ctx context.Context) error {
	tick := time.NewTicker(j.o.Trim)
	defer tick.Stop()
	var partitions time.Time
	for {
		if time.Since(partitions) > partitionInterval {
			if err := j.Partitions(ctx); err == nil {
				partitions = time.Now()
			} else if ctx.Err() == nil {
				j.o.Log.Warn("partitions not made; the default partition takes the rows", "error", err)
				partitions = time.Now().Add(time.Minute - partitionInterval)
			}
		}
		if err := j.TrimStreams(ctx); err != nil && ctx.Err() == nil {
			j.o.Log.Warn("streams not trimmed; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Partitions makes the coming days' partitions and forgets instances that are
// long dead.
func (j *Janitor) Partitions(ctx context.Context) error {
	if _, err := j.o.Store.EnsurePartitions(ctx); err != nil {
		return fmt.Errorf("make partitions: %w", err)
	}
	return j.o.Store.PruneInstances(ctx)
}

// maxHeldBack is how many acknowledged entries of a task stream one old pending
// entry may keep from being trimmed.
const maxHeldBack = 10_000

// TrimStreams removes acknowledged entries from stream:result, and from the
// task streams those older than the grace. Nothing from the start of an open
// dispatch on is removed, so that its entries can always be looked up. For that
// the order of reading matters: what has been delivered when Redis is read was
// added for a dispatch that Postgres shows afterwards, unless it was resolved.
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
