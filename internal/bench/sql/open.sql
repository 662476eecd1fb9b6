-- Whether the queues have a task that has not ended.
SELECT EXISTS (SELECT FROM tasks_live WHERE queue = ANY ($1::text[]));
