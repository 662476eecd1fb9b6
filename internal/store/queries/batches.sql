-- name: InsertBatch :one
-- Freezes a set of dead letters: those of ids, or (ids empty) those the filter
-- admits, at most max_items; of tenants, if that is not null. Returns no row if the
-- batch exists already.
WITH chosen AS MATERIALIZED (
    SELECT d.dlq_id, d.tenant FROM dlq_items d
    WHERE cardinality(sqlc.arg(ids)::uuid[]) = 0
        AND d.failed_at >= sqlc.arg(failed_after)::timestamptz AND d.failed_at < sqlc.arg(failed_before)::timestamptz
        AND (sqlc.arg(tenant)::text = '' OR d.tenant = sqlc.arg(tenant))
        AND (sqlc.arg(type)::text = '' OR d.type = sqlc.arg(type))
        AND (sqlc.arg(error_code)::text = '' OR penstock_cause(d.error_code, d.error) = sqlc.arg(error_code)
            OR sqlc.arg(error_code) = 'TASK_RETRY_EXHAUSTED' AND d.error_code = 'TASK_RETRY_EXHAUSTED')
        AND (sqlc.arg(fingerprint)::text = '' OR d.fingerprint = sqlc.arg(fingerprint))
        AND (sqlc.arg(queue)::text = '' OR d.queue = sqlc.arg(queue))
        AND d.status = sqlc.arg(item_status)::text AND d.recorded_at IS NOT NULL
        AND (sqlc.narg(tenants)::text[] IS NULL OR d.tenant = ANY (sqlc.narg(tenants)::text[]))
    UNION ALL
    SELECT d.dlq_id, d.tenant FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id) u JOIN dlq_items d ON d.dlq_id = u.id
    WHERE sqlc.narg(tenants)::text[] IS NULL OR d.tenant = ANY (sqlc.narg(tenants)::text[])
    LIMIT sqlc.arg(max_items)::int
), b AS (
    INSERT INTO dlq_batches (id, kind, status, filter, again, original, digest, total, rate, reason, created_by, expires_at, started_at, tenants)
    SELECT sqlc.arg(id)::uuid, sqlc.arg(kind)::text, sqlc.arg(status)::text, NULLIF(sqlc.arg(filter)::text, '')::json, sqlc.arg(again)::boolean, sqlc.arg(original)::boolean,
        COALESCE(encode(sha256(convert_to(string_agg(c.dlq_id::text, E'\n' ORDER BY c.dlq_id), 'UTF8')), 'hex'), ''), count(*)::int,
        sqlc.arg(rate)::int, sqlc.arg(reason)::text, sqlc.arg(created_by)::text,
        CASE WHEN sqlc.arg(ttl_ms)::bigint > 0 THEN now() + sqlc.arg(ttl_ms)::bigint * interval '1 millisecond' END,
        CASE WHEN sqlc.arg(status)::text = 'running' THEN now() END, COALESCE(array_agg(DISTINCT c.tenant), '{}')
    FROM chosen c
    ON CONFLICT (id) DO NOTHING
    RETURNING *
), items AS (
    INSERT INTO dlq_batch_items (batch_id, dlq_id) SELECT b.id, c.dlq_id FROM b, chosen c ORDER BY c.dlq_id
)
SELECT b.id, b.total FROM b;

-- name: GetBatch :one
SELECT * FROM dlq_batches WHERE id = sqlc.arg(id);

-- name: LockBatch :one
SELECT * FROM dlq_batches WHERE id = sqlc.arg(id) FOR NO KEY UPDATE;

-- name: LockNextBatch :one
-- A running batch that may go on and that no other replica is working on.
SELECT * FROM dlq_batches WHERE status = 'running' AND next_at <= now() ORDER BY next_at, id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;

-- name: NextBatchWait :one
-- Milliseconds until some running batch may go on; negative if there is none.
SELECT COALESCE((SELECT GREATEST(extract(epoch FROM b.next_at - now()) * 1000, 0) FROM dlq_batches b WHERE b.status = 'running' ORDER BY b.next_at LIMIT 1), -1)::double precision AS wait_ms;

-- name: PendingBatchItems :many
SELECT i.dlq_id FROM dlq_batch_items i WHERE i.batch_id = sqlc.arg(batch_id) AND i.status = 'pending' ORDER BY i.dlq_id LIMIT sqlc.arg(max_rows);

-- name: BatchItemIDs :many
SELECT i.dlq_id FROM dlq_batch_items i WHERE i.batch_id = sqlc.arg(batch_id) ORDER BY i.dlq_id;

-- name: MarkBatchItems :exec
UPDATE dlq_batch_items i SET status = u.status, task_id = NULLIF(u.task_id, '00000000-0000-0000-0000-000000000000'::uuid), detail = NULLIF(u.detail, '')
FROM (SELECT unnest(sqlc.arg(dlq_ids)::uuid[]) AS dlq_id, unnest(sqlc.arg(statuses)::text[]) AS status, unnest(sqlc.arg(task_ids)::uuid[]) AS task_id, unnest(sqlc.arg(details)::text[]) AS detail) u
WHERE i.batch_id = sqlc.arg(batch_id) AND i.dlq_id = u.dlq_id;

-- name: AdvanceBatch :exec
-- Counts what was done, and says when the next chunk may be: pace_ms after the
-- last one should have been, so that a late chunk is made up for, by a fifth
-- of a second at most.
UPDATE dlq_batches b SET done = b.done + sqlc.arg(done), skipped = b.skipped + sqlc.arg(skipped),
    next_at = GREATEST(b.next_at, now() - interval '200 milliseconds') + sqlc.arg(pace_ms)::double precision * interval '1 millisecond',
    status = CASE WHEN b.done + b.skipped + sqlc.arg(done) + sqlc.arg(skipped) >= b.total THEN 'finished' ELSE b.status END,
    finished_at = CASE WHEN b.done + b.skipped + sqlc.arg(done) + sqlc.arg(skipped) >= b.total THEN now() END
WHERE b.id = sqlc.arg(id);

-- name: SetBatchStatus :exec
UPDATE dlq_batches SET status = sqlc.arg(status), decided_by = COALESCE(NULLIF(sqlc.arg(decided_by)::text, ''), decided_by),
    decision_reason = COALESCE(NULLIF(sqlc.arg(decision_reason)::text, ''), decision_reason),
    controlled_by = COALESCE(NULLIF(sqlc.arg(controlled_by)::text, ''), controlled_by),
    started_at = CASE WHEN sqlc.arg(status)::text = 'running' THEN COALESCE(started_at, now()) ELSE started_at END,
    started_by = CASE WHEN sqlc.arg(status)::text = 'running' AND sqlc.arg(controlled_by)::text <> '' AND sqlc.arg(controlled_by)::text <> ALL (started_by)
        THEN array_append(started_by, sqlc.arg(controlled_by)::text) ELSE started_by END,
    next_at = CASE WHEN sqlc.arg(status)::text = 'running' THEN now() ELSE next_at END,
    finished_at = CASE WHEN sqlc.arg(status)::text IN ('cancelled', 'rejected', 'expired', 'finished') THEN now() END
WHERE id = sqlc.arg(id);

-- name: DeferBatch :exec
-- Lets others go first after a failure.
UPDATE dlq_batches SET next_at = now() + interval '5 seconds' WHERE id = sqlc.arg(id) AND status = 'running';

-- name: ExpireBatches :execrows
UPDATE dlq_batches SET status = 'expired', finished_at = now() WHERE status IN ('draft', 'proposed') AND expires_at <= now();

-- name: ListBatches :many
-- One look, as ListTasks, newest first.
SELECT sqlc.embed(b), l.place, l.admitted FROM (
    SELECT x.id, x.created_at, row_number() OVER (ORDER BY x.created_at DESC, x.id DESC) AS place,
        ((sqlc.arg(kind)::text = '' OR x.kind = sqlc.arg(kind)) AND (sqlc.arg(status)::text = '' OR x.status = sqlc.arg(status))
            AND (sqlc.narg(tenants)::text[] IS NULL OR cardinality(x.tenants) > 0 AND x.tenants <@ sqlc.narg(tenants)::text[]))::boolean AS admitted
    FROM dlq_batches x
    WHERE (x.created_at, x.id) < (sqlc.arg(before_at)::timestamptz, sqlc.arg(before_id)::uuid)
    ORDER BY x.created_at DESC, x.id DESC LIMIT sqlc.arg(max_look)::int
) l JOIN dlq_batches b ON b.id = l.id
WHERE l.admitted OR l.place = sqlc.arg(max_look)::int
ORDER BY l.created_at DESC, l.id DESC LIMIT sqlc.arg(max_rows)::int;

-- name: ListBatchItems :many
-- One look, as ListTasks, in order of the ids.
SELECT l.* FROM (
    SELECT i.dlq_id, i.status, i.task_id, i.detail, row_number() OVER (ORDER BY i.dlq_id) AS place,
        (sqlc.arg(status)::text = '' OR i.status = sqlc.arg(status))::boolean AS admitted
    FROM dlq_batch_items i
    WHERE i.batch_id = sqlc.arg(batch_id) AND i.dlq_id > sqlc.arg(after_id)::uuid
    ORDER BY i.dlq_id LIMIT sqlc.arg(max_look)::int
) l
WHERE l.admitted OR l.place = sqlc.arg(max_look)::int
ORDER BY l.dlq_id LIMIT sqlc.arg(max_rows)::int;

-- name: GroupBatch :many
-- Describes a batch's set.
SELECT g.key::text AS key, g.count, g.first_at::timestamptz AS first_at, g.last_at::timestamptz AS last_at, right(g.newest, 36)::uuid AS sample
FROM (
    SELECT CASE sqlc.arg(group_by)::text WHEN 'type' THEN COALESCE(d.type, '') ELSE d.fingerprint END AS key,
        count(*) AS count, min(d.failed_at) AS first_at, max(d.failed_at) AS last_at,
        max(lpad((extract(epoch FROM d.failed_at) * 1000000)::bigint::text, 20, '0') || d.dlq_id::text) AS newest
    FROM dlq_batch_items i JOIN dlq_items d ON d.dlq_id = i.dlq_id WHERE i.batch_id = sqlc.arg(batch_id)
    GROUP BY 1
) g
ORDER BY g.count DESC, g.key LIMIT sqlc.arg(max_rows);

-- name: BatchChanges :one
-- What changed in a batch's set since it was frozen.
SELECT count(*) FILTER (WHERE i.status = 'pending' AND (CASE WHEN b.again THEN d.status NOT IN ('open', 'requeued') ELSE d.status <> 'open' END)) AS settled,
    count(*) FILTER (WHERE EXISTS (SELECT 1 FROM dlq_edits e WHERE e.dlq_id = d.dlq_id AND e.created_at > b.created_at)) AS edited
FROM dlq_batches b JOIN dlq_batch_items i ON i.batch_id = b.id JOIN dlq_items d ON d.dlq_id = i.dlq_id WHERE b.id = sqlc.arg(id);

-- name: NewMatches :one
-- Dead letters that a filter admits and that are not in the batch: one probe of
-- its items each, whatever the planner believes.
SELECT count(*) FROM dlq_items d
WHERE d.failed_at >= sqlc.arg(failed_after)::timestamptz AND d.failed_at < sqlc.arg(failed_before)::timestamptz
    AND (sqlc.arg(tenant)::text = '' OR d.tenant = sqlc.arg(tenant))
    AND (sqlc.arg(type)::text = '' OR d.type = sqlc.arg(type))
    AND (sqlc.arg(error_code)::text = '' OR penstock_cause(d.error_code, d.error) = sqlc.arg(error_code)
            OR sqlc.arg(error_code) = 'TASK_RETRY_EXHAUSTED' AND d.error_code = 'TASK_RETRY_EXHAUSTED')
    AND (sqlc.arg(fingerprint)::text = '' OR d.fingerprint = sqlc.arg(fingerprint))
    AND (sqlc.arg(queue)::text = '' OR d.queue = sqlc.arg(queue))
    AND d.status = sqlc.arg(item_status)::text AND d.recorded_at IS NOT NULL
    AND NOT COALESCE((SELECT true FROM dlq_batch_items i WHERE i.batch_id = sqlc.arg(batch_id) AND i.dlq_id = d.dlq_id), false);
