package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

const (
	// Interval is how often queues are measured, whoever asks for metrics how often.
	Interval = 15 * time.Second
	// MaxCounted is the most tasks of a queue that are counted in Postgres.
	MaxCounted = 10_000
	// lookTimeout bounds one measurement.
	lookTimeout = 10 * time.Second
	// share is the part of the time that measurements may take, as its reciprocal.
	share = 20
	// outdated is how many intervals a measurement is shown.
	outdated = 4
)

// QueuesOptions are the settings of a Queues.
type QueuesOptions struct {
	Store  *store.Store
	Redis  *streams.Client
	Labels *Labels
	// Every is the time between two measurements; 0: Interval.
	Every   time.Duration
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Queues measures the queues that have a label: how much waits to be fetched by a
// worker, and for how long. That costs a statement for all of them together, and
// two commands for each, whatever waits. It comes from the stores, so it is the
// same at every orchestrator.
type Queues struct {
	o          QueuesOptions
	depth, age *prometheus.Desc

	mu    sync.Mutex
	at    time.Time // of the last measurement
	waits []wait
}

// wait is what waits in one queue.
type wait struct {
	queue string
	depth int64
	age   time.Duration // of what waits longest
}

// NewQueues makes a Queues; Run works until its context ends.
func NewQueues(o QueuesOptions) *Queues {
	if o.Every == 0 {
		o.Every = Interval
	}
	q := &Queues{
		o: o,
		depth: prometheus.NewDesc("penstock_queue_depth",
			fmt.Sprintf("Tasks that are due and not fetched by a worker; of those that wait in Postgres at most %d are counted. The same at every orchestrator.", MaxCounted), []string{"queue"}, nil),
		age: prometheus.NewDesc("penstock_queue_oldest_age_seconds",
			"How long the task has been due that is due longest and not fetched by a worker; 0 if none is. The same at every orchestrator.", []string{"queue"}, nil),
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(q)
	}
	return q
}

// Describe implements prometheus.Collector.
func (q *Queues) Describe(ch chan<- *prometheus.Desc) { ch <- q.depth; ch <- q.age }

// Collect implements prometheus.Collector. It asks nobody; what is too old to be
// true is left out.
func (q *Queues) Collect(ch chan<- prometheus.Metric) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.at) > outdated*q.o.Every {
		return
	}
	for _, w := range q.waits {
		ch <- prometheus.MustNewConstMetric(q.depth, prometheus.GaugeValue, float64(w.depth), w.queue)
		ch <- prometheus.MustNewConstMetric(q.age, prometheus.GaugeValue, w.age.Seconds(), w.queue)
	}
}

// Run measures until ctx ends.
func (q *Queues) Run(ctx context.Context) error {
	failing := false
	for {
		began := time.Now()
		err := q.Look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			q.o.Log.Warn("queues are not measured for the metrics; trying again", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(q.o.Every, share*time.Since(began))):
		}
	}
}

// Look measures once. After an error the last measurement stands.
func (q *Queues) Look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	p := dbsqlc.QueueWaitsParams{MaxRows: MaxCounted, Queues: q.o.Labels.Queues()}
	waits := make([]wait, len(p.Queues))
	entered := make([]time.Duration, len(p.Queues)) // ago, of each stream's next entry
	for i, queue := range p.Queues {
		n, next, err := q.o.Redis.Undelivered(ctx, protocol.TaskStream(queue), protocol.GroupWorkers)
		if err != nil {
			return fmt.Errorf("queue %s: %w", queue, err)
		}
		waits[i] = wait{queue: queue, depth: n}
		var task protocol.ID
		if n > 0 {
			entered[i] = max(time.Since(streams.TimeOf(next.ID)), 0)
			if pair, ok := protocol.PairOf(next.Values); ok {
				task = pair.ID
			}
		}
		p.Nexts = append(p.Nexts, pgid.ID(task))
	}
	var rows []*dbsqlc.QueueWaitsRow
	if err := q.o.Store.Tx(ctx, func(tx *dbsqlc.Queries) (err error) {
		if err = tx.ReadInOrder(ctx); err == nil {
			rows, err = tx.QueueWaits(ctx, p)
		}
		return err
	}); err != nil {
		return fmt.Errorf("ask what waits in %d queues: %w", len(waits), err)
	}
	byQueue := make(map[string]*dbsqlc.QueueWaitsRow, len(rows))
	for _, r := range rows {
		byQueue[r.Queue] = r
	}
	for i := range waits {
		w := &waits[i]
		r := byQueue[w.queue]
		if r == nil {
			return fmt.Errorf("ask what waits: no answer about queue %s", w.queue)
		}
		w.depth += r.Due
		w.age = max(seconds(r.DueSeconds), seconds(r.NextSeconds))
		if r.NextSeconds < 0 { // its task does not wait any more, but those behind it may
			w.age = max(w.age, entered[i])
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.at, q.waits = time.Now(), waits
	return nil
}

func seconds(s float64) time.Duration { return max(time.Duration(s*float64(time.Second)), 0) }
