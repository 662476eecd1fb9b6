-- name: InsertTombstones :exec
INSERT INTO tombstones (task_id, delivery, queue)
SELECT unnest(sqlc.arg(task_ids)::uuid[]), unnest(sqlc.arg(deliveries)::bigint[]), unnest(sqlc.arg(queues)::text[])
ON CONFLICT DO NOTHING;

-- name: LockUntoldTombstones :many
-- Tombstones that Redis is not known to hold, and that nobody else is telling.
SELECT t.task_id, t.delivery FROM tombstones t WHERE NOT t.told
ORDER BY t.task_id, t.delivery LIMIT sqlc.arg(max_rows)::int FOR UPDATE SKIP LOCKED;

-- name: TombstonesTold :exec
UPDATE tombstones t SET told = true
FROM (SELECT unnest(sqlc.arg(task_ids)::uuid[]) AS task_id, unnest(sqlc.arg(deliveries)::bigint[]) AS delivery) u
WHERE t.task_id = u.task_id AND t.delivery = u.delivery;

-- name: CountTombstones :one
SELECT count(*) AS total, count(*) FILTER (WHERE t.told) AS told FROM tombstones t;

-- name: LockTombstonesAfter :many
-- All tombstones, in pages; those that somebody is removing are left out.
SELECT t.task_id, t.delivery FROM tombstones t
WHERE (t.task_id, t.delivery) > (sqlc.arg(after_id)::uuid, sqlc.arg(after_delivery)::bigint)
ORDER BY t.task_id, t.delivery LIMIT sqlc.arg(max_rows)::int FOR SHARE SKIP LOCKED;

-- name: TombstonesAmong :many
SELECT t.task_id, t.delivery
FROM (SELECT unnest(sqlc.arg(task_ids)::uuid[]) AS task_id, unnest(sqlc.arg(deliveries)::bigint[]) AS delivery) u
JOIN tombstones t ON t.task_id = u.task_id AND t.delivery = u.delivery;

-- name: OldTombstones :many
-- Tombstones whose time is over, except those whose entry may still be added:
-- their task is in an open dispatch.
SELECT t.task_id, t.delivery, t.queue, t.created_at FROM tombstones t
WHERE t.created_at < clock_timestamp() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond'
    AND (t.created_at, t.task_id, t.delivery) > (sqlc.arg(after_at)::timestamptz, sqlc.arg(after_id)::uuid, sqlc.arg(after_delivery)::bigint)
    AND NOT EXISTS (SELECT 1 FROM dispatch_outbox o WHERE t.task_id = ANY(o.task_ids))
ORDER BY t.created_at, t.task_id, t.delivery LIMIT sqlc.arg(max_rows)::int;

-- name: LockTombstones :many
SELECT t.task_id, t.delivery
FROM (SELECT unnest(sqlc.arg(task_ids)::uuid[]) AS task_id, unnest(sqlc.arg(deliveries)::bigint[]) AS delivery) u
JOIN tombstones t ON t.task_id = u.task_id AND t.delivery = u.delivery
ORDER BY t.task_id, t.delivery FOR UPDATE OF t SKIP LOCKED;

-- name: DeleteTombstones :exec
DELETE FROM tombstones t
USING (SELECT unnest(sqlc.arg(task_ids)::uuid[]) AS task_id, unnest(sqlc.arg(deliveries)::bigint[]) AS delivery) u
WHERE t.task_id = u.task_id AND t.delivery = u.delivery;

-- name: Cancellable :many
-- Tasks that a filter admits and that can be cancelled, oldest first.
WITH live AS MATERIALIZED (
    SELECT t.id, t.created_at FROM tasks_live t
    WHERE t.state = ANY(sqlc.arg(states)::text[]) AND t.tenant = sqlc.arg(tenant)
        AND CASE WHEN sqlc.arg(queue)::text = '' THEN t.queue <> 'internal-jobs' ELSE t.queue = sqlc.arg(queue) END
        AND (sqlc.arg(type)::text = '' OR t.type = sqlc.arg(type))
        AND t.created_at >= sqlc.arg(created_after)::timestamptz AND t.created_at < sqlc.arg(created_before)::timestamptz
)
SELECT l.id FROM live l ORDER BY l.created_at, l.id LIMIT sqlc.arg(max_rows)::int;

-- name: ExpiringWaiting :many
-- Tasks that wait in Postgres and have a time to start by, in its order.
-- wait_ms is how long it is until that by Postgres' clock, not above 0 where
-- it is past.
SELECT t.id, (extract(epoch FROM t.expires_at - clock_timestamp()) * 1000)::double precision AS wait_ms
FROM tasks_live t
WHERE t.expires_at IS NOT NULL AND CASE WHEN t.due_at IS NULL AND t.state IN ('queued', 'retrying') THEN 1 ELSE 0 END = 0
    AND t.state NOT IN ('running', 'dlq_pending', 'dlq_recorded') AND t.queue <> 'internal-jobs'
ORDER BY t.expires_at, t.id LIMIT sqlc.arg(max_rows)::int;

-- name: ExpiringDispatched :many
-- Tasks that were handed to Redis, that no worker is known to have started,
-- and that have a time to start by, in its order.
SELECT t.id, t.delivery,
    (extract(epoch FROM t.expires_at + sqlc.arg(grace_ms)::bigint * interval '1 millisecond' - clock_timestamp()) * 1000)::double precision AS wait_ms
FROM tasks_live t
WHERE t.expires_at IS NOT NULL AND CASE WHEN t.due_at IS NULL AND t.state IN ('queued', 'retrying') THEN 1 ELSE 0 END = 1 AND t.queue <> 'internal-jobs'
ORDER BY t.expires_at, t.id LIMIT sqlc.arg(max_rows)::int;
