-- name: InsertApprovals :exec
-- Asks people to decide about tasks. Whoever had a hand in a task is shut out.
INSERT INTO approvals (id, task_id, tenant, kind, name, rule_revision, digest, required, approvers, requesters, prompt, rule_error,
    effect_scope, effect_key, effect_name, requested_at, expires_at)
SELECT i.id, i.task_id, t.tenant, i.kind, i.name, NULLIF(i.rule_revision, 0), i.digest, i.required, string_to_array(i.approvers, E'\n'),
    ARRAY(SELECT DISTINCT lower(btrim(p)) FROM unnest(t.requested_by || COALESCE(t.also_requested_by, '{}') || t.rescheduled_by) p ORDER BY 1),
    NULLIF(i.prompt, ''), NULLIF(i.rule_error, ''),
    CASE WHEN i.kind = 'effect' THEN i.effect_scope END, CASE WHEN i.kind = 'effect' THEN i.effect_key END, CASE WHEN i.kind = 'effect' THEN i.effect_name END,
    now(), now() + i.timeout_ms * interval '1 millisecond'
FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id, unnest(sqlc.arg(task_ids)::uuid[]) AS task_id, unnest(sqlc.arg(kinds)::text[]) AS kind,
    unnest(sqlc.arg(names)::text[]) AS name, unnest(sqlc.arg(rule_revisions)::bigint[]) AS rule_revision, unnest(sqlc.arg(digests)::text[]) AS digest,
    unnest(sqlc.arg(requireds)::int[]) AS required, unnest(sqlc.arg(approvers)::text[]) AS approvers, unnest(sqlc.arg(prompts)::text[]) AS prompt,
    unnest(sqlc.arg(rule_errors)::text[]) AS rule_error, unnest(sqlc.arg(effect_scopes)::text[]) AS effect_scope, unnest(sqlc.arg(effect_keys)::text[]) AS effect_key,
    unnest(sqlc.arg(effect_names)::text[]) AS effect_name, unnest(sqlc.arg(timeout_mss)::bigint[]) AS timeout_ms) i
JOIN tasks t ON t.id = ANY (ARRAY[i.task_id])
ORDER BY i.task_id, i.id
ON CONFLICT DO NOTHING;

-- name: GuardSubjects :many
-- What the guard's rules see of tasks.
SELECT t.id, t.name, t.tenant, t.queue, t.type, t.payload, t.schedule_type, t.scheduled_at, t.delay_ms, t.start_at, t.timeout_ms, t.max_retries,
    t.idempotency_key, t.requested_by
FROM (SELECT unnest(sqlc.arg(ids)::uuid[]) AS id) u JOIN tasks t ON t.id = ANY (ARRAY[u.id]);

-- name: Hands :one
-- Who has had a hand in a task until now, as InsertApprovals shuts them out.
SELECT ARRAY(SELECT DISTINCT lower(btrim(p)) FROM unnest(t.requested_by || COALESCE(t.also_requested_by, '{}') || t.rescheduled_by) p ORDER BY 1)::text[] AS hands
FROM tasks t WHERE t.id = sqlc.arg(id);

-- name: ApprovedDigests :many
-- What was approved of some tasks.
SELECT a.task_id, a.digest FROM approvals a WHERE a.task_id = ANY(sqlc.arg(task_ids)::uuid[]) AND a.status = 'approved' AND a.kind = 'guard';

-- name: ApprovalTask :one
SELECT a.task_id FROM approvals a WHERE a.id = sqlc.arg(id);

-- name: ApprovalsOfEffect :many
-- The tasks that wait for what a person says about an effect.
SELECT DISTINCT a.task_id FROM approvals a
WHERE a.effect_scope = sqlc.arg(scope) AND a.effect_key = sqlc.arg(key) AND a.effect_name = sqlc.arg(name) AND a.status = 'pending' AND a.kind = 'effect';

-- name: LockApprovals :many
-- All requests about tasks whose rows this transaction holds, in id order.
SELECT a.* FROM approvals a WHERE a.task_id = ANY(sqlc.arg(task_ids)::uuid[]) ORDER BY a.id FOR NO KEY UPDATE;

-- name: VotesOf :many
SELECT v.approval_id, v.principal, v.reason, v.at FROM approval_votes v WHERE v.approval_id = ANY(sqlc.arg(ids)::uuid[]) ORDER BY v.approval_id, v.at, v.principal;

-- name: InsertVote :exec
INSERT INTO approval_votes (approval_id, principal, requesters, reason, at)
SELECT a.id, sqlc.arg(principal)::text, a.requesters, sqlc.arg(reason)::text, clock_timestamp() FROM approvals a WHERE a.id = sqlc.arg(id);

-- name: DecideApprovals :exec
-- Ends requests that are pending.
UPDATE approvals a SET status = sqlc.arg(status), decided_at = clock_timestamp(), decided_by = NULLIF(sqlc.arg(decided_by)::text, ''), decision = NULLIF(sqlc.arg(decision)::text, '')
WHERE a.id = ANY(sqlc.arg(ids)::uuid[]) AND a.status = 'pending';

-- name: WithdrawApprovals :exec
-- Ends what is still asked about tasks that have ended.
UPDATE approvals a SET status = 'withdrawn', decided_at = clock_timestamp(), decision = 'the task ended'
WHERE a.task_id = ANY(sqlc.arg(task_ids)::uuid[]) AND a.status = 'pending';

-- name: AddGrants :exec
-- Tells a task's handler what was approved: grants is a JSON array.
UPDATE tasks_live t SET approvals = (COALESCE(t.approvals::jsonb, '[]'::jsonb) || sqlc.arg(grants)::text::jsonb)::json WHERE t.id = sqlc.arg(id);

-- name: ExpiringApprovals :many
-- Requests in the order in which their time is over. wait_ms is how long until
-- then, by Postgres' clock.
SELECT a.id, a.task_id, (extract(epoch FROM a.expires_at - clock_timestamp()) * 1000)::double precision AS wait_ms
FROM approvals a WHERE a.status = 'pending' ORDER BY a.expires_at LIMIT sqlc.arg(max_rows)::int;

-- name: CountPendingApprovals :one
SELECT count(*) FROM approvals a WHERE a.status = 'pending';

-- name: ListApprovals :many
-- One look at requests, as ListTasks, newest first.
SELECT l.*, t.name AS task_name, COALESCE(t.type, '')::text AS type, COALESCE(t.queue, '')::text AS queue, COALESCE(t.state, '')::text AS state,
    ARRAY(SELECT v.principal FROM approval_votes v WHERE v.approval_id = l.id ORDER BY v.at, v.principal)::text[] AS approved_by
FROM (
    SELECT a.*, row_number() OVER (ORDER BY a.requested_at DESC, a.id DESC) AS place,
        ((sqlc.arg(status)::text = '' OR a.status = sqlc.arg(status))
            AND (sqlc.arg(name)::text = '' OR a.name = sqlc.arg(name))
            AND (sqlc.arg(kind)::text = '' OR a.kind = sqlc.arg(kind))
            AND (sqlc.arg(tenant)::text = '' OR a.tenant = sqlc.arg(tenant)))::boolean AS admitted
    FROM approvals a
    WHERE (a.requested_at, a.id) < (sqlc.arg(before_at)::timestamptz, sqlc.arg(before_id)::uuid)
    ORDER BY a.requested_at DESC, a.id DESC LIMIT sqlc.arg(max_look)::int
) l LEFT JOIN LATERAL (SELECT x.name, x.type, x.queue, x.state FROM tasks x WHERE x.id = l.task_id OFFSET 0) t ON true
WHERE l.admitted OR l.place = sqlc.arg(max_look)::int
ORDER BY l.requested_at DESC, l.id DESC LIMIT sqlc.arg(max_rows)::int;

-- name: ListPendingApprovals :many
-- ListApprovals of those that wait for a decision.
SELECT l.*, t.name AS task_name, COALESCE(t.type, '')::text AS type, COALESCE(t.queue, '')::text AS queue, COALESCE(t.state, '')::text AS state,
    ARRAY(SELECT v.principal FROM approval_votes v WHERE v.approval_id = l.id ORDER BY v.at, v.principal)::text[] AS approved_by
FROM (
    SELECT a.*, row_number() OVER (ORDER BY a.requested_at DESC, a.id DESC) AS place,
        ((sqlc.arg(name)::text = '' OR a.name = sqlc.arg(name))
            AND (sqlc.arg(kind)::text = '' OR a.kind = sqlc.arg(kind))
            AND (sqlc.arg(tenant)::text = '' OR a.tenant = sqlc.arg(tenant)))::boolean AS admitted
    FROM approvals a
    WHERE a.status = 'pending' AND (a.requested_at, a.id) < (sqlc.arg(before_at)::timestamptz, sqlc.arg(before_id)::uuid)
    ORDER BY a.requested_at DESC, a.id DESC LIMIT sqlc.arg(max_look)::int
) l LEFT JOIN LATERAL (SELECT x.name, x.type, x.queue, x.state FROM tasks x WHERE x.id = l.task_id OFFSET 0) t ON true
WHERE l.admitted OR l.place = sqlc.arg(max_look)::int
ORDER BY l.requested_at DESC, l.id DESC LIMIT sqlc.arg(max_rows)::int;

-- name: ListApprovalsOfTask :many
-- ListApprovals of one task.
SELECT l.*, t.name AS task_name, COALESCE(t.type, '')::text AS type, COALESCE(t.queue, '')::text AS queue, COALESCE(t.state, '')::text AS state,
    ARRAY(SELECT v.principal FROM approval_votes v WHERE v.approval_id = l.id ORDER BY v.at, v.principal)::text[] AS approved_by
FROM (
    SELECT a.*, row_number() OVER (ORDER BY a.requested_at DESC, a.id DESC) AS place,
        ((sqlc.arg(status)::text = '' OR a.status = sqlc.arg(status))
            AND (sqlc.arg(name)::text = '' OR a.name = sqlc.arg(name))
            AND (sqlc.arg(kind)::text = '' OR a.kind = sqlc.arg(kind))
            AND (sqlc.arg(tenant)::text = '' OR a.tenant = sqlc.arg(tenant)))::boolean AS admitted
    FROM approvals a
    WHERE a.task_id = sqlc.arg(task_id)::uuid AND (a.requested_at, a.id) < (sqlc.arg(before_at)::timestamptz, sqlc.arg(before_id)::uuid)
    ORDER BY a.requested_at DESC, a.id DESC LIMIT sqlc.arg(max_look)::int
) l LEFT JOIN LATERAL (SELECT x.name, x.type, x.queue, x.state FROM tasks x WHERE x.id = l.task_id OFFSET 0) t ON true
WHERE l.admitted OR l.place = sqlc.arg(max_look)::int
ORDER BY l.requested_at DESC, l.id DESC LIMIT sqlc.arg(max_rows)::int;

-- name: GetApproval :one
SELECT a.*, t.name AS task_name, COALESCE(t.type, '')::text AS type, COALESCE(t.queue, '')::text AS queue, COALESCE(t.state, '')::text AS state, t.payload,
    ARRAY(SELECT v.principal FROM approval_votes v WHERE v.approval_id = a.id ORDER BY v.at, v.principal)::text[] AS approved_by
FROM approvals a LEFT JOIN tasks t ON t.id = ANY (ARRAY[a.task_id]) WHERE a.id = sqlc.arg(id);

-- name: RemoveApprovals :one
-- Removes decided requests whose task was removed; the last one looked at, and
-- the zero id after the last of all.
SELECT COALESCE(penstock_remove_approvals(sqlc.arg(after_id)::uuid, sqlc.arg(max_rows)::int), '00000000-0000-0000-0000-000000000000'::uuid)::uuid AS last_id;

-- name: VerifyApprovals :many
-- The next requests with what backs them.
SELECT a.id, a.task_id, a.kind, a.name, a.status, a.required, a.requesters, (t.id IS NOT NULL)::boolean AS task_found, COALESCE(t.state, '')::text AS state,
    (SELECT count(DISTINCT lower(v.principal)) FROM approval_votes v WHERE v.approval_id = a.id AND lower(v.principal) <> ALL (a.requesters) AND lower(v.principal) <> 'anonymous') AS people,
    (SELECT count(*) FROM approval_votes v WHERE v.approval_id = a.id) AS votes
FROM approvals a LEFT JOIN tasks t ON t.id = ANY (ARRAY[a.task_id])
WHERE a.id > sqlc.arg(after_id)::uuid ORDER BY a.id LIMIT sqlc.arg(max_rows)::int;

-- name: VerifyWaiting :many
-- The next tasks that wait for approval, and how many requests are pending about
-- each.
SELECT t.id, t.name, (SELECT count(*) FROM approvals a WHERE a.task_id = t.id AND a.status = 'pending') AS pending
FROM live_queues q CROSS JOIN LATERAL (
    SELECT x.id, x.name FROM tasks_live x WHERE x.queue = q.queue AND x.state = 'waiting_approval' AND x.due_at IS NULL AND x.id > sqlc.arg(after_id)::uuid
    ORDER BY x.id LIMIT sqlc.arg(max_rows)::int) t
ORDER BY t.id LIMIT sqlc.arg(max_rows)::int;

-- name: EndedDoubts :many
-- Requests about effects that are not in doubt any more, in id order.
SELECT a.id, a.task_id FROM approvals a JOIN effects e ON e.scope = a.effect_scope AND e.key = a.effect_key AND e.name = a.effect_name
WHERE a.status = 'pending' AND a.kind = 'effect' AND e.state <> 'reserved' AND a.id > sqlc.arg(after_id)::uuid
    AND (sqlc.arg(scope)::text = '' OR a.effect_scope = sqlc.arg(scope)::text AND a.effect_key = sqlc.arg(key)::text AND a.effect_name = sqlc.arg(name)::text)
ORDER BY a.id LIMIT sqlc.arg(max_rows)::int;
