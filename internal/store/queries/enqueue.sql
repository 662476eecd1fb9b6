-- name: InsertTasks :many
-- Stores new tasks with their first event, and the outbox rows of those that
-- may go straight to their stream, in one statement. A task goes straight if
-- the caller allows it for its queue and no due task of the queue waits in
-- Postgres. Ids that exist already are left out of the result; so are all if the
-- guard's rules are not those of guard_revision any more. Where a task that has ended has
-- the id of one, the log has its first event: unique_violation. A guarded task waits for
-- a person, one with dependencies for other tasks. One that a schedule makes is
-- pending even if it is due: a guard is asked when it is dispatched.
-- A key, or a caller's name, that may have had another task before makes a new act:
-- its effects are under the key and its generation, the microsecond in which it was
-- taken, in at most 255 bytes. Whether one was removed is asked here, after the
-- statement that took the keys has waited for whoever removed one.
WITH input AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@names::text[]) AS name, unnest(@tenants::text[]) AS tenant,
        unnest(@queues::text[]) AS queue, unnest(@types::text[]) AS type, unnest(@payloads::text[]) AS payload,
        unnest(@schedule_types::text[]) AS schedule_type, unnest(@scheduled_ats::timestamptz[]) AS scheduled_at,
        unnest(@delay_mss::bigint[]) AS delay_ms, unnest(@timeout_mss::int[]) AS timeout_ms,
        unnest(@max_retriess::int[]) AS max_retries, unnest(@retry_policies::text[]) AS retry_policy,
        unnest(@scopes::text[]) AS scope, unnest(@keys::text[]) AS key, unnest(@givens::smallint[]) AS given,
        unnest(@trace_ids::text[]) AS trace_id, unnest(@expires_ats::timestamptz[]) AS expires_at,
        unnest(@start_within_mss::bigint[]) AS start_within_ms, unnest(@heartbeat_timeout_mss::int[]) AS heartbeat_timeout_ms,
        unnest(@requested_bys::text[]) AS requested_by, unnest(@guardeds::boolean[]) AS guarded, unnest(@dependencies::int[]) AS dependencies,
        unnest(@on_dependency_failures::text[]) AS on_dependency_failure, unnest(@dependencies_digests::text[]) AS dependencies_digest,
        unnest(@graph_ids::uuid[]) AS graph_id, unnest(@schedule_ids::uuid[]) AS schedule_id
), queues AS (
    -- No EXISTS: it may become a look at all that is due, of every queue.
    SELECT q.queue, q.after_id, q.room AND (
        SELECT t.queue FROM tasks_live t WHERE t.queue = q.queue AND t.due_at IS NOT NULL AND t.due_at <= now() LIMIT 1) IS NULL AS direct
    FROM (SELECT unnest(@stream_queues::text[]) AS queue, unnest(@after_ids::text[]) AS after_id, unnest(@rooms::boolean[]) AS room) q
), timed AS (
    SELECT i.*, CASE
        WHEN i.schedule_type = 'at' AND i.scheduled_at > now() THEN i.scheduled_at
        WHEN i.schedule_type = 'delay' AND i.delay_ms > 0 THEN now() + i.delay_ms * interval '1 millisecond'
        END AS later
    FROM input i WHERE (SELECT g.revision FROM guard_state g) = @guard_revision::bigint
), bounded AS (
    SELECT t.*, CASE
        WHEN t.start_within_ms > 0 THEN COALESCE(t.later, now()) + t.start_within_ms * interval '1 millisecond'
        ELSE NULLIF(t.expires_at, '0001-01-01 00:00:00Z'::timestamptz) END AS ends,
        CASE WHEN CASE WHEN t.key <> '' THEN (SELECT r.since IS NOT NULL FROM key_reuse r WHERE r.one) WHEN t.name <> '' THEN (SELECT h.xid <> '0' FROM event_horizon h WHERE h.one) END
            THEN CASE WHEN octet_length(COALESCE(NULLIF(t.key, ''), t.name)) > 241 THEN encode(sha256(convert_to(COALESCE(NULLIF(t.key, ''), t.name), 'UTF8')), 'hex') ELSE COALESCE(NULLIF(t.key, ''), t.name) END
                || '~' || to_hex((extract(epoch FROM now()) * 1000000)::bigint) END AS effect_key
    FROM timed t
), ins AS (
    INSERT INTO tasks_live (id, name, tenant, queue, type, state, max_retries, schedule_type, scheduled_at, delay_ms,
        timeout_ms, due_at, retry_policy, idempotency_scope, idempotency_key, given, trace_id, payload,
        expires_at, start_within_ms, heartbeat_timeout_ms, requested_by, start_at, graph_id, open_dependencies,
        on_dependency_failure, dependencies_digest, schedule_id, effect_key, effect_own)
    SELECT i.id, NULLIF(i.name, ''), i.tenant, i.queue, i.type,
        CASE WHEN i.guarded THEN 'waiting_approval' WHEN i.later IS NULL AND i.dependencies = 0 AND i.schedule_id = '00000000-0000-0000-0000-000000000000'::uuid THEN 'queued' ELSE 'pending' END, i.max_retries, i.schedule_type,
        CASE WHEN i.schedule_type = 'at' THEN i.scheduled_at END,
        CASE WHEN i.schedule_type = 'delay' THEN i.delay_ms END, i.timeout_ms,
        CASE WHEN NOT i.guarded AND i.dependencies = 0 THEN COALESCE(i.later, CASE WHEN NOT q.direct OR i.ends <= now() THEN now() END) END, NULLIF(i.retry_policy, '')::json, i.scope, NULLIF(i.key, ''),
        i.given, i.trace_id, i.payload::json, i.ends, NULLIF(i.start_within_ms, 0), NULLIF(i.heartbeat_timeout_ms, 0),
        i.requested_by, i.later, NULLIF(i.graph_id, '00000000-0000-0000-0000-000000000000'::uuid), i.dependencies, NULLIF(i.on_dependency_failure, ''),
        NULLIF(i.dependencies_digest, ''), NULLIF(i.schedule_id, '00000000-0000-0000-0000-000000000000'::uuid),
        i.effect_key, i.effect_key IS NOT NULL AND i.key = ''
    FROM bounded i JOIN queues q ON q.queue = i.queue
    ORDER BY i.id
    ON CONFLICT (id) DO NOTHING
    RETURNING id, name, queue, state, idempotency_key, trace_id, due_at, schedule_type, scheduled_at, created_at, expires_at, start_at, open_dependencies, schedule_id, effect_key
), ev AS (
    INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, idempotency_key, actor, trace_id, data, occurred_at)
    SELECT id, 1, 'task.created', state, 1, 1, COALESCE(idempotency_key, name), 'api', trace_id,
        CASE WHEN schedule_id IS NOT NULL THEN json_strip_nulls(json_build_object('schedule_id', schedule_id, 'fire_at', scheduled_at, 'due_at', start_at))
             WHEN open_dependencies > 0 THEN json_strip_nulls(json_build_object('start_at', start_at, 'dependencies', open_dependencies,
                 'scheduled_at', CASE WHEN start_at IS NULL AND schedule_type = 'at' THEN scheduled_at END,
                 'past', CASE WHEN start_at IS NULL AND schedule_type = 'at' THEN true END))
             WHEN start_at IS NOT NULL THEN json_build_object('due_at', start_at)
             WHEN schedule_type = 'at' THEN json_build_object('scheduled_at', scheduled_at, 'past', true) END, created_at
    FROM ins
), outbox AS (
    INSERT INTO dispatch_outbox (owner, queue, after_id, task_ids, deliveries)
    SELECT @owner::uuid, i.queue, q.after_id, array_agg(i.id), array_agg(1::bigint)
    FROM ins i JOIN queues q ON q.queue = i.queue
    WHERE i.due_at IS NULL AND i.state = 'queued'
    GROUP BY i.queue, q.after_id
    RETURNING id, queue
), done AS (
    DELETE FROM dispatch_outbox d WHERE d.id = ANY(@done_outbox::bigint[])
)
SELECT i.id, i.state, i.created_at, (i.due_at IS NULL AND i.state = 'queued')::boolean AS direct, COALESCE(i.due_at, i.created_at)::timestamptz AS due_at, COALESCE(o.id, 0)::bigint AS outbox_id, i.expires_at, i.start_at, COALESCE(i.effect_key, '')::text AS effect_key
FROM ins i LEFT JOIN outbox o ON o.queue = i.queue AND i.due_at IS NULL AND i.state = 'queued';

-- name: GuardRevision :one
SELECT revision FROM guard_state;

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
FROM idempotency_keys k JOIN tasks t ON t.id = ANY (ARRAY[k.task_id])
WHERE (k.scope, k.key) IN (SELECT unnest(@scopes::text[]), unnest(@keys::text[]));

-- name: TasksByID :many
SELECT t.* FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id]);

-- name: ScopeOwners :many
-- Whose each scope is, if anybody's: the tenant's of that name, else that of a
-- task with a key in it; all have the same.
SELECT u.scope::text AS scope, COALESCE(n.name, o.tenant)::text AS tenant FROM (SELECT unnest(@scopes::text[]) AS scope) u
LEFT JOIN tenants n ON n.name = u.scope
LEFT JOIN LATERAL (
    SELECT t.tenant FROM idempotency_keys k JOIN tasks t ON t.id = ANY (ARRAY[k.task_id]) WHERE k.scope = u.scope ORDER BY k.scope, k.key LIMIT 1) o ON true
WHERE COALESCE(n.name, o.tenant) IS NOT NULL;

-- name: LockScopes :exec
-- Whoever begins to use a scope waits for the others that do, in order, until
-- their transactions end.
SELECT pg_advisory_xact_lock(hashtextextended('penstock scope ' || x.scope, 0)) FROM (SELECT u.scope FROM unnest(@scopes::text[]) AS u(scope) ORDER BY u.scope) x;

-- name: NoteTenants :many
-- Notes tenants in order of name and returns those that were not known.
INSERT INTO tenants (name) SELECT u.name FROM (SELECT DISTINCT unnest(@names::text[]) AS name) u ORDER BY u.name
ON CONFLICT DO NOTHING RETURNING name;
