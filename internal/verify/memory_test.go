package verify_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
)

// manyTasks stores $1 tasks: 1 of 20 failed once, and 1 of 20 was just
// dispatched; the others succeeded at once.
const manyTasks = `WITH n AS (
	SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '70008000' || lpad(to_hex(i), 12, '0'))::uuid AS id, i,
		i % 20 = 0 AS retried, i % 20 = 1 AS live, now() - interval '1 hour' AS at FROM generate_series(1, $1::int) i
), t AS (
	INSERT INTO tasks (id, tenant, queue, type, state, attempt, max_retries, delivery, event_seq, schedule_type, timeout_ms, idempotency_scope, given,
		trace_id, payload, applied_kind, applied_delivery, worker_id, started_at, finished_at, last_error_code, last_error_reason)
	SELECT id, 'default', 'default', 't', CASE WHEN live THEN 'queued' ELSE 'succeeded' END, CASE WHEN retried THEN 2 ELSE 1 END, 3,
		CASE WHEN retried THEN 2 ELSE 1 END, CASE WHEN live THEN 1 WHEN retried THEN 5 ELSE 3 END, 'now', 1000, 'default', 0, 'x', '{}',
		CASE WHEN NOT live THEN 'succeeded' END, CASE WHEN live THEN 0 WHEN retried THEN 2 ELSE 1 END, CASE WHEN NOT live THEN 'w' END,
		CASE WHEN NOT live THEN at END, CASE WHEN NOT live THEN at END, CASE WHEN retried THEN 'TASK_EXECUTION_FAILED' END, CASE WHEN retried THEN 'no luck' END
	FROM n RETURNING 1
)
INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, next_retry_at, error_code, reason, backoff_delay_ms, actor, worker_id, trace_id, data, occurred_at)
SELECT id, e.seq, e.type, e.was, e.status, e.attempt, e.delivery, at + e.delay * interval '1 millisecond', e.code, e.reason, e.delay, e.actor, 'w', 'x', e.data::json, at
FROM n JOIN LATERAL (VALUES
	(1, 'task.created', NULL, 'queued', 1, 1, NULL::bigint, NULL, NULL, 'api', NULL),
	(2, 'task.claimed', 'queued', 'running', 1, 1, NULL, NULL, NULL, 'worker', NULL),
	(3, 'task.succeeded', 'running', 'succeeded', 1, 1, NULL, NULL, NULL, 'worker', NULL),
	(103, 'task.retry_scheduled', 'running', 'retrying', 2, 2, 1000, 'TASK_EXECUTION_FAILED', 'no luck', 'worker',
		'{"delay_source":"policy","policy":{"strategy":"fixed","base_ms":1000,"max_backoff_ms":1000,"jitter_max_ms":0}}'),
	(104, 'task.claimed', 'retrying', 'running', 2, 2, NULL, NULL, NULL, 'worker', NULL),
	(105, 'task.succeeded', 'running', 'succeeded', 2, 2, NULL, NULL, NULL, 'worker', NULL)
) v (seq, type, was, status, attempt, delivery, delay, code, reason, actor, data) ON v.seq = 1 OR NOT n.live AND (v.seq = 2 OR (v.seq > 100) = n.retried)
CROSS JOIN LATERAL (SELECT v.seq % 100 AS seq, v.type, v.was, v.status, v.attempt, v.delivery, v.delay, v.code, v.reason, v.actor, v.data) e`

// longLog gives one task a very long log.
const longLog = `WITH t AS (UPDATE tasks SET event_seq = 1 + $1::int WHERE id = (SELECT min(id::text)::uuid FROM tasks WHERE state = 'queued') RETURNING id)
INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, actor, trace_id, occurred_at)
SELECT id, 1 + i, 'task.heartbeat', 'queued', 'queued', 1, 1, 'api', 'x', now() FROM t, generate_series(1, $1::int) i`

// Verifying 200,000 tasks, a log of 50,000 events and 10,000 live tasks keeps
// as little in memory as verifying a few. It measures the heap of the process:
// nothing may run at the same time.
func TestMemoryIsFlat(t *testing.T) {
	const tasks, log, most = 200_000, 50_000, 24 << 20
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	if _, err := r.DB.Exec(t.Context(), manyTasks, tasks); err != nil {
		t.Fatal(err)
	}
	if _, err := r.DB.Exec(t.Context(), longLog, log); err != nil {
		t.Fatal(err)
	}
	addLive(t, r)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, peak, calls := heap(), uint64(0), 0
	sum, found := run(t, s, verify.Options{Progress: func(verify.Summary) {
		if calls++; calls%10 == 0 {
			peak = max(peak, heap())
		}
	}})
	for _, d := range found[:min(len(found), 10)] {
		t.Errorf("%s  %s", d.Check, d)
	}
	t.Logf("%+v; heap %.1f MiB before, at most %.1f MiB", sum, float64(before)/(1<<20), float64(peak)/(1<<20))
	if sum.Tasks != tasks || sum.Live != tasks/20 || sum.Retries != tasks/20 || sum.Events != 3*tasks+log {
		t.Errorf("%+v", sum)
	}
	if peak > before+most {
		t.Errorf("the heap grew from %d to %d bytes, want at most %d more", before, peak, most)
	}
}

// addLive puts the entries of all live tasks into their stream.
func addLive(t *testing.T, r *testkit.Rig) {
	t.Helper()
	rows, err := r.DB.Query(t.Context(), "SELECT id FROM tasks WHERE state = 'queued'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var values [][]any
	flush := func() {
		for _, a := range r.Client.Append(context.WithoutCancel(t.Context()), protocol.StreamTask, values) {
			if a.Err != nil {
				t.Fatal(a.Err)
			}
		}
		values = values[:0]
	}
	for rows.Next() {
		var id [16]byte
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		e := &protocol.TaskEntry{
			ID: id, TaskID: protocol.ID(id).String(), Type: "t", Payload: []byte("{}"), Attempt: 1, Delivery: 1, Timeout: time.Second, EnqueuedAt: time.Now(),
		}
		if values = append(values, e.Values()); len(values) == 1000 {
			flush()
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	flush()
}
