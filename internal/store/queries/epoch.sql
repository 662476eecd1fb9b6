-- name: GetEpoch :one
SELECT e.id, e.generation, e.confirmed, e.server, e.cluster, e.lost, e.lost_at, e.floor, e.redispatched, e.interrupted, e.dead_letters,
    clock_timestamp()::timestamptz AS now FROM redis_epoch e;

-- name: NextGeneration :one
-- Notes a look at Redis, if nobody else noted one since expected was read; no
-- row: somebody did. It never goes below what Redis was seen to know.
UPDATE redis_epoch SET generation = greatest(generation, sqlc.arg(seen)::bigint) + 1 WHERE generation = sqlc.arg(expected)::bigint RETURNING generation;

-- name: SetLost :exec
-- Notes a loss that is to be made good for. One that is noted already goes on,
-- unless Postgres went back, which takes more. If everything (renews) was lost
-- in another epoch meanwhile, its time begins anew, so that workers have theirs;
-- not while Postgres is made good for, which goes by the first time. The floor is
-- not below the clock in milliseconds: one backup may be restored twice, and the
-- times after must not share deliveries either.
UPDATE redis_epoch SET
    lost = CASE WHEN lost IS NULL OR sqlc.arg(restored)::boolean OR (lost = 'group_missing' AND sqlc.arg(renews)::boolean)
        THEN sqlc.arg(kind)::text ELSE lost END,
    lost_at = CASE WHEN lost IS NULL OR sqlc.arg(restored)
            OR (sqlc.arg(renews) AND floor IS NULL AND (lost = 'group_missing' OR lost_epoch <> sqlc.arg(epoch)::text))
        THEN clock_timestamp() ELSE lost_at END,
    lost_epoch = sqlc.arg(epoch),
    floor = CASE WHEN sqlc.arg(restored) THEN greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint, sqlc.arg(jump)::bigint + (
        SELECT COALESCE(max(t.delivery), 0) FROM tasks_live t)) ELSE floor END,
    cluster = CASE WHEN sqlc.arg(restored) THEN sqlc.arg(cluster)::text ELSE cluster END;

-- name: CountLoss :exec
-- Adds to what was done about a loss that is being made good for.
UPDATE redis_epoch SET redispatched = redispatched + sqlc.arg(redispatched), interrupted = interrupted + sqlc.arg(interrupted),
    dead_letters = dead_letters + sqlc.arg(dead_letters)
WHERE lost IS NOT NULL;

-- name: ConfirmGeneration :exec
UPDATE redis_epoch SET confirmed = greatest(confirmed, sqlc.arg(generation)) WHERE id = sqlc.arg(id);

-- name: LockEpoch :one
SELECT e.lost, e.lost_at, e.redispatched, e.interrupted, e.dead_letters FROM redis_epoch e FOR UPDATE;

-- name: CompleteEpoch :exec
-- Redis is complete: nothing is lost any more. The generation grows, so that
-- whoever looked before has to look again.
UPDATE redis_epoch SET generation = generation + 1, id = sqlc.arg(id), confirmed = greatest(confirmed, sqlc.arg(generation)::bigint), server = sqlc.arg(server), cluster = sqlc.arg(cluster),
    lost = NULL, lost_at = NULL, lost_epoch = '', floor = NULL, redispatched = 0, interrupted = 0, dead_letters = 0;

-- name: CloseAlert :execrows
-- Resolves an alert and writes one more event, with what was found in the end;
-- 0 rows: it is not firing.
WITH closed AS (
    UPDATE alerts SET seq = seq + 1, firing = false, since = now(), seen_at = now(), value = sqlc.arg(value)
    WHERE kind = sqlc.arg(kind) AND tenant = sqlc.arg(tenant) AND firing RETURNING id, seq
)
INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, reason, actor, trace_id, data, occurred_at)
SELECT c.id, c.seq, 'alert.raised', '', 1, 0, sqlc.arg(reason)::text, sqlc.arg(actor)::text, 'alert-' || c.id::text, sqlc.arg(data)::text::json, now()
FROM closed c;

-- name: ServerIdentity :one
-- Which cluster this database is in, and on which timeline. Some installations
-- allow neither.
SELECT ((pg_control_system()).system_identifier::text || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::text AS cluster;

-- name: BelowFloor :many
-- The next live tasks in these states from before a time whose delivery is below
-- a floor, in id order. All states are looked at in one snapshot, so that a task
-- that moves is not missed.
SELECT t.id, t.queue, t.state, t.delivery FROM tasks_live t
WHERE t.state = ANY(sqlc.arg(states)::text[]) AND t.delivery < sqlc.arg(floor)::bigint
    AND t.created_at <= sqlc.arg(before)::timestamptz AND t.queue <> 'internal-jobs' AND t.id > sqlc.arg(after_id)::uuid
ORDER BY t.id LIMIT sqlc.arg(max_rows)::int;

-- name: CurrentDeliveries :many
-- The deliveries of these tasks that may be in their stream.
SELECT t.id, t.delivery FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id) u JOIN tasks_live t ON t.id = ANY (ARRAY[u.id])
WHERE t.state IN ('queued', 'retrying', 'running');

-- name: DeadWithEntry :many
-- The next dead letters that must be in stream:dlq, in order of id.
SELECT d.dlq_id, d.task_id, COALESCE(d.entry_id, '')::text AS entry_id, (d.stream IS NOT DISTINCT FROM 'stream:dlq')::boolean AS foreign_entry FROM dlq_items d
WHERE d.dlq_id > sqlc.arg(after_id)::uuid AND d.status <> 'expired' AND d.erased_at IS NULL AND d.recorded_at IS NOT NULL
ORDER BY d.dlq_id LIMIT sqlc.arg(max_rows)::int;

-- name: LockDeadWithEntry :many
-- Those of some dead letters that still have the entry that is missing, locked,
-- with all that an entry says. It waits for others that put them back.
SELECT d.dlq_id, d.task_id, d.tenant, d.type, d.payload, d.error_code, d.error, d.retry_count, d.failed_at, d.stream, d.message_id, d.raw, t.name
FROM (SELECT unnest(sqlc.arg(dlq_ids)::uuid[]) AS dlq_id, unnest(sqlc.arg(entry_ids)::text[]) AS entry_id) u
    JOIN dlq_items d ON d.dlq_id = u.dlq_id AND COALESCE(d.entry_id, '') = u.entry_id AND d.status <> 'expired' AND d.erased_at IS NULL AND d.recorded_at IS NOT NULL
    LEFT JOIN tasks t ON t.id = ANY (ARRAY[d.task_id])
ORDER BY d.dlq_id FOR NO KEY UPDATE OF d;

-- name: SetDeadEntries :exec
UPDATE dlq_items d SET entry_id = u.entry_id
FROM (SELECT unnest(sqlc.arg(dlq_ids)::uuid[]) AS dlq_id, unnest(sqlc.arg(entry_ids)::text[]) AS entry_id) u WHERE d.dlq_id = u.dlq_id;
