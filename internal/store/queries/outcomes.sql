-- name: AppliedOutcomes :many
-- Which of some outcomes the event log has already: their places. An
-- outcome is recognised by its worker and the entry that it is about.
SELECT u.place::int AS place FROM (SELECT unnest(sqlc.arg(places)::int[]) AS place, unnest(sqlc.arg(task_ids)::uuid[]) AS task_id, unnest(sqlc.arg(deliveries)::bigint[]) AS delivery,
    unnest(sqlc.arg(worker_ids)::text[]) AS worker_id, unnest(sqlc.arg(message_ids)::text[]) AS message_id, unnest(sqlc.arg(claims)::boolean[]) AS claim) u
WHERE EXISTS (
    SELECT FROM event_log e
    WHERE e.task_id = u.task_id AND e.actor = sqlc.arg(actor)::text AND e.worker_id = u.worker_id AND e.message_id = u.message_id
        AND e.delivery IN (u.delivery, u.delivery + 1) AND e.status <> e.previous_status AND (u.claim OR e.type <> 'task.claimed')
);
