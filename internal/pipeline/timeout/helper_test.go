package timeout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

const (
	limit = 300 * time.Millisecond // start-to-close timeout
	grace = 400 * time.Millisecond
)

func short(s testkit.Stores) config.Orchestrator {
	cfg := s.Config()
	cfg.Recovery.TimeoutGrace = grace
	cfg.Recovery.VisibilityTimeout = time.Hour // nothing else ends an execution
	cfg.Recovery.ReconcileInterval = time.Hour
	return cfg
}

// rig runs everything that moves tasks but the backstop, the reclaimer and the
// reconciler.
func rig(t *testing.T) *testkit.Rig {
	t.Helper()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, short(s))
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	r.Start(t, r.DeadLetter.Run)
	r.Start(t, r.DeadLetter.RunIngest)
	return r
}

// requests have the short timeout and the given max_retries; a retry comes soon.
func requests(n int, maxRetries int32) []*enqueue.Request {
	rs := testkit.Requests(n, "t")
	ms := int32(limit.Milliseconds())
	for _, r := range rs {
		r.TimeoutMS, r.MaxRetries = &ms, &maxRetries
		r.Policy = enqueue.OverrideAll(protocol.RetryPolicy{Strategy: protocol.StrategyFixed, BaseMS: 10, MaxBackoffMS: 10, JitterMaxMS: 5})
	}
	return rs
}

// claimed has a worker that says nothing more than that take n tasks.
func claimed(t *testing.T, r *testkit.Rig, consumer string, reqs ...*enqueue.Request) ([]protocol.ID, []testkit.Held) {
	t.Helper()
	ids := r.Enqueue(t, reqs...)
	hs := r.Fetch(t, consumer, len(reqs))
	for _, h := range hs {
		r.Report(t, h.Outcome(protocol.OutcomeClaimed))
	}
	r.WaitState(t, protocol.StateRunning, ids...)
	return ids, hs
}

// age makes running tasks have started long ago.
func age(t *testing.T, r *testkit.Rig, ids ...protocol.ID) {
	t.Helper()
	if _, err := r.DB.Exec(t.Context(), `WITH x AS (UPDATE tasks SET claimed_at = claimed_at - interval '1 hour', started_at = started_at - interval '1 hour' WHERE id = ANY($1::uuid[]))
		UPDATE event_log SET occurred_at = occurred_at - CASE type WHEN 'task.claimed' THEN interval '1 hour' ELSE '0' END,
			data = (data::jsonb - 'duration_ms' || jsonb_build_object('started_at', (data->>'started_at')::timestamptz - interval '1 hour'))::json
		WHERE task_id = ANY($1::uuid[]) AND data->>'started_at' IS NOT NULL`, pgid.Slice(ids)); err != nil {
		t.Fatal(err)
	}
}

func look(t *testing.T, r *testkit.Rig) (next time.Duration) {
	t.Helper()
	next, err := r.Timeout.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func succeed(h testkit.Held) *protocol.Outcome {
	o := h.Outcome(protocol.OutcomeSucceeded)
	o.Result = []byte("1")
	return o
}

// finish has a healthy worker do the next n executions.
func finish(t *testing.T, r *testkit.Rig, n int) []testkit.Held {
	t.Helper()
	hs := r.Fetch(t, "healthy", n)
	for _, h := range hs {
		r.Report(t, succeed(h))
	}
	r.Ack(t, hs...)
	return hs
}

func events(t *testing.T, r *testkit.Rig, id protocol.ID, want ...string) {
	t.Helper()
	if got := testkit.EventTypes(t, r.Stores, id); got != strings.Join(want, " ") {
		t.Errorf("task %s: events %q, want %q", id, got, strings.Join(want, " "))
	}
}

func pending(t *testing.T, r *testkit.Rig) int64 {
	t.Helper()
	i, err := r.Client.Info(t.Context(), protocol.StreamTask, protocol.GroupWorkers)
	if err != nil {
		t.Fatal(err)
	}
	return i.Pending
}

func settled(t *testing.T, r *testkit.Rig) {
	t.Helper()
	testkit.Eventually(t, "all outcomes are applied", func() (bool, string) {
		i, err := r.Client.Info(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators)
		return err == nil && i.Undelivered+i.Pending == 0, fmt.Sprintf("%+v, %v", i, err)
	})
}
