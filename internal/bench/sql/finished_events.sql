-- The log of the tasks of finished_tasks.sql: each was created, claimed, and
-- succeeded.
INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, actor, worker_id, message_id, trace_id, occurred_at)
SELECT (substr(penstock_uuid_floor(at)::text, 1, 14) || '7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, e.seq, e.type, e.previous, e.status, 1, 1, e.actor,
    e.worker, e.message, 'trace-run-' || n, at
FROM (SELECT n, $1::timestamptz + n * (interval '1 day' / ($2::int + 1)) AS at FROM generate_series(1, $2::int) n) d,
    (VALUES (1, 'task.created', NULL, 'queued', 'api', NULL, NULL),
            (2, 'task.claimed', 'queued', 'running', 'worker', 'host-1-0123abcd', '1795840247338-0'),
            (3, 'task.succeeded', 'running', 'succeeded', 'worker', 'host-1-0123abcd', '1795840247338-0')) e (seq, type, previous, status, actor, worker, message);
