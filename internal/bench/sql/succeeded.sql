-- How many tasks of the queues, enqueued since then, have succeeded.
SELECT count(*) FROM tasks_finished WHERE created_at >= $2::timestamptz AND queue = ANY ($1::text[]) AND state = 'succeeded';
