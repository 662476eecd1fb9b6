-- name: InsertTasks :many
-- Stores new tasks with their first event, and the outbox rows of those that
-- may go straight to their stream, in one statement. A task goes straight if
-- the caller allows it for its queue and no due task of the queue waits in
-- Postgres. Ids that exist already are left out of the result.
WITH input AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@names::text[]) AS name, unnest(@tenants::text[]) AS tenant,
        unnest(@queues::text[]) AS queue, unnest(@types::text[]) AS type, unnest(@payloads::text[]) AS payload,
        unnest(@schedule_types::text[]) AS schedule_type, unnest(@scheduled_ats::timestamptz[]) AS scheduled_at,
        unnest(@delay_mss::bigint[]) AS delay_ms, unnest(@timeout_mss::int[]) AS timeout_ms,
        unnest(@max_retriess::int[]) AS max_retries, unnest(@retry_policies::text[]) AS retry_policy,
        unnest(@scopes::text[]) AS scope, unnest(@keys::text[]) AS key, unnest(@givens::smallint[]) AS given,
        unnest(@trace_ids::text[]) AS trace_id
), queues AS (
    SELECT q.queue, q.after_id, q.room AND NOT EXISTS (
        SELECT 1 FROM tasks t WHERE t.queue = q.queue AND t.due_at IS NOT NULL AND t.due_at <= now()) AS direct
    FROM (SELECT unnest(@stream_queues::text[]) AS queue, unnest(@after_ids::text[]) AS after_id, unnest(@rooms::boolean[]) AS room) q
), timed AS (
    SELECT i.*, CASE
        WHEN i.schedule_type = 'at' AND i.scheduled_at > now() THEN i.scheduled_at
        WHEN i.schedule_type = 'delay' AND i.delay_ms > 0 THEN now() + i.delay_ms * interval '1 millisecond'
        END AS later
    FROM input i
), ins AS (
    INSERT INTO tasks (id, name, tenant, queue, type, state, max_retries, schedule_type, scheduled_at, delay_ms,
        timeout_ms, due_at, retry_policy, idempotency_scope, idempotency_key, given, trace_id, payload)
    SELECT i.id, NULLIF(i.name, ''), i.tenant, i.queue, i.type,
        CASE WHEN i.later IS NULL THEN 'queued' ELSE 'pending' END, i.max_retries, i.schedule_type,
        CASE WHEN i.schedule_type = 'at' THEN i.scheduled_at END,
        CASE WHEN i.schedule_type = 'delay' THEN i.delay_ms END, i.timeout_ms,
        COALESCE(i.later, CASE WHEN NOT q.direct THEN now() END), NULLIF(i.retry_policy, '')::json, i.scope, NULLIF(i.key, ''),
        i.given, i.trace_id, i.payload::json
    FROM timed i JOIN queues q ON q.queue = i.queue
    ORDER BY i.id
    ON CONFLICT (id) DO NOTHING
    RETURNING id, name, queue, state, idempotency_key, trace_id, due_at, schedule_type, scheduled_at, created_at
), ev AS (
    INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, idempotency_key, actor, trace_id, data, occurred_at)
    SELECT id, 1, 'task.created', state, 1, 1, COALESCE(idempotency_key, name), 'api', trace_id,
        CASE WHEN state = 'pending' THEN json_build_object('due_at', due_at)
             WHEN schedule_type = 'at' THEN json_build_object('scheduled_at', scheduled_at, 'past', true) END, created_at
    FROM ins
), outbox AS (
    INSERT INTO dispatch_outbox (owner, queue, after_id, task_ids, deliveries)
    SELECT @owner::uuid, i.queue, q.after_id, array_agg(i.id), array_agg(1::bigint)
    FROM ins i JOIN queues q ON q.queue = i.queue
    WHERE i.due_at IS NULL
    GROUP BY i.queue, q.after_id
    RETURNING id, queue
), done AS (
    DELETE FROM dispatch_outbox d WHERE d.id = ANY(@done_outbox::bigint[])
)
SELECT i.id, i.state, i.created_at, (i.due_at IS NULL)::boolean AS direct, COALESCE(i.due_at, i.created_at)::timestamptz AS due_at, COALESCE(o.id, 0)::bigint AS outbox_id
FROM ins i LEFT JOIN outbox o ON o.queue = i.queue AND i.due_at IS NULL;

-- name: InsertKeys :many
-- Takes idempotency keys in key order and returns those that were free; waits
-- for a concurrent transaction that holds the same key.
INSERT INTO idempotency_keys (scope, key, task_id)
SELECT k.scope, k.key, k.task_id
FROM (SELECT unnest(@scopes::text[]) AS scope, unnest(@keys::text[]) AS key, unnest(@task_ids::uuid[]) AS task_id) k
ORDER BY k.scope, k.key
ON CONFLICT (scope, key) DO NOTHING
RETURNING scope, key, task_id;

-- name: DropKeys :exec
-- Gives back keys whose task was not created after all.
DELETE FROM idempotency_keys k USING (SELECT unnest(@scopes::text[]) AS scope, unnest(@keys::text[]) AS key) d
WHERE k.scope = d.scope AND k.key = d.key;

-- name: TasksByKey :many
SELECT k.scope AS key_scope, k.key AS key_key, sqlc.embed(t)
FROM idempotency_keys k JOIN tasks t ON t.id = k.task_id
WHERE (k.scope, k.key) IN (SELECT unnest(@scopes::text[]), unnest(@keys::text[]));

-- name: TasksByID :many
SELECT t.* FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = u.id;
