-- name: OldPartitions :many
-- Days, from first on and before next, whose partitions have been over for longer
-- than keep_ms, oldest first.
SELECT d.first_day::date AS first_day, d.next_day::date AS next_day FROM dated_partitions d
WHERE d.parent = 'tasks_finished' AND d.next_day::timestamp AT TIME ZONE 'UTC' <= now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond'
ORDER BY 1;

-- name: CheckDays :one
-- See penstock_check_days; -1: something must be kept.
SELECT COALESCE(penstock_check_days(sqlc.arg(first_day)::date, sqlc.arg(next_day)::date, sqlc.arg(keep_ms)::bigint * interval '1 millisecond', sqlc.arg(max_rows)::int), -1)::int;

-- name: DropDays :one
-- Drops the partitions of days that CheckDays has looked at; -1: something in them
-- must be kept.
SELECT COALESCE(penstock_drop_days(sqlc.arg(first_day)::date, sqlc.arg(next_day)::date), -1)::bigint;

-- name: RemoveTasks :one
-- Removes those of the tasks that may be removed; how many.
SELECT penstock_remove_tasks(sqlc.arg(ids)::uuid[], sqlc.arg(keep_ms)::bigint * interval '1 millisecond')::int;

-- name: FinishedOfDays :many
-- The next tasks with an id of these days that may be old enough to be removed.
SELECT t.id FROM tasks_finished t
WHERE t.id > sqlc.arg(after_id)::uuid
    AND t.id >= penstock_uuid_floor(sqlc.arg(first_day)::date::timestamp AT TIME ZONE 'UTC')
    AND t.id < penstock_uuid_floor(sqlc.arg(next_day)::date::timestamp AT TIME ZONE 'UTC')
    AND greatest(t.finished_at, t.updated_at) < now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond'
ORDER BY t.id LIMIT sqlc.arg(max_rows)::int;

-- name: FinishedNamed :many
-- The same for tasks that their callers named, oldest first.
SELECT t.id, t.queue, t.updated_at FROM tasks_finished_named t
WHERE (t.updated_at, t.id) > (sqlc.arg(after_at)::timestamptz, sqlc.arg(after_id)::uuid)
    AND t.updated_at < now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond'
ORDER BY t.updated_at, t.id LIMIT sqlc.arg(max_rows)::int;

-- name: FinishedOther :many
-- The same for tasks of days that have no partition.
SELECT t.id, t.queue, t.updated_at FROM tasks_finished_default t
WHERE (t.updated_at, t.id) > (sqlc.arg(after_at)::timestamptz, sqlc.arg(after_id)::uuid)
    AND t.updated_at < now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond'
ORDER BY t.updated_at, t.id LIMIT sqlc.arg(max_rows)::int;

-- name: ExpireKeys :many
-- Looks at the next idempotency keys, oldest first, and removes those whose task
-- finished longer ago than keep_ms, or is gone. One row with the last key looked
-- at; none after the last one.
WITH old AS (
    SELECT k.scope, k.key, k.created_at, (t.id IS NULL OR t.finished_at IS NOT NULL AND greatest(t.finished_at, t.updated_at) < now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond') AS over
    FROM idempotency_keys k LEFT JOIN tasks t ON t.id = ANY (ARRAY[k.task_id])
    WHERE (k.created_at, k.scope, k.key) > (sqlc.arg(after_at)::timestamptz, sqlc.arg(after_scope)::text, sqlc.arg(after_key)::text)
        AND k.created_at < now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond'
    ORDER BY k.created_at, k.scope, k.key LIMIT sqlc.arg(max_rows)::int
), gone AS (
    DELETE FROM idempotency_keys k USING old o WHERE o.over AND k.scope = o.scope AND k.key = o.key AND k.created_at = o.created_at RETURNING 1
)
SELECT o.created_at, o.scope, o.key, (SELECT count(*) FROM gone)::int AS removed FROM old o ORDER BY o.created_at DESC, o.scope DESC, o.key DESC LIMIT 1;
