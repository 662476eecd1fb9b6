package metrics_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/metrics"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// What waits is counted wherever it waits, and its age is that of what has been due
// longest.
func TestQueues(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Dispatch.Window = 4
	r := testkit.NewRig(t, s, cfg)
	r.StartDispatch(t)
	reg := prometheus.NewRegistry()
	q := metrics.NewQueues(metrics.QueuesOptions{
		Store: r.Store, Redis: r.Client, Labels: metrics.NewLabels([]string{"default", "empty"}, nil), Every: time.Hour, Log: testkit.Log(t), Metrics: reg,
	})
	look := func(depth float64, least, most time.Duration) {
		t.Helper()
		if err := q.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := gauges(t, reg)
		age := time.Duration(got["penstock_queue_oldest_age_seconds default"] * float64(time.Second))
		if got["penstock_queue_depth default"] != depth || age < least || age > most || len(got) != 4 ||
			got["penstock_queue_depth empty"] != 0 || got["penstock_queue_oldest_age_seconds empty"] != 0 {
			t.Errorf("%v, want depth %g and an age of %s to %s", got, depth, least, most)
		}
	}
	if got := gauges(t, reg); len(got) != 0 {
		t.Errorf("before the first look: %v", got)
	}
	look(0, 0, 0)
	ids := r.Enqueue(t, testkit.Requests(2, "t")...)
	hours := func(id protocol.ID, column string, n int) {
		t.Helper()
		if _, err := r.DB.Exec(t.Context(), fmt.Sprintf("UPDATE tasks SET %s = now() - %d * interval '1 hour' WHERE id = $1", column, n), id[:]); err != nil {
			t.Fatal(err)
		}
	}
	hours(ids[0], "created_at", 3) // its entry is younger
	hours(ids[1], "created_at", 9) // not the next
	look(2, 3*time.Hour, 4*time.Hour)
	hours(ids[0], "ready_at", 1) // it was due later than it was created
	look(2, time.Hour, 2*time.Hour)
	more := r.Enqueue(t, testkit.Requests(7, "t")...)                   // too many for the stream
	testkit.Eventually(t, "the window is full", func() (bool, string) { // one on its way into the stream is in neither
		n, err := r.Raw.XLen(t.Context(), protocol.StreamTask).Result()
		return n == 4, fmt.Sprint(n, err)
	})
	look(9, time.Hour, 2*time.Hour)
	waiting := r.Count(t, "SELECT count(*)::int FROM tasks WHERE due_at IS NOT NULL")
	if waiting == 0 {
		t.Error("all are in the stream: the test shows nothing")
	}
	hours(more[len(more)-1], "due_at", 6)
	look(9, 6*time.Hour, 7*time.Hour)
	r.Fetch(t, "hand", 2)
	look(7, 6*time.Hour, 7*time.Hour)
	if err := r.Client.Close(); err != nil {
		t.Fatal(err)
	}
	if err := q.Look(t.Context()); err == nil {
		t.Error("without Redis there is no error")
	}
	if got := gauges(t, reg); len(got) != 4 {
		t.Errorf("after a look that failed: %v, want the last one's", got)
	}
}

// However much waits, only so much is counted.
func TestQueueDepthIsBounded(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	if _, err := r.DB.Exec(t.Context(), `INSERT INTO tasks (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, idempotency_scope, given, trace_id, payload, due_at)
		SELECT gen_random_uuid(), 't', 'default', 't', 'pending', 3, 'now', 1000, 't', 0, 't', '1', now() - interval '1 minute' FROM generate_series(1, $1::int)`, metrics.MaxCounted+500); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	q := metrics.NewQueues(metrics.QueuesOptions{Store: r.Store, Redis: r.Client, Labels: metrics.NewLabels([]string{"default"}, nil), Log: testkit.Log(t), Metrics: reg})
	if err := q.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := gauges(t, reg); got["penstock_queue_depth default"] != metrics.MaxCounted || got["penstock_queue_oldest_age_seconds default"] < 60 {
		t.Errorf("%v, want a depth of %d", got, metrics.MaxCounted)
	}
}

// A measurement that is too old is not shown: an alert must not rest on it.
func TestQueuesAreForgotten(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	reg := prometheus.NewRegistry()
	q := metrics.NewQueues(metrics.QueuesOptions{Store: r.Store, Redis: r.Client, Labels: metrics.NewLabels([]string{"default"}, nil), Every: time.Millisecond, Log: testkit.Log(t), Metrics: reg})
	if err := q.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "nothing is shown", func() (bool, string) { got := gauges(t, reg); return len(got) == 0, fmt.Sprint(got) })
}

// gauges are all values, by name and label.
func gauges(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			out[f.GetName()+" "+m.Label[0].GetValue()] = m.Gauge.GetValue()
		}
	}
	return out
}
