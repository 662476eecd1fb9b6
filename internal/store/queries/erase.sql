-- name: EraseTask :one
-- See the function. The caller holds the task's lock and appends the event.
SELECT penstock_erase_task(sqlc.arg(id))::boolean AS erased;

-- name: ErasedTask :one
-- What there is to know of a task before its content is erased: whether it was
-- before, and a task that waits for its result; the zero id if there is none.
SELECT (t.erased_at IS NOT NULL)::boolean AS erased,
    COALESCE((SELECT d.id FROM task_dependencies e JOIN tasks d ON d.id = ANY (ARRAY[e.task_id])
        WHERE e.upstream_id = t.id AND d.state NOT IN ('succeeded', 'failed', 'cancelled') LIMIT 1), '00000000-0000-0000-0000-000000000000'::uuid)::uuid AS dependant
FROM tasks t WHERE t.id = sqlc.arg(id);

-- name: EntriesOfTask :many
-- The stream entries that a task's events name.
SELECT DISTINCT e.message_id::text AS message_id FROM event_log e WHERE e.task_id = sqlc.arg(task_id) AND e.message_id IS NOT NULL LIMIT 1000;

-- name: RequeuedTasks :many
-- The tasks that came out of a task's dead letter.
SELECT r.task_id FROM dlq_items d JOIN dlq_requeues r ON r.dlq_id = d.dlq_id WHERE d.task_id = sqlc.arg(task_id) ORDER BY r.n;
