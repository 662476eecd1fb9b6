-- name: SeeWorker :one
-- Records a worker's sign of life and returns whether it is to drain.
INSERT INTO workers AS w (id, host, pid, version, queues, concurrency, running, stuck, interval_ms, seen_at)
VALUES (sqlc.arg(id), sqlc.arg(host), sqlc.arg(pid), sqlc.arg(version), sqlc.arg(queues)::text[], sqlc.arg(concurrency), sqlc.arg(running),
    sqlc.arg(stuck), sqlc.arg(interval_ms), clock_timestamp())
ON CONFLICT (id) DO UPDATE SET host = EXCLUDED.host, pid = EXCLUDED.pid, version = EXCLUDED.version, queues = EXCLUDED.queues,
    concurrency = EXCLUDED.concurrency, running = EXCLUDED.running, stuck = EXCLUDED.stuck, interval_ms = EXCLUDED.interval_ms, seen_at = EXCLUDED.seen_at
RETURNING (w.drain_at IS NOT NULL)::boolean AS drain;

-- name: RemoveWorker :exec
DELETE FROM workers w WHERE w.id = sqlc.arg(id);

-- name: ListWorkers :many
-- Workers that were seen within three of their intervals, or five seconds, and
-- those that are asked for by name.
SELECT * FROM workers w WHERE w.seen_at >= now() - greatest(3 * w.interval_ms * interval '1 millisecond', interval '5 seconds')
    OR w.id = ANY(sqlc.arg(also)::text[]) ORDER BY w.id LIMIT sqlc.arg(max_rows)::int;

-- name: RunningTasks :many
-- What workers run.
SELECT t.id, t.name, t.tenant, t.type, t.queue, t.attempt, COALESCE(t.worker_id, '')::text AS worker_id, t.started_at FROM running_tasks t
ORDER BY t.id LIMIT sqlc.arg(max_rows)::int;

-- name: WorkerSeen :one
-- How many seconds ago a worker was seen, and whether that is lately, as ListWorkers
-- has it.
SELECT extract(epoch FROM clock_timestamp() - w.seen_at)::double precision AS seconds,
    (w.seen_at >= now() - greatest(3 * w.interval_ms * interval '1 millisecond', interval '5 seconds'))::boolean AS lately
FROM workers w WHERE w.id = sqlc.arg(id);

-- name: CountWorkersOf :one
-- How many of the workers that ListWorkers shows fetch from a queue.
SELECT count(*) FROM workers w WHERE w.seen_at >= now() - greatest(3 * w.interval_ms * interval '1 millisecond', interval '5 seconds')
    AND w.drain_at IS NULL AND sqlc.arg(queue)::text = ANY (w.queues);

-- name: DrainWorker :one
-- Orders a worker that ListWorkers shows to drain; the first order stays.
UPDATE workers w SET drain_at = COALESCE(w.drain_at, now()), drain_by = COALESCE(w.drain_by, sqlc.arg(drain_by)::text)
WHERE w.id = sqlc.arg(id) AND w.seen_at >= now() - greatest(3 * w.interval_ms * interval '1 millisecond', interval '5 seconds')
RETURNING *;

-- name: PruneWorkers :execrows
-- Forgets workers that were not seen for ten of their intervals and an hour.
DELETE FROM workers w WHERE w.seen_at < now() - greatest(10 * w.interval_ms * interval '1 millisecond', interval '1 hour');

-- name: LockHeartbeats :many
-- Locks tasks in id order and tells when their workers last said that they run.
SELECT t.id, t.tenant, t.heartbeat_at FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id) u JOIN tasks_live t ON t.id = ANY (ARRAY[u.id]) ORDER BY u.id FOR UPDATE OF t;

-- name: SaveHeartbeats :exec
-- Records signs of life, and progress where one of the tasks has some.
UPDATE tasks_live t SET heartbeat_at = sqlc.arg(now)::timestamptz, progress = COALESCE(NULLIF(u.progress, '')::json, t.progress)
FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id, unnest(sqlc.arg(progress)::text[]) AS progress) u WHERE t.id = ANY (ARRAY[u.id]);
