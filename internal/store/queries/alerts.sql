-- name: ClaimAlertRound :execrows
-- Takes the next evaluation for lease_ms; 0 rows: it is not due, or somebody
-- else has it. It is due interval_ms after the last one, or 100 times as long as
-- that took, but not more than ten intervals: counting many tasks must not take
-- more than a hundredth of the time.
UPDATE alert_round r SET claimed_until = clock_timestamp() + sqlc.arg(lease_ms)::bigint * interval '1 millisecond'
WHERE r.claimed_until <= clock_timestamp() AND (r.evaluated_at IS NULL
    OR r.evaluated_at + greatest(sqlc.arg(interval_ms)::bigint, least(100 * r.took_ms, 10 * sqlc.arg(interval_ms)::bigint)) * interval '1 millisecond' <= clock_timestamp());

-- name: FinishAlertRound :exec
UPDATE alert_round SET claimed_until = clock_timestamp(), evaluated_at = clock_timestamp(), took_ms = sqlc.arg(took_ms), tasks = sqlc.arg(tasks)::text::json;

-- name: AbandonAlertRound :exec
-- Gives back an evaluation that failed: it is due again after a pause.
UPDATE alert_round SET claimed_until = clock_timestamp() + sqlc.arg(pause_ms)::bigint * interval '1 millisecond';

-- name: GetAlertRound :one
-- wait_ms is how long it is until the next evaluation is due.
SELECT r.evaluated_at, r.tasks, (extract(epoch FROM greatest(r.claimed_until,
    r.evaluated_at + greatest(sqlc.arg(interval_ms)::bigint, least(100 * r.took_ms, 10 * sqlc.arg(interval_ms)::bigint)) * interval '1 millisecond') - clock_timestamp()) * 1000)::double precision AS wait_ms
FROM alert_round r;

-- name: CountLive :many
-- Live tasks by state, out of the two indexes that between them have all.
SELECT c.state, sum(c.tasks)::bigint AS count FROM (
    SELECT w.state, count(*) AS tasks FROM tasks_live w WHERE w.due_at IS NOT NULL GROUP BY w.state
    UNION ALL
    SELECT o.state, count(*) FROM tasks_live o WHERE o.due_at IS NULL GROUP BY o.state
) c GROUP BY c.state;

-- name: DeadGrowth :many
-- Tenants with more than min_count tasks that became dead letters within the
-- window, most first. Compared as a row, so that no index but the one that
-- starts with failed_at fits.
SELECT d.tenant, count(*) AS count FROM dlq_items d
WHERE (d.failed_at, d.dlq_id) > (now() - sqlc.arg(window_ms)::bigint * interval '1 millisecond', 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid) AND d.task_id IS NOT NULL
GROUP BY d.tenant HAVING count(*) > sqlc.arg(min_count)::double precision
ORDER BY count(*) DESC, d.tenant LIMIT sqlc.arg(max_rows)::int;

-- name: RaiseAlert :execrows
-- Makes an alert fire and writes its event; 0 rows: it is firing already. Of
-- several at once one gets through.
WITH raised AS (
    INSERT INTO alerts AS a (kind, tenant, id, seq, firing, value, threshold)
    VALUES (sqlc.arg(kind), sqlc.arg(tenant), sqlc.arg(id), 1, true, sqlc.arg(value), sqlc.arg(threshold))
    ON CONFLICT (kind, tenant) DO UPDATE SET seq = a.seq + 1, firing = true, since = now(), seen_at = now(),
        value = excluded.value, threshold = excluded.threshold
        WHERE NOT a.firing
    RETURNING a.id, a.seq
)
INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, reason, actor, trace_id, data, occurred_at)
SELECT r.id, r.seq, 'alert.raised', '', 1, 0, sqlc.arg(reason)::text, sqlc.arg(actor)::text, 'alert-' || r.id::text, sqlc.arg(data)::text::json, now()
FROM raised r;

-- name: KeepAlert :execrows
-- Notes that an alert goes on; 0 rows: it is not firing.
UPDATE alerts SET seen_at = now(), value = sqlc.arg(value), threshold = sqlc.arg(threshold)
WHERE kind = sqlc.arg(kind) AND tenant = sqlc.arg(tenant) AND firing;

-- name: ResolveAlert :execrows
UPDATE alerts SET firing = false, since = now() WHERE kind = sqlc.arg(kind) AND tenant = sqlc.arg(tenant) AND firing;

-- name: ResolveQuietAlerts :many
-- Resolves the alerts of a kind that nobody has seen for quiet_ms.
UPDATE alerts SET firing = false, since = now()
WHERE kind = sqlc.arg(kind) AND firing AND seen_at < now() - sqlc.arg(quiet_ms)::bigint * interval '1 millisecond' RETURNING tenant;

-- name: FiringAlerts :many
SELECT a.tenant FROM alerts a WHERE a.kind = sqlc.arg(kind) AND a.firing;

-- name: AlertsFiring :many
-- Alerts that are firing.
SELECT a.kind, a.value FROM alerts a WHERE a.firing ORDER BY a.since DESC LIMIT sqlc.arg(max_rows)::int;

-- name: OutcomesOnRecord :many
-- Which of these refused outcomes are no illegal moves: they were applied
-- before, or are of the execution that a cancellation ended. The event of an
-- outcome has its delivery, or the next one where that delivery ended.
SELECT u.id::uuid AS id, u.delivery::bigint AS delivery, u.kind::text AS kind
FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id, unnest(sqlc.arg(deliveries)::bigint[]) AS delivery, unnest(sqlc.arg(kinds)::text[]) AS kind) u
WHERE EXISTS (SELECT 1 FROM event_log e WHERE e.task_id = u.id AND (
    (e.type = 'task.cancelled' AND e.delivery = u.delivery + 1)
    OR (e.actor = 'worker' AND CASE u.kind
        WHEN 'claimed' THEN e.type = 'task.claimed' AND e.delivery = u.delivery
        WHEN 'succeeded' THEN e.type = 'task.succeeded' AND e.delivery = u.delivery
        WHEN 'failed' THEN (e.type = 'task.dlq' AND e.delivery = u.delivery)
            OR (e.type = 'task.retry_scheduled' AND e.error_code IS NOT NULL AND e.delivery = u.delivery + 1)
        WHEN 'snoozed' THEN e.type = 'task.retry_scheduled' AND e.error_code IS NULL AND e.delivery = u.delivery + 1
        WHEN 'approval_needed' THEN e.type = 'approval.requested' AND e.delivery = u.delivery + 1
        ELSE e.type = 'task.interrupted' AND e.delivery = u.delivery + 1 -- released, skipped
    END)));
