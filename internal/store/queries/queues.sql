-- name: QueueWaits :many
-- What waits in Postgres of some queues: how many tasks are due, of each queue
-- max_rows at most, and for how many seconds the longest has been; and for how
-- many the task has been due whose entry is the next of the queue's stream, as
-- far as it waits. -1: none does. After ReadInOrder, so that no more is read.
SELECT q.queue::text AS queue,
    (SELECT count(*) FROM (SELECT FROM tasks_live t WHERE t.queue = q.queue AND t.due_at IS NOT NULL AND t.due_at <= now()
        ORDER BY t.due_at, t.id LIMIT sqlc.arg(max_rows)::int) due)::bigint AS due,
    COALESCE((SELECT extract(epoch FROM clock_timestamp() - t.due_at) FROM tasks_live t WHERE t.queue = q.queue AND t.due_at IS NOT NULL AND t.due_at <= now()
        ORDER BY t.due_at, t.id LIMIT 1), -1)::double precision AS due_seconds,
    COALESCE((SELECT extract(epoch FROM clock_timestamp() - COALESCE(t.ready_at, t.created_at)) FROM tasks_live t
        WHERE t.id = q.next AND t.state IN ('queued', 'retrying')), -1)::double precision AS next_seconds
FROM (SELECT unnest(sqlc.arg(queues)::text[]) AS queue, unnest(sqlc.arg(nexts)::uuid[]) AS next) q;
