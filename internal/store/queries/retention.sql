-- name: OldDays :many
-- Days (YYYYMMDD) that have partitions and have been over for longer than
-- keep_ms, oldest first.
SELECT right(c.relname, 8)::text AS day FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'tasks'::regclass AND c.relname ~ '^tasks_[0-9]{8}$'
    AND right(c.relname, 8) < to_char((now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond') AT TIME ZONE 'UTC', 'YYYYMMDD')
ORDER BY 1;

-- name: DropDay :one
-- Drops a day's partitions; -1: something in them must be kept.
SELECT COALESCE(penstock_drop_day(to_date(sqlc.arg(day)::text, 'YYYYMMDD'), sqlc.arg(keep_ms)::bigint * interval '1 millisecond'), -1)::bigint;

-- name: RemoveTasks :one
-- Removes those of the tasks that may be removed; how many.
SELECT penstock_remove_tasks(sqlc.arg(ids)::uuid[], sqlc.arg(keep_ms)::bigint * interval '1 millisecond')::int;

-- name: FinishedOfDay :many
-- The next tasks with an id of a day that may be old enough to be removed.
SELECT t.id FROM tasks t
WHERE t.id > sqlc.arg(after_id)::uuid
    AND t.id >= penstock_uuid_floor(to_date(sqlc.arg(day)::text, 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC')
    AND t.id < penstock_uuid_floor((to_date(sqlc.arg(day)::text, 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC')
    AND greatest(t.finished_at, t.updated_at) < now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond' AND t.finished_at IS NOT NULL
ORDER BY t.id LIMIT sqlc.arg(max_rows)::int;

-- name: FinishedNamed :many
-- The same for tasks that their callers named, oldest first.
SELECT t.id, t.queue, t.updated_at FROM tasks_named t
WHERE t.finished_at IS NOT NULL AND (t.updated_at, t.id) > (sqlc.arg(after_at)::timestamptz, sqlc.arg(after_id)::uuid)
    AND t.updated_at < now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond'
ORDER BY t.updated_at, t.id LIMIT sqlc.arg(max_rows)::int;

-- name: FinishedOther :many
-- The same for tasks of days that have no partition.
SELECT t.id, t.queue, t.updated_at FROM tasks_default t
WHERE t.finished_at IS NOT NULL AND (t.updated_at, t.id) > (sqlc.arg(after_at)::timestamptz, sqlc.arg(after_id)::uuid)
    AND t.updated_at < now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond'
ORDER BY t.updated_at, t.id LIMIT sqlc.arg(max_rows)::int;

-- name: ExpireKeys :many
-- Looks at the next idempotency keys, oldest first, and removes those whose task
-- finished longer ago than keep_ms, or is gone. One row with the last key looked
-- at; none after the last one.
WITH old AS (
    SELECT k.scope, k.key, k.created_at, (t.id IS NULL OR t.finished_at IS NOT NULL AND greatest(t.finished_at, t.updated_at) < now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond') AS over
    FROM idempotency_keys k LEFT JOIN tasks t ON t.id = k.task_id
    WHERE (k.created_at, k.scope, k.key) > (sqlc.arg(after_at)::timestamptz, sqlc.arg(after_scope)::text, sqlc.arg(after_key)::text)
        AND k.created_at < now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond'
    ORDER BY k.created_at, k.scope, k.key LIMIT sqlc.arg(max_rows)::int
), gone AS (
    DELETE FROM idempotency_keys k USING old o WHERE o.over AND k.scope = o.scope AND k.key = o.key AND k.created_at = o.created_at RETURNING 1
)
SELECT o.created_at, o.scope, o.key, (SELECT count(*) FROM gone)::int AS removed FROM old o ORDER BY o.created_at DESC, o.scope DESC, o.key DESC LIMIT 1;
