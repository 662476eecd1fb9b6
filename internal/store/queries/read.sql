-- name: GetTask :one
SELECT * FROM tasks WHERE id = @id;

-- name: TerminalAmong :many
SELECT t.id FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = u.id
WHERE t.state IN ('succeeded', 'failed', 'cancelled');

-- name: ListTasks :many
-- Newest first; the page starts after (before_at, before_id).
SELECT t.id, t.name, t.tenant, t.queue, t.type, t.state, t.attempt, t.max_retries, t.delivery, t.interruptions,
    t.schedule_type, t.scheduled_at, t.timeout_ms, t.next_retry_at, t.idempotency_scope, t.idempotency_key, t.trace_id,
    t.last_error_code, t.last_error_reason, t.worker_id, t.created_at, t.updated_at, t.started_at, t.finished_at, t.retry_policy
FROM tasks t
WHERE (t.created_at, t.id) < (@before_at::timestamptz, @before_id::uuid)
    AND t.created_at >= @created_after::timestamptz
    AND (@tenant::text = '' OR t.tenant = @tenant)
    AND (@queue::text = '' OR t.queue = @queue)
    AND (@type::text = '' OR t.type = @type)
    AND (cardinality(@states::text[]) = 0 OR t.state = ANY(@states::text[]))
ORDER BY t.created_at DESC, t.id DESC
LIMIT @max_rows;

-- name: CountTasks :many
SELECT t.state, count(*) AS count FROM tasks t
WHERE (@tenant::text = '' OR t.tenant = @tenant)
    AND (@queue::text = '' OR t.queue = @queue)
    AND (@type::text = '' OR t.type = @type)
GROUP BY t.state ORDER BY t.state;

-- name: QueueBacklog :one
SELECT count(*) FILTER (WHERE t.due_at <= now()) AS due, count(*) FILTER (WHERE t.due_at > now()) AS scheduled
FROM tasks t WHERE t.queue = @queue AND t.due_at IS NOT NULL;

-- name: ListEvents :many
SELECT e.task_id, e.seq, e.type, e.previous_status, e.status, e.attempt, e.delivery, e.idempotency_key, e.next_retry_at, e.error_code, e.reason, e.backoff_delay_ms, e.actor, e.worker_id, e.message_id, e.trace_id, e.data, e.occurred_at, e.xid::text::bigint AS xid_number FROM event_log e
WHERE e.task_id = @task_id AND e.seq > @after_seq
ORDER BY e.seq LIMIT @max_rows;

-- name: WatchBounds :one
-- horizon: the newest transaction that retention removed events of. safe: all
-- transactions below it have ended. next: the first id not given out.
SELECT (SELECT h.xid::text::bigint FROM event_horizon h)::bigint AS horizon,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS safe,
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next;

-- name: WatchEvents :many
-- Events after a position, of transactions below which none can still commit.
-- The bound is taken in the same statement, from the snapshot that the rows
-- are read with.
SELECT e.task_id, e.seq, e.type, e.previous_status, e.status, e.attempt, e.delivery, e.idempotency_key, e.next_retry_at, e.error_code, e.reason, e.backoff_delay_ms, e.actor, e.worker_id, e.message_id, e.trace_id, e.data, e.occurred_at, e.xid::text::bigint AS xid_number, t.tenant, t.name FROM event_log e JOIN tasks t ON t.id = e.task_id
WHERE (e.xid, e.task_id, e.seq) > (sqlc.arg(after_xid)::text::xid8, sqlc.arg(after_task)::uuid, sqlc.arg(after_seq)::int)
    AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
    AND (sqlc.arg(task_id)::uuid = '00000000-0000-0000-0000-000000000000'::uuid OR e.task_id = sqlc.arg(task_id)::uuid)
    AND (@tenant::text = '' OR t.tenant = @tenant)
    AND (cardinality(@types::text[]) = 0 OR e.type = ANY(@types::text[]))
ORDER BY e.xid, e.task_id, e.seq LIMIT @max_rows;

-- name: ListDead :many
-- Newest first; the page starts after (before_at, before_id).
SELECT d.*, t.name FROM dlq_items d LEFT JOIN tasks t ON t.id = d.task_id
WHERE (d.failed_at, d.dlq_id) < (@before_at::timestamptz, @before_id::uuid)
    AND (@tenant::text = '' OR d.tenant = @tenant)
    AND (@type::text = '' OR d.type = @type)
    AND (@error_code::text = '' OR d.error_code = @error_code)
ORDER BY d.failed_at DESC, d.dlq_id DESC
LIMIT @max_rows;

-- name: GetDead :one
SELECT d.*, t.name FROM dlq_items d LEFT JOIN tasks t ON t.id = d.task_id WHERE d.dlq_id = @dlq_id;
