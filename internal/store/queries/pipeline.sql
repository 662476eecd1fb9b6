-- name: LockTasks :many
-- Locks tasks in id order for a decision. now is Postgres' clock.
SELECT t.id, t.state, t.attempt, t.max_retries, t.delivery, t.interruptions, t.event_seq, t.due_at, t.next_retry_at,
    t.retry_policy, t.applied_kind, t.applied_delivery, t.rejected_delivery, t.worker_id, t.last_error_code,
    t.last_error_reason, t.started_at, t.finished_at, t.trace_id, t.queue, t.name, t.idempotency_key, t.type, t.expires_at, t.unknown_since,
    t.start_at, t.open_dependencies, t.has_dependants, t.on_dependency_failure, t.created_at, t.updated_at, t.claimed_at, t.ready_at, clock_timestamp()::timestamptz AS now
FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = u.id
ORDER BY t.id FOR UPDATE OF t;

-- name: LockDue :many
-- Takes the longest due tasks of a queue that no other replica is taking, and
-- those that become due within ahead_ms.
SELECT t.id, t.state, t.attempt, t.max_retries, t.delivery, t.interruptions, t.event_seq, t.due_at, t.next_retry_at,
    t.retry_policy, t.applied_kind, t.applied_delivery, t.rejected_delivery, t.worker_id, t.last_error_code,
    t.last_error_reason, t.started_at, t.finished_at, t.trace_id, t.queue, t.name, t.idempotency_key, t.type, t.expires_at, t.unknown_since,
    t.start_at, t.open_dependencies, t.has_dependants, t.on_dependency_failure, t.created_at, t.updated_at, t.claimed_at, t.ready_at, clock_timestamp()::timestamptz AS now, t.tenant, t.timeout_ms, t.heartbeat_timeout_ms, t.effect_key, t.effect_own, t.idempotency_scope, t.schedule_type, t.scheduled_at, t.delay_ms,
    t.requested_by, t.schedule_id, t.approvals, octet_length(t.payload::text)::int AS payload_bytes
FROM tasks t
WHERE t.queue = @queue AND t.due_at IS NOT NULL AND t.due_at <= now() + sqlc.arg(ahead_ms)::bigint * interval '1 millisecond'
ORDER BY t.due_at, t.id LIMIT @max_rows FOR UPDATE SKIP LOCKED;

-- name: Payloads :many
SELECT t.id, t.payload FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = u.id;

-- name: SaveTasks :exec
-- Stores what decisions changed, together with their events.
WITH input AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@states::text[]) AS state, unnest(@attempts::int[]) AS attempt,
        unnest(@deliveries::bigint[]) AS delivery, unnest(@interruptions::int[]) AS interruptions,
        unnest(@event_seqs::int[]) AS event_seq, unnest(@due_ats::timestamptz[]) AS due_at,
        unnest(@next_retry_ats::timestamptz[]) AS next_retry_at, unnest(@applied_kinds::text[]) AS applied_kind,
        unnest(@applied_deliveries::bigint[]) AS applied_delivery, unnest(@rejected_deliveries::bigint[]) AS rejected_delivery,
        unnest(@worker_ids::text[]) AS worker_id, unnest(@codes::text[]) AS code, unnest(@reasons::text[]) AS reason,
        unnest(@claimed_ats::timestamptz[]) AS claimed_at, unnest(@started_ats::timestamptz[]) AS started_at, unnest(@finished_ats::timestamptz[]) AS finished_at,
        unnest(@results::text[]) AS result, unnest(@unknown_sinces::timestamptz[]) AS unknown_since,
        unnest(@start_ats::timestamptz[]) AS start_at, unnest(@open_dependencies::int[]) AS open_dependencies,
        unnest(@ready_ats::timestamptz[]) AS ready_at
), events AS (
    INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, idempotency_key, next_retry_at,
        error_code, reason, backoff_delay_ms, actor, worker_id, message_id, trace_id, data, occurred_at)
    SELECT e.task_id, e.seq, e.type, NULLIF(e.previous_status, ''), e.status, e.attempt, e.delivery, NULLIF(e.key, ''),
        NULLIF(e.next_retry_at, '0001-01-01 00:00:00Z'::timestamptz), NULLIF(e.code, ''), NULLIF(e.reason, ''), NULLIF(e.backoff, -1), e.actor, NULLIF(e.worker_id, ''),
        NULLIF(e.message_id, ''), e.trace_id, NULLIF(e.data, '')::json, e.occurred_at
    FROM (SELECT unnest(@event_task_ids::uuid[]) AS task_id, unnest(@event_seq_nos::int[]) AS seq,
        unnest(@event_types::text[]) AS type, unnest(@event_froms::text[]) AS previous_status, unnest(@event_tos::text[]) AS status,
        unnest(@event_attempts::int[]) AS attempt, unnest(@event_deliveries::bigint[]) AS delivery, unnest(@event_keys::text[]) AS key,
        unnest(@event_next_retry_ats::timestamptz[]) AS next_retry_at, unnest(@event_codes::text[]) AS code,
        unnest(@event_reasons::text[]) AS reason, unnest(@event_backoffs::bigint[]) AS backoff, unnest(@event_actors::text[]) AS actor,
        unnest(@event_worker_ids::text[]) AS worker_id, unnest(@event_message_ids::text[]) AS message_id,
        unnest(@event_trace_ids::text[]) AS trace_id, unnest(@event_datas::text[]) AS data,
        unnest(@event_times::timestamptz[]) AS occurred_at) e
)
UPDATE tasks t SET state = u.state, attempt = u.attempt, delivery = u.delivery, interruptions = u.interruptions,
    event_seq = u.event_seq, due_at = NULLIF(u.due_at, '0001-01-01 00:00:00Z'::timestamptz), next_retry_at = NULLIF(u.next_retry_at, '0001-01-01 00:00:00Z'::timestamptz), applied_kind = NULLIF(u.applied_kind, ''),
    applied_delivery = u.applied_delivery, rejected_delivery = u.rejected_delivery, worker_id = NULLIF(u.worker_id, ''),
    last_error_code = NULLIF(u.code, ''), last_error_reason = NULLIF(u.reason, ''), claimed_at = NULLIF(u.claimed_at, '0001-01-01 00:00:00Z'::timestamptz), started_at = NULLIF(u.started_at, '0001-01-01 00:00:00Z'::timestamptz),
    finished_at = NULLIF(u.finished_at, '0001-01-01 00:00:00Z'::timestamptz), result = COALESCE(NULLIF(u.result, '')::json, t.result),
    unknown_since = NULLIF(u.unknown_since, '0001-01-01 00:00:00Z'::timestamptz), start_at = NULLIF(u.start_at, '0001-01-01 00:00:00Z'::timestamptz),
    open_dependencies = u.open_dependencies, ready_at = NULLIF(u.ready_at, '0001-01-01 00:00:00Z'::timestamptz), updated_at = now()
FROM input u WHERE t.id = u.id;

-- name: InsertSettlements :exec
-- Notes tasks that ended and that others depend on.
INSERT INTO dependency_settlements (upstream_id)
SELECT u.id FROM (SELECT unnest(@ids::uuid[]) AS id) u ORDER BY u.id ON CONFLICT DO NOTHING;

-- name: InsertOutbox :one
-- Records a dispatched batch and forgets batches whose XADD is done.
WITH done AS (DELETE FROM dispatch_outbox d WHERE d.id = ANY(@done_outbox::bigint[]))
INSERT INTO dispatch_outbox (owner, queue, after_id, task_ids, deliveries)
VALUES (@owner, @queue, @after_id, @task_ids::uuid[], @deliveries::bigint[]) RETURNING id;

-- name: DeleteOutbox :exec
DELETE FROM dispatch_outbox WHERE id = ANY(@ids::bigint[]);

-- name: LockOrphanedOutbox :many
-- Batches of others whose owner shows no sign of life, and has not renewed them
-- either: it may have stood still, and go on.
SELECT o.id, o.owner, o.queue, o.after_id, o.task_ids, o.deliveries FROM dispatch_outbox o
WHERE NOT EXISTS (SELECT 1 FROM instances i WHERE i.id = o.owner AND i.seen_at > now() - sqlc.arg(ttl_ms)::bigint * interval '1 millisecond')
    AND o.owner <> @self AND o.created_at <= now() - sqlc.arg(ttl_ms)::bigint * interval '1 millisecond'
ORDER BY o.id LIMIT 100 FOR UPDATE SKIP LOCKED;

-- name: RenewOutbox :execrows
-- Keeps a batch from being taken over for another while; 0 rows: it was.
UPDATE dispatch_outbox SET created_at = now() WHERE id = @id;

-- name: OutboxByID :many
SELECT o.id, o.owner, o.queue, o.after_id, o.task_ids, o.deliveries FROM dispatch_outbox o WHERE o.id = @id;

-- name: OutboxAfterIDs :many
-- Where readers of open batches start: nothing from there on may be trimmed.
SELECT queue, after_id FROM dispatch_outbox;

-- name: DueQueues :many
-- The earliest due time of each queue that has tasks waiting in Postgres.
-- Left out, here and below: 'internal-jobs', whose jobs are moved by hand only.
WITH RECURSIVE q AS (
    (SELECT t.queue, t.due_at FROM tasks t WHERE t.due_at IS NOT NULL ORDER BY t.queue, t.due_at LIMIT 1)
    UNION ALL
    SELECT n.queue, n.due_at FROM q, LATERAL (
        SELECT t.queue, t.due_at FROM tasks t WHERE t.due_at IS NOT NULL AND t.queue > q.queue ORDER BY t.queue, t.due_at LIMIT 1) n
)
SELECT q.queue, q.due_at::timestamptz AS due_at, (extract(epoch FROM q.due_at - clock_timestamp()) * 1000)::double precision AS wait_ms FROM q
WHERE q.queue <> 'internal-jobs';

-- name: Candidates :many
-- Live tasks that must be somewhere in Redis: dispatched, and in no open batch.
SELECT t.id, t.queue, t.state, t.delivery FROM tasks t
WHERE t.state IN ('queued', 'retrying', 'running') AND t.due_at IS NULL AND t.queue <> 'internal-jobs'
    AND NOT EXISTS (SELECT 1 FROM dispatch_outbox o WHERE t.id = ANY(o.task_ids))
ORDER BY t.id;

-- name: CandidatesAmong :many
-- Those of some tasks that must be somewhere in Redis. The ids come first: by
-- the states, all live tasks would be read.
WITH t AS MATERIALIZED (
    SELECT t.id, t.queue, t.state, t.delivery, t.due_at FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks t ON t.id = u.id
)
SELECT t.id, t.queue, t.state, t.delivery FROM t
WHERE t.state IN ('queued', 'retrying', 'running') AND t.due_at IS NULL AND t.queue <> 'internal-jobs'
    AND NOT EXISTS (SELECT 1 FROM dispatch_outbox o WHERE t.id = ANY(o.task_ids))
ORDER BY t.id;

-- name: LiveQueues :many
-- Queues that have live tasks, and so a stream.
SELECT DISTINCT t.queue FROM tasks t WHERE t.state NOT IN ('succeeded', 'failed', 'cancelled') AND t.queue <> 'internal-jobs';

-- name: TouchInstance :exec
INSERT INTO instances (id, host, pid) VALUES (@id, @host, @pid)
ON CONFLICT (id) DO UPDATE SET seen_at = now();

-- name: RemoveInstance :exec
DELETE FROM instances WHERE id = @id;

-- name: PruneInstances :exec
-- Forgets instances that are long dead and own no open batch.
DELETE FROM instances i WHERE i.seen_at < now() - interval '1 hour'
    AND NOT EXISTS (SELECT 1 FROM dispatch_outbox o WHERE o.owner = i.id);

-- name: EnsurePartition :one
-- Makes a table's partition of a day, so many days from today, unless it is
-- there; 0: it was, or could not be.
SELECT penstock_ensure_partition(sqlc.arg(parent)::text, (now() AT TIME ZONE 'UTC')::date + sqlc.arg(ahead)::int);

-- name: GetDeployment :one
SELECT id, seed, created_at FROM deployment;

-- name: OwnOutbox :many
-- Batches of a living owner, which knows them, but for those whose commit it could
-- not see.
SELECT id FROM dispatch_outbox WHERE owner = @owner;
