package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

const visibility = 600 * time.Millisecond

func short(s testkit.Stores) config.Orchestrator {
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout = visibility
	return cfg
}

// rig runs nothing but what applies outcomes: a test moves tasks by hand.
func rig(t *testing.T) *testkit.Rig {
	t.Helper()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, short(s))
	r.Start(t, r.Results.Run)
	return r
}

// dispatched stores a task that was dispatched and is nowhere in Redis.
func dispatched(t *testing.T, r *testkit.Rig) protocol.ID {
	t.Helper()
	id := protocol.ID(uuid.Must(uuid.NewV7()))
	if _, err := r.DB.Exec(t.Context(), `WITH x AS (INSERT INTO tasks (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms,
		idempotency_scope, given, trace_id, payload)
		VALUES ($1, 'default', 'default', 't', 'queued', 3, 'now', 60000, 'default', 0, 'x', '{}'))
		INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
		VALUES ($1, 1, 'task.created', 'queued', 1, 1, 'api', 'x', now())`, pgid.ID(id)); err != nil {
		t.Fatal(err)
	}
	return id
}

func open(t *testing.T, r *testkit.Rig, id protocol.ID) {
	t.Helper()
	if _, err := r.DB.Exec(t.Context(), "INSERT INTO dispatch_outbox (owner, queue, after_id, task_ids, deliveries) VALUES ($1, 'default', '0-0', $2, '{1}')",
		pgid.ID(r.Instance), []pgid.ID{pgid.ID(id)}); err != nil {
		t.Fatal(err)
	}
}

func exec(t *testing.T, r *testkit.Rig, sql string, id protocol.ID) {
	t.Helper()
	if _, err := r.DB.Exec(t.Context(), sql, pgid.ID(id)); err != nil {
		t.Fatal(err)
	}
}

func add(t *testing.T, r *testkit.Rig, id protocol.ID, delivery int64) {
	t.Helper()
	e := &protocol.TaskEntry{
		ID: id, TaskID: id.String(), Type: "t", Payload: []byte("{}"), Attempt: 1, Delivery: delivery, MaxRetries: 3, Timeout: time.Minute, EnqueuedAt: time.Now(),
	}
	if a := r.Client.Add(t.Context(), protocol.StreamTask, [][]any{e.Values()})[0]; a.Err != nil {
		t.Fatal(a.Err)
	}
}

func pass(t *testing.T, r *testkit.Rig, ids ...protocol.ID) {
	t.Helper()
	if err := r.Reconcile.Pass(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
}

func events(t *testing.T, r *testkit.Rig, id protocol.ID, want ...string) {
	t.Helper()
	if got := testkit.EventTypes(t, r.Stores, id); got != strings.Join(want, " ") {
		t.Errorf("task %s: events %q, want %q", id, got, strings.Join(want, " "))
	}
}
