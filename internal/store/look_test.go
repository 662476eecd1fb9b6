package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
)

// fill makes 20,000 rows of everything that lists are made of: tasks and events
// of two days, dead letters, batches, requests and effects. Only the oldest of
// each is what the test's filters admit.
var fill = []string{
	`CREATE TEMP TABLE g AS SELECT n, at, (substr(penstock_uuid_floor(at)::text, 1, 14) || '7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id
		FROM generate_series(1, 20000) n, LATERAL (SELECT now() - interval '26 hours' + n * interval '4 seconds' AS at) m`,
	`SELECT penstock_ensure_partition(parent, (now() AT TIME ZONE 'UTC')::date - 2, 1) FROM (VALUES ('tasks_finished'), ('event_log')) p(parent)`,
	`INSERT INTO tasks (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, idempotency_scope, given, trace_id, payload, created_at, updated_at)
		SELECT id, CASE n WHEN 1 THEN 'rare' ELSE 't' END, 'q', 'x', CASE n % 3 WHEN 0 THEN 'running' ELSE 'queued' END, 3, 'now', 1, 't', 0, 'tr', '1', at, at FROM g ORDER BY n`,
	// Of many transactions: the events of one are sorted together.
	`INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at, xid)
		SELECT id, 1, CASE n WHEN 1 THEN 'task.failed' ELSE 'task.created' END, 'queued', 1, 1, 'api', 't', at, (3 + n / 50)::text::xid8 FROM g ORDER BY n`,
	`INSERT INTO dlq_items (dlq_id, task_id, tenant, type, payload, error_code, error, retry_count, failed_at, fingerprint, status, settled_at, requeues)
		SELECT id, id, CASE n WHEN 1 THEN 'rare' ELSE 't' END, 'x', '1', 'TASK_TIMEOUT', 'e', 3, at, CASE n % 2 WHEN 0 THEN 'even' ELSE 'odd' END,
			CASE n % 4 WHEN 0 THEN 'requeued' ELSE 'open' END, CASE n % 4 WHEN 0 THEN at END, CASE n % 4 WHEN 0 THEN 1 ELSE 0 END FROM g ORDER BY n`,
	`INSERT INTO dlq_batches (id, kind, status, digest, total, reason, created_by, created_at)
		SELECT id, 'requeue', CASE n WHEN 1 THEN 'draft' ELSE 'cancelled' END, 'd', 1, 'r', 'u', at FROM g ORDER BY n`,
	`INSERT INTO dlq_batch_items (batch_id, dlq_id, status) SELECT (SELECT id FROM g WHERE n = 1), id, CASE n WHEN 20000 THEN 'skipped' ELSE 'pending' END FROM g ORDER BY n`,
	`INSERT INTO approvals (id, task_id, tenant, kind, name, digest, required, approvers, requesters, status, requested_at, expires_at, decided_at)
		SELECT id, id, CASE n WHEN 1 THEN 'rare' ELSE 't' END, 'handler', 'x', 'd', 1, '{a}', '{b}', CASE n % 2 WHEN 0 THEN 'pending' ELSE 'approved' END, at, at, CASE n % 2 WHEN 1 THEN at END FROM g ORDER BY n`,
	`INSERT INTO effects (scope, key, name, state, token, task_id, delivery, worker_id, users, runs, reserved_at, updated_at, done_at)
		SELECT 's', 'k:' || lpad(n::text, 8, '0'), 'e', CASE WHEN n = 20000 THEN 'free' WHEN n % 2 = 0 THEN 'reserved' ELSE 'done' END, id, id, 1, 'w', ARRAY[id], 1, at, at, CASE n % 2 WHEN 1 THEN at END FROM g ORDER BY n`,
}

var (
	lookStart = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	lookEnd   = time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)
)

// TestLooksAreBounded: what the statements of lists and of the watch read does
// not follow from how much there is, nor from how little of it the filter admits:
// whichever plan Postgres makes, and whether or not it knows the tables.
func TestLooksAreBounded(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	c := s.SQL(t)
	for _, sql := range fill {
		exec(t, c, sql)
	}
	const look, limit = 1000, 101
	batch := get[pgid.ID](t, c, "SELECT id FROM g WHERE n = 1")
	type counted struct{ rows, shown int }
	statements := map[string]func(ctx context.Context, q *dbsqlc.Queries) (int, error){
		"ListTasks, tenant": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListTasks(ctx, dbsqlc.ListTasksParams{Tenant: "rare", States: []string{}, BeforeAt: lookStart, CreatedAfter: lookEnd, MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"ListTasks, state": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListTasks(ctx, dbsqlc.ListTasksParams{States: []string{"retrying"}, BeforeAt: lookStart, CreatedAfter: lookEnd, MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"ListTasks, error": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListTasks(ctx, dbsqlc.ListTasksParams{States: []string{}, Error: "x", ErrorCode: "TASK_TIMEOUT", MinDurationMs: 5, BeforeAt: lookStart, CreatedAfter: lookEnd, MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"ListDead": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListDead(ctx, dbsqlc.ListDeadParams{Tenant: "rare", BeforeAt: lookStart, FailedAfter: lookEnd, FailedBefore: lookStart, MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"ListOpenDead": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListOpenDead(ctx, dbsqlc.ListOpenDeadParams{Tenant: "rare", BeforeAt: lookStart, FailedAfter: lookEnd, FailedBefore: lookStart, MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"ListDeadOfFingerprint": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListDeadOfFingerprint(ctx, dbsqlc.ListDeadOfFingerprintParams{Fingerprint: "odd", Tenant: "rare", BeforeAt: lookStart, FailedAfter: lookEnd, FailedBefore: lookStart, MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"ListDeadOfCause": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListDeadOfCause(ctx, dbsqlc.ListDeadOfCauseParams{ErrorCode: "TASK_TIMEOUT", Tenant: "rare", BeforeAt: lookStart, FailedAfter: lookEnd, FailedBefore: lookStart, MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"ListBatches": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListBatches(ctx, dbsqlc.ListBatchesParams{Status: "draft", BeforeAt: lookStart, MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"ListBatchItems": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListBatchItems(ctx, dbsqlc.ListBatchItemsParams{BatchID: batch, Status: "skipped", MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"ListApprovals": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListApprovals(ctx, dbsqlc.ListApprovalsParams{Tenant: "rare", BeforeAt: lookStart, MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"ListPendingApprovals": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListPendingApprovals(ctx, dbsqlc.ListPendingApprovalsParams{Tenant: "rare", BeforeAt: lookStart, MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"ListEffects": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListEffects(ctx, dbsqlc.ListEffectsParams{State: "free", MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"ListReservedEffects": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.ListReservedEffects(ctx, dbsqlc.ListReservedEffectsParams{Scope: "none", MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"WatchEvents, type": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.WatchEvents(ctx, dbsqlc.WatchEventsParams{Types: []string{"task.cancelled"}, AfterXid: "0", Safe: "9000000000000000000", MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"WatchEvents, tenant": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.WatchEvents(ctx, dbsqlc.WatchEventsParams{Tenant: "nobody", Types: []string{}, AfterXid: "0", Safe: "9000000000000000000", MaxLook: look, MaxRows: limit})
			return len(r), err
		},
		"WatchEventsOf": func(ctx context.Context, q *dbsqlc.Queries) (int, error) {
			r, err := q.WatchEventsOf(ctx, dbsqlc.WatchEventsOfParams{TaskID: batch, Types: []string{}, AfterXid: "0", Safe: "9000000000000000000", MaxRows: limit})
			return len(r), err
		},
	}
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			exec(t, c, "ANALYZE")
		}
		for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
			for name, run := range statements {
				var got counted
				before := rowsRead(t, c)
				err := pgx.BeginFunc(t.Context(), c, func(tx pgx.Tx) (err error) {
					if _, err = tx.Exec(t.Context(), "SELECT set_config('plan_cache_mode', $1, true)", plan); err != nil {
						return err
					}
					q := dbsqlc.New(tx)
					if err = q.ReadInOrder(t.Context()); err != nil {
						return err
					}
					got.shown, err = run(t.Context(), q)
					return err
				})
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				got.rows = rowsRead(t, c) - before
				// The rows looked at, and for each perhaps the task that it is about.
				if got.rows > 2*look+100 {
					t.Errorf("%s, %s, analyzed %v: %d rows were read for %d, want at most %d", name, plan, analyzed, got.rows, got.shown, 2*look+100)
				}
				if got.shown < 1 {
					t.Errorf("%s, %s: no row, want at least the last one that was looked at", name, plan)
				}
			}
		}
	}
}

// rowsRead is how many rows of the tables that are listed the session has read.
func rowsRead(t *testing.T, c *pgx.Conn) int {
	t.Helper()
	exec(t, c, "SELECT pg_stat_force_next_flush()")
	exec(t, c, "SELECT pg_stat_clear_snapshot()")
	return get[int](t, c, `SELECT sum(seq_tup_read + COALESCE(idx_tup_fetch, 0)) FROM pg_stat_user_tables
		WHERE relname ~ '^(tasks|event_log|dlq_items|dlq_batches|dlq_batch_items|approvals|effects)'`)
}
