-- $2 tasks that succeeded in the course of the day $1, with the payload $3, as
-- they are when they have come in singly at even times.
INSERT INTO tasks_finished (id, tenant, queue, type, state, event_seq, max_retries, schedule_type, timeout_ms, idempotency_scope, given, trace_id, payload, worker_id,
    applied_kind, applied_delivery, created_at, updated_at, started_at, claimed_at, finished_at)
SELECT (substr(penstock_uuid_floor(at)::text, 1, 14) || '7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'default', 'history', 'bench.noop', 'succeeded', 3, 3, 'now', 300000,
    'default', 0, 'trace-run-' || n, $3::json, 'host-1-0123abcd', 'succeeded', 1, at, at, at, at, at
FROM (SELECT n, $1::timestamptz + n * (interval '1 day' / ($2::int + 1)) AS at FROM generate_series(1, $2::int) n) d;
