-- +goose Up

-- The source documents' own words and tables, as views: docs/views.md. The
-- words are those of package protocol, whose tests compare the two.

-- +goose StatementBegin
-- The word that a vocabulary (b2, men, p3c or tqp) has for a state; null for a
-- state that it does not show: the task still seems to be where it was.
CREATE FUNCTION penstock_word(vocabulary text, state text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE vocabulary
        WHEN 'b2' THEN CASE state
            WHEN 'pending' THEN 'queued' WHEN 'waiting_approval' THEN 'queued' WHEN 'queued' THEN 'queued'
            WHEN 'running' THEN 'running' WHEN 'interrupted' THEN 'running' WHEN 'retrying' THEN 'retrying'
            WHEN 'dlq_pending' THEN 'dlq_pending' WHEN 'dlq_recorded' THEN 'dlq_recorded'
            WHEN 'succeeded' THEN 'succeeded' WHEN 'failed' THEN 'failed' WHEN 'cancelled' THEN 'cancelled' END
        WHEN 'men' THEN CASE state
            WHEN 'pending' THEN 'pending' WHEN 'waiting_approval' THEN 'pending' WHEN 'queued' THEN 'ready'
            WHEN 'running' THEN 'running' WHEN 'interrupted' THEN 'ready' WHEN 'retrying' THEN 'ready'
            WHEN 'succeeded' THEN 'succeeded' WHEN 'failed' THEN 'failed' WHEN 'cancelled' THEN 'cancelled' END
        WHEN 'p3c' THEN CASE state
            WHEN 'pending' THEN 'queued' WHEN 'waiting_approval' THEN 'queued' WHEN 'queued' THEN 'queued'
            WHEN 'running' THEN 'running' WHEN 'interrupted' THEN 'interrupted' WHEN 'retrying' THEN 'retry_scheduled'
            WHEN 'succeeded' THEN 'succeeded' WHEN 'failed' THEN 'failed' WHEN 'cancelled' THEN 'cancelled' END
        WHEN 'tqp' THEN CASE state
            WHEN 'pending' THEN 'queued' WHEN 'waiting_approval' THEN 'waiting_approval' WHEN 'queued' THEN 'queued'
            WHEN 'running' THEN 'running' WHEN 'interrupted' THEN 'running' WHEN 'retrying' THEN 'running'
            WHEN 'succeeded' THEN 'succeeded' WHEN 'failed' THEN 'failed' WHEN 'cancelled' THEN 'failed' END
        END
$$;
-- +goose StatementEnd

-- Only tasks of graphs, and of callers with a trace id of their own, are in
-- these: enqueueing others costs nothing.
CREATE INDEX tasks_graph ON tasks (graph_id, id) WHERE graph_id IS NOT NULL;
CREATE INDEX tasks_trace ON tasks (trace_id, id) WHERE trace_id NOT LIKE 'trace-run-' || id::text || ':%';
-- Events are written in the order of time: block ranges are enough to find some.
-- Those that are not summarised yet are read by every search.
CREATE INDEX event_log_occurred ON event_log USING brin (occurred_at) WITH (pages_per_range = 32, autosummarize = on);

-- Gate B-2, section 2.
CREATE VIEW jobs AS
SELECT t.id AS job_id, t.tenant AS tenant_id, t.type AS job_type,
    penstock_word('b2', t.state) AS status,
    t.attempt - 1 AS retry_count,
    COALESCE(t.idempotency_key, t.name, t.id::text) AS idempotency_key,
    t.trace_id,
    CASE WHEN t.state = 'succeeded' THEN NULL
        WHEN t.last_error_code = 'TASK_INVALID_TRANSITION' THEN 'WF_STATE_TRANSITION_INVALID'
        ELSE t.last_error_code END AS error_code,
    t.payload AS payload_json, t.created_at, t.updated_at,
    -- Ours: the caller's own id, the state in our words, and the queue.
    t.name AS task_name, t.state AS task_state, t.queue
FROM tasks t;

-- P3C, section 2: one row for each attempt of a task. An attempt that was
-- followed by another one failed; the last one stands where its task stands.
CREATE VIEW task_runs AS
SELECT t.id::text || ':' || a.attempt AS run_id, t.id AS task_id, a.attempt,
    w.run_status,
    t.id::text || ':' || (a.attempt - 1) AS idempotency_key,
    CASE WHEN w.run_status = 'retry_scheduled' THEN COALESCE(t.next_retry_at, (
        -- Given up while it waited: the row has forgotten the time.
        SELECT e.next_retry_at FROM event_log e WHERE e.task_id = t.id AND e.next_retry_at IS NOT NULL ORDER BY e.seq DESC LIMIT 1)) END AS next_retry_at,
    CASE WHEN a.attempt < t.attempt THEN f.error_code ELSE l.error_code END AS error_code,
    CASE WHEN a.attempt < t.attempt THEN f.reason ELSE l.reason END AS reason,
    CASE WHEN a.attempt > 1 THEN r.first_at ELSE t.created_at END AS created_at,
    r.started_at,
    CASE WHEN a.attempt < t.attempt THEN f.occurred_at ELSE t.finished_at END AS finished_at,
    r.worker_id, t.trace_id,
    -- Ours: the caller's own id, whose it is, and the task's state in our words.
    t.name AS task_name, t.tenant, t.state AS task_state
FROM tasks t
CROSS JOIN LATERAL generate_series(1, t.attempt) AS a(attempt)
LEFT JOIN LATERAL (
    SELECT min(e.occurred_at) AS first_at, min(e.occurred_at) FILTER (WHERE e.type = 'task.claimed') AS started_at,
        (array_agg(e.worker_id ORDER BY e.seq DESC) FILTER (WHERE e.type = 'task.claimed'))[1] AS worker_id
    FROM event_log e WHERE e.task_id = t.id AND e.attempt = a.attempt) r ON true
-- How it ended, if another attempt followed.
LEFT JOIN LATERAL (
    SELECT e.occurred_at, e.error_code, e.reason FROM event_log e
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

-- P3C, section 3: changes of a run's status. What moves between two states
-- with the same word, or into one that is not shown, is none.
CREATE VIEW run_events AS
SELECT c.event_id, 'run.status.changed'::text AS event_type, c.task_id, c.seq,
    json_build_object('run_id', c.task_id::text || ':' || c.attempt, 'task_id', c.task_id, 'previous_status', c.before, 'status', c.word,
        'attempt', c.attempt, 'idempotency_key', c.task_id::text || ':' || (c.attempt - 1), 'next_retry_at', c.next_retry_at,
        'error_code', c.error_code, 'actor', c.actor) AS payload,
    c.trace_id, c.occurred_at
FROM (
    SELECT 'evt_' || e.task_id || '_' || e.seq AS event_id, e.task_id, e.seq, e.attempt, e.next_retry_at, e.error_code, e.actor, e.trace_id, e.occurred_at,
        penstock_word('p3c', e.status) AS word,
        lag(penstock_word('p3c', e.status)) OVER (PARTITION BY e.task_id ORDER BY e.seq) AS before
    FROM event_log e WHERE penstock_word('p3c', e.status) IS NOT NULL
) c WHERE c.before IS DISTINCT FROM c.word;

-- ASTER's event log. A graph of tasks is a workflow, and so is a task that is
-- alone. sequence counts within the workflow; it is what orders a task's
-- events, and those of different tasks as they were committed.
CREATE VIEW workflow_events AS
SELECT x.workflow_id, x.sequence,
    upper(replace(regexp_replace(x.type, '^task\.', ''), '.', '_')) AS event_type,
    x.attempt AS attempt_number, x.backoff_delay_ms,
    CASE WHEN x.error_code IS NOT NULL THEN x.reason END AS failure_reason,
    json_strip_nulls(json_build_object('taskId', COALESCE(x.name, x.task_id::text), 'reason', x.reason)) AS payload,
    x.occurred_at AS "timestamp",
    -- Ours: the task and its own numbering, and what else there is to join with.
    x.task_id, x.seq AS task_sequence, 'evt_' || x.task_id || '_' || x.seq AS event_id, x.error_code, x.trace_id, x.tenant
FROM (
    SELECT t.id AS workflow_id, e.seq::bigint AS sequence, t.name, t.tenant,
        e.task_id, e.seq, e.type, e.attempt, e.backoff_delay_ms, e.error_code, e.reason, e.occurred_at, e.trace_id
    FROM tasks t JOIN event_log e ON e.task_id = t.id WHERE t.graph_id IS NULL
    UNION ALL
    SELECT g.graph_id, row_number() OVER (PARTITION BY g.graph_id ORDER BY g.position, g.task_id, g.seq), g.name, g.tenant,
        g.task_id, g.seq, g.type, g.attempt, g.backoff_delay_ms, g.error_code, g.reason, g.occurred_at, g.trace_id
    FROM (
        SELECT t.graph_id, t.name, t.tenant, e.*, max(e.xid::text::bigint) OVER (PARTITION BY t.graph_id, e.task_id ORDER BY e.seq) AS position
        FROM tasks t JOIN event_log e ON e.task_id = t.id WHERE t.graph_id IS NOT NULL
    ) g
) x;

-- ASTER's workflow state, with the retry context that a replay starts from.
CREATE VIEW workflow_state AS
SELECT x.workflow_id, x.status, x.tasks, x.open_tasks,
    json_build_object('currentAttempt', COALESCE(r.attempt, x.attempt), 'lastBackoff', COALESCE(r.backoff_delay_ms, 0)) AS retry_context,
    x.created_at, x.updated_at, x.tenant
FROM (
    SELECT t.id AS workflow_id, t.state AS status, 1::bigint AS tasks, (t.finished_at IS NULL)::int::bigint AS open_tasks, t.attempt,
        t.created_at, t.updated_at, t.tenant, NULL::uuid AS graph_id
    FROM tasks t WHERE t.graph_id IS NULL
    UNION ALL
    SELECT t.graph_id, CASE WHEN bool_or(t.finished_at IS NULL) THEN 'running' WHEN bool_or(t.state = 'failed') THEN 'failed'
            WHEN bool_or(t.state = 'cancelled') THEN 'cancelled' ELSE 'succeeded' END,
        count(*), count(*) FILTER (WHERE t.finished_at IS NULL), 1, min(t.created_at), max(t.updated_at), min(t.tenant), t.graph_id
    FROM tasks t WHERE t.graph_id IS NOT NULL GROUP BY t.graph_id
) x
LEFT JOIN LATERAL (
    SELECT e.attempt, e.backoff_delay_ms FROM tasks t JOIN event_log e ON e.task_id = t.id
    WHERE (x.graph_id IS NULL AND t.id = x.workflow_id OR t.graph_id = x.graph_id) AND e.type = 'task.retry_scheduled'
    ORDER BY e.occurred_at DESC, e.task_id DESC, e.seq DESC LIMIT 1) r ON true;

COMMENT ON VIEW jobs IS 'Gate B-2''s jobs. Filter by job_id, or by task_state for work that is not finished.';
COMMENT ON VIEW task_runs IS 'P3C''s runs: one row for each attempt of a task. Filter by task_id, or by task_state.';
COMMENT ON VIEW run_events IS 'P3C''s run.status.changed. Filter by task_id.';
COMMENT ON VIEW workflow_events IS 'ASTER''s events. Filter by workflow_id, and attempt_number.';
COMMENT ON VIEW workflow_state IS 'ASTER''s workflow state with its retry context. Filter by workflow_id.';

GRANT SELECT ON jobs, task_runs, run_events, workflow_events, workflow_state TO penstock_app;

-- +goose Down
DROP VIEW workflow_state, workflow_events, run_events, task_runs, jobs;
DROP INDEX event_log_occurred, tasks_trace, tasks_graph;
DROP FUNCTION penstock_word(text, text);
