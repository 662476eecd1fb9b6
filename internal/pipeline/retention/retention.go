// Package retention keeps Redis and Postgres tidy without ever touching live
// work: it trims acknowledged stream entries, removes consumers that are long
// gone, makes partitions ahead of time, and removes tasks and idempotency keys
// whose time is over. What may be removed from the record, the database itself
// decides (penstock_removable in the first migration): this package only asks for it.
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
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
	// Consumers is how long a consumer that holds nothing may do nothing before
	// it is removed from its group; 0: for ever.
	Consumers time.Duration
	// Tasks is how long finished tasks and their events are kept after the last
	// thing that happened to them; 0: for ever. The database takes anything less
	// than 48 hours for 48 hours.
	Tasks time.Duration
	// Keys is how long an idempotency key holds after its task has finished; 0:
	// as long as the task is kept. A task is kept as long as its key holds.
	Keys time.Duration
	// Effects is how long side effects are kept after the last thing that happened
	// to them, unless a task can still use them; 0: as Tasks.
	Effects time.Duration
	// Queues lists the queues whose streams need care.
	Queues  func(ctx context.Context) ([]string, error)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Janitor tidies. Any number may run at once.
type Janitor struct {
	o         Options
	trimmed   prometheus.Counter
	removed   *prometheus.CounterVec
	failed    *prometheus.CounterVec
	postponed prometheus.Counter
}

// New makes a Janitor.
func New(o Options) *Janitor {
	j := &Janitor{
		o: o,
		trimmed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_entries_trimmed_total", Help: "Acknowledged stream entries removed.",
		}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_retention_removed_total", Help: "What retention removed: tasks (with their events), partitions (whose tasks are counted too), idempotency_keys, effects, consumers.",
		}, []string{"what"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_retention_failures_total", Help: "Rounds of a step of retention that failed. Each is tried again.",
		}, []string{"step"}),
		postponed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_retention_postponed_total", Help: "Removals put off because the tables were in use or another orchestrator was at it.",
		}),
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(j.trimmed, j.removed, j.failed, j.postponed)
	}
	return j
}

// step is one thing that the janitor does again and again, whatever becomes of
// the others.
type step struct {
	name  string
	every time.Duration
	run   func(ctx context.Context) error
}

const (
	// partitionInterval is how often partitions are made; they are made two
	// days ahead.
	partitionInterval = time.Hour
	recordInterval    = 10 * time.Minute
	consumerInterval  = 10 * time.Minute
	// failurePause is the longest pause after a failure.
	failurePause = time.Minute
)

func (j *Janitor) steps() []step {
	return []step{
		{"trim", j.o.Trim, j.TrimStreams},
		{"partitions", partitionInterval, j.Partitions},
		{"instances", partitionInterval, j.o.Store.PruneInstances},
		{"consumers", consumerInterval, j.DropConsumers},
		{"record", recordInterval, func(ctx context.Context) error {
			// Keys first: they keep their tasks.
			return errors.Join(j.ExpireKeys(ctx), j.RemoveEffects(ctx), j.RemoveTasks(ctx))
		}},
	}
}

// Run tidies until ctx ends.
func (j *Janitor) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, s := range j.steps() {
		wg.Go(func() { j.repeat(ctx, s) })
	}
	wg.Wait()
	return nil
}

func (j *Janitor) repeat(ctx context.Context, s step) {
	for {
		err := s.run(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := s.every
		if err != nil {
			j.failed.WithLabelValues(s.name).Inc()
			j.o.Log.Warn("retention: a step failed; trying again", "step", s.name, "error", err)
			pause = min(pause, failurePause)
		}
		if sleep(ctx, jitter(pause)) != nil {
			return
		}
	}
}

// jitter spreads replicas that were started together: d, give or take a tenth.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + time.Duration(rand.Int64N(max(int64(d/5), 1)))
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// count notes what was removed.
func (j *Janitor) count(what string, n int64) {
	if n > 0 {
		j.removed.WithLabelValues(what).Add(float64(n))
	}
}

// partitionDays is how many days a partition has, so that there are about 20 of
// each table, whatever retention.tasks is: what is looked up by id, or listed, costs
// as much as there are partitions. What is kept for ever (0) gets two a year.
func partitionDays(keep time.Duration) int {
	const kept = 14
	if keep <= 0 {
		return 182
	}
	return int(min((keep+kept*24*time.Hour-1)/(kept*24*time.Hour), 400))
}

// Partitions makes the coming days' partitions.
func (j *Janitor) Partitions(ctx context.Context) error {
	if err := j.o.Store.EnsurePartitions(ctx, partitionDays(j.o.Tasks)); err != nil {
		return fmt.Errorf("make partitions (until they are there, the default partition takes the rows): %w", err)
	}
	return nil
}

// DropConsumers removes consumers that hold nothing and have long done nothing.
func (j *Janitor) DropConsumers(ctx context.Context) error {
	if j.o.Consumers <= 0 {
		return nil
	}
	queues, err := j.o.Queues(ctx)
	if err != nil {
		return fmt.Errorf("list queues: %w", err)
	}
	groups := map[string]string{protocol.StreamResult: protocol.GroupOrchestrators, protocol.StreamDLQ: protocol.GroupOrchestrators}
	for _, q := range queues {
		groups[protocol.TaskStream(q)] = protocol.GroupWorkers
	}
	var errs error
	for stream, group := range groups {
		n, err := j.o.Redis.DropIdleConsumers(ctx, stream, group, j.o.Consumers)
		errs = errors.Join(errs, err)
		if j.count("consumers", int64(n)); n > 0 {
			j.o.Log.Info("consumers that had long done nothing removed (retention.consumers)", "stream", stream, "consumers", n)
		}
	}
	return errs
}
