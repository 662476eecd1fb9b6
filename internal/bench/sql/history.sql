-- Makes the partition of a day of tasks_finished or event_log with what n tasks
-- left in it that succeeded: they came in singly, at even times. It is filled
-- before it has indexes, which is several times as fast.
CREATE FUNCTION bench_day(parent text, day date, n int, payload json) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part text := parent || '_' || to_char(day, 'YYYYMMDD') || '_' || to_char(day + 1, 'YYYYMMDD');
    since timestamptz := day::timestamp AT TIME ZONE 'UTC';
BEGIN
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED)', part, parent);
    CASE parent
    WHEN 'tasks_finished' THEN
        EXECUTE format($sql$
            INSERT INTO %I (id, tenant, queue, type, state, event_seq, max_retries, schedule_type, timeout_ms, idempotency_scope, given, trace_id, payload, worker_id,
                applied_kind, applied_delivery, created_at, updated_at, started_at, claimed_at, finished_at)
            SELECT id, 'default', 'history', 'bench.noop', 'succeeded', 3, 3, 'now', 300000, 'default', 0, 'trace-run-' || id, $3, 'host-1-0123abcd', 'succeeded', 1, at, at, at, at, at
            FROM bench_ids($1, $2)$sql$, part) USING since, n, payload;
    WHEN 'event_log' THEN
        EXECUTE format($sql$
            INSERT INTO %I (task_id, seq, type, previous_status, status, attempt, delivery, actor, worker_id, message_id, trace_id, occurred_at)
            SELECT id, e.seq, e.type, e.previous, e.status, 1, 1, e.actor, e.worker, e.message, 'trace-run-' || id, at
            FROM bench_ids($1, $2), (VALUES
                (1, 'task.created', NULL, 'queued', 'api', NULL, NULL),
                (2, 'task.claimed', 'queued', 'running', 'worker', 'host-1-0123abcd', '1795840247338-0'),
                (3, 'task.succeeded', 'running', 'succeeded', 'worker', 'host-1-0123abcd', '1795840247338-0')) e (seq, type, previous, status, actor, worker, message)
            $sql$, part) USING since, n;
    END CASE;
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part,
        penstock_uuid_floor(since), penstock_uuid_floor(since + interval '1 day'));
END
$$;

-- The ids and times of a day's n tasks.
CREATE FUNCTION bench_ids(since timestamptz, n int) RETURNS TABLE (id uuid, at timestamptz)
LANGUAGE sql AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '70008000' || lpad(to_hex(i), 12, '0'))::uuid, at
    FROM generate_series(1, n) i, LATERAL (SELECT since + i * (interval '1 day' / (n + 1)) AS at) d
$$;
