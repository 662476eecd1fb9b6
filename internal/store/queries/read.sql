-- name: GetTask :one
SELECT * FROM tasks WHERE id = @id;

-- name: TerminalAmong :many
SELECT t.id FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id])
WHERE t.state IN ('succeeded', 'failed', 'cancelled');

-- name: ListTasks :many
-- One look, newest first: those of the next max_look tasks after (before_at,
-- before_id) that the filter admits; and the last one, if there are so many,
-- whether admitted or not. The limit within keeps the filter from choosing
-- another plan, and the plan from reading more.
SELECT l.* FROM (
    SELECT t.id, t.name, t.tenant, t.queue, t.type, t.state, t.attempt, t.max_retries, t.delivery, t.interruptions,
        t.schedule_type, t.scheduled_at, t.timeout_ms, t.next_retry_at, t.idempotency_scope, t.idempotency_key, t.trace_id,
        t.last_error_code, t.last_error_reason, t.worker_id, t.created_at, t.updated_at, t.started_at, t.finished_at, t.retry_policy, t.origin_dlq_id, t.expires_at,
        t.requested_by, t.heartbeat_timeout_ms, t.heartbeat_at, t.graph_id, t.open_dependencies, t.on_dependency_failure, t.schedule_id,
        t.erased_at, t.unknown_since,
        row_number() OVER (ORDER BY t.created_at DESC, t.id DESC) AS place,
        (((@tenant::text = '' OR t.tenant = @tenant)
            AND (@queue::text = '' OR t.queue = @queue)
            AND (@type::text = '' OR t.type = @type)
            AND (cardinality(@states::text[]) = 0 OR t.state = ANY(@states::text[]))
            AND (@worker_id::text = '' OR t.worker_id = @worker_id)
            AND (sqlc.arg(error_code)::text = '' OR t.last_error_code = sqlc.arg(error_code)::text
                OR penstock_cause(t.last_error_code, t.last_error_reason) = sqlc.arg(error_code)::text)
            AND (sqlc.arg(error)::text = '' OR strpos(lower(t.last_error_reason), lower(sqlc.arg(error)::text)) > 0)
            AND (sqlc.arg(min_duration_ms)::bigint = 0
                OR COALESCE(t.finished_at, CASE WHEN t.state = 'running' THEN now() END) - t.started_at >= sqlc.arg(min_duration_ms)::bigint * interval '1 millisecond')
            AND (sqlc.arg(max_duration_ms)::bigint = 0
                OR COALESCE(t.finished_at, CASE WHEN t.state = 'running' THEN now() END) - t.started_at < sqlc.arg(max_duration_ms)::bigint * interval '1 millisecond')
        ) IS TRUE)::boolean AS admitted
    FROM tasks t
    WHERE (t.created_at, t.id) < (@before_at::timestamptz, @before_id::uuid)
        AND t.created_at >= @created_after::timestamptz
    ORDER BY t.created_at DESC, t.id DESC
    LIMIT @max_look::int
) l
WHERE l.admitted OR l.place = @max_look::int
ORDER BY l.created_at DESC, l.id DESC
LIMIT @max_rows::int;

-- name: CountTasks :many
SELECT t.state, count(*) AS count FROM tasks t
WHERE (@tenant::text = '' OR t.tenant = @tenant)
    AND (@queue::text = '' OR t.queue = @queue)
    AND (@type::text = '' OR t.type = @type)
GROUP BY t.state ORDER BY t.state;

-- name: QueueDepths :many
-- What waits in Postgres, of each kind at most max_rows, out of the index
-- tasks_live_due. oldest_ms: for how long the first has been due.
SELECT u.queue::text AS queue,
    (SELECT count(*) FROM (SELECT 1 FROM tasks_live t WHERE t.queue = u.queue AND t.due_at IS NOT NULL AND t.due_at <= now() ORDER BY t.due_at LIMIT sqlc.arg(max_rows)::int) d)::bigint AS due,
    (SELECT count(*) FROM (SELECT 1 FROM tasks_live t WHERE t.queue = u.queue AND t.due_at IS NOT NULL AND t.due_at > now() ORDER BY t.due_at LIMIT sqlc.arg(max_rows)::int) s)::bigint AS scheduled,
    COALESCE((SELECT extract(epoch FROM now() - t.due_at) * 1000 FROM tasks_live t WHERE t.queue = u.queue AND t.due_at IS NOT NULL AND t.due_at <= now() ORDER BY t.due_at LIMIT 1), 0)::bigint AS oldest_ms
FROM (SELECT unnest(sqlc.arg(queues)::text[]) AS queue) u;

-- name: QueueStates :many
-- Live tasks by queue and state: of each queue max_rows at most in each state, and
-- of those that wait in Postgres. cut: there may be more.
SELECT n.queue::text AS queue, n.state::text AS state, sum(n.tasks)::bigint AS tasks, bool_or(n.cut)::boolean AS cut FROM (
    SELECT q.queue, s.state, c.tasks, c.tasks >= sqlc.arg(max_rows)::int AS cut
    FROM live_queues q CROSS JOIN unnest(ARRAY['pending', 'waiting_approval', 'queued', 'running', 'retrying', 'interrupted', 'dlq_pending', 'dlq_recorded']) s(state)
        CROSS JOIN LATERAL (SELECT count(*) AS tasks FROM (
            SELECT FROM tasks_live t WHERE t.queue = q.queue AND t.state = s.state AND t.due_at IS NULL LIMIT sqlc.arg(max_rows)::int) l) c
    UNION ALL
    SELECT q.queue, w.state, count(*), sum(count(*)) OVER (PARTITION BY q.queue) >= sqlc.arg(max_rows)::int
    FROM live_queues q CROSS JOIN LATERAL (
        SELECT t.state FROM tasks_live t WHERE t.queue = q.queue AND t.due_at IS NOT NULL ORDER BY t.due_at, t.id LIMIT sqlc.arg(max_rows)::int) w
    GROUP BY q.queue, w.state
) n WHERE n.tasks > 0 GROUP BY n.queue, n.state;

-- name: RecentlyEnqueued :many
-- The tasks of the last window_ms by queue, at most max_rows of them, newest
-- first. covered_ms: how far back these go.
WITH recent AS MATERIALIZED (
    SELECT t.queue, t.created_at FROM tasks t WHERE t.created_at > now() - sqlc.arg(window_ms)::bigint * interval '1 millisecond'
    ORDER BY t.created_at DESC, t.id DESC LIMIT sqlc.arg(max_rows)::int
), covered AS (
    SELECT CASE WHEN count(*) < sqlc.arg(max_rows)::int THEN sqlc.arg(window_ms)::bigint ELSE greatest(extract(epoch FROM now() - min(created_at)) * 1000, 1)::bigint END AS ms FROM recent
)
SELECT r.queue, count(*) AS tasks, (SELECT c.ms FROM covered c)::bigint AS covered_ms FROM recent r GROUP BY r.queue;

-- name: RecentlyEnded :many
-- Of the newest max_rows events those of the last window_ms that ended tasks, by
-- queue. covered_ms: how far back these go.
WITH recent AS MATERIALIZED (
    SELECT e.task_id, e.type, e.occurred_at FROM event_log e ORDER BY e.xid DESC, e.task_id DESC, e.seq DESC LIMIT sqlc.arg(max_rows)::int
), ended AS MATERIALIZED (
    SELECT r.task_id, r.type FROM recent r
    WHERE r.occurred_at > now() - sqlc.arg(window_ms)::bigint * interval '1 millisecond' AND r.type IN ('task.succeeded', 'task.failed', 'task.cancelled')
), covered AS (
    SELECT CASE WHEN count(*) < sqlc.arg(max_rows)::int THEN sqlc.arg(window_ms)::bigint
        ELSE least(greatest(extract(epoch FROM now() - min(occurred_at)) * 1000, 1), sqlc.arg(window_ms)::bigint)::bigint END AS ms FROM recent
)
SELECT t.queue, n.type, count(*) AS tasks, (SELECT c.ms FROM covered c)::bigint AS covered_ms FROM ended n JOIN tasks t ON t.id = ANY (ARRAY[n.task_id]) GROUP BY t.queue, n.type;

-- name: WaitingFor :many
-- For how long tasks that wait in their stream have been due. Where that is not
-- known any more (they waited for others or for people, or were interrupted) it
-- is how long they have been in their state.
SELECT t.id, t.delivery, greatest(extract(epoch FROM now() - CASE
    WHEN t.state = 'retrying' THEN t.next_retry_at
    WHEN t.delivery = 1 AND t.on_dependency_failure IS NULL AND NOT EXISTS (SELECT FROM approvals a WHERE a.task_id = t.id) THEN greatest(t.created_at, t.start_at)
    ELSE t.updated_at END) * 1000, 0)::bigint AS ms
FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id])
WHERE t.state IN ('queued', 'retrying') AND t.due_at IS NULL;

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
-- One look, as ListTasks: those of the next max_look events after a position,
-- of transactions before safe, that the filter admits; and the last one, if there
-- are so many. Events of alerts and of dead letters that are no task have their
-- tenant in data. A task is looked up for each event by itself: joined, all
-- tasks might be read.
SELECT l.task_id, l.seq, l.type, l.previous_status, l.status, l.attempt, l.delivery, l.idempotency_key, l.next_retry_at, l.error_code, l.reason, l.backoff_delay_ms, l.actor, l.worker_id, l.message_id, l.trace_id, l.data, l.occurred_at, l.xid::text::bigint AS xid_number, COALESCE(t.tenant, l.data->>'tenant', '')::text AS tenant, t.name,
    l.place, (l.matches AND (@tenant::text = '' OR COALESCE(t.tenant, l.data->>'tenant', '') = @tenant))::boolean AS admitted
FROM (
    SELECT e.*, row_number() OVER (ORDER BY e.xid, e.task_id, e.seq) AS place,
        ((sqlc.arg(task_id)::uuid = '00000000-0000-0000-0000-000000000000'::uuid OR e.task_id = sqlc.arg(task_id)::uuid)
            AND (cardinality(@types::text[]) = 0 OR e.type = ANY(@types::text[]))) AS matches
    FROM event_log e
    WHERE (e.xid, e.task_id, e.seq) > (sqlc.arg(after_xid)::text::xid8, sqlc.arg(after_task)::uuid, sqlc.arg(after_seq)::int)
        AND e.xid < sqlc.arg(safe)::text::xid8
    ORDER BY e.xid, e.task_id, e.seq LIMIT sqlc.arg(max_look)::int
) l LEFT JOIN LATERAL (SELECT x.tenant, x.name FROM tasks x WHERE x.id = l.task_id AND l.matches OFFSET 0) t ON true
WHERE l.place = sqlc.arg(max_look)::int OR l.matches AND (@tenant::text = '' OR COALESCE(t.tenant, l.data->>'tenant', '') = @tenant)
ORDER BY l.xid, l.task_id, l.seq LIMIT @max_rows::int;

-- name: WatchEventsOf :many
-- The same events of one task, or of what else has a log: all of its events are
-- read, whatever else there is.
SELECT l.task_id, l.seq, l.type, l.previous_status, l.status, l.attempt, l.delivery, l.idempotency_key, l.next_retry_at, l.error_code, l.reason, l.backoff_delay_ms, l.actor, l.worker_id, l.message_id, l.trace_id, l.data, l.occurred_at, l.xid::text::bigint AS xid_number, COALESCE(t.tenant, l.data->>'tenant', '')::text AS tenant, t.name,
    0::bigint AS place, true::boolean AS admitted
FROM (SELECT e.* FROM event_log e WHERE e.task_id = sqlc.arg(task_id)::uuid ORDER BY e.seq OFFSET 0) l
    LEFT JOIN LATERAL (SELECT x.tenant, x.name FROM tasks x WHERE x.id = l.task_id OFFSET 0) t ON true
WHERE (l.xid, l.task_id, l.seq) > (sqlc.arg(after_xid)::text::xid8, sqlc.arg(after_task)::uuid, sqlc.arg(after_seq)::int)
    AND l.xid < sqlc.arg(safe)::text::xid8
    AND (@tenant::text = '' OR COALESCE(t.tenant, l.data->>'tenant', '') = @tenant)
    AND (cardinality(@types::text[]) = 0 OR l.type = ANY(@types::text[]))
ORDER BY l.xid, l.task_id, l.seq LIMIT @max_rows::int;

-- name: TaskQueue :one
SELECT t.queue FROM tasks t WHERE t.id = @id;

-- name: LastInterruption :one
-- Why a task was interrupted last.
SELECT e.worker_id, e.error_code, e.reason, e.occurred_at FROM event_log e
WHERE e.task_id = @task_id AND e.type = 'task.interrupted' ORDER BY e.seq DESC LIMIT 1;

-- name: TaskTenant :one
SELECT t.tenant FROM tasks t WHERE t.id = @id;

-- name: EventsOfTask :many
-- ListEvents with filters up to an event; attempt 0 and no types admit all.
SELECT e.task_id, e.seq, e.type, e.previous_status, e.status, e.attempt, e.delivery, e.idempotency_key, e.next_retry_at, e.error_code, e.reason, e.backoff_delay_ms, e.actor, e.worker_id, e.message_id, e.trace_id, e.data, e.occurred_at, e.xid::text::bigint AS xid_number FROM event_log e
WHERE e.task_id = @task_id AND e.seq > @after_seq AND e.seq <= @last_seq
    AND (@attempt::int = 0 OR e.attempt = @attempt)
    AND (cardinality(@types::text[]) = 0 OR e.type = ANY(@types::text[]))
ORDER BY e.seq LIMIT @max_rows;

-- name: WorkflowTasks :many
-- The tasks of a workflow: of a graph, or the one task of that id. tenant may
-- be empty. One more than can be followed tells that there are too many.
SELECT t.id FROM tasks t WHERE t.graph_id = @workflow_id AND (@tenant::text = '' OR t.tenant = @tenant)
UNION ALL SELECT t.id FROM tasks t WHERE t.id = @workflow_id AND t.graph_id IS DISTINCT FROM @workflow_id AND (@tenant::text = '' OR t.tenant = @tenant)
LIMIT @max_rows;

-- name: TraceTasks :many
-- The tasks of a trace: named_in is the task whose id is in a trace id that was
-- made for it.
SELECT t.id FROM tasks t WHERE t.trace_id = @trace_id AND t.given & 8 <> 0 AND (@tenant::text = '' OR t.tenant = @tenant)
UNION ALL SELECT t.id FROM tasks t WHERE t.id = @named_in AND t.trace_id = @trace_id AND t.given & 8 = 0 AND (@tenant::text = '' OR t.tenant = @tenant)
LIMIT @max_rows;

-- name: SearchTaskEvents :many
-- Events of some tasks in order of time, after a place in it. The columns are
-- those of WatchEvents.
SELECT e.task_id, e.seq, e.type, e.previous_status, e.status, e.attempt, e.delivery, e.idempotency_key, e.next_retry_at, e.error_code, e.reason, e.backoff_delay_ms, e.actor, e.worker_id, e.message_id, e.trace_id, e.data, e.occurred_at, e.xid::text::bigint AS xid_number, t.tenant, t.name, 0::bigint AS place, true::boolean AS admitted FROM event_log e JOIN tasks t ON t.id = ANY (ARRAY[e.task_id])
WHERE e.task_id = ANY(@task_ids::uuid[])
    AND e.occurred_at >= @since::timestamptz AND e.occurred_at < @until::timestamptz
    AND (e.occurred_at, e.task_id, e.seq) > (@after_at::timestamptz, @after_task::uuid, @after_seq::int)
    AND (@attempt::int = 0 OR e.attempt = @attempt)
    AND (cardinality(@types::text[]) = 0 OR e.type = ANY(@types::text[]))
ORDER BY e.occurred_at, e.task_id, e.seq LIMIT @max_rows;

-- name: AvoidFullScans :exec
-- For the transaction: a plan that reads the log from its beginning until it has
-- enough rows may read all of it first.
SELECT set_config('enable_seqscan', 'off', true);

-- name: ReadInOrder :exec
-- For the transaction: rows are read along the index that has their order, and no
-- more of them than a statement's limit lets through. A plan that reads all and
-- sorts them looks cheaper where Postgres knows little about a table.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true), set_config('jit', 'off', true);

-- name: CountEventsBetween :one
-- How many events there are within a time, at most max_rows: what it costs to
-- search it, whatever the filters.
SELECT count(*) FROM (
    SELECT 1 FROM event_log e WHERE e.occurred_at >= @since::timestamptz AND e.occurred_at < @until::timestamptz LIMIT @max_rows) c;

-- name: SearchAllEvents :many
-- Events of all tasks in order of time, after a place in it. All events of the
-- time are read and sorted for each page: let it be short.
SELECT e.task_id, e.seq, e.type, e.previous_status, e.status, e.attempt, e.delivery, e.idempotency_key, e.next_retry_at, e.error_code, e.reason, e.backoff_delay_ms, e.actor, e.worker_id, e.message_id, e.trace_id, e.data, e.occurred_at, e.xid::text::bigint AS xid_number, t.tenant, t.name, 0::bigint AS place, true::boolean AS admitted FROM event_log e JOIN tasks t ON t.id = ANY (ARRAY[e.task_id])
WHERE e.occurred_at >= @since::timestamptz AND e.occurred_at < @until::timestamptz
    AND (e.occurred_at, e.task_id, e.seq) > (@after_at::timestamptz, @after_task::uuid, @after_seq::int)
    AND (@tenant::text = '' OR t.tenant = @tenant)
    AND (@attempt::int = 0 OR e.attempt = @attempt)
    AND (cardinality(@types::text[]) = 0 OR e.type = ANY(@types::text[]))
ORDER BY e.occurred_at, e.task_id, e.seq LIMIT @max_rows;

-- name: WorkflowState :one
SELECT w.workflow_id, w.status, w.tasks, w.open_tasks, w.retry_context, w.created_at, w.updated_at FROM workflow_state w
WHERE w.workflow_id = @workflow_id AND (@tenant::text = '' OR w.tenant = @tenant);
