-- name: InsertSchedule :one
-- No row if the tenant has a schedule of that name.
INSERT INTO schedules (id, tenant, name, cron, every_ms, timezone, anchor, start_at, end_at, task, missed, missed_max, overlap, paused, next_fire_at, created_by)
VALUES (@id, @tenant, @name, sqlc.narg(cron), sqlc.narg(every_ms), @timezone, @anchor, sqlc.narg(start_at), sqlc.narg(end_at), sqlc.arg(task)::json,
    @missed, @missed_max, @overlap, @paused, sqlc.narg(next_fire_at), @created_by)
ON CONFLICT (tenant, name) DO NOTHING
RETURNING *;

-- name: ScheduleByName :one
SELECT * FROM schedules WHERE tenant = @tenant AND name = @name;

-- name: ScheduleByID :one
SELECT * FROM schedules WHERE id = @id;

-- name: LockSchedule :one
SELECT sqlc.embed(s), clock_timestamp()::timestamptz AS now FROM schedules s WHERE s.id = @id FOR UPDATE;

-- name: LockDueSchedules :many
-- Schedules that nobody else is firing and whose next fire is after from_ms and
-- not after until_ms, both counted from now, longest due first. now is Postgres'
-- clock.
SELECT sqlc.embed(s), clock_timestamp()::timestamptz AS now FROM schedules s
WHERE NOT s.paused AND s.next_fire_at IS NOT NULL AND s.next_fire_at <= now() + sqlc.arg(until_ms)::bigint * interval '1 millisecond'
    AND s.next_fire_at > now() + sqlc.arg(from_ms)::bigint * interval '1 millisecond'
ORDER BY s.next_fire_at, s.id LIMIT @max_rows::int FOR UPDATE SKIP LOCKED;

-- name: NextScheduleWait :many
-- How long it is until the earliest fire; none if there is no schedule to fire.
SELECT (extract(epoch FROM s.next_fire_at - clock_timestamp()) * 1000)::double precision AS wait_ms FROM schedules s
WHERE NOT s.paused AND s.next_fire_at IS NOT NULL ORDER BY s.next_fire_at, s.id LIMIT 1;

-- name: LiveOfSchedules :many
-- Those of some schedules that have a task that has not ended.
SELECT u.id::uuid AS id FROM (SELECT unnest(@ids::uuid[]) AS id) u
WHERE EXISTS (SELECT FROM tasks_live t WHERE t.schedule_id = ANY (ARRAY[u.id]));

-- name: InsertFires :exec
INSERT INTO schedule_fires (schedule_id, fire_at, until, kind, result, task_id, error)
SELECT f.schedule_id, f.fire_at, f.until, f.kind, f.result, NULLIF(f.task_id, '00000000-0000-0000-0000-000000000000'::uuid), NULLIF(f.error, '')
FROM (SELECT unnest(@schedule_ids::uuid[]) AS schedule_id, unnest(@fire_ats::timestamptz[]) AS fire_at, unnest(@untils::timestamptz[]) AS until,
    unnest(@kinds::text[]) AS kind, unnest(@results::text[]) AS result, unnest(@task_ids::uuid[]) AS task_id, unnest(@errors::text[]) AS error) f;

-- name: AdvanceSchedules :exec
-- Moves schedules past the fires that this transaction records.
UPDATE schedules s SET next_fire_at = NULLIF(u.next_fire_at, '0001-01-01 00:00:00Z'::timestamptz),
    last_fire_at = greatest(s.last_fire_at, NULLIF(u.last_fire_at, '0001-01-01 00:00:00Z'::timestamptz))
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@next_fire_ats::timestamptz[]) AS next_fire_at, unnest(@last_fire_ats::timestamptz[]) AS last_fire_at) u
WHERE s.id = u.id;

-- name: ReplaceSchedule :one
-- Gives a locked schedule another definition.
UPDATE schedules s SET cron = sqlc.narg(cron), every_ms = sqlc.narg(every_ms), timezone = @timezone, anchor = @anchor, start_at = sqlc.narg(start_at),
    end_at = sqlc.narg(end_at), task = sqlc.arg(task)::json, missed = @missed, missed_max = @missed_max, overlap = @overlap, next_fire_at = sqlc.narg(next_fire_at),
    changed_by = CASE WHEN @principal::text = s.created_by OR @principal::text = ANY(s.changed_by) THEN s.changed_by ELSE s.changed_by || @principal::text END,
    revision = s.revision + 1, updated_at = now()
WHERE s.id = @id RETURNING *;

-- name: PauseSchedule :one
-- Who resumes a schedule had a hand in the tasks that it makes from then on.
UPDATE schedules s SET paused = @paused,
    changed_by = CASE WHEN @paused OR @principal::text = s.created_by OR @principal::text = ANY(s.changed_by) THEN s.changed_by ELSE s.changed_by || @principal::text END,
    revision = s.revision + 1, updated_at = now() WHERE s.id = @id RETURNING *;

-- name: DeleteSchedule :execrows
DELETE FROM schedules WHERE id = @id;

-- name: ListSchedules :many
SELECT * FROM schedules s WHERE s.tenant = @tenant AND s.name > @after_name ORDER BY s.name LIMIT @max_rows::int;

-- name: ListFires :many
-- Fires of a schedule, newest first.
SELECT * FROM schedule_fires f WHERE f.schedule_id = @schedule_id AND f.fire_at < @before::timestamptz ORDER BY f.fire_at DESC LIMIT @max_rows::int;

-- name: FireOfTask :many
SELECT * FROM schedule_fires f WHERE f.schedule_id = @schedule_id AND f.task_id = @task_id::uuid;

-- name: TaskNames :many
-- The names of those of some tasks that their callers named.
SELECT t.id, t.name FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id]) WHERE t.name IS NOT NULL;

-- name: ForgetFires :execrows
-- Removes records of fires that are older than keep_ms.
DELETE FROM schedule_fires f USING (
    SELECT o.schedule_id, o.fire_at FROM schedule_fires o WHERE o.fired_at < now() - sqlc.arg(keep_ms)::bigint * interval '1 millisecond'
    ORDER BY o.fired_at LIMIT @max_rows::int) old
WHERE f.schedule_id = old.schedule_id AND f.fire_at = old.fire_at;

-- name: RescheduleTask :exec
-- Gives a locked task another schedule and keeps what its caller asked for. A
-- time to start that counts from when the task is due moves with it.
UPDATE tasks_live t SET
    asked_schedule = COALESCE(t.asked_schedule, json_build_object('schedule_type', t.schedule_type, 'scheduled_at', t.scheduled_at, 'delay_ms', t.delay_ms)),
    schedule_type = @schedule_type, scheduled_at = sqlc.narg(scheduled_at), delay_ms = sqlc.narg(delay_ms),
    expires_at = CASE WHEN t.start_within_ms > 0 THEN sqlc.arg(start_at)::timestamptz + t.start_within_ms * interval '1 millisecond' ELSE t.expires_at END,
    rescheduled_by = CASE WHEN @principal::text = ANY(t.rescheduled_by) THEN t.rescheduled_by ELSE t.rescheduled_by || @principal::text END
WHERE t.id = @id;

-- name: ScheduleOfTask :one
-- Locks the task.
SELECT t.schedule_type, t.scheduled_at, t.delay_ms, t.expires_at, COALESCE(t.start_within_ms > 0, false)::boolean AS expiry_moves FROM tasks_live t WHERE t.id = @id FOR UPDATE;

-- name: TasksChangedBy :exec
-- Notes who else had a hand in new tasks than the one who asked for them.
UPDATE tasks_live t SET rescheduled_by = @principals::text[] FROM (SELECT unnest(@ids::uuid[]) AS id) u WHERE t.id = ANY (ARRAY[u.id]);

-- name: Clock :one
-- Postgres' clock.
SELECT clock_timestamp()::timestamptz AS now;
