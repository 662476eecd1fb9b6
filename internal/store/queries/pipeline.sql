-- name: LockTasks :many
-- Locks live tasks in id order for a decision. now is Postgres' clock. Here as
-- elsewhere a join by id is written = ANY (ARRAY[...]): with = Postgres may order both
-- sides, which looks as cheap while a table is empty, and go on reading all of it for
-- each id once it is not. BETWEEN costs less.
SELECT t.id, t.state, t.attempt, t.max_retries, t.delivery, t.interruptions, t.event_seq, t.due_at, t.next_retry_at,
    t.retry_policy, t.applied_kind, t.applied_delivery, t.rejected_delivery, t.worker_id, t.last_error_code,
    t.last_error_reason, t.started_at, t.finished_at, t.trace_id, t.queue, t.name, t.idempotency_key, t.type, t.expires_at, t.unknown_since,
    t.start_at, t.open_dependencies, t.has_dependants, t.on_dependency_failure, t.created_at, t.updated_at, t.claimed_at, t.ready_at, clock_timestamp()::timestamptz AS now
FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks_live t ON t.id BETWEEN u.id AND u.id
ORDER BY u.id FOR UPDATE OF t;

-- name: LockFinished :many
-- The same for tasks that have ended. Those that end while LockTasks waits for them
-- are here: ask after it.
SELECT t.id, t.state, t.attempt, t.max_retries, t.delivery, t.interruptions, t.event_seq, t.due_at, t.next_retry_at,
    t.retry_policy, t.applied_kind, t.applied_delivery, t.rejected_delivery, t.worker_id, t.last_error_code,
    t.last_error_reason, t.started_at, t.finished_at, t.trace_id, t.queue, t.name, t.idempotency_key, t.type, t.expires_at, t.unknown_since,
    t.start_at, t.open_dependencies, t.has_dependants, t.on_dependency_failure, t.created_at, t.updated_at, t.claimed_at, t.ready_at, clock_timestamp()::timestamptz AS now
FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks_finished t ON t.id = ANY (ARRAY[u.id])
ORDER BY u.id FOR UPDATE OF t;

-- name: LockDue :many
-- Takes the longest due tasks of a queue that no other replica is taking, and
-- those that become due within ahead_ms; none that was due before from_at.
-- Payloads has those that are larger.
SELECT t.id, t.state, t.attempt, t.max_retries, t.delivery, t.interruptions, t.event_seq, t.due_at, t.next_retry_at,
    t.retry_policy, t.applied_kind, t.applied_delivery, t.rejected_delivery, t.worker_id, t.last_error_code,
    t.last_error_reason, t.started_at, t.finished_at, t.trace_id, t.queue, t.name, t.idempotency_key, t.type, t.expires_at, t.unknown_since,
    t.start_at, t.open_dependencies, t.has_dependants, t.on_dependency_failure, t.created_at, t.updated_at, t.claimed_at, t.ready_at, clock_timestamp()::timestamptz AS now, t.tenant, t.timeout_ms, t.heartbeat_timeout_ms, t.effect_key, t.effect_own, t.idempotency_scope, t.schedule_type, t.scheduled_at, t.delay_ms,
    t.requested_by, t.schedule_id, t.approvals, octet_length(t.payload::text)::int AS payload_bytes,
    (CASE WHEN octet_length(t.payload::text) <= 8192 THEN t.payload END)::json AS payload
FROM tasks_live t
WHERE t.queue = @queue AND t.due_at IS NOT NULL AND t.due_at >= sqlc.arg(from_at)::timestamptz AND t.due_at <= now() + sqlc.arg(ahead_ms)::bigint * interval '1 millisecond'
ORDER BY t.due_at, t.id LIMIT @max_rows FOR UPDATE SKIP LOCKED;

-- name: Payloads :many
SELECT t.id, t.payload FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks_live t ON t.id = ANY (ARRAY[u.id]);

-- name: InsertEvents :exec
-- Appends what decisions say.
INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, idempotency_key, next_retry_at,
    error_code, reason, backoff_delay_ms, actor, worker_id, message_id, trace_id, data, occurred_at)
SELECT e.task_id, e.seq, e.type, NULLIF(e.previous_status, ''), e.status, e.attempt, e.delivery, NULLIF(e.key, ''),
    NULLIF(e.next_retry_at, '0001-01-01 00:00:00Z'::timestamptz), NULLIF(e.code, ''), NULLIF(e.reason, ''), NULLIF(e.backoff, -1), e.actor, NULLIF(e.worker_id, ''),
    NULLIF(e.message_id, ''), e.trace_id, NULLIF(e.data, '')::json, e.occurred_at
FROM (SELECT unnest(@task_ids::uuid[]) AS task_id, unnest(@seqs::int[]) AS seq,
    unnest(@types::text[]) AS type, unnest(@froms::text[]) AS previous_status, unnest(@tos::text[]) AS status,
    unnest(@attempts::int[]) AS attempt, unnest(@deliveries::bigint[]) AS delivery, unnest(@keys::text[]) AS key,
    unnest(@next_retry_ats::timestamptz[]) AS next_retry_at, unnest(@codes::text[]) AS code,
    unnest(@reasons::text[]) AS reason, unnest(@backoffs::bigint[]) AS backoff, unnest(@actors::text[]) AS actor,
    unnest(@worker_ids::text[]) AS worker_id, unnest(@message_ids::text[]) AS message_id,
    unnest(@trace_ids::text[]) AS trace_id, unnest(@datas::text[]) AS data,
    unnest(@times::timestamptz[]) AS occurred_at) e;

-- name: SaveTasks :exec
-- Stores what decisions changed of tasks that live on.
UPDATE tasks_live t SET state = u.state, attempt = u.attempt, delivery = u.delivery, interruptions = u.interruptions,
    event_seq = u.event_seq, due_at = NULLIF(u.due_at, '0001-01-01 00:00:00Z'::timestamptz), next_retry_at = NULLIF(u.next_retry_at, '0001-01-01 00:00:00Z'::timestamptz), applied_kind = NULLIF(u.applied_kind, ''),
    applied_delivery = u.applied_delivery, rejected_delivery = u.rejected_delivery, worker_id = NULLIF(u.worker_id, ''),
    last_error_code = NULLIF(u.code, ''), last_error_reason = NULLIF(u.reason, ''), claimed_at = NULLIF(u.claimed_at, '0001-01-01 00:00:00Z'::timestamptz), started_at = NULLIF(u.started_at, '0001-01-01 00:00:00Z'::timestamptz),
    finished_at = NULLIF(u.finished_at, '0001-01-01 00:00:00Z'::timestamptz), result = COALESCE(NULLIF(u.result, '')::json, t.result),
    unknown_since = NULLIF(u.unknown_since, '0001-01-01 00:00:00Z'::timestamptz), start_at = NULLIF(u.start_at, '0001-01-01 00:00:00Z'::timestamptz),
    open_dependencies = u.open_dependencies, ready_at = NULLIF(u.ready_at, '0001-01-01 00:00:00Z'::timestamptz), updated_at = now()
FROM (
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
) u WHERE t.id BETWEEN u.id AND u.id;

-- name: SendTasks :exec
-- Stores that locked tasks are dispatched, where nothing else about them changes.
UPDATE tasks_live t SET ready_at = t.due_at, due_at = NULL, updated_at = now() FROM (SELECT unnest(@ids::uuid[]) AS id) u WHERE t.id BETWEEN u.id AND u.id;

-- name: FinishTasks :exec
-- Stores what decisions changed of locked tasks that end: it moves them.
WITH gone AS (
    DELETE FROM tasks_live d USING (SELECT unnest(@ids::uuid[]) AS id) x WHERE d.id BETWEEN x.id AND x.id
)
INSERT INTO tasks_finished (id, name, tenant, queue, type, max_retries, schedule_type, scheduled_at, delay_ms, timeout_ms, retry_policy, idempotency_scope, idempotency_key,
    given, trace_id, payload, created_at, origin_dlq_id, effect_key, expires_at, start_within_ms, heartbeat_timeout_ms, heartbeat_at, progress, requested_by,
    graph_id, on_dependency_failure, dependencies_digest, has_dependants, schedule_id, approvals, also_requested_by, effect_own, rescheduled_by, asked_schedule, erased_at,
    state, attempt, delivery, interruptions, event_seq, due_at, next_retry_at, applied_kind, applied_delivery, rejected_delivery, worker_id, last_error_code, last_error_reason, claimed_at, started_at, finished_at, result, unknown_since, start_at, open_dependencies, ready_at, updated_at)
SELECT t.id, t.name, t.tenant, t.queue, t.type, t.max_retries, t.schedule_type, t.scheduled_at, t.delay_ms, t.timeout_ms, t.retry_policy, t.idempotency_scope, t.idempotency_key,
    t.given, t.trace_id, t.payload, t.created_at, t.origin_dlq_id, t.effect_key, t.expires_at, t.start_within_ms, t.heartbeat_timeout_ms, t.heartbeat_at, t.progress, t.requested_by,
    t.graph_id, t.on_dependency_failure, t.dependencies_digest, t.has_dependants, t.schedule_id, t.approvals, t.also_requested_by, t.effect_own, t.rescheduled_by, t.asked_schedule, t.erased_at,
    u.state,
    u.attempt,
    u.delivery,
    u.interruptions,
    u.event_seq,
    NULLIF(u.due_at, '0001-01-01 00:00:00Z'::timestamptz),
    NULLIF(u.next_retry_at, '0001-01-01 00:00:00Z'::timestamptz),
    NULLIF(u.applied_kind, ''),
    u.applied_delivery,
    u.rejected_delivery,
    NULLIF(u.worker_id, ''),
    NULLIF(u.code, ''),
    NULLIF(u.reason, ''),
    NULLIF(u.claimed_at, '0001-01-01 00:00:00Z'::timestamptz),
    NULLIF(u.started_at, '0001-01-01 00:00:00Z'::timestamptz),
    NULLIF(u.finished_at, '0001-01-01 00:00:00Z'::timestamptz),
    COALESCE(NULLIF(u.result, '')::json, t.result),
    NULLIF(u.unknown_since, '0001-01-01 00:00:00Z'::timestamptz),
    NULLIF(u.start_at, '0001-01-01 00:00:00Z'::timestamptz),
    u.open_dependencies,
    NULLIF(u.ready_at, '0001-01-01 00:00:00Z'::timestamptz),
    now()
FROM (
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
) u JOIN tasks_live t ON t.id BETWEEN u.id AND u.id;

-- name: SaveFinished :exec
-- Stores what decisions changed of tasks that had ended before: an outcome that came
-- too late was noted, or what they waited for ended, too.
UPDATE tasks_finished t SET state = u.state, attempt = u.attempt, delivery = u.delivery, interruptions = u.interruptions,
    event_seq = u.event_seq, due_at = NULLIF(u.due_at, '0001-01-01 00:00:00Z'::timestamptz), next_retry_at = NULLIF(u.next_retry_at, '0001-01-01 00:00:00Z'::timestamptz), applied_kind = NULLIF(u.applied_kind, ''),
    applied_delivery = u.applied_delivery, rejected_delivery = u.rejected_delivery, worker_id = NULLIF(u.worker_id, ''),
    last_error_code = NULLIF(u.code, ''), last_error_reason = NULLIF(u.reason, ''), claimed_at = NULLIF(u.claimed_at, '0001-01-01 00:00:00Z'::timestamptz), started_at = NULLIF(u.started_at, '0001-01-01 00:00:00Z'::timestamptz),
    finished_at = NULLIF(u.finished_at, '0001-01-01 00:00:00Z'::timestamptz), result = COALESCE(NULLIF(u.result, '')::json, t.result),
    unknown_since = NULLIF(u.unknown_since, '0001-01-01 00:00:00Z'::timestamptz), start_at = NULLIF(u.start_at, '0001-01-01 00:00:00Z'::timestamptz),
    open_dependencies = u.open_dependencies, ready_at = NULLIF(u.ready_at, '0001-01-01 00:00:00Z'::timestamptz), updated_at = now()
FROM (
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
) u WHERE t.id = ANY (ARRAY[u.id]);

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
    (SELECT t.queue, t.due_at FROM tasks_live t WHERE t.due_at IS NOT NULL ORDER BY t.queue, t.due_at LIMIT 1)
    UNION ALL
    SELECT n.queue, n.due_at FROM q, LATERAL (
        SELECT t.queue, t.due_at FROM tasks_live t WHERE t.due_at IS NOT NULL AND t.queue > q.queue ORDER BY t.queue, t.due_at LIMIT 1) n
)
SELECT q.queue, q.due_at::timestamptz AS due_at, (extract(epoch FROM q.due_at - clock_timestamp()) * 1000)::double precision AS wait_ms FROM q
WHERE q.queue <> 'internal-jobs';

-- name: Candidates :many
-- Live tasks that must be somewhere in Redis: dispatched, and in no open batch.
WITH open AS MATERIALIZED (
    SELECT DISTINCT i.id FROM dispatch_outbox o, unnest(o.task_ids) i(id)
)
SELECT t.id, t.queue, t.state, t.delivery FROM live_queues q CROSS JOIN unnest(ARRAY['queued', 'retrying', 'running']) s(state)
    CROSS JOIN LATERAL (SELECT x.id, x.queue, x.state, x.delivery FROM tasks_live x WHERE x.queue = q.queue AND x.state = s.state AND x.due_at IS NULL OFFSET 0) t
WHERE q.queue <> 'internal-jobs' AND NOT EXISTS (SELECT FROM open o WHERE o.id = t.id)
ORDER BY t.id;

-- name: CandidatesAmong :many
-- Those of some tasks that must be somewhere in Redis. The ids come first.
WITH t AS MATERIALIZED (
    SELECT t.id, t.queue, t.state, t.delivery, t.due_at FROM (SELECT unnest(@ids::uuid[]) AS id) u JOIN tasks_live t ON t.id = ANY (ARRAY[u.id])
)
SELECT t.id, t.queue, t.state, t.delivery FROM t
WHERE t.state IN ('queued', 'retrying', 'running') AND t.due_at IS NULL AND t.queue <> 'internal-jobs'
    AND NOT EXISTS (SELECT 1 FROM dispatch_outbox o WHERE t.id = ANY(o.task_ids))
ORDER BY t.id;

-- name: LiveQueues :many
-- Queues that have live tasks, and so a stream.
SELECT q.queue FROM live_queues q WHERE q.queue <> 'internal-jobs';

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
-- Makes a partition of so many days, that begins so many days from today, unless
-- there is one that has that day; 0: there was, or it could not be made.
SELECT penstock_ensure_partition(sqlc.arg(parent)::text, (now() AT TIME ZONE 'UTC')::date + sqlc.arg(ahead)::int, sqlc.arg(days)::int);

-- name: GetDeployment :one
SELECT id, seed, created_at FROM deployment;

-- name: OwnOutbox :many
-- Batches of a living owner, which knows them, but for those whose commit it could
-- not see.
SELECT id FROM dispatch_outbox WHERE owner = @owner;
