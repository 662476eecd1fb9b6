-- name: RunningDeadlines :many
-- Running tasks in the order in which their start-to-close time is over. wait_ms
-- is how long until then and the grace after it, by Postgres' clock; not above 0
-- where that is past. It counts from the claim: where claimed_at is missing or of
-- an earlier claim, an orchestrator of an older version recorded it in started_at.
-- Jobs that are moved by hand have no worker to wait for.
SELECT t.id, t.delivery, t.timeout_ms,
    (extract(epoch FROM GREATEST(t.claimed_at, t.started_at) + (t.timeout_ms + sqlc.arg(grace_ms)::bigint) * interval '1 millisecond' - clock_timestamp()) * 1000)::double precision AS wait_ms
FROM running_tasks t WHERE t.started_at IS NOT NULL AND t.queue <> 'internal-jobs'
ORDER BY GREATEST(t.claimed_at, t.started_at) + t.timeout_ms * interval '1 millisecond' LIMIT sqlc.arg(max_rows)::int;
