-- name: InsertDeadTasks :exec
-- Copies tasks that were given up into dlq_items, one row each, with the error
-- of every attempt. Their events must have been stored before.
INSERT INTO dlq_items (dlq_id, task_id, tenant, queue, type, payload, error_code, error, retry_count, failed_at, fingerprint, errors)
SELECT d.dlq_id, t.id, t.tenant, t.queue, t.type, t.payload, COALESCE(t.last_error_code, ''), COALESCE(t.last_error_reason, ''), t.attempt - 1, now(), d.fingerprint,
    (SELECT json_agg(json_build_object('attempt', CASE e.type WHEN 'task.retry_scheduled' THEN e.attempt - 1 ELSE e.attempt END, 'at', e.occurred_at,
            'code', CASE WHEN e.error_code = 'TASK_RETRY_EXHAUSTED' THEN split_part(e.reason, ': ', 1) ELSE e.error_code END,
            'error', left(CASE WHEN e.error_code = 'TASK_RETRY_EXHAUSTED' THEN substr(e.reason, length(split_part(e.reason, ': ', 1)) + 3) ELSE COALESCE(e.reason, '') END, 2000),
            'worker_id', COALESCE(e.worker_id, ''), 'delay_ms', e.backoff_delay_ms) ORDER BY e.seq)
        FROM event_log e WHERE e.task_id = t.id AND e.error_code IS NOT NULL
            AND (e.type = 'task.retry_scheduled' OR (e.type = 'task.dlq' AND e.error_code <> 'TASK_WORKER_LOST')
                OR (e.type = 'task.interrupted' AND e.error_code = 'TASK_WORKER_LOST')))
FROM (SELECT unnest(sqlc.arg(dlq_ids)::uuid[]) AS dlq_id, unnest(sqlc.arg(task_ids)::uuid[]) AS task_id, unnest(sqlc.arg(fingerprints)::text[]) AS fingerprint) d JOIN tasks_live t ON t.id = ANY (ARRAY[d.task_id])
ON CONFLICT (dlq_id) DO NOTHING;

-- name: InsertDeadEntries :exec
-- Keeps stream entries that are no task.
INSERT INTO dlq_items (dlq_id, tenant, error_code, error, retry_count, failed_at, stream, message_id, raw, recorded_at, fingerprint, entry_id)
SELECT d.dlq_id, 'default', d.code, d.error, 0, d.failed_at, d.stream, d.message_id, NULLIF(d.raw, '')::json, now(), d.fingerprint, d.entry_id
FROM (SELECT unnest(sqlc.arg(dlq_ids)::uuid[]) AS dlq_id, unnest(sqlc.arg(codes)::text[]) AS code, unnest(sqlc.arg(errors)::text[]) AS error,
    unnest(sqlc.arg(failed_ats)::timestamptz[]) AS failed_at, unnest(sqlc.arg(streams)::text[]) AS stream,
    unnest(sqlc.arg(message_ids)::text[]) AS message_id, unnest(sqlc.arg(raws)::text[]) AS raw, unnest(sqlc.arg(fingerprints)::text[]) AS fingerprint,
    unnest(sqlc.arg(entry_ids)::text[]) AS entry_id) d
ON CONFLICT (dlq_id) DO NOTHING;

-- name: LockUnrecordedDead :many
-- Dead letters of tasks that are not known to be in stream:dlq. ended_at is when
-- the last execution ended, if that gave the task up and its worker said so.
SELECT d.dlq_id, d.task_id, d.tenant, d.type, d.payload, d.error_code, d.error, d.retry_count, d.failed_at, t.name,
    COALESCE((SELECT (e.data->>'finished_at')::timestamptz FROM event_log e WHERE e.task_id = d.task_id AND e.type = 'task.dlq' AND e.status = 'dlq_pending'
        ORDER BY e.seq DESC LIMIT 1), '0001-01-01 00:00:00Z')::timestamptz AS ended_at
FROM dlq_items d JOIN tasks_live t ON t.id = ANY (ARRAY[d.task_id])
WHERE d.recorded_at IS NULL
ORDER BY d.created_at LIMIT sqlc.arg(max_rows) FOR NO KEY UPDATE OF d SKIP LOCKED;

-- name: MarkDeadRecorded :exec
UPDATE dlq_items d SET recorded_at = now(), entry_id = u.entry_id
FROM (SELECT unnest(sqlc.arg(dlq_ids)::uuid[]) AS dlq_id, unnest(sqlc.arg(entry_ids)::text[]) AS entry_id) u WHERE d.dlq_id = u.dlq_id;

-- name: ListDead :many
-- One look, as ListTasks, newest first, without payloads.
SELECT l.dlq_id, l.task_id, l.tenant, l.queue, l.type, l.error_code, left(l.error, 2000) AS error, l.retry_count, l.failed_at, l.stream, l.message_id,
    l.recorded_at, l.status, l.fingerprint, l.requeues, l.revision, l.settled_at, l.discard_batch_id, l.discard_reason,
    l.discard_proposed_by, l.discard_confirmed_by, l.erased_at, t.name, l.place, l.admitted
FROM (
    SELECT d.*, row_number() OVER (ORDER BY d.failed_at DESC, d.dlq_id DESC) AS place,
        (((sqlc.arg(tenant)::text = '' OR d.tenant = sqlc.arg(tenant))
            AND (sqlc.arg(type)::text = '' OR d.type = sqlc.arg(type))
            AND (sqlc.arg(error_code)::text = '' OR penstock_cause(d.error_code, d.error) = sqlc.arg(error_code)
                OR sqlc.arg(error_code) = 'TASK_RETRY_EXHAUSTED' AND d.error_code = 'TASK_RETRY_EXHAUSTED')
            AND (sqlc.arg(fingerprint)::text = '' OR d.fingerprint = sqlc.arg(fingerprint))
            AND (sqlc.arg(queue)::text = '' OR d.queue = sqlc.arg(queue))
            AND (sqlc.arg(status)::text = '' OR d.status = sqlc.arg(status))) IS TRUE)::boolean AS admitted
    FROM dlq_items d
    WHERE (d.failed_at, d.dlq_id) < (sqlc.arg(before_at)::timestamptz, sqlc.arg(before_id)::uuid)
        AND d.failed_at >= sqlc.arg(failed_after)::timestamptz AND d.failed_at < sqlc.arg(failed_before)::timestamptz
    ORDER BY d.failed_at DESC, d.dlq_id DESC LIMIT sqlc.arg(max_look)::int
) l LEFT JOIN LATERAL (SELECT x.name FROM tasks x WHERE x.id = l.task_id OFFSET 0) t ON true
WHERE l.admitted OR l.place = sqlc.arg(max_look)::int
ORDER BY l.failed_at DESC, l.dlq_id DESC LIMIT sqlc.arg(max_rows)::int;

-- name: ListOpenDead :many
-- ListDead of those that are open.
SELECT l.dlq_id, l.task_id, l.tenant, l.queue, l.type, l.error_code, left(l.error, 2000) AS error, l.retry_count, l.failed_at, l.stream, l.message_id,
    l.recorded_at, l.status, l.fingerprint, l.requeues, l.revision, l.settled_at, l.discard_batch_id, l.discard_reason,
    l.discard_proposed_by, l.discard_confirmed_by, l.erased_at, t.name, l.place, l.admitted
FROM (
    SELECT d.*, row_number() OVER (ORDER BY d.failed_at DESC, d.dlq_id DESC) AS place,
        (((sqlc.arg(tenant)::text = '' OR d.tenant = sqlc.arg(tenant))
            AND (sqlc.arg(type)::text = '' OR d.type = sqlc.arg(type))
            AND (sqlc.arg(error_code)::text = '' OR penstock_cause(d.error_code, d.error) = sqlc.arg(error_code)
                OR sqlc.arg(error_code) = 'TASK_RETRY_EXHAUSTED' AND d.error_code = 'TASK_RETRY_EXHAUSTED')
            AND (sqlc.arg(fingerprint)::text = '' OR d.fingerprint = sqlc.arg(fingerprint))
            AND (sqlc.arg(queue)::text = '' OR d.queue = sqlc.arg(queue))) IS TRUE)::boolean AS admitted
    FROM dlq_items d
    WHERE d.status = 'open' AND (d.failed_at, d.dlq_id) < (sqlc.arg(before_at)::timestamptz, sqlc.arg(before_id)::uuid)
        AND d.failed_at >= sqlc.arg(failed_after)::timestamptz AND d.failed_at < sqlc.arg(failed_before)::timestamptz
    ORDER BY d.failed_at DESC, d.dlq_id DESC LIMIT sqlc.arg(max_look)::int
) l LEFT JOIN LATERAL (SELECT x.name FROM tasks x WHERE x.id = l.task_id OFFSET 0) t ON true
WHERE l.admitted OR l.place = sqlc.arg(max_look)::int
ORDER BY l.failed_at DESC, l.dlq_id DESC LIMIT sqlc.arg(max_rows)::int;

-- name: ListDeadOfFingerprint :many
-- ListDead of one fingerprint.
SELECT l.dlq_id, l.task_id, l.tenant, l.queue, l.type, l.error_code, left(l.error, 2000) AS error, l.retry_count, l.failed_at, l.stream, l.message_id,
    l.recorded_at, l.status, l.fingerprint, l.requeues, l.revision, l.settled_at, l.discard_batch_id, l.discard_reason,
    l.discard_proposed_by, l.discard_confirmed_by, l.erased_at, t.name, l.place, l.admitted
FROM (
    SELECT d.*, row_number() OVER (ORDER BY d.failed_at DESC, d.dlq_id DESC) AS place,
        (((sqlc.arg(tenant)::text = '' OR d.tenant = sqlc.arg(tenant))
            AND (sqlc.arg(type)::text = '' OR d.type = sqlc.arg(type))
            AND (sqlc.arg(error_code)::text = '' OR penstock_cause(d.error_code, d.error) = sqlc.arg(error_code)
                OR sqlc.arg(error_code) = 'TASK_RETRY_EXHAUSTED' AND d.error_code = 'TASK_RETRY_EXHAUSTED')
            AND (sqlc.arg(queue)::text = '' OR d.queue = sqlc.arg(queue))
            AND (sqlc.arg(status)::text = '' OR d.status = sqlc.arg(status))) IS TRUE)::boolean AS admitted
    FROM dlq_items d
    WHERE d.fingerprint = sqlc.arg(fingerprint)::text AND (d.failed_at, d.dlq_id) < (sqlc.arg(before_at)::timestamptz, sqlc.arg(before_id)::uuid)
        AND d.failed_at >= sqlc.arg(failed_after)::timestamptz AND d.failed_at < sqlc.arg(failed_before)::timestamptz
    ORDER BY d.failed_at DESC, d.dlq_id DESC LIMIT sqlc.arg(max_look)::int
) l LEFT JOIN LATERAL (SELECT x.name FROM tasks x WHERE x.id = l.task_id OFFSET 0) t ON true
WHERE l.admitted OR l.place = sqlc.arg(max_look)::int
ORDER BY l.failed_at DESC, l.dlq_id DESC LIMIT sqlc.arg(max_rows)::int;

-- name: ListDeadOfCause :many
-- ListDead of what failed last with one code.
SELECT l.dlq_id, l.task_id, l.tenant, l.queue, l.type, l.error_code, left(l.error, 2000) AS error, l.retry_count, l.failed_at, l.stream, l.message_id,
    l.recorded_at, l.status, l.fingerprint, l.requeues, l.revision, l.settled_at, l.discard_batch_id, l.discard_reason,
    l.discard_proposed_by, l.discard_confirmed_by, l.erased_at, t.name, l.place, l.admitted
FROM (
    SELECT d.*, row_number() OVER (ORDER BY d.failed_at DESC, d.dlq_id DESC) AS place,
        (((sqlc.arg(tenant)::text = '' OR d.tenant = sqlc.arg(tenant))
            AND (sqlc.arg(type)::text = '' OR d.type = sqlc.arg(type))
            AND (sqlc.arg(fingerprint)::text = '' OR d.fingerprint = sqlc.arg(fingerprint))
            AND (sqlc.arg(queue)::text = '' OR d.queue = sqlc.arg(queue))
            AND (sqlc.arg(status)::text = '' OR d.status = sqlc.arg(status))) IS TRUE)::boolean AS admitted
    FROM dlq_items d
    WHERE penstock_cause(d.error_code, d.error) = sqlc.arg(error_code)::text AND (d.failed_at, d.dlq_id) < (sqlc.arg(before_at)::timestamptz, sqlc.arg(before_id)::uuid)
        AND d.failed_at >= sqlc.arg(failed_after)::timestamptz AND d.failed_at < sqlc.arg(failed_before)::timestamptz
    ORDER BY d.failed_at DESC, d.dlq_id DESC LIMIT sqlc.arg(max_look)::int
) l LEFT JOIN LATERAL (SELECT x.name FROM tasks x WHERE x.id = l.task_id OFFSET 0) t ON true
WHERE l.admitted OR l.place = sqlc.arg(max_look)::int
ORDER BY l.failed_at DESC, l.dlq_id DESC LIMIT sqlc.arg(max_rows)::int;

-- name: DeadByIDs :many
-- The columns are those of ListDead.
SELECT d.dlq_id, d.task_id, d.tenant, d.queue, d.type, d.error_code, left(d.error, 2000) AS error, d.retry_count, d.failed_at, d.stream, d.message_id,
    d.recorded_at, d.status, d.fingerprint, d.requeues, d.revision, d.settled_at, d.discard_batch_id, d.discard_reason,
    d.discard_proposed_by, d.discard_confirmed_by, d.erased_at, t.name, 0::bigint AS place, true::boolean AS admitted
FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id) u JOIN dlq_items d ON d.dlq_id = u.id LEFT JOIN tasks t ON t.id = ANY (ARRAY[d.task_id]);

-- name: DeadPayload :one
SELECT d.payload FROM dlq_items d WHERE d.dlq_id = sqlc.arg(dlq_id);

-- name: DeadContent :one
-- What lists leave out.
SELECT d.error, d.errors, d.payload, d.edited_payload, d.raw FROM dlq_items d WHERE d.dlq_id = sqlc.arg(dlq_id);

-- name: GroupDead :many
-- Counts by one property, largest group first. sample is the newest of each.
SELECT g.key::text AS key, g.count, g.first_at::timestamptz AS first_at, g.last_at::timestamptz AS last_at, right(g.newest, 36)::uuid AS sample
FROM (
    SELECT CASE sqlc.arg(group_by)::text WHEN 'type' THEN COALESCE(d.type, '') WHEN 'tenant' THEN d.tenant WHEN 'error_code' THEN penstock_cause(d.error_code, d.error) ELSE d.fingerprint END AS key,
        count(*) AS count, min(d.failed_at) AS first_at, max(d.failed_at) AS last_at,
        max(lpad((extract(epoch FROM d.failed_at) * 1000000)::bigint::text, 20, '0') || d.dlq_id::text) AS newest
    FROM dlq_items d
    WHERE d.failed_at >= sqlc.arg(failed_after)::timestamptz AND d.failed_at < sqlc.arg(failed_before)::timestamptz
        AND (sqlc.arg(tenant)::text = '' OR d.tenant = sqlc.arg(tenant))
        AND (sqlc.arg(type)::text = '' OR d.type = sqlc.arg(type))
        AND (sqlc.arg(error_code)::text = '' OR penstock_cause(d.error_code, d.error) = sqlc.arg(error_code)
            OR sqlc.arg(error_code) = 'TASK_RETRY_EXHAUSTED' AND d.error_code = 'TASK_RETRY_EXHAUSTED')
        AND (sqlc.arg(fingerprint)::text = '' OR d.fingerprint = sqlc.arg(fingerprint))
        AND (sqlc.arg(queue)::text = '' OR d.queue = sqlc.arg(queue))
        AND (sqlc.arg(status)::text = '' OR d.status = sqlc.arg(status))
    GROUP BY 1
) g
ORDER BY g.count DESC, g.key LIMIT sqlc.arg(max_rows);

-- name: RequeuesOf :many
SELECT r.n, r.task_id, r.revision, r.principal, r.batch_id, r.created_at FROM dlq_requeues r WHERE r.dlq_id = sqlc.arg(dlq_id) ORDER BY r.n;

-- name: EditsOf :many
SELECT e.revision, e.payload, e.diff, e.principal, e.reason, e.created_at FROM dlq_edits e WHERE e.dlq_id = sqlc.arg(dlq_id) ORDER BY e.revision;

-- name: LockDead :many
-- Locks dead letters in id order for a decision. No key: rows that refer to
-- them may be written meanwhile.
SELECT d.dlq_id, d.task_id, d.tenant, d.type, d.queue, d.status, d.revision, d.requeues, d.recorded_at, d.erased_at, d.stream
FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id) u JOIN dlq_items d ON d.dlq_id = u.id
ORDER BY d.dlq_id FOR NO KEY UPDATE OF d;

-- name: DeadLinks :many
-- The last edit's difference and the last requeue's task of dead letters that
-- are locked: a statement of its own, so that it sees what committed before.
SELECT d.dlq_id, e.diff, r.task_id AS last_task_id
FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id) u JOIN dlq_items d ON d.dlq_id = u.id
    LEFT JOIN dlq_edits e ON e.dlq_id = d.dlq_id AND e.revision = d.revision
    LEFT JOIN dlq_requeues r ON r.dlq_id = d.dlq_id AND r.n = d.requeues;

-- name: RequeueDead :many
-- Makes a new task of each dead letter, due now, with its first event, and
-- links them both ways. It is pending: a guard is asked when it is dispatched. A
-- job that is moved by hand is never dispatched.
-- Everybody who had a hand in the original, its edits or the batch has one in it.
WITH input AS (
    SELECT unnest(sqlc.arg(dlq_ids)::uuid[]) AS dlq_id, unnest(sqlc.arg(task_ids)::uuid[]) AS task_id, unnest(sqlc.arg(ns)::int[]) AS n,
        unnest(sqlc.arg(revisions)::int[]) AS revision, unnest(sqlc.arg(trace_ids)::text[]) AS trace_id
), ins AS (
    INSERT INTO tasks_live (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, due_at, retry_policy,
        idempotency_scope, given, trace_id, payload, origin_dlq_id, effect_key, effect_own, heartbeat_timeout_ms, schedule_id, scheduled_at, requested_by, also_requested_by,
        graph_id, on_dependency_failure)
    SELECT i.task_id, t.tenant, t.queue, t.type, CASE WHEN t.queue = 'internal-jobs' THEN 'queued' ELSE 'pending' END, t.max_retries, CASE WHEN t.schedule_id IS NULL THEN 'now' ELSE 'at' END, t.timeout_ms, now(), t.retry_policy,
        t.idempotency_scope, t.given, CASE WHEN starts_with(t.trace_id, 'trace-run-' || t.id::text) THEN i.trace_id ELSE t.trace_id END,
        CASE WHEN i.revision > 0 THEN d.edited_payload ELSE d.payload END, d.dlq_id,
        penstock_effect_key(t.effect_key, t.idempotency_key, t.name, t.id), penstock_effect_own(t.effect_own, t.effect_key, t.idempotency_key), t.heartbeat_timeout_ms,
        t.schedule_id, CASE WHEN t.schedule_id IS NOT NULL THEN t.scheduled_at END, sqlc.arg(principal)::text,
        array_append(COALESCE(t.also_requested_by, '{}') || t.rescheduled_by, t.requested_by)
            || ARRAY(SELECT DISTINCT e.principal FROM dlq_edits e WHERE e.dlq_id = d.dlq_id AND e.revision <= i.revision)
            || COALESCE((SELECT b.started_by FROM dlq_batches b WHERE b.id = sqlc.arg(batch_id)::uuid), '{}'),
        t.graph_id, t.on_dependency_failure
    FROM input i JOIN dlq_items d ON d.dlq_id = i.dlq_id JOIN tasks t ON t.id = ANY (ARRAY[d.task_id])
    ORDER BY i.task_id
    RETURNING id, state, trace_id, created_at, origin_dlq_id
), ev AS (
    INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, data, occurred_at)
    SELECT n.id, 1, 'task.created', n.state, 1, 1, sqlc.arg(actor)::text, n.trace_id,
        json_build_object('origin_dlq_id', d.dlq_id, 'origin_task_id', COALESCE(t.name, t.id::text)), n.created_at
    FROM ins n JOIN dlq_items d ON d.dlq_id = n.origin_dlq_id JOIN tasks t ON t.id = ANY (ARRAY[d.task_id])
), edges AS (
    -- What it depended on has ended; its handler is told again how.
    INSERT INTO task_dependencies (task_id, upstream_id, position, name, settled)
    SELECT i.task_id, e.upstream_id, e.position, e.name, true
    FROM input i JOIN dlq_items d ON d.dlq_id = i.dlq_id JOIN task_dependencies e ON e.task_id = d.task_id
), link AS (
    INSERT INTO dlq_requeues (dlq_id, n, task_id, revision, principal, batch_id)
    SELECT i.dlq_id, i.n, i.task_id, i.revision, sqlc.arg(principal)::text, NULLIF(sqlc.arg(batch_id)::uuid, '00000000-0000-0000-0000-000000000000'::uuid)
    FROM input i ORDER BY i.dlq_id
)
UPDATE dlq_items d SET status = 'requeued', requeues = i.n, settled_at = COALESCE(d.settled_at, now())
FROM input i WHERE d.dlq_id = i.dlq_id RETURNING d.dlq_id;

-- name: DiscardDead :exec
UPDATE dlq_items d SET status = 'discarded', settled_at = now(), discard_batch_id = sqlc.arg(batch_id), discard_reason = sqlc.arg(reason),
    discard_proposed_by = sqlc.arg(proposed_by), discard_confirmed_by = sqlc.arg(confirmed_by)
WHERE d.dlq_id = ANY(sqlc.arg(dlq_ids)::uuid[]);

-- name: InsertEntryEvents :exec
-- Events of dead letters that are about no task. They are numbered in
-- dlq_items; the event's task_id is the dead letter's id.
WITH up AS (
    UPDATE dlq_items d SET event_seq = d.event_seq + 1
    FROM (SELECT unnest(sqlc.arg(dlq_ids)::uuid[]) AS dlq_id, unnest(sqlc.arg(datas)::text[]) AS data) i WHERE d.dlq_id = i.dlq_id
    RETURNING d.dlq_id, d.event_seq, d.tenant, i.data
)
INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, reason, data, occurred_at)
SELECT up.dlq_id, up.event_seq, sqlc.arg(type)::text, '', 1, 0, sqlc.arg(actor)::text, 'dead-letter-' || up.dlq_id::text, NULLIF(sqlc.arg(reason)::text, ''), (up.data::jsonb || jsonb_build_object('tenant', up.tenant))::json, now() FROM up;

-- name: InsertEdit :exec
WITH up AS (
    UPDATE dlq_items d SET revision = sqlc.arg(revision), edited_payload = sqlc.arg(payload)::text::json WHERE d.dlq_id = sqlc.arg(dlq_id) RETURNING d.dlq_id
)
INSERT INTO dlq_edits (dlq_id, revision, payload, diff, principal, reason)
SELECT up.dlq_id, sqlc.arg(revision), sqlc.arg(payload)::text::json, sqlc.arg(diff)::text::json, sqlc.arg(principal), sqlc.arg(reason) FROM up;

-- name: LockExpiredDead :many
-- Settled dead letters whose time is over.
SELECT d.dlq_id, d.task_id, d.settled_at FROM dlq_items d
WHERE d.status IN ('requeued', 'discarded') AND d.settled_at < now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond'
ORDER BY d.settled_at LIMIT 200 FOR NO KEY UPDATE SKIP LOCKED;

-- name: ExpireDead :exec
WITH edits AS (
    UPDATE dlq_edits e SET payload = NULL, diff = NULL WHERE e.dlq_id = ANY(sqlc.arg(dlq_ids)::uuid[])
)
UPDATE dlq_items SET status = 'expired', payload = NULL, edited_payload = NULL, raw = NULL, errors = NULL WHERE dlq_id = ANY(sqlc.arg(dlq_ids)::uuid[]);

-- name: ExpiredDeadEntries :many
-- Entries of stream:dlq whose dead letter has expired, or was erased.
(SELECT d.dlq_id, d.entry_id::text AS entry_id FROM dlq_items d WHERE d.status = 'expired' AND d.entry_id IS NOT NULL ORDER BY d.dlq_id LIMIT 500)
UNION
(SELECT d.dlq_id, d.entry_id::text AS entry_id FROM dlq_items d WHERE d.erased_at IS NOT NULL AND d.entry_id IS NOT NULL ORDER BY d.dlq_id LIMIT 500);

-- name: ForgetDeadEntries :exec
UPDATE dlq_items SET entry_id = NULL WHERE dlq_id = ANY(sqlc.arg(dlq_ids)::uuid[]);
