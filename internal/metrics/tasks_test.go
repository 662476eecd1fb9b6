package metrics

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/protocol"
)

// What is committed is counted by queue and type; how late an execution starts is
// measured from when its task was due, and how long it runs by its worker's clock.
func TestSaved(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	tasks := NewTasks(NewLabels([]string{"default", "mail"}, []string{"a", "b"}), r)
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	after := func(s float64) time.Time { return created.Add(time.Duration(s * float64(time.Second))) }
	locked := func(n byte, queue, typ string) *store.Locked {
		return &store.Locked{Task: protocol.Task{ID: protocol.ID{n}, CreatedAt: created}, Queue: queue, Type: typ}
	}
	move := func(l *store.Locked, from, to protocol.State, code protocol.Code, at time.Time, data string) *protocol.Event {
		types := map[protocol.State]protocol.EventType{protocol.StateRunning: protocol.EventClaimed, protocol.StateSucceeded: protocol.EventSucceeded}
		return &protocol.Event{TaskID: l.ID, Type: types[to], From: from, To: to, Code: code, Actor: protocol.ActorWorker, OccurredAt: at, Data: []byte(data)}
	}
	good := locked(1, "mail", "a") // started after 1 s and ran for 2, by its worker; recorded late
	good.StartedAt, good.FinishedAt = after(7), after(9)
	late := locked(2, "default", "b") // was due after an hour, started 3 s later, failed after 4 s
	late.ReadyAt, late.StartedAt = after(3600), after(3603)
	odd := locked(3, "elsewhere", "mine") // no labels of its own; by a clock ahead of Postgres'
	odd.StartedAt = after(-5)
	dead := locked(4, "default", "a")
	dead.StartedAt = after(0)
	tasks.Saved([]*store.Locked{good, late, odd, dead}, []*protocol.Event{
		move(good, protocol.StateQueued, protocol.StateRunning, "", after(9), `{"started_at":"2026-01-02T03:04:06Z"}`),
		move(good, protocol.StateRunning, protocol.StateSucceeded, "", after(9), `{"started_at":"2026-01-02T03:04:06Z","finished_at":"2026-01-02T03:04:08Z","duration_ms":2000}`),
		move(late, protocol.StateQueued, protocol.StateRunning, "", after(3603), ""),
		move(late, protocol.StateRunning, protocol.StateRetrying, protocol.CodeExecutionFailed, after(3607), `{"delay_source":"policy"}`),
		move(odd, protocol.StateRetrying, protocol.StateRunning, "", after(1), ""),
		move(odd, protocol.StateRunning, protocol.StateRetrying, "", after(1), ""), // snoozed
		move(dead, protocol.StateRunning, protocol.StateDLQPending, "MY_CODE", after(1), ""),
		move(dead, protocol.StateDLQPending, protocol.StateDLQRecorded, "MY_CODE", after(1), ""),
		move(dead, protocol.StateDLQRecorded, protocol.StateFailed, "MY_CODE", after(1), ""),
		{TaskID: protocol.ID{9}, From: protocol.StateQueued, To: protocol.StateRunning}, // of a task that was not changed
		{TaskID: dead.ID, Type: protocol.EventDLQRequeued, From: protocol.StateFailed, To: protocol.StateFailed},
	})
	tasks.Enqueued("", "a", Created)
	tasks.Enqueued("nowhere", "b", Invalid)
	want := map[string]float64{
		"penstock_tasks_enqueued_total created default a":        1,
		"penstock_tasks_enqueued_total invalid other b":          1,
		"penstock_tasks_enqueued_total requeued default a":       1,
		"penstock_executions_started_total default b":            1,
		"penstock_executions_started_total mail a":               1,
		"penstock_executions_started_total other other":          1,
		"penstock_executions_finished_total failed default a":    1,
		"penstock_executions_finished_total failed default b":    1,
		"penstock_executions_finished_total snoozed other other": 1,
		"penstock_executions_finished_total succeeded mail a":    1,
		"penstock_tasks_retried_total default b":                 1,
		"penstock_tasks_failed_total other default a":            1,
		"penstock_tasks_finished_total default failed a":         1,
		"penstock_tasks_finished_total mail succeeded a":         1,
		"penstock_start_latency_seconds mail a":                  1,
		"penstock_start_latency_seconds default b":               3,
		"penstock_start_latency_seconds other other":             0,
		"penstock_run_time_seconds mail a":                       2,
		"penstock_run_time_seconds default b":                    4,
		"penstock_run_time_seconds default a":                    1,
		"penstock_run_time_seconds other other":                  6,
	}
	if got := values(t, r); !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// values are those of all series by name and values of labels, of histograms with
// a single observation its value.
func values(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label { // in the order of their names
				name += " " + l.GetValue()
			}
			switch h := m.Histogram; {
			case h == nil:
				out[name] = m.Counter.GetValue()
			case h.GetSampleCount() == 1:
				out[name] = h.GetSampleSum()
			default:
				t.Errorf("%s has %d observations, want one", name, h.GetSampleCount())
			}
		}
	}
	return out
}

// Whatever callers name, the number of series has a bound.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	var queues, types []string
	for i := range 2 * MaxQueues {
		queues = append(queues, "q"+strings.Repeat("x", i))
	}
	for i := range 300 {
		types = append(types, "t"+strings.Repeat("x", i))
	}
	l := NewLabels(append(queues, queues...), types)
	seen := map[pair]bool{}
	for range 2 {
		for _, q := range append(queues, "stranger") {
			for _, typ := range append(types, "stranger") {
				q, typ := l.Of(q, typ)
				seen[pair{q, typ}] = true
			}
		}
	}
	if most := maxPairs + MaxQueues + 1; len(seen) != most || len(l.Queues()) != MaxQueues {
		t.Errorf("%d pairs of labels, %d queues; want %d and %d", len(seen), len(l.Queues()), most, MaxQueues)
	}
	if q, typ := (*Labels)(nil).Of("default", "a"); q != Other || typ != Other {
		t.Errorf("without names: %s %s", q, typ)
	}
}
