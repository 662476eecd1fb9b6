// Package heartbeat takes the signs of life of workers: it records what runs
// and how far it is, and tells which executions do not count any more.
package heartbeat

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/tenancy"
	"github.com/penstock-dev/penstock/protocol"
)

// Options are the settings of a Stage.
type Options struct {
	Store *store.Store
	// Interval is the time in which a task gets at most one event.
	Interval time.Duration
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Stage answers heartbeats. It is safe for concurrent use.
type Stage struct {
	o         Options
	beats     prometheus.Counter
	calledOff *prometheus.CounterVec
}

// MaxTasks is the most tasks of one heartbeat.
const MaxTasks = 10_000

const (
	// chunk is how many tasks one transaction looks at.
	chunk = 500
	// pruneInterval is how often workers that are long gone are forgotten.
	pruneInterval = 10 * time.Minute
)

// New makes a Stage.
func New(o Options) *Stage {
	s := &Stage{
		o:     o,
		beats: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_worker_heartbeats_total", Help: "Heartbeats of workers."}),
		calledOff: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_executions_called_off_total", Help: "Executions that their workers were told to end, by reason.",
		}, []string{"reason"}),
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.beats, s.calledOff)
	}
	return s
}

// Run forgets workers that are long gone until ctx ends.
func (s *Stage) Run(ctx context.Context) error {
	for {
		if _, err := s.o.Store.PruneWorkers(ctx); err != nil && ctx.Err() == nil {
			s.o.Log.Warn("workers that are gone are not forgotten yet", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pruneInterval):
		}
	}
}

// Worker is what a worker says about itself.
type Worker struct {
	ID, Host, Version string
	PID               int32
	Queues            []string
	// Running and Stuck count handlers.
	Concurrency, Running, Stuck int32
	// Interval is the time between two of its heartbeats; at least 1 ms.
	Interval time.Duration
}

// Running is one execution that a worker has under way.
type Running struct {
	protocol.Pair
	// Progress is what its handler reported last, see protocol.CheckProgress;
	// nil: nothing new.
	Progress json.RawMessage
}

// Answer says what the worker is to do.
type Answer struct {
	// Cancelled are executions of cancelled tasks, Superseded those that another
	// delivery has replaced, or whose task has ended.
	Cancelled, Superseded []protocol.Pair
	// Unclaimed are executions of which nothing was recorded, because their claim
	// has not been applied yet.
	Unclaimed []protocol.Pair
	// Drain: the worker is to finish what it runs and stop.
	Drain bool
}

// Beat records a heartbeat, of at most MaxTasks tasks. The error is Postgres'; what was
// recorded before it stays, and the same call may be repeated.
func (s *Stage) Beat(ctx context.Context, w *Worker, tasks []Running) (Answer, error) {
	s.beats.Inc()
	byID := make(map[protocol.ID][]Running, len(tasks))
	for _, r := range tasks { // one worker may hold two deliveries of a task
		byID[r.ID] = append(byID[r.ID], r)
	}
	ids := make([]protocol.ID, 0, len(byID))
	for id := range byID {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b protocol.ID) int { return bytes.Compare(a[:], b[:]) })
	var out Answer
	for first := true; first || len(ids) > 0; first = false {
		n := min(len(ids), chunk)
		var a Answer
		err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) (err error) {
			a = Answer{}
			if first {
				if a.Drain, err = q.SeeWorker(ctx, dbsqlc.SeeWorkerParams{
					ID: w.ID, Host: w.Host, Pid: w.PID, Version: w.Version, Queues: w.Queues, Concurrency: w.Concurrency,
					Running: w.Running, Stuck: w.Stuck, IntervalMs: w.Interval.Milliseconds(),
				}); err != nil {
					return fmt.Errorf("record worker %s: %w", w.ID, err)
				}
			}
			if n == 0 {
				return nil
			}
			return s.record(ctx, q, w.ID, ids[:n], byID, &a)
		})
		if err != nil {
			return out, err
		}
		out.Drain = out.Drain || a.Drain
		out.Cancelled, out.Superseded = append(out.Cancelled, a.Cancelled...), append(out.Superseded, a.Superseded...)
		out.Unclaimed = append(out.Unclaimed, a.Unclaimed...)
		ids = ids[n:]
	}
	s.calledOff.WithLabelValues("cancelled").Add(float64(len(out.Cancelled)))
	s.calledOff.WithLabelValues("superseded").Add(float64(len(out.Superseded)))
	return out, nil
}

// Leave forgets a worker that has stopped.
func (s *Stage) Leave(ctx context.Context, workerID string) error {
	if err := s.o.Store.RemoveWorker(ctx, workerID); err != nil {
		return fmt.Errorf("forget worker %s: %w", workerID, err)
	}
	return nil
}

// record looks at some tasks, in the order of their ids, under lock.
func (s *Stage) record(ctx context.Context, q *dbsqlc.Queries, workerID string, ids []protocol.ID, byID map[protocol.ID][]Running, a *Answer) error {
	rows, err := q.LockHeartbeats(ctx, pgid.Slice(ids))
	if err != nil {
		return fmt.Errorf("lock %d running tasks: %w", len(ids), err)
	}
	last, foreign := make(map[protocol.ID]time.Time, len(rows)), make(map[protocol.ID]bool)
	for _, r := range rows {
		last[protocol.ID(r.ID)] = r.HeartbeatAt.Time
		foreign[protocol.ID(r.ID)] = !tenancy.May(ctx, r.Tenant)
	}
	var p dbsqlc.SaveHeartbeatsParams
	err = s.o.Store.DecideTx(ctx, q, ids, func(now time.Time, locked map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
		p.Now = now
		for _, id := range ids {
			t := locked[id]
			if foreign[id] {
				t = nil
			}
			for _, r := range byID[id] {
				switch judge(t, r.Delivery) {
				case cancelled:
					a.Cancelled = append(a.Cancelled, r.Pair)
				case unclaimed:
					a.Unclaimed = append(a.Unclaimed, r.Pair)
				case superseded:
					a.Superseded = append(a.Superseded, r.Pair)
				case alive:
					if s.window(now) > s.window(last[id]) {
						changed, events = append(changed, t), append(events, event(t, r, workerID, now))
					}
					last[id] = now
					p.Ids, p.Progress = append(p.Ids, pgid.ID(id)), append(p.Progress, string(r.Progress))
				}
			}
		}
		return changed, events
	})
	if err != nil || len(p.Ids) == 0 {
		return err
	}
	if err := q.SaveHeartbeats(ctx, p); err != nil {
		return fmt.Errorf("record heartbeats of %d tasks: %w", len(p.Ids), err)
	}
	return nil
}

// window numbers the intervals of time, in each of which a task gets at most
// one event: its first heartbeat. Counting from the last event instead would
// drop every other one, as heartbeats never come exactly an interval apart.
func (s *Stage) window(at time.Time) int64 {
	if at.IsZero() {
		return -1
	}
	return at.UnixNano() / max(int64(s.o.Interval), 1)
}

func event(t *store.Locked, r Running, workerID string, now time.Time) *protocol.Event {
	e := t.Note(protocol.EventHeartbeat, protocol.Env{Now: now}, protocol.ActorWorker, "", nil)
	e.Data = nil
	if r.Progress != nil {
		e.Type, e.Data = protocol.EventProgress, r.Progress
	}
	e.WorkerID = workerID
	return e
}

// verdict is what becomes of an execution.
type verdict int

const (
	alive      verdict = iota // the task's current execution
	unclaimed                 // its claim is under way
	cancelled                 // its task was cancelled
	superseded                // its outcome would be refused
)

// judge compares an execution with its task; nil if there is none.
func judge(t *store.Locked, delivery int64) verdict {
	switch {
	case t == nil:
		return superseded
	case t.State == protocol.StateCancelled:
		return cancelled
	case t.Delivery > delivery:
		return superseded
	case t.Delivery < delivery: // Postgres went back: it will catch up
		return unclaimed
	}
	switch t.State {
	case protocol.StateRunning:
		return alive
	case protocol.StateSucceeded, protocol.StateDLQPending, protocol.StateDLQRecorded, protocol.StateFailed:
		return superseded
	}
	return unclaimed
}
