package metrics

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/protocol"
)

// Tasks counts what becomes of tasks and their executions. Each orchestrator
// counts what it has committed itself, so sums over all of them are right.
type Tasks struct {
	labels                    *Labels
	enqueued                  *prometheus.CounterVec
	started, retried          *prometheus.CounterVec
	ended, finished, failures *prometheus.CounterVec
	latency, run              *prometheus.HistogramVec
}

// What became of a request for a task, in the label outcome of
// penstock_tasks_enqueued_total.
const (
	Created   = "created"
	Hit       = "idempotent_hit"
	Duplicate = "duplicate"
	Invalid   = "invalid"
	Failed    = "error"
	Requeued  = "requeued" // made of a dead letter, or along with one
)

// How an execution ended, in the label outcome of penstock_executions_finished_total.
const (
	endSucceeded   = "succeeded"
	endFailed      = "failed"
	endSnoozed     = "snoozed"
	endApproval    = "approval_needed"
	endInterrupted = "interrupted"
	endCancelled   = "cancelled"
)

// NewTasks makes Tasks that are shown by r, if that is not nil. Have Saved be told
// of what a store commits.
func NewTasks(l *Labels, r prometheus.Registerer) *Tasks {
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"queue", "type"}, more...))
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200},
		}, []string{"queue", "type"})
	}
	t := &Tasks{
		labels:   l,
		enqueued: counter("penstock_tasks_enqueued_total", "Requests for tasks, by what became of them.", "outcome"),
		started:  counter("penstock_executions_started_total", "Executions that workers started."),
		ended:    counter("penstock_executions_finished_total", "Executions that have ended, by how.", "outcome"),
		retried:  counter("penstock_tasks_retried_total", "Failures after which a task is tried again."),
		failures: counter("penstock_tasks_failed_total", "Tasks that failed for good and become dead letters, by the error code that says why.", "code"),
		finished: counter("penstock_tasks_finished_total", "Tasks that have reached a terminal state, by which.", "state"),
		latency:  histogram("penstock_start_latency_seconds", "Time from when a task was due, or enqueued, to the start of its execution."),
		run:      histogram("penstock_run_time_seconds", "Time from the start of an execution to its end, of those that their worker ended."),
	}
	if r != nil {
		r.MustRegister(t.enqueued, t.started, t.ended, t.retried, t.failures, t.finished, t.latency, t.run)
	}
	return t
}

// Enqueued counts a request for a task, once what became of it has committed. A
// request that names no queue is for the default one.
func (t *Tasks) Enqueued(queue, typ, outcome string) {
	queue, typ = t.labels.Of(cmp.Or(queue, protocol.DefaultQueue), typ)
	t.enqueued.WithLabelValues(queue, typ, outcome).Inc()
}

// Saved counts what one transaction has committed; see store.OnSaved.
func (t *Tasks) Saved(changed []*store.Locked, events []*protocol.Event) {
	byID := make(map[protocol.ID]*store.Locked, len(changed))
	for _, l := range changed {
		byID[l.ID] = l
	}
	for _, e := range events {
		switch l := byID[e.TaskID]; {
		case l == nil:
		case e.Type == protocol.EventDLQRequeued: // its new task is like it
			t.Enqueued(l.Queue, l.Type, Requeued)
		case e.From != e.To:
			t.count(l, e)
		}
	}
}

// count counts a state change.
func (t *Tasks) count(l *store.Locked, e *protocol.Event) {
	queue, typ := t.labels.Of(l.Queue, l.Type)
	if e.To == protocol.StateRunning {
		t.started.WithLabelValues(queue, typ).Inc()
		began := e.Told().StartedAt
		if began.IsZero() {
			began = l.StartedAt
		}
		t.latency.WithLabelValues(queue, typ).Observe(max(began.Sub(l.ReadySince()), 0).Seconds())
	}
	if e.From == protocol.StateRunning {
		t.ended.WithLabelValues(queue, typ, endOf(e)).Inc()
		if e.Actor == protocol.ActorWorker && e.To != protocol.StateInterrupted {
			t.run.WithLabelValues(queue, typ).Observe(runTime(l, e).Seconds())
		}
	}
	switch {
	case e.To == protocol.StateRetrying && e.Code != "":
		t.retried.WithLabelValues(queue, typ).Inc()
	case e.To == protocol.StateDLQPending:
		t.failures.WithLabelValues(queue, typ, codeOf(e.Code)).Inc()
	case e.To.Terminal():
		t.finished.WithLabelValues(queue, typ, string(e.To)).Inc()
	}
}

// endOf tells how the execution ended that an event is the end of.
func endOf(e *protocol.Event) string {
	switch e.To {
	case protocol.StateSucceeded:
		return endSucceeded
	case protocol.StateWaitingApproval:
		return endApproval
	case protocol.StateInterrupted:
		return endInterrupted
	case protocol.StateCancelled:
		return endCancelled
	case protocol.StateRetrying:
		if e.Code == "" {
			return endSnoozed
		}
	}
	return endFailed
}

// runTime is how long the execution took that an event is the end of: as its worker
// measured it where it said so, else as it was recorded.
func runTime(l *store.Locked, e *protocol.Event) time.Duration {
	ran := e.Told()
	if ran.FinishedAt.IsZero() {
		ran.StartedAt, ran.FinishedAt = l.StartedAt, e.OccurredAt
	}
	return max(ran.FinishedAt.Sub(ran.StartedAt), 0)
}

// codeOf bounds what the label code may be: a worker could report any.
func codeOf(c protocol.Code) string {
	switch c {
	case protocol.CodeTimeout, protocol.CodeExecutionFailed, protocol.CodeRetryExhausted, protocol.CodeInputInvalid, protocol.CodeUnknownType, protocol.CodeWorkerLost:
		return string(c)
	}
	return Other
}
