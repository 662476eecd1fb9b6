-- name: EffectKeys :many
-- The scope and key of tasks' effects. They never change.
SELECT t.id, (CASE WHEN penstock_effect_own(t.effect_own, t.effect_key, t.idempotency_key) THEN t.tenant ELSE t.idempotency_scope END)::text AS scope,
    (CASE WHEN penstock_effect_own(t.effect_own, t.effect_key, t.idempotency_key) THEN 't:' ELSE 'k:' END || penstock_effect_key(t.effect_key, t.idempotency_key, t.name, t.id))::text AS key
FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id]);

-- name: CurrentEffectKeys :many
-- The keys of the effects of the task that has an idempotency key now, and of the
-- one that has an id, where they have a generation.
SELECT ('k:' || t.effect_key)::text AS key FROM idempotency_keys k JOIN tasks t ON t.id = ANY (ARRAY[k.task_id])
WHERE k.scope = @scope AND k.key = @key AND t.effect_key IS NOT NULL AND NOT t.effect_own
UNION ALL
SELECT 't:' || t.effect_key FROM tasks t WHERE t.id = @named::uuid AND t.effect_own;

-- name: EffectRequesters :many
-- Everybody who had a hand in one of the tasks, or in one that was requeued from
-- it or made anew in its place.
WITH RECURSIVE family (id) AS (
    SELECT unnest(@ids::uuid[])
    UNION
    SELECT l.id FROM family f CROSS JOIN LATERAL (
        SELECT r.task_id AS id FROM dlq_items d JOIN dlq_requeues r ON r.dlq_id = d.dlq_id WHERE d.task_id = f.id
        UNION ALL
        SELECT c.clone_id FROM task_clones c WHERE c.task_id = f.id) l
)
SELECT DISTINCT lower(btrim(p.name))::text AS name FROM family f JOIN tasks t ON t.id = ANY (ARRAY[f.id]),
    unnest(t.requested_by || COALESCE(t.also_requested_by, '{}') || t.rescheduled_by) p(name)
ORDER BY 1;

-- name: LockEffect :one
SELECT e.*, clock_timestamp()::timestamptz AS now FROM effects e WHERE e.scope = @scope AND e.key = @key AND e.name = @name FOR UPDATE OF e;

-- name: GetEffect :one
SELECT * FROM effects e WHERE e.scope = @scope AND e.key = @key AND e.name = @name;

-- name: ExecutionLive :one
-- Whether an execution is its task's current one and runs. One that is not never
-- becomes so again. Ask after the effect was locked: an execution that reserved it
-- meanwhile must be seen.
SELECT EXISTS (SELECT FROM tasks_live t WHERE t.id = @id AND t.state = 'running' AND t.delivery = @delivery);

-- name: InsertEffect :execrows
INSERT INTO effects (scope, key, name, state, token, task_id, delivery, worker_id, users, runs, reserved_at, updated_at)
VALUES (@scope, @key, @name, 'reserved', @token, @task_id, @delivery, @worker_id, ARRAY[@task_id::uuid], 1, clock_timestamp(), clock_timestamp())
ON CONFLICT (scope, key, name) DO NOTHING;

-- name: SaveEffect :exec
UPDATE effects SET state = @state, token = @token, task_id = @task_id, delivery = @delivery, worker_id = @worker_id, users = @users::uuid[],
    runs = @runs, reserved_at = @reserved_at, done_at = sqlc.narg(done_at), result = NULLIF(sqlc.arg(result)::text, '')::json,
    result_note = NULLIF(sqlc.arg(result_note)::text, ''), resolution = NULLIF(sqlc.arg(resolution)::text, ''),
    resolved_by = NULLIF(sqlc.arg(resolved_by)::text, ''), resolution_reason = NULLIF(sqlc.arg(resolution_reason)::text, ''),
    resolved_at = sqlc.narg(resolved_at), conflicts = @conflicts, history = sqlc.arg(history)::text::json, updated_at = clock_timestamp()
WHERE scope = @scope AND key = @key AND name = @name;

-- name: FreeEffect :exec
-- An effect in doubt is to be run again, by a person's decision. The caller holds
-- the effect's lock, and has seen under it that it is in doubt. The history has
-- at most 20 lines, as protocol.Effect keeps it.
UPDATE effects e SET state = 'free', resolution = 'run_again', resolved_by = sqlc.arg(resolved_by)::text,
    resolution_reason = NULLIF(sqlc.arg(reason)::text, ''), resolved_at = clock_timestamp(), updated_at = clock_timestamp(),
    history = ((SELECT COALESCE(jsonb_agg(h.line ORDER BY h.n), '[]') FROM (
        SELECT x.line, x.n FROM jsonb_array_elements(e.history::jsonb) WITH ORDINALITY x (line, n) ORDER BY x.n DESC LIMIT 19) h) || jsonb_build_array(jsonb_build_object('at', clock_timestamp(), 'what', 'resolved: run_again',
        'by', sqlc.arg(resolved_by)::text, 'reason', sqlc.arg(reason)::text)))::json
WHERE e.scope = @scope AND e.key = @key AND e.name = @name AND e.state = 'reserved';

-- name: ListEffects :many
-- One look, as ListTasks, in the order of the keys; live: the holder runs. The
-- holder is looked up for each effect by itself.
SELECT l.scope, l.key, l.name, l.state, l.task_id, l.delivery, l.worker_id, l.runs, l.reserved_at, l.done_at, l.result_note, l.resolution, l.resolved_by, l.resolution_reason, l.resolved_at, l.conflicts,
    (t.runs IS TRUE)::boolean AS live, l.place, l.matches AS admitted
FROM (
    SELECT e.*, row_number() OVER (ORDER BY e.scope, e.key, e.name) AS place,
        ((sqlc.arg(scope)::text = '' OR e.scope = sqlc.arg(scope)::text) AND (sqlc.arg(state)::text = '' OR e.state = sqlc.arg(state)::text))::boolean AS matches
    FROM effects e
    WHERE (e.scope, e.key, e.name) > (sqlc.arg(after_scope)::text, sqlc.arg(after_key)::text, sqlc.arg(after_name)::text)
    ORDER BY e.scope, e.key, e.name LIMIT sqlc.arg(max_look)::int
) l LEFT JOIN LATERAL (SELECT (x.state = 'running' AND x.delivery = l.delivery) AS runs FROM tasks x WHERE x.id = l.task_id OFFSET 0) t ON true
WHERE l.matches OR l.place = sqlc.arg(max_look)::int
ORDER BY l.scope, l.key, l.name LIMIT sqlc.arg(max_rows)::int;

-- name: ListReservedEffects :many
-- ListEffects of those that are reserved; or, if asked, in doubt.
SELECT l.scope, l.key, l.name, l.state, l.task_id, l.delivery, l.worker_id, l.runs, l.reserved_at, l.done_at, l.result_note, l.resolution, l.resolved_by, l.resolution_reason, l.resolved_at, l.conflicts,
    (t.runs IS TRUE)::boolean AS live, l.place, (l.matches AND NOT (sqlc.arg(doubt)::boolean AND t.runs IS TRUE))::boolean AS admitted
FROM (
    SELECT e.*, row_number() OVER (ORDER BY e.scope, e.key, e.name) AS place,
        ((sqlc.arg(scope)::text = '' OR e.scope = sqlc.arg(scope)::text))::boolean AS matches
    FROM effects e
    WHERE e.state = 'reserved' AND (e.scope, e.key, e.name) > (sqlc.arg(after_scope)::text, sqlc.arg(after_key)::text, sqlc.arg(after_name)::text)
    ORDER BY e.scope, e.key, e.name LIMIT sqlc.arg(max_look)::int
) l LEFT JOIN LATERAL (SELECT (x.state = 'running' AND x.delivery = l.delivery) AS runs FROM tasks x WHERE x.id = l.task_id OFFSET 0) t ON true
WHERE l.place = sqlc.arg(max_look)::int OR l.matches AND NOT (sqlc.arg(doubt)::boolean AND t.runs IS TRUE)
ORDER BY l.scope, l.key, l.name LIMIT sqlc.arg(max_rows)::int;

-- name: ListEffectsOfKey :many
SELECT l.scope, l.key, l.name, l.state, l.task_id, l.delivery, l.worker_id, l.runs, l.reserved_at, l.done_at, l.result_note, l.resolution, l.resolved_by, l.resolution_reason, l.resolved_at, l.conflicts,
    (t.runs IS TRUE)::boolean AS live, 0::bigint AS place, true::boolean AS admitted
FROM effects l LEFT JOIN LATERAL (SELECT (x.state = 'running' AND x.delivery = l.delivery) AS runs FROM tasks x WHERE x.id = l.task_id OFFSET 0) t ON true
WHERE l.scope = @scope AND l.key = @key AND l.name > sqlc.arg(after_name)::text AND (sqlc.arg(state)::text = '' OR l.state = sqlc.arg(state)::text)
    AND NOT (sqlc.arg(doubt)::boolean AND t.runs IS TRUE)
ORDER BY l.name LIMIT sqlc.arg(max_rows)::int;

-- name: RemoveEffects :many
-- See penstock_remove_effects.
SELECT r.last_at::timestamptz AS last_at, r.last_scope::text AS last_scope, r.last_key::text AS last_key, r.last_name::text AS last_name, r.removed::int AS removed
FROM penstock_remove_effects(sqlc.arg(after_at)::timestamptz, sqlc.arg(after_scope)::text, sqlc.arg(after_key)::text, sqlc.arg(after_name)::text,
    sqlc.arg(keep_ms)::bigint * interval '1 millisecond', sqlc.arg(max_rows)::int) r;

-- name: VerifyEffects :many
-- The next effects, with what the task that holds each says, if it is still there
-- and not another that has its name now.
SELECT e.scope, e.key, e.name, e.state, e.task_id, e.delivery, e.runs, (t.id IS NOT NULL)::boolean AS task_found, COALESCE(t.delivery, 0)::bigint AS task_delivery,
    COALESCE(CASE WHEN penstock_effect_own(t.effect_own, t.effect_key, t.idempotency_key) THEN t.tenant ELSE t.idempotency_scope END, '')::text AS task_scope,
    COALESCE((CASE WHEN penstock_effect_own(t.effect_own, t.effect_key, t.idempotency_key) THEN 't:' ELSE 'k:' END || penstock_effect_key(t.effect_key, t.idempotency_key, t.name, t.id)), '')::text AS task_key,
    (SELECT count(*) FROM event_log v WHERE v.task_id = e.task_id AND v.type = 'task.claimed' AND v.delivery = e.delivery) AS claims
FROM effects e LEFT JOIN tasks t ON t.id = ANY (ARRAY[e.task_id]) AND (t.id < 'ff000000-0000-0000-0000-000000000000' OR t.created_at <= e.reserved_at)
WHERE (e.scope, e.key, e.name) > (sqlc.arg(after_scope)::text, sqlc.arg(after_key)::text, sqlc.arg(after_name)::text)
ORDER BY e.scope, e.key, e.name LIMIT sqlc.arg(max_rows)::int;
