-- +goose Up

-- +goose StatementBegin
-- The code of what failed last, where code says why a task ended: that of an
-- exhausted one stands before its error. As Cause in package protocol.
CREATE FUNCTION penstock_cause(code text, error text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN code = 'TASK_RETRY_EXHAUSTED' THEN COALESCE(substring(error FROM '^([A-Za-z0-9_.-]{1,100}): '), code) ELSE code END
$$;
-- +goose StatementEnd
-- Dead letters of a cause, also those from before.
CREATE INDEX dlq_items_cause ON dlq_items (penstock_cause(error_code, error), failed_at, dlq_id);

-- What locks tasks comes last: nobody waits for the index.
--
-- When the last claim was recorded, by Postgres' clock: started_at is what the
-- worker measured, and no timeout is judged by a worker's clock. Null where an
-- orchestrator of an older version recorded it, in started_at.
ALTER TABLE tasks ADD COLUMN claimed_at timestamptz;

-- As in 0016, but a run has the times that its workers measured, where the log
-- has them.
CREATE OR REPLACE VIEW task_runs AS
SELECT t.id::text || ':' || a.attempt AS run_id, t.id AS task_id, a.attempt,
    w.run_status,
    t.id::text || ':' || (a.attempt - 1) AS idempotency_key,
    CASE WHEN w.run_status = 'retry_scheduled' THEN COALESCE(t.next_retry_at, (
        -- Given up while it waited: the row has forgotten the time.
        SELECT e.next_retry_at FROM event_log e WHERE e.task_id = t.id AND e.next_retry_at IS NOT NULL ORDER BY e.seq DESC LIMIT 1)) END AS next_retry_at,
    CASE WHEN a.attempt < t.attempt THEN f.error_code ELSE l.error_code END AS error_code,
    CASE WHEN a.attempt < t.attempt THEN f.reason ELSE l.reason END AS reason,
    CASE WHEN a.attempt > 1 THEN r.first_at ELSE t.created_at END AS created_at,
    LEAST(r.started_at, f.started_at) AS started_at,
    CASE WHEN a.attempt < t.attempt THEN f.finished_at ELSE t.finished_at END AS finished_at,
    r.worker_id, t.trace_id,
    -- Ours: the caller's own id, whose it is, and the task's state in our words.
    t.name AS task_name, t.tenant, t.state AS task_state
FROM tasks t
CROSS JOIN LATERAL generate_series(1, t.attempt) AS a(attempt)
LEFT JOIN LATERAL (
    -- The event of a retry that was scheduled after a failure is about the attempt before.
    SELECT min(e.occurred_at) AS first_at,
        min(COALESCE((e.data->>'started_at')::timestamptz, CASE WHEN e.type = 'task.claimed' THEN e.occurred_at END))
            FILTER (WHERE e.type = 'task.claimed' OR (e.previous_status = 'running' AND e.status <> 'running'
                AND (e.type IN ('task.succeeded', 'task.interrupted', 'task.dlq', 'approval.requested') OR (e.type = 'task.retry_scheduled' AND e.error_code IS NULL)))) AS started_at,
        (array_agg(e.worker_id ORDER BY e.seq DESC) FILTER (WHERE e.type = 'task.claimed'))[1] AS worker_id
    FROM event_log e WHERE e.task_id = t.id AND e.attempt = a.attempt) r ON true
-- How it ended, if another attempt followed.
LEFT JOIN LATERAL (
    SELECT (e.data->>'started_at')::timestamptz AS started_at, COALESCE((e.data->>'finished_at')::timestamptz, e.occurred_at) AS finished_at, e.error_code, e.reason
    FROM event_log e
    WHERE a.attempt < t.attempt AND e.task_id = t.id AND e.attempt = a.attempt + 1 AND e.type = 'task.retry_scheduled'
    ORDER BY e.seq LIMIT 1) f ON true
-- What went wrong in the last one, if it stopped.
LEFT JOIN LATERAL (
    SELECT e.error_code, e.reason FROM event_log e
    WHERE a.attempt = t.attempt AND t.state IN ('interrupted', 'dlq_pending', 'dlq_recorded', 'failed', 'cancelled')
        AND e.task_id = t.id AND e.attempt = a.attempt AND e.previous_status <> e.status AND e.status = CASE
            WHEN t.state IN ('dlq_recorded', 'failed') THEN 'dlq_pending' ELSE t.state END
    ORDER BY e.seq DESC LIMIT 1) l ON true
CROSS JOIN LATERAL (
    SELECT CASE WHEN a.attempt < t.attempt THEN 'failed' ELSE COALESCE(penstock_word('p3c', t.state), (
        -- A state that is not shown: where it was before.
        SELECT penstock_word('p3c', e.previous_status) FROM event_log e
        WHERE e.task_id = t.id AND e.status = 'dlq_pending' AND e.previous_status <> 'dlq_pending' ORDER BY e.seq LIMIT 1)) END AS run_status) w;
COMMENT ON VIEW task_runs IS 'P3C''s runs: one row for each attempt of a task. Filter by task_id, or by task_state.';

-- +goose Down
DROP INDEX dlq_items_cause;
DROP FUNCTION penstock_cause(text, text);
-- The view stays: what it shows of the log is right for older versions as well.
ALTER TABLE tasks DROP COLUMN claimed_at;
