-- name: DependencyTargets :many
-- What a new task that depends on these needs to know of them.
SELECT t.id, t.tenant, t.state, t.graph_id FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id]);

-- name: LockUpstreams :many
-- Locks tasks that others are about to depend on, in id order, so that either
-- their end sees the dependants, or the dependants see their end.
SELECT t.id, t.state FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks_live t ON t.id = ANY (ARRAY[u.id])
ORDER BY u.id FOR NO KEY UPDATE OF t;

-- name: LockEndedUpstreams :many
-- The same for those that have ended, some while LockUpstreams waited for them: ask
-- after it.
SELECT t.id, t.state FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks_finished t ON t.id = ANY (ARRAY[u.id])
ORDER BY u.id FOR NO KEY UPDATE OF t;

-- name: TryLockUpstreams :many
-- Those that have ended and that nobody else has locked.
SELECT t.id FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks_finished t ON t.id = ANY (ARRAY[u.id])
ORDER BY u.id FOR NO KEY UPDATE OF t SKIP LOCKED;

-- name: MarkUpstreams :exec
-- Tells locked tasks that others depend on them. One that has ended is touched in
-- any case (MarkEndedUpstreams): retention must not remove it by an older look.
UPDATE tasks_live t SET has_dependants = true
FROM (SELECT unnest(@ids::uuid[]) AS id) u WHERE t.id = ANY (ARRAY[u.id]) AND NOT t.has_dependants;

-- name: MarkEndedUpstreams :exec
UPDATE tasks_finished t SET has_dependants = true, updated_at = now() FROM (SELECT unnest(@ids::uuid[]) AS id) u WHERE t.id = ANY (ARRAY[u.id]);

-- name: BeginGraphs :exec
-- Puts locked tasks that were alone, and after which others name their graph, into
-- it.
UPDATE tasks t SET graph_id = t.id FROM (SELECT unnest(@ids::uuid[]) AS id) u WHERE t.id = ANY (ARRAY[u.id]) AND t.graph_id IS NULL;

-- name: UpstreamsOf :many
-- What tasks depend on, each once.
SELECT DISTINCT e.upstream_id FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN task_dependencies e ON e.task_id = u.id;

-- name: InsertDependencies :exec
INSERT INTO task_dependencies (task_id, upstream_id, position, name)
SELECT unnest(@task_ids::uuid[]), unnest(@upstream_ids::uuid[]), unnest(@positions::int[]), unnest(@names::text[]);

-- name: LockSettlements :many
-- Tasks that ended and whose dependants nobody else is telling just now.
SELECT s.upstream_id FROM dependency_settlements s ORDER BY s.created_at, s.upstream_id LIMIT @max_rows FOR UPDATE SKIP LOCKED;

-- name: OpenEdges :many
-- The next edges of tasks that ended which their dependants have not counted.
SELECT e.task_id, e.upstream_id FROM (SELECT unnest(@upstream_ids::uuid[]) AS id) u JOIN task_dependencies e ON e.upstream_id = u.id
WHERE NOT e.settled ORDER BY e.upstream_id, e.task_id LIMIT @max_rows;

-- name: SettleEdges :many
-- Marks edges of locked dependants as counted; returns those that were not yet.
UPDATE task_dependencies e SET settled = true
FROM (SELECT unnest(@task_ids::uuid[]) AS task_id, unnest(@upstream_ids::uuid[]) AS upstream_id) u
WHERE e.task_id = u.task_id AND e.upstream_id = u.upstream_id AND NOT e.settled
RETURNING e.task_id, e.upstream_id, e.position, e.name;

-- name: EndedTasks :many
-- How tasks ended. One that is missing was removed.
SELECT t.id, t.name, t.state, t.last_error_code, t.last_error_reason FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id]);

-- name: DeleteSettlements :execrows
-- Forgets tasks whose dependants have all been told; the tasks are locked, so that
-- no dependant is being stored. Never waits.
DELETE FROM dependency_settlements s WHERE s.upstream_id IN (
    SELECT d.upstream_id FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN dependency_settlements d ON d.upstream_id = u.id
    WHERE NOT EXISTS (SELECT FROM task_dependencies e WHERE e.upstream_id = u.id AND NOT e.settled)
    FOR UPDATE OF d SKIP LOCKED);

-- name: LostSettlements :many
-- A page of the tasks that wait for others, in id order, each with those of its
-- dependencies that ended, or are gone, and that are not noted; the zero id if
-- there are none.
WITH page AS MATERIALIZED (
    SELECT t.id FROM live_queues q CROSS JOIN (VALUES ('pending'), ('waiting_approval')) s(state) CROSS JOIN LATERAL (
        SELECT x.id FROM tasks_live x WHERE x.queue = q.queue AND x.state = s.state AND x.due_at IS NULL AND x.open_dependencies > 0 AND x.id > @after_id::uuid
        ORDER BY x.id LIMIT @max_rows) t
    ORDER BY t.id LIMIT @max_rows
)
SELECT p.id AS task_id, COALESCE(e.upstream_id, '00000000-0000-0000-0000-000000000000'::uuid)::uuid AS upstream_id
FROM page p LEFT JOIN LATERAL (
    SELECT d.upstream_id FROM task_dependencies d LEFT JOIN tasks u ON u.id = ANY (ARRAY[d.upstream_id])
    WHERE d.task_id = p.id AND NOT d.settled AND (u.id IS NULL OR u.state IN ('succeeded', 'failed', 'cancelled'))
        AND NOT EXISTS (SELECT FROM dependency_settlements s WHERE s.upstream_id = d.upstream_id)) e ON true
ORDER BY p.id;

-- name: CountSettlements :one
SELECT count(*) AS waiting, COALESCE(extract(epoch FROM clock_timestamp() - min(s.created_at)), 0)::double precision AS oldest_seconds FROM dependency_settlements s;

-- name: DependencyResults :many
-- How the dependencies of tasks ended, the first max_rows of each task, with
-- results as long as those of a task are at most max_bytes together. A result is
-- read from its storage only where what is stored of it and of those before it,
-- compressed, fits: stored_bytes, without the header, is never more than its text.
SELECT r.task_id, r.name, r.upstream_id, r.upstream_name, r.type, r.state, r.last_error_code, r.last_error_reason, r.position,
    (CASE WHEN r.bytes <= sqlc.arg(max_bytes)::bigint THEN r.result END)::json AS result, (r.bytes > sqlc.arg(max_bytes)::bigint)::boolean AS cut
FROM (SELECT unnest(@task_ids::uuid[]) AS id) u CROSS JOIN LATERAL (
    SELECT s.*, sum(CASE WHEN s.stored_bytes > sqlc.arg(max_bytes)::bigint THEN s.stored_bytes ELSE COALESCE(octet_length(s.result::text), 0) END)
        OVER (ORDER BY s.position)::bigint AS bytes
    FROM (SELECT e.task_id, e.name, e.upstream_id, t.name AS upstream_name, COALESCE(t.type, '')::text AS type, COALESCE(t.state, '')::text AS state,
            t.last_error_code, t.last_error_reason, e.position, t.result, sum(GREATEST(COALESCE(pg_column_size(t.result), 0) - 4, 0)) OVER (ORDER BY e.position)::bigint AS stored_bytes
        FROM (SELECT * FROM task_dependencies d WHERE d.task_id = u.id AND d.position > sqlc.arg(after_position)::int ORDER BY d.position LIMIT sqlc.arg(max_rows)) e
            LEFT JOIN tasks t ON t.id = ANY (ARRAY[e.upstream_id])) s) r
ORDER BY r.task_id, r.position;

-- name: EdgesOf :many
-- Edges at either end of tasks, each once.
SELECT e.task_id, e.upstream_id, e.position, e.name, e.settled FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN task_dependencies e ON e.task_id = u.id
UNION
SELECT e.task_id, e.upstream_id, e.position, e.name, e.settled FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN task_dependencies e ON e.upstream_id = u.id
ORDER BY task_id, position, upstream_id LIMIT @max_rows;

-- name: GraphTasks :many
SELECT t.id, t.name, t.tenant, t.type, t.queue, t.state, t.attempt, t.max_retries, t.open_dependencies, t.on_dependency_failure, t.graph_id,
    t.last_error_code, t.last_error_reason, t.created_at, t.started_at, t.finished_at
FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id]);

-- name: GraphRequeueLock :exec
-- One requeue of a whole graph at a time: none clones a task that another clones.
SELECT pg_advisory_xact_lock(5077015);

-- name: CancelledDependants :many
-- The tasks that were cancelled because one of these did not succeed, or along
-- with one, and that were not made anew.
SELECT DISTINCT e.task_id FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN task_dependencies e ON e.upstream_id = u.id JOIN tasks t ON t.id = ANY (ARRAY[e.task_id])
WHERE t.state = 'cancelled' AND t.last_error_code = 'TASK_DEPENDENCY_FAILED' AND NOT EXISTS (SELECT FROM task_clones c WHERE c.task_id = e.task_id)
ORDER BY e.task_id;

-- name: OriginsOf :many
-- The tasks that some were requeued from, directly or through others.
WITH RECURSIVE origins AS (
    SELECT t.id AS task_id, t.id AS origin_id, t.origin_dlq_id FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id])
    UNION ALL
    SELECT o.task_id, t.id, t.origin_dlq_id FROM origins o JOIN dlq_items d ON d.dlq_id = o.origin_dlq_id JOIN tasks t ON t.id = ANY (ARRAY[d.task_id])
)
SELECT o.task_id, o.origin_id FROM origins o WHERE o.origin_id <> o.task_id;

-- name: UntoldDependants :one
-- Whether tasks wait that will be cancelled because one of these has not succeeded.
SELECT EXISTS (SELECT FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN task_dependencies e ON e.upstream_id = u.id JOIN tasks t ON t.id = ANY (ARRAY[e.task_id])
    WHERE NOT e.settled AND t.on_dependency_failure = 'cancel' AND t.state IN ('pending', 'waiting_approval'));

-- name: EdgesToClone :many
-- What tasks depend on, in order; stand_in is the newest task that stands for the
-- upstream: what it was made anew as, or its dead letter was last requeued as, and
-- so on.
WITH RECURSIVE edges AS MATERIALIZED (
    SELECT e.task_id, e.upstream_id, e.position, e.name FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN task_dependencies e ON e.task_id = u.id
), chain AS (
    SELECT DISTINCT e.upstream_id AS first, e.upstream_id AS id, 0 AS hop FROM edges e
    UNION ALL
    SELECT c.first, n.id, c.hop + 1 FROM chain c CROSS JOIN LATERAL (SELECT COALESCE(
        (SELECT k.clone_id FROM task_clones k WHERE k.task_id = c.id),
        (SELECT r.task_id FROM dlq_items d JOIN dlq_requeues r ON r.dlq_id = d.dlq_id AND r.n = d.requeues WHERE d.task_id = c.id ORDER BY r.created_at DESC LIMIT 1)) AS id) n
    WHERE n.id IS NOT NULL
), newest AS (
    SELECT DISTINCT ON (c.first) c.first, c.id FROM chain c ORDER BY c.first, c.hop DESC
)
SELECT e.task_id, e.upstream_id, e.position, e.name, n.id::uuid AS stand_in FROM edges e JOIN newest n ON n.first = e.upstream_id
ORDER BY e.task_id, e.position;

-- name: CloneTasks :many
-- Makes cancelled tasks anew, waiting for what they depend on, each with its
-- first event and the link to the one it stands for.
WITH input AS (
    SELECT unnest(@task_ids::uuid[]) AS task_id, unnest(@clone_ids::uuid[]) AS clone_id, unnest(@dlq_ids::uuid[]) AS dlq_id,
        unnest(@trace_ids::text[]) AS trace_id, unnest(@dependencies::int[]) AS dependencies
), ins AS (
    INSERT INTO tasks_live (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, retry_policy, idempotency_scope, given, trace_id,
        payload, effect_key, effect_own, heartbeat_timeout_ms, requested_by, also_requested_by, graph_id, open_dependencies, on_dependency_failure)
    SELECT i.clone_id, t.tenant, t.queue, t.type, 'pending', t.max_retries, 'now', t.timeout_ms, t.retry_policy, t.idempotency_scope, t.given,
        CASE WHEN starts_with(t.trace_id, 'trace-run-' || t.id::text) THEN i.trace_id ELSE t.trace_id END,
        t.payload, penstock_effect_key(t.effect_key, t.idempotency_key, t.name, t.id), penstock_effect_own(t.effect_own, t.effect_key, t.idempotency_key), t.heartbeat_timeout_ms, sqlc.arg(principal)::text,
        array_append(COALESCE(t.also_requested_by, '{}') || t.rescheduled_by, t.requested_by), t.graph_id, i.dependencies, t.on_dependency_failure
    FROM input i JOIN tasks t ON t.id = ANY (ARRAY[i.task_id])
    ORDER BY i.clone_id
    RETURNING id, trace_id, created_at, open_dependencies, queue, type
), ev AS (
    INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, data, occurred_at)
    SELECT n.id, 1, 'task.created', 'pending', 1, 1, sqlc.arg(actor)::text, n.trace_id,
        json_build_object('dependencies', n.open_dependencies, 'origin_dlq_id', i.dlq_id, 'origin_task_id', COALESCE(t.name, t.id::text)), n.created_at
    FROM ins n JOIN input i ON i.clone_id = n.id JOIN tasks t ON t.id = ANY (ARRAY[i.task_id])
), link AS (
    INSERT INTO task_clones (task_id, clone_id, dlq_id)
    SELECT i.task_id, n.id, i.dlq_id FROM ins n JOIN input i ON i.clone_id = n.id ORDER BY i.task_id
)
SELECT n.id, n.queue, n.type FROM ins n;
