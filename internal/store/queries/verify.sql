-- name: VerifyIDs :many
-- The next tasks in order of id.
SELECT t.id FROM tasks t WHERE t.id > sqlc.arg(after_id)::uuid ORDER BY t.id LIMIT sqlc.arg(max_rows)::int;

-- name: VerifyIDsCreated :many
-- The next tasks in order of creation, up to a time.
SELECT t.id, t.created_at FROM tasks t
WHERE (t.created_at, t.id) > (sqlc.arg(after_at)::timestamptz, sqlc.arg(after_id)::uuid) AND t.created_at < sqlc.arg(until)::timestamptz
ORDER BY t.created_at, t.id LIMIT sqlc.arg(max_rows)::int;

-- name: VerifyTasks :many
-- Tasks with what their idempotency key and their origin point at.
SELECT t.id, t.name, t.tenant, t.queue, t.type, t.state, t.attempt, t.max_retries, t.delivery, t.interruptions, t.event_seq, t.due_at,
    t.next_retry_at, t.retry_policy, t.idempotency_scope, t.idempotency_key, t.trace_id, (t.result IS NOT NULL)::boolean AS has_result,
    t.last_error_code, t.last_error_reason, t.worker_id, t.applied_kind, t.applied_delivery, t.rejected_delivery, t.claimed_at, t.started_at,
    t.finished_at, t.timeout_ms, t.start_within_ms, t.heartbeat_timeout_ms, t.on_dependency_failure, (t.effect_own AND t.effect_key IS NULL)::boolean AS owns_nothing,
    t.origin_dlq_id, k.task_id AS key_task_id, r.dlq_id AS link_dlq_id, t.open_dependencies,
    (CASE WHEN t.on_dependency_failure IS NULL THEN 0 ELSE (SELECT count(*) FROM task_dependencies e WHERE e.task_id = t.id AND NOT e.settled) END)::bigint AS open_edges,
    (CASE WHEN t.open_dependencies = 0 THEN 0 ELSE (SELECT count(*) FROM task_dependencies e LEFT JOIN tasks u ON u.id = ANY (ARRAY[e.upstream_id])
        WHERE e.task_id = t.id AND NOT e.settled AND (u.id IS NULL OR u.state IN ('succeeded', 'failed', 'cancelled'))
            AND NOT EXISTS (SELECT FROM dependency_settlements s WHERE s.upstream_id = e.upstream_id)) END)::bigint AS lost_ends
FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id])
    LEFT JOIN idempotency_keys k ON k.scope = t.idempotency_scope AND k.key = t.idempotency_key
    LEFT JOIN dlq_requeues r ON r.task_id = t.id
ORDER BY t.id;

-- name: VerifyEventsBetween :many
-- The next events of all ids up to last_id, in order; data only where it is
-- checked.
SELECT e.task_id, e.seq, e.type, e.previous_status, e.status, e.attempt, e.delivery, e.idempotency_key, e.next_retry_at, e.error_code, e.reason,
    e.backoff_delay_ms, e.actor, e.worker_id, e.message_id, e.trace_id, e.occurred_at,
    COALESCE(CASE WHEN e.type IN ('task.claimed', 'task.succeeded', 'task.retry_scheduled', 'task.interrupted', 'task.dlq', 'task.failed', 'task.reclaimed', 'task.transition_rejected')
        OR (e.type = 'approval.requested' AND e.previous_status = 'running') THEN left(e.data::text, 65536) END, '')::text AS data
FROM event_log e
WHERE e.task_id >= sqlc.arg(after_id)::uuid AND (e.task_id, e.seq) > (sqlc.arg(after_id)::uuid, sqlc.arg(after_seq)::int)
    AND e.task_id <= sqlc.arg(last_id)::uuid
ORDER BY e.task_id, e.seq LIMIT sqlc.arg(max_rows)::int;

-- name: VerifyEventsOf :many
-- The next events of some tasks, as VerifyEventsBetween.
SELECT x.task_id, x.seq, x.type, x.previous_status, x.status, x.attempt, x.delivery, x.idempotency_key, x.next_retry_at, x.error_code, x.reason,
    x.backoff_delay_ms, x.actor, x.worker_id, x.message_id, x.trace_id, x.occurred_at,
    COALESCE(CASE WHEN x.type IN ('task.claimed', 'task.succeeded', 'task.retry_scheduled', 'task.interrupted', 'task.dlq', 'task.failed', 'task.reclaimed', 'task.transition_rejected')
        OR (x.type = 'approval.requested' AND x.previous_status = 'running') THEN left(x.data::text, 65536) END, '')::text AS data
FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id) u CROSS JOIN LATERAL (
    SELECT e.* FROM event_log e
    WHERE e.task_id = u.id AND (e.task_id, e.seq) > (sqlc.arg(after_id)::uuid, sqlc.arg(after_seq)::int)
    ORDER BY e.seq LIMIT sqlc.arg(max_rows)::int) x
ORDER BY x.task_id, x.seq LIMIT sqlc.arg(max_rows)::int;

-- name: VerifyDead :many
-- The dead letters of tasks, with the number of their edits.
SELECT d.dlq_id, d.task_id, d.tenant, d.queue, d.type, d.error_code, d.error, d.retry_count, d.recorded_at, d.erased_at, d.status, d.entry_id, d.revision,
    d.requeues, d.discard_proposed_by, d.discard_confirmed_by, COALESCE(json_array_length(d.errors), -1)::int AS errors,
    (SELECT count(*) FROM dlq_edits e WHERE e.dlq_id = d.dlq_id) AS edits
FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id) u JOIN dlq_items d ON d.task_id = u.id;

-- name: VerifyRequeues :many
-- The next requeues of dead letters, with the task that each made and the
-- number of events in the original's log that tell of it.
SELECT r.dlq_id, r.n, r.task_id, r.revision, (t.id IS NOT NULL)::boolean AS task_found, (r.task_removed_at IS NOT NULL)::boolean AS task_removed, t.origin_dlq_id,
    (SELECT count(*) FROM event_log e WHERE e.task_id = d.task_id AND e.type = 'dlq.requeued' AND e.data->>'task_id' = r.task_id::text) AS events
FROM dlq_requeues r JOIN dlq_items d ON d.dlq_id = r.dlq_id LEFT JOIN tasks t ON t.id = ANY (ARRAY[r.task_id])
WHERE r.dlq_id = ANY(sqlc.arg(dlq_ids)::uuid[]) AND (r.dlq_id, r.n) > (sqlc.arg(after_id)::uuid, sqlc.arg(after_n)::int)
ORDER BY r.dlq_id, r.n LIMIT sqlc.arg(max_rows)::int;

-- name: VerifyEntries :many
-- Where the entries of dead letters are now said to be.
SELECT d.dlq_id, d.status, d.erased_at, d.entry_id FROM (SELECT unnest(sqlc.arg(dlq_ids)::uuid[]) AS id) u JOIN dlq_items d ON d.dlq_id = u.id;

-- name: VerifyItems :many
-- The next dead letters, whatever they are about, with what is known of those
-- that are about no task.
SELECT d.dlq_id, d.task_id, d.status, d.entry_id, d.recorded_at, d.event_seq, d.requeues, d.stream, (t.id IS NOT NULL)::boolean AS task_found, (d.task_removed_at IS NOT NULL)::boolean AS task_removed,
    COALESCE((SELECT max(e.seq) FROM event_log e WHERE d.task_id IS NULL AND e.task_id = d.dlq_id), 0)::int AS last_seq,
    (SELECT count(*) FROM event_log e WHERE d.task_id IS NULL AND e.task_id = d.dlq_id AND e.type = 'dlq.discarded') AS discarded
FROM dlq_items d LEFT JOIN tasks t ON t.id = ANY (ARRAY[d.task_id])
WHERE d.dlq_id > sqlc.arg(after_id)::uuid ORDER BY d.dlq_id LIMIT sqlc.arg(max_rows)::int;

-- name: VerifyKeys :many
-- The next idempotency keys, with the key of the task that each points at.
SELECT k.scope, k.key, k.task_id, (t.id IS NOT NULL)::boolean AS task_found, t.idempotency_scope, t.idempotency_key
FROM idempotency_keys k LEFT JOIN tasks t ON t.id = ANY (ARRAY[k.task_id])
WHERE (k.scope, k.key) > (sqlc.arg(after_scope)::text, sqlc.arg(after_key)::text) ORDER BY k.scope, k.key LIMIT sqlc.arg(max_rows)::int;

-- name: VerifyBatches :many
-- The next batches of dead letters, with what their items add up to. unlinked
-- counts items that are done and left no trace in what they were done to.
SELECT b.id, b.kind, b.status, b.total, b.done, b.skipped, b.digest, c.total AS items, c.done AS items_done, c.skipped AS items_skipped,
    c.digest::text AS items_digest, c.unlinked
FROM dlq_batches b CROSS JOIN LATERAL (
    SELECT count(*) AS total, count(*) FILTER (WHERE i.status = 'done') AS done, count(*) FILTER (WHERE i.status = 'skipped') AS skipped,
        COALESCE(encode(sha256(convert_to(string_agg(i.dlq_id::text, E'\n' ORDER BY i.dlq_id), 'UTF8')), 'hex'), '') AS digest,
        count(*) FILTER (WHERE i.status = 'done' AND NOT CASE b.kind
            WHEN 'requeue' THEN EXISTS (SELECT 1 FROM dlq_requeues r WHERE r.batch_id = b.id AND r.dlq_id = i.dlq_id AND r.task_id = i.task_id)
            ELSE EXISTS (SELECT 1 FROM dlq_items d WHERE d.dlq_id = i.dlq_id AND d.discard_batch_id = b.id) END) AS unlinked
    FROM dlq_batch_items i WHERE i.batch_id = b.id) c
WHERE b.id > sqlc.arg(after_id)::uuid ORDER BY b.id LIMIT sqlc.arg(max_rows)::int;

-- name: VerifyOthers :many
-- Which of these ids, that are no tasks', are numbered in a row.
SELECT a.id FROM alerts a WHERE a.id = ANY(sqlc.arg(ids)::uuid[])
UNION ALL
SELECT d.dlq_id FROM dlq_items d WHERE d.dlq_id = ANY(sqlc.arg(ids)::uuid[]) AND d.task_id IS NULL;

-- name: VerifyAlerts :many
-- The next alerts, with the number of the last event of each.
SELECT a.id, a.kind, a.tenant, a.seq, COALESCE((SELECT max(e.seq) FROM event_log e WHERE e.task_id = a.id), 0)::int AS last_seq
FROM alerts a WHERE a.id > sqlc.arg(after_id)::uuid ORDER BY a.id LIMIT sqlc.arg(max_rows)::int;

-- name: VerifyFires :many
-- The next records of fires that made a task, with what the task says of itself.
-- young: retention removes no task so soon. A task that was given another time
-- says so in asked_schedule.
SELECT f.schedule_id, f.fire_at, f.task_id, s.tenant, s.name, (t.id IS NOT NULL)::boolean AS task_found, t.schedule_id AS task_schedule_id,
    (t.asked_schedule IS NULL AND t.scheduled_at IS DISTINCT FROM f.fire_at)::boolean AS other_time, t.scheduled_at,
    (f.fired_at > now() - interval '1 hour')::boolean AS young,
    (SELECT count(*) FROM schedule_fires o WHERE o.schedule_id = f.schedule_id AND o.task_id = f.task_id) AS fires
FROM schedule_fires f JOIN schedules s ON s.id = f.schedule_id LEFT JOIN tasks t ON t.id = ANY (ARRAY[f.task_id])
WHERE f.task_id IS NOT NULL AND (f.schedule_id, f.fire_at) > (sqlc.arg(after_id)::uuid, sqlc.arg(after_at)::timestamptz)
ORDER BY f.schedule_id, f.fire_at LIMIT sqlc.arg(max_rows)::int;

-- name: VerifyRuns :many
-- Those of the tasks whose runs, as the view shows them, are not one for each
-- attempt from 1 on, each with an execution key of its own. The key begins with
-- the task's id: what differs within each task differs everywhere.
SELECT t.id, t.name, t.attempt, r.runs, r.attempts, r.keys
FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id]) CROSS JOIN LATERAL (
    SELECT count(*) AS runs, count(DISTINCT v.attempt) FILTER (WHERE v.attempt BETWEEN 1 AND t.attempt) AS attempts,
        count(DISTINCT v.idempotency_key) FILTER (WHERE v.idempotency_key = t.id::text || ':' || (v.attempt - 1)) AS keys
    FROM task_runs v WHERE v.task_id = t.id) r
WHERE r.runs <> t.attempt OR r.attempts <> t.attempt OR r.keys <> t.attempt OR t.attempt < 1;

-- name: VerifyEffectUsers :many
-- The next effects, with how many of the tasks that were given each have another
-- key. A caller's name may be another task's now.
SELECT e.scope, e.key, e.name, e.state, COALESCE(e.resolution, '')::text AS resolution,
    (SELECT count(*) FROM (SELECT unnest(e.users) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id]) AND (t.id < 'ff000000-0000-0000-0000-000000000000' OR t.created_at <= e.reserved_at)
        WHERE CASE WHEN penstock_effect_own(t.effect_own, t.effect_key, t.idempotency_key) THEN t.tenant ELSE t.idempotency_scope END <> e.scope
            OR CASE WHEN penstock_effect_own(t.effect_own, t.effect_key, t.idempotency_key) THEN 't:' ELSE 'k:' END || penstock_effect_key(t.effect_key, t.idempotency_key, t.name, t.id) <> e.key) AS strangers
FROM effects e
WHERE (e.scope, e.key, e.name) > (sqlc.arg(after_scope)::text, sqlc.arg(after_key)::text, sqlc.arg(after_name)::text)
ORDER BY e.scope, e.key, e.name LIMIT sqlc.arg(max_rows)::int;
