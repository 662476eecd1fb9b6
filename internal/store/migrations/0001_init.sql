-- +goose Up

-- The record. Nothing was released before it; from here on, migrations first
-- expand, then contract, and hold no lock for long.

-- The functions below run with the rights of their owner: nobody's temporary
-- table must stand in for one of theirs. Unless pg_temp is named last, it is
-- searched first.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- One row: who this deployment is, and the seed of its retry jitter.
CREATE TABLE deployment (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    id         uuid NOT NULL DEFAULT gen_random_uuid(),
    seed       bytea NOT NULL DEFAULT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()),
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO deployment DEFAULT VALUES;

-- All tasks: those that live, in one table whatever their age, and those that
-- ended, by the time of their id (docs/decisions/0031). A task is moved by the
-- statement that ends it; what is asked all day long is asked of tasks_live. The id
-- of a task is unique among both: its first event has it for a key.
CREATE TABLE tasks (
    id                    uuid NOT NULL,
    -- The caller's own id, where it is no UUIDv7 of today.
    name                  text,
    tenant                text NOT NULL,
    queue                 text NOT NULL,
    type                  text NOT NULL,
    state                 text NOT NULL,
    attempt               int NOT NULL DEFAULT 1,
    max_retries           int NOT NULL,
    delivery              bigint NOT NULL DEFAULT 1,
    interruptions         int NOT NULL DEFAULT 0,
    event_seq             int NOT NULL DEFAULT 1,
    schedule_type         text NOT NULL,
    scheduled_at          timestamptz,
    delay_ms              bigint,
    timeout_ms            int NOT NULL,
    -- When it is to be dispatched; null: it is in Redis, or waits for something else.
    due_at                timestamptz,
    next_retry_at         timestamptz,
    retry_policy          json,
    idempotency_scope     text NOT NULL,
    idempotency_key       text,
    -- Which of timeout_ms (1), max_retries (2), heartbeat_timeout_ms (4) and trace_id (8)
    -- the caller gave; the others are defaults.
    given                 smallint NOT NULL,
    trace_id              text NOT NULL,
    payload               json NOT NULL,
    result                json,
    last_error_code       text,
    last_error_reason     text,
    worker_id             text,
    applied_kind          text,
    applied_delivery      bigint NOT NULL DEFAULT 0,
    rejected_delivery     bigint NOT NULL DEFAULT 0,
    created_at            timestamptz NOT NULL DEFAULT now(),
    updated_at            timestamptz NOT NULL DEFAULT now(),
    started_at            timestamptz,
    finished_at           timestamptz,
    -- A requeued dead letter: where the task comes from.
    origin_dlq_id         uuid,
    effect_key            text,
    -- No execution of a task starts after expires_at; start_within_ms is what the
    -- caller gave instead of a time, counted from when the task was due first.
    expires_at            timestamptz,
    start_within_ms       bigint,
    -- How long a handler may go without reporting progress.
    heartbeat_timeout_ms  int,
    -- When its worker last said that it runs, and what the handler last reported.
    heartbeat_at          timestamptz,
    progress              json,
    -- When a worker first handed the task back because it did not know its
    -- type; null once one has started it.
    unknown_since         timestamptz,
    -- Who asked for it: a principal, or anonymous.
    requested_by          text NOT NULL DEFAULT 'anonymous',
    -- When its schedule lets it start; null: at once.
    start_at              timestamptz,
    -- The first task of the graph it belongs to; null: it is alone.
    graph_id              uuid,
    -- How many of the tasks it depends on have not ended yet.
    open_dependencies     int NOT NULL DEFAULT 0,
    -- What a dependency that does not succeed means; null: it depends on none.
    on_dependency_failure text,
    -- Digest of what it depends on, as the caller gave it.
    dependencies_digest   text,
    -- Other tasks depend on it.
    has_dependants        boolean NOT NULL DEFAULT false,
    -- The schedule that made it.
    schedule_id           uuid,
    -- What its handler is told of approvals that were given.
    approvals             json,
    -- Everybody besides requested_by and rescheduled_by who had a hand in what the
    -- task is: who asked for, edited and requeued the dead letter it came out of.
    -- Null: nobody.
    also_requested_by     text[],
    -- Whether effect_key is the id of a task that has no idempotency key.
    effect_own            boolean NOT NULL DEFAULT false,
    -- Who changed it after it was asked for: who moved its time, who changed the
    -- schedule that made it, who triggered that by hand.
    rescheduled_by        text[] NOT NULL DEFAULT '{}',
    -- The schedule as the caller asked for it, if it was changed since:
    -- {schedule_type, scheduled_at, delay_ms}.
    asked_schedule        json,
    -- When the last claim was recorded, by Postgres' clock: started_at is what the
    -- worker measured, and no timeout is judged by a worker's clock.
    claimed_at            timestamptz,
    -- When the task had become due that was dispatched: due_at is null from then on.
    -- Null for one that went straight to its stream: it was due when it was created.
    ready_at              timestamptz,
    -- When the content of a task was erased on request.
    erased_at             timestamptz,
    -- Each check is parsed and compiled anew by every statement that writes. What
    -- these do not say, verify does: decision 0031 has the table.
    CONSTRAINT tasks_attempt CHECK (attempt >= 1 AND attempt <= max_retries + 1)
) PARTITION BY LIST (state);

COMMENT ON COLUMN tasks.effect_key IS 'The key of the task''s effects, where it is not the idempotency key or the task''s own id: that of the task it was requeued from, or one with a generation.';

-- +goose StatementBegin
-- The key under which a task's effects are kept: that of the task it came out of, its
-- caller's, or its own id as callers know it. As EffectKey in package protocol.
CREATE FUNCTION penstock_effect_key(effect_key text, idempotency_key text, name text, id uuid) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT COALESCE(effect_key, idempotency_key, name, id::text)
$$;
-- +goose StatementEnd
-- +goose StatementBegin
-- Whether that is the id of a task, in its tenant's scope, and no caller's key.
CREATE FUNCTION penstock_effect_own(effect_own boolean, effect_key text, idempotency_key text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT effect_own OR effect_key IS NULL AND idempotency_key IS NULL
$$;
-- +goose StatementEnd

-- No other state is one.
CREATE TABLE tasks_live PARTITION OF tasks
    FOR VALUES IN ('pending', 'waiting_approval', 'queued', 'running', 'retrying', 'interrupted', 'dlq_pending', 'dlq_recorded')
    WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_analyze_scale_factor = 0.05);
CREATE TABLE tasks_finished PARTITION OF tasks FOR VALUES IN ('succeeded', 'failed', 'cancelled') PARTITION BY RANGE (id);

ALTER TABLE tasks_live ADD CONSTRAINT tasks_live_pkey PRIMARY KEY (id),
    ADD CONSTRAINT tasks_finished_at CHECK (finished_at IS NULL),
    ADD CONSTRAINT tasks_next_retry_at CHECK ((state = 'retrying') = (next_retry_at IS NOT NULL)),
    ADD CONSTRAINT tasks_due_at CHECK (due_at IS NULL OR state IN ('pending', 'queued', 'retrying', 'interrupted'));
-- What waits in Postgres for dispatch, in due order.
CREATE INDEX tasks_live_due ON tasks_live (queue, due_at, id) INCLUDE (state) WHERE due_at IS NOT NULL;
-- All others: what Redis must hold, what runs, what waits for people or for other
-- tasks, dead letters.
CREATE INDEX tasks_live_state ON tasks_live (queue, state, id) WHERE due_at IS NULL;
-- Without the id: an index that has the id in second place is as good as the primary
-- key to a planner that takes the table for empty. A batch has one time, and is one entry.
CREATE INDEX tasks_live_created ON tasks_live (created_at);
-- What can expire: 1 while it is in Redis and not known to have started.
CREATE INDEX tasks_live_expires ON tasks_live ((CASE WHEN due_at IS NULL AND state IN ('queued', 'retrying') THEN 1 ELSE 0 END), expires_at, id) WHERE expires_at IS NOT NULL;
-- Of a schedule: overlap.
CREATE INDEX tasks_live_schedule ON tasks_live (schedule_id) WHERE schedule_id IS NOT NULL;
-- Only tasks of graphs, and of callers with a trace id of their own, are in
-- these: enqueueing others costs nothing.
CREATE INDEX tasks_live_graph ON tasks_live (graph_id, id) WHERE graph_id IS NOT NULL;
CREATE INDEX tasks_live_trace ON tasks_live (trace_id, id) WHERE given & 8 <> 0;

-- The queues that have live tasks, by looking at the next one's first task: it costs
-- as much as there are queues.
CREATE VIEW live_queues AS
WITH RECURSIVE waiting AS (
    (SELECT t.queue FROM tasks_live t WHERE t.due_at IS NOT NULL ORDER BY t.queue LIMIT 1)
    UNION ALL
    SELECT n.queue FROM waiting w, LATERAL (SELECT t.queue FROM tasks_live t WHERE t.due_at IS NOT NULL AND t.queue > w.queue ORDER BY t.queue LIMIT 1) n
), others AS (
    (SELECT t.queue FROM tasks_live t WHERE t.due_at IS NULL ORDER BY t.queue LIMIT 1)
    UNION ALL
    SELECT n.queue FROM others o, LATERAL (SELECT t.queue FROM tasks_live t WHERE t.due_at IS NULL AND t.queue > o.queue ORDER BY t.queue LIMIT 1) n
)
SELECT w.queue FROM waiting w UNION SELECT o.queue FROM others o;

-- Tasks that run: as many as workers have slots.
CREATE VIEW running_tasks AS
SELECT t.id, t.name, t.tenant, t.queue, t.type, t.attempt, t.delivery, t.worker_id, t.timeout_ms, t.claimed_at, t.started_at
FROM live_queues q CROSS JOIN LATERAL (SELECT * FROM tasks_live x WHERE x.queue = q.queue AND x.state = 'running' AND x.due_at IS NULL OFFSET 0) t;

ALTER TABLE tasks_finished ADD CONSTRAINT tasks_finished_pkey PRIMARY KEY (id),
    ADD CONSTRAINT tasks_finished_at CHECK (finished_at IS NOT NULL AND next_retry_at IS NULL AND due_at IS NULL);
CREATE INDEX tasks_finished_created ON tasks_finished (created_at);
CREATE INDEX tasks_finished_graph ON tasks_finished (graph_id, id) WHERE graph_id IS NOT NULL;
CREATE INDEX tasks_finished_trace ON tasks_finished (trace_id, id) WHERE given & 8 <> 0;

CREATE TABLE event_log (
    task_id          uuid NOT NULL,
    seq              int NOT NULL,
    type             text NOT NULL,
    previous_status  text,
    status           text NOT NULL,
    attempt          int NOT NULL,
    retry_count      int GENERATED ALWAYS AS (attempt - 1) STORED,
    delivery         bigint NOT NULL,
    idempotency_key  text,
    next_retry_at    timestamptz,
    error_code       text,
    reason           text,
    backoff_delay_ms bigint,
    actor            text NOT NULL,
    worker_id        text,
    message_id       text,
    trace_id         text NOT NULL,
    data             json,
    occurred_at      timestamptz NOT NULL,
    -- The writing transaction: with it a reader tells which events may still
    -- be followed by earlier ones that have not committed.
    xid              xid8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (task_id, seq)
) PARTITION BY RANGE (task_id);
-- As tasks_live_created: no task_id in second place, and one entry for a transaction.
CREATE INDEX event_log_position ON event_log (xid);
-- Events are written in the order of time: block ranges are enough to find some.
-- Those that are not summarised yet are read by every search.
CREATE INDEX event_log_occurred ON event_log USING brin (occurred_at) WITH (pages_per_range = 32, autosummarize = on);

COMMENT ON TABLE event_log IS 'Append-only. event_id is evt_{task_id}_{seq}; run_id is {task_id}:{attempt}; idempotency_key is null where it equals the task''s id.';

-- The highest transaction whose events retention removed: a position at or
-- below it is too old to resume from.
CREATE TABLE event_horizon (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    xid xid8 NOT NULL DEFAULT '0'
);
INSERT INTO event_horizon DEFAULT VALUES;

-- Ids derived from names sort last and have no date.
CREATE TABLE tasks_finished_named PARTITION OF tasks_finished FOR VALUES FROM ('ff000000-0000-0000-0000-000000000000') TO (MAXVALUE);
CREATE TABLE event_log_named PARTITION OF event_log FOR VALUES FROM ('ff000000-0000-0000-0000-000000000000') TO (MAXVALUE);
-- Whatever has no partition of its own: a missing one never fails an insert.
CREATE TABLE tasks_finished_default PARTITION OF tasks_finished DEFAULT;
CREATE TABLE event_log_default PARTITION OF event_log DEFAULT;
-- The partitions without a date are searched by age. Dated ones are dropped.
CREATE INDEX tasks_finished_named_updated ON tasks_finished_named (updated_at);
CREATE INDEX tasks_finished_default_updated ON tasks_finished_default (updated_at);

-- Only keys that a caller supplied; every other task's key is its own id.
CREATE TABLE idempotency_keys (
    scope      text NOT NULL,
    key        text NOT NULL,
    task_id    uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, key)
);
CREATE INDEX idempotency_keys_created ON idempotency_keys (created_at, scope, key);

-- Since when a caller's idempotency key may have been used before: retention has
-- removed one. Null: none was removed, ever, so a key that is taken is new. Two
-- tasks with one key are two acts: the later ones' effects have an effect_key of
-- their own (see InsertTasks).
CREATE TABLE key_reuse (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    since timestamptz
);
INSERT INTO key_reuse DEFAULT VALUES;

-- +goose StatementBegin
-- Notes in the transaction that removes an idempotency key that keys may be used
-- again from now on. Runs as its owner: the application can't unsay it. A key that
-- its own transaction gives back had no task.
CREATE FUNCTION penstock_keys_removed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE key_reuse SET since = now() WHERE one AND since IS NULL AND EXISTS (SELECT FROM removed r WHERE r.created_at <> now());
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER idempotency_keys_removed AFTER DELETE ON idempotency_keys REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_keys_removed();

-- One row a dispatched batch, from the commit until its XADD is known to be done.
CREATE TABLE dispatch_outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner      uuid NOT NULL,
    queue      text NOT NULL,
    -- An entry id of the stream from before the batch: its entries come after.
    after_id   text NOT NULL,
    task_ids   uuid[] NOT NULL,
    deliveries bigint[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
-- A row lives for milliseconds: compressing it is not worth the time.
ALTER TABLE dispatch_outbox ALTER COLUMN task_ids SET STORAGE EXTERNAL, ALTER COLUMN deliveries SET STORAGE EXTERNAL;

-- Orchestrators that are alive.
CREATE TABLE instances (
    id         uuid PRIMARY KEY,
    host       text NOT NULL,
    pid        int NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE dlq_items (
    dlq_id               uuid PRIMARY KEY,
    -- Null for a stream entry that was no task.
    task_id              uuid UNIQUE,
    tenant               text NOT NULL,
    queue                text,
    type                 text,
    payload              json,
    error_code           text NOT NULL,
    error                text NOT NULL,
    retry_count          int NOT NULL,
    failed_at            timestamptz NOT NULL,
    stream               text,
    message_id           text,
    raw                  json,
    created_at           timestamptz NOT NULL DEFAULT now(),
    -- When its entry was known to be in stream:dlq.
    recorded_at          timestamptz,
    status               text NOT NULL DEFAULT 'open',
    -- Groups dead letters with the same normalised error.
    fingerprint          text NOT NULL DEFAULT '',
    -- The error of every attempt: [{attempt, at, code, error, worker_id, delay_ms}].
    errors               json,
    -- Its entry in stream:dlq.
    entry_id             text,
    -- The last edit; 0: payload as it failed.
    revision             int NOT NULL DEFAULT 0,
    edited_payload       json,
    requeues             int NOT NULL DEFAULT 0,
    settled_at           timestamptz,
    discard_batch_id     uuid,
    discard_reason       text,
    discard_proposed_by  text,
    discard_confirmed_by text,
    -- Events of a stream entry that was no task: they are numbered here.
    event_seq            int NOT NULL DEFAULT 0,
    -- When retention removed the task that the row is about: then, and only then,
    -- it may be missing.
    task_removed_at      timestamptz,
    erased_at            timestamptz,
    CONSTRAINT dlq_items_status CHECK (status IN ('open', 'requeued', 'discarded', 'expired')),
    CONSTRAINT dlq_items_settled CHECK ((status = 'open') = (settled_at IS NULL)),
    CONSTRAINT dlq_items_requeued CHECK (status <> 'requeued' OR requeues > 0),
    CONSTRAINT dlq_items_edited CHECK ((revision > 0) = (edited_payload IS NOT NULL) OR status = 'expired' OR erased_at IS NOT NULL),
    -- Giving a dead letter up takes a reason and two different people.
    CONSTRAINT dlq_items_two_people CHECK (status <> 'discarded' OR (discard_batch_id IS NOT NULL AND discard_reason <> ''
        AND discard_proposed_by <> '' AND discard_confirmed_by <> '' AND lower(discard_proposed_by) <> lower(discard_confirmed_by)) IS TRUE)
);

-- +goose StatementBegin
-- The code of what failed last, where code says why a task ended: that of an
-- exhausted one stands before its error. As Cause in package protocol.
CREATE FUNCTION penstock_cause(code text, error text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN code = 'TASK_RETRY_EXHAUSTED' THEN COALESCE(substring(error FROM '^([A-Za-z0-9_.-]{1,100}): '), code) ELSE code END
$$;
-- +goose StatementEnd

CREATE INDEX dlq_items_failed ON dlq_items (failed_at, dlq_id);
CREATE INDEX dlq_items_unrecorded ON dlq_items (created_at) WHERE recorded_at IS NULL;
CREATE INDEX dlq_items_fingerprint ON dlq_items (fingerprint, failed_at);
CREATE INDEX dlq_items_open ON dlq_items (failed_at, dlq_id) WHERE status = 'open';
CREATE INDEX dlq_items_settled_at ON dlq_items (settled_at) WHERE status IN ('requeued', 'discarded');
CREATE INDEX dlq_items_expired ON dlq_items (dlq_id) WHERE status = 'expired' AND entry_id IS NOT NULL;
CREATE INDEX dlq_items_erased ON dlq_items (dlq_id) WHERE erased_at IS NOT NULL AND entry_id IS NOT NULL;
CREATE INDEX dlq_items_cause ON dlq_items (penstock_cause(error_code, error), failed_at, dlq_id);

-- The tasks that came out of a dead letter.
CREATE TABLE dlq_requeues (
    dlq_id     uuid NOT NULL REFERENCES dlq_items,
    n          int NOT NULL CHECK (n >= 1),
    task_id    uuid NOT NULL UNIQUE,
    -- The edit that was sent; 0: the payload as it failed.
    revision   int NOT NULL,
    principal  text NOT NULL,
    batch_id   uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- As in dlq_items.
    task_removed_at timestamptz,
    PRIMARY KEY (dlq_id, n),
    UNIQUE (batch_id, dlq_id)
);

-- Edits of a dead letter's payload. The original stays in dlq_items.
CREATE TABLE dlq_edits (
    dlq_id     uuid NOT NULL REFERENCES dlq_items,
    revision   int NOT NULL CHECK (revision >= 1),
    -- Null once the dead letter has expired.
    payload    json,
    -- The difference to the payload as it failed: [{op, path, from, to}].
    diff       json,
    principal  text NOT NULL,
    reason     text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dlq_id, revision)
);

-- Bulk work on a frozen set of dead letters.
CREATE TABLE dlq_batches (
    id              uuid PRIMARY KEY,
    kind            text NOT NULL CHECK (kind IN ('requeue', 'discard')),
    status          text NOT NULL CHECK (status IN ('draft', 'proposed', 'running', 'paused', 'cancelled', 'finished', 'rejected', 'expired')),
    -- What selected the set; null: it was listed by id.
    filter          json,
    again           boolean NOT NULL DEFAULT false,
    original        boolean NOT NULL DEFAULT false,
    -- SHA-256 over the sorted ids.
    digest          text NOT NULL,
    total           int NOT NULL,
    done            int NOT NULL DEFAULT 0,
    skipped         int NOT NULL DEFAULT 0,
    -- Items a second; 0: unlimited.
    rate            int NOT NULL DEFAULT 0 CHECK (rate >= 0),
    next_at         timestamptz NOT NULL DEFAULT now(),
    reason          text NOT NULL,
    created_by      text NOT NULL,
    decided_by      text,
    decision_reason text,
    -- Who last started, paused, resumed or cancelled it.
    controlled_by   text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    -- Until when a draft can be started or a proposal confirmed.
    expires_at      timestamptz,
    started_at      timestamptz,
    finished_at     timestamptz,
    -- Who started or resumed it: they have a hand in the tasks it makes.
    started_by      text[] NOT NULL DEFAULT '{}',
    -- The tenants whose dead letters it holds.
    tenants         text[] NOT NULL DEFAULT '{}',
    CONSTRAINT dlq_batches_counts CHECK (done >= 0 AND skipped >= 0 AND done + skipped <= total),
    CONSTRAINT dlq_batches_discard CHECK (kind <> 'discard' OR (reason <> '' AND created_by NOT IN ('', 'anonymous') AND status <> 'draft')),
    -- What was proposed by one person is carried out only if another confirmed it.
    CONSTRAINT dlq_batches_two_people CHECK (kind <> 'discard' OR started_at IS NULL
        OR (decided_by NOT IN ('', 'anonymous') AND lower(decided_by) <> lower(created_by)) IS TRUE),
    CONSTRAINT dlq_batches_started CHECK (status NOT IN ('running', 'paused', 'finished') OR started_at IS NOT NULL)
);
CREATE INDEX dlq_batches_running ON dlq_batches (next_at) WHERE status = 'running';
CREATE INDEX dlq_batches_waiting ON dlq_batches (expires_at) WHERE status IN ('draft', 'proposed');
CREATE INDEX dlq_batches_created ON dlq_batches (created_at, id);

CREATE TABLE dlq_batch_items (
    batch_id uuid NOT NULL REFERENCES dlq_batches,
    dlq_id   uuid NOT NULL REFERENCES dlq_items,
    status   text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'done', 'skipped')),
    -- The task that a requeue made.
    task_id  uuid,
    -- Why it was skipped.
    detail   text,
    PRIMARY KEY (batch_id, dlq_id)
);
CREATE INDEX dlq_batch_items_pending ON dlq_batch_items (batch_id, dlq_id) WHERE status = 'pending';

-- What the alert rules found: one row for each alert that was ever raised.
CREATE TABLE alerts (
    kind      text NOT NULL CHECK (kind IN ('retrying_share', 'dlq_growth', 'invalid_transitions', 'redis_lost')),
    -- Empty for an alert that is about the whole deployment.
    tenant    text NOT NULL,
    -- Its events are in event_log under this id, numbered by seq. The id is a
    -- function of kind and tenant, so the primary key makes it unique; a second
    -- unique index would let one of two replicas that raise the same alert at once
    -- fail: ON CONFLICT waits for the other on one index only.
    id        uuid NOT NULL,
    seq       int NOT NULL CHECK (seq >= 1),
    firing    boolean NOT NULL,
    -- Since when it is firing, or not any more.
    since     timestamptz NOT NULL DEFAULT now(),
    -- When it was last found to be firing, and what was measured then.
    seen_at   timestamptz NOT NULL DEFAULT now(),
    value     double precision NOT NULL,
    threshold double precision NOT NULL,
    PRIMARY KEY (kind, tenant)
);
CREATE INDEX alerts_id ON alerts (id);
CREATE INDEX alerts_recent ON alerts (firing, since);

-- One row: the last evaluation of the rules, and until when somebody has taken
-- the next one.
CREATE TABLE alert_round (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    claimed_until timestamptz NOT NULL DEFAULT now(),
    evaluated_at  timestamptz,
    took_ms       bigint NOT NULL DEFAULT 0,
    -- Live tasks by state.
    tasks         json
);
INSERT INTO alert_round DEFAULT VALUES;

-- One row: what Redis held when its content was last known to be complete.
CREATE TABLE redis_epoch (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- The epoch that Redis held then; null: never.
    id           uuid,
    -- Counts the looks at Redis. Redis is told each number after it was
    -- committed: it never knows a greater one, unless Postgres went back.
    generation   bigint NOT NULL DEFAULT 0,
    -- The greatest that Redis is known to have been told: it never knows a
    -- smaller one, unless Redis went back.
    confirmed    bigint NOT NULL DEFAULT 0,
    -- Which server and which replication history Redis was.
    server       text NOT NULL DEFAULT '',
    -- Which cluster and timeline this database was in; empty: not readable.
    cluster      text NOT NULL DEFAULT '',
    -- What was lost and is being rebuilt; null: nothing.
    lost         text,
    lost_at      timestamptz,
    -- The epoch that Redis held when the loss was noted last.
    lost_epoch   text NOT NULL DEFAULT '',
    -- After Postgres went back: tasks from before lost_at are dispatched under
    -- at least this delivery.
    floor        bigint,
    -- What was done about the loss so far.
    redispatched bigint NOT NULL DEFAULT 0,
    interrupted  bigint NOT NULL DEFAULT 0,
    dead_letters bigint NOT NULL DEFAULT 0,
    CONSTRAINT redis_epoch_lost CHECK ((lost IS NULL) = (lost_at IS NULL)),
    CONSTRAINT redis_epoch_floor CHECK (floor IS NULL OR lost IS NOT NULL)
);
INSERT INTO redis_epoch DEFAULT VALUES;

-- What workers that know an orchestrator say about themselves. Nothing depends
-- on a row but what people are shown, and orders to drain.
CREATE TABLE workers (
    id          text PRIMARY KEY CHECK (octet_length(id) BETWEEN 1 AND 255),
    host        text NOT NULL,
    pid         int NOT NULL,
    version     text NOT NULL,
    queues      text[] NOT NULL,
    concurrency int NOT NULL,
    running     int NOT NULL,
    -- Handlers that ignore their timeout or cancellation.
    stuck       int NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    seen_at     timestamptz NOT NULL DEFAULT now(),
    -- Time between two heartbeats.
    interval_ms bigint NOT NULL CHECK (interval_ms > 0),
    -- When it was ordered to drain, and by whom.
    drain_at    timestamptz,
    drain_by    text,
    CONSTRAINT workers_drain CHECK ((drain_at IS NULL) = (drain_by IS NULL))
);

-- Deliveries that were handed to Redis when their task was cancelled: workers
-- must not start them. Redis holds the same pairs in a set; a row goes only
-- once its entry can't be fetched any more.
CREATE TABLE tombstones (
    task_id    uuid NOT NULL,
    delivery   bigint NOT NULL,
    queue      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Redis is known to have been told.
    told       boolean NOT NULL DEFAULT false,
    PRIMARY KEY (task_id, delivery)
);
CREATE INDEX tombstones_untold ON tombstones (task_id, delivery) WHERE NOT told;
CREATE INDEX tombstones_created ON tombstones (created_at, task_id, delivery);

-- Changes with the guard's rules, to a number drawn at random; 1: there never
-- were any. A task is stored only if it was judged by the rules in force.
CREATE TABLE guard_state (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    revision bigint NOT NULL DEFAULT 1
);
INSERT INTO guard_state DEFAULT VALUES;

-- Tasks that ended and whose dependants have not all been told.
CREATE TABLE dependency_settlements (
    upstream_id uuid PRIMARY KEY,
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- Which tasks depend on which. No foreign keys: both ends are rows of a
-- partitioned table, and retention removes edges with their tasks.
CREATE TABLE task_dependencies (
    task_id     uuid NOT NULL,
    upstream_id uuid NOT NULL,
    -- Its place in depends_on, from 0.
    position    int NOT NULL,
    -- What the task's handler knows the upstream by: its local name in the call
    -- that made both; empty: it had none.
    name        text NOT NULL DEFAULT '',
    -- The end of the upstream was counted in the task's open_dependencies.
    settled     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (task_id, upstream_id)
);
CREATE INDEX task_dependencies_upstream ON task_dependencies (upstream_id, task_id);

-- Notes in the order in which they are worked off.
CREATE INDEX dependency_settlements_next ON dependency_settlements (created_at, upstream_id);

-- Tasks that were cancelled because of a dependency and made anew when the dead
-- letter behind it was requeued: at most once each.
CREATE TABLE task_clones (
    task_id    uuid PRIMARY KEY,
    clone_id   uuid NOT NULL,
    dlq_id     uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- The guard's rules as they are now.
CREATE TABLE guard_rules (
    name        text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9._-]{1,64}$'),
    -- CEL over the task.
    expression  text NOT NULL CHECK (octet_length(expression) BETWEEN 1 AND 4096),
    -- How many different people must approve.
    required    int NOT NULL CHECK (required IN (1, 2)),
    -- Who may: principals in lower case, and role:NAME.
    approvers   text[] NOT NULL CHECK (cardinality(approvers) BETWEEN 1 AND 100),
    -- After this long without a decision the task is rejected.
    timeout_ms  bigint NOT NULL CHECK (timeout_ms BETWEEN 1000 AND 31622400000),
    enabled     boolean NOT NULL,
    description text NOT NULL,
    -- Where it is kept: config rules are replaced at each start.
    source      text NOT NULL CHECK (source IN ('config', 'rpc')),
    revision    bigint NOT NULL CHECK (revision >= 1),
    changed_at  timestamptz NOT NULL,
    changed_by  text NOT NULL
);

-- Every state that a rule ever had; a name that was deleted goes on counting.
CREATE TABLE guard_rule_revisions (
    name        text NOT NULL,
    revision    bigint NOT NULL CHECK (revision >= 1),
    deleted     boolean NOT NULL,
    expression  text NOT NULL,
    required    int NOT NULL,
    approvers   text[] NOT NULL,
    timeout_ms  bigint NOT NULL,
    enabled     boolean NOT NULL,
    description text NOT NULL,
    source      text NOT NULL,
    changed_at  timestamptz NOT NULL,
    changed_by  text NOT NULL,
    PRIMARY KEY (name, revision)
);

-- What people are asked to decide.
CREATE TABLE approvals (
    id            uuid PRIMARY KEY,
    task_id       uuid NOT NULL,
    tenant        text NOT NULL,
    kind          text NOT NULL CHECK (kind IN ('guard', 'handler', 'effect')),
    -- The rule, or what the handler calls it.
    name          text NOT NULL,
    rule_revision bigint,
    -- Of type, payload, schedule, name and revision: nothing else is approved.
    digest        text NOT NULL,
    required      int NOT NULL CHECK (required IN (1, 2)),
    approvers     text[] NOT NULL,
    -- Who must not approve, in lower case.
    requesters    text[] NOT NULL CHECK (cardinality(requesters) >= 1 AND requesters::text = lower(requesters::text)),
    prompt        text,
    -- Why the rule could not be evaluated.
    rule_error    text,
    effect_scope  text,
    effect_key    text,
    effect_name   text,
    status        text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'approved', 'rejected', 'expired', 'withdrawn')),
    requested_at  timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    decided_at    timestamptz,
    -- Who rejected it and why, or why it ended without a decision.
    decided_by    text,
    decision      text,
    CONSTRAINT approvals_decided CHECK ((status = 'pending') = (decided_at IS NULL)),
    CONSTRAINT approvals_rule CHECK ((kind = 'guard') = (rule_revision IS NOT NULL)),
    CONSTRAINT approvals_effect CHECK ((kind = 'effect') = (effect_scope IS NOT NULL AND effect_key IS NOT NULL AND effect_name IS NOT NULL)),
    CONSTRAINT approvals_rejected CHECK (status <> 'rejected' OR (decided_by <> '' AND decision <> '') IS TRUE),
    -- For the votes: whom a request shuts out can't change under them.
    CONSTRAINT approvals_requesters UNIQUE (id, requesters)
);
CREATE UNIQUE INDEX approvals_pending ON approvals (task_id, digest) WHERE status = 'pending';
CREATE INDEX approvals_task ON approvals (task_id, requested_at);
CREATE INDEX approvals_inbox ON approvals (requested_at, id) WHERE status = 'pending';
CREATE INDEX approvals_listed ON approvals (requested_at, id);
CREATE INDEX approvals_expiry ON approvals (expires_at) WHERE status = 'pending';
CREATE INDEX approvals_effects ON approvals (effect_scope, effect_key, effect_name) WHERE status = 'pending' AND kind = 'effect';

-- Who approved: each person once a request, and nobody who asked for the task.
CREATE TABLE approval_votes (
    approval_id uuid NOT NULL,
    principal   text NOT NULL,
    requesters  text[] NOT NULL,
    reason      text NOT NULL,
    at          timestamptz NOT NULL,
    PRIMARY KEY (approval_id, principal),
    FOREIGN KEY (approval_id, requesters) REFERENCES approvals (id, requesters) ON DELETE CASCADE,
    CONSTRAINT approval_votes_a_person CHECK (principal = lower(principal) AND principal = btrim(principal) AND principal NOT IN ('', 'anonymous')),
    CONSTRAINT approval_votes_not_requester CHECK (principal <> ALL (requesters))
);

-- The side-effect ledger: what handlers do outside, once per key and name. The
-- key is k: and the task's idempotency key, in its idempotency scope; or, where
-- it has none, t: and its own id, in its tenant. A requeued dead letter inherits
-- it. A reservation whose execution does not run any more is in doubt.
CREATE TABLE effects (
    scope             text NOT NULL,
    key               text NOT NULL,
    name              text NOT NULL,
    state             text NOT NULL,
    -- The client's name for the last reservation.
    token             uuid NOT NULL,
    task_id           uuid NOT NULL,
    delivery          bigint NOT NULL,
    worker_id         text NOT NULL,
    -- The tasks that were given the effect or its result: it is kept while one of
    -- them, or what was requeued from it, can still run.
    users             uuid[] NOT NULL,
    runs              int NOT NULL,
    reserved_at       timestamptz NOT NULL,
    done_at           timestamptz,
    result            json,
    -- Why a done effect has no result.
    result_note       text,
    -- The last end of a doubt; resolved_by is a person, or null.
    resolution        text,
    resolved_by       text,
    resolution_reason text,
    resolved_at       timestamptz,
    -- Reports that contradicted the ledger.
    conflicts         int NOT NULL DEFAULT 0,
    -- [{at, what, by, task_id, delivery, reason}], the latest.
    history           json NOT NULL DEFAULT '[]',
    updated_at        timestamptz NOT NULL,
    PRIMARY KEY (scope, key, name),
    CONSTRAINT effects_key CHECK (key ~ '^[kt]:.'),
    CONSTRAINT effects_name CHECK (octet_length(name) BETWEEN 1 AND 128),
    CONSTRAINT effects_state CHECK (state IN ('reserved', 'done', 'free')),
    CONSTRAINT effects_done CHECK ((state = 'done') = (done_at IS NOT NULL)),
    CONSTRAINT effects_result CHECK (state = 'done' OR (result IS NULL AND result_note IS NULL)),
    CONSTRAINT effects_users CHECK (task_id = ANY (users)),
    CONSTRAINT effects_counts CHECK (runs >= 1 AND delivery >= 1 AND conflicts >= 0),
    CONSTRAINT effects_resolution CHECK (resolution IN ('done', 'not_done', 'check_done', 'check_not_done', 'run_again')),
    -- Only a person says done or not done, and it is known who.
    CONSTRAINT effects_resolved CHECK ((resolution IS NULL) = (resolved_at IS NULL)
        AND (resolution IS NULL OR resolution NOT IN ('done', 'not_done') OR resolved_by NOT IN ('', 'anonymous')) IS TRUE)
);
CREATE INDEX effects_reserved ON effects (scope, key, name) WHERE state = 'reserved';
CREATE INDEX effects_updated ON effects (updated_at, scope, key, name);

-- Recurring schedules. A fire, its task and the new next_fire_at commit in one
-- transaction that holds the row.
CREATE TABLE schedules (
    id         uuid PRIMARY KEY,
    tenant     text NOT NULL,
    name       text NOT NULL,
    -- When: a cron expression in a time zone, or an interval from the anchor on.
    cron       text,
    every_ms   bigint CHECK (every_ms >= 1000),
    timezone   text NOT NULL,
    anchor     timestamptz NOT NULL,
    -- No fire before and after these; null: no bound.
    start_at   timestamptz,
    end_at     timestamptz CHECK (end_at > start_at),
    -- The task of each fire: type, queue, payload and its bounds.
    task       json NOT NULL,
    missed     text NOT NULL CHECK (missed IN ('skip', 'run_once', 'run_all')),
    missed_max int NOT NULL CHECK (missed_max BETWEEN 1 AND 1000),
    overlap    text NOT NULL CHECK (overlap IN ('allow', 'skip')),
    paused     boolean NOT NULL DEFAULT false,
    -- The next fire; null: there is none any more.
    next_fire_at timestamptz,
    last_fire_at timestamptz,
    revision   bigint NOT NULL DEFAULT 1,
    created_by text NOT NULL,
    -- Who else changed what it does, or resumed it.
    changed_by text[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant, name),
    CHECK ((cron IS NULL) <> (every_ms IS NULL))
);
CREATE INDEX schedules_due ON schedules (next_fire_at, id) WHERE NOT paused AND next_fire_at IS NOT NULL;

-- What became of each fire time. A row of skipped ones stands for all fire times
-- from fire_at to until.
CREATE TABLE schedule_fires (
    schedule_id uuid NOT NULL REFERENCES schedules (id) ON DELETE CASCADE,
    fire_at     timestamptz NOT NULL,
    until       timestamptz NOT NULL CHECK (until >= fire_at),
    kind        text NOT NULL CHECK (kind IN ('due', 'missed', 'manual')),
    result      text NOT NULL CHECK (result IN ('fired', 'skipped_overlap', 'skipped_missed', 'failed')),
    task_id     uuid,
    error       text,
    fired_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (schedule_id, fire_at),
    CHECK ((result = 'fired') = (task_id IS NOT NULL))
);
CREATE INDEX schedule_fires_old ON schedule_fires (fired_at);
-- The fire of a task: a trigger that is repeated, and verify.
CREATE INDEX schedule_fires_task ON schedule_fires (schedule_id, task_id) WHERE task_id IS NOT NULL;

-- Tenants that ever had a task: each one's name is its own idempotency scope,
-- and nobody else's.
CREATE TABLE tenants (
    name text PRIMARY KEY
);

-- +goose StatementBegin
-- The smallest UUIDv7 of a moment.
CREATE FUNCTION penstock_uuid_floor(at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;
-- +goose StatementEnd

-- Partitions with dates of tasks_finished and event_log: from first_day on, before
-- next_day. A table by such a name that is no partition is none.
CREATE VIEW dated_partitions AS
SELECT p.relname::text AS parent, c.oid::regclass AS part,
    to_date(substring(c.relname FROM '_([0-9]{8})_[0-9]{8}$'), 'YYYYMMDD') AS first_day,
    to_date(right(c.relname, 8), 'YYYYMMDD') AS next_day
FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_class p ON p.oid = i.inhparent
WHERE i.inhparent IN ('tasks_finished'::regclass, 'event_log'::regclass) AND c.relkind = 'r' AND c.relname ~ '_[0-9]{8}_[0-9]{8}$';

-- What retention has looked at of the partitions that it is about to drop.
CREATE TABLE partition_checks (
    first_day date NOT NULL,
    next_day  date NOT NULL,
    -- Every task up to this id may be removed; how many those are; whether these are all.
    checked   uuid NOT NULL,
    tasks     bigint NOT NULL,
    complete  boolean NOT NULL,
    PRIMARY KEY (first_day, next_day)
);

-- +goose StatementBegin
-- Makes a partition of tasks_finished or event_log that begins with a day and is so
-- many days wide, or as many as are free, and returns 1; 0 if there is one that has
-- the day. Runs as its owner, so that the application role needs no right to create
-- tables. Days for which the default partition already holds rows are left to it.
--
-- To attach one locks the default partition of the table against everybody. Call
-- it for one table a transaction: whoever reads the other first and this one
-- then would wait for us, and we for them. All others wait behind us, so we wait
-- for 0.2 s at most (error 55P03).
CREATE FUNCTION penstock_ensure_partition(parent text, day date, days int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    until date;
    part  text;
BEGIN
    IF parent NOT IN ('tasks_finished', 'event_log') OR days NOT BETWEEN 1 AND 400 THEN
        RAISE EXCEPTION 'penstock_ensure_partition: % has no partitions of % days', parent, days;
    END IF;
    IF EXISTS (SELECT FROM dated_partitions d WHERE d.parent = penstock_ensure_partition.parent AND day >= d.first_day AND day < d.next_day) THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(5077001);
    PERFORM set_config('lock_timeout', '200ms', true);
    IF EXISTS (SELECT FROM dated_partitions d WHERE d.parent = penstock_ensure_partition.parent AND day >= d.first_day AND day < d.next_day) THEN
        RETURN 0; -- made by whoever had the lock
    END IF;
    SELECT least(day + days, min(d.first_day)) INTO until FROM dated_partitions d WHERE d.parent = penstock_ensure_partition.parent AND d.first_day > day;
    part := parent || '_' || to_char(day, 'YYYYMMDD') || '_' || to_char(until, 'YYYYMMDD');
    BEGIN
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED)', part, parent);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part,
            penstock_uuid_floor(day::timestamp AT TIME ZONE 'UTC'),
            penstock_uuid_floor(until::timestamp AT TIME ZONE 'UTC'));
    EXCEPTION WHEN check_violation THEN
        RAISE WARNING 'partition % not made: the default partition already has rows of its days', part;
        RETURN 0;
    END;
    RETURN 1;
END
$$;
-- +goose StatementEnd

SELECT penstock_ensure_partition(parent, (now() AT TIME ZONE 'UTC')::date - 1, 4) FROM (VALUES ('tasks_finished'), ('event_log')) p(parent);

-- +goose StatementBegin
-- What retention may remove: the condition on a row t of tasks_finished, with $1
-- for the time before which nothing must have happened to it since. One place for
-- all that keeps a task.
CREATE FUNCTION penstock_removable() RETURNS text
LANGUAGE sql IMMUTABLE AS $fn$
    SELECT $$
        t.finished_at < $1 AND t.updated_at < $1
        -- It still answers for an idempotency key.
        AND (t.idempotency_key IS NULL OR NOT EXISTS (
            SELECT FROM idempotency_keys k WHERE k.scope = t.idempotency_scope AND k.key = t.idempotency_key AND k.task_id = t.id))
        -- A task depends on it that lives or may be requeued: its handler is told how
        -- this one ended.
        AND (NOT t.has_dependants OR NOT EXISTS (
            SELECT FROM task_dependencies e WHERE e.upstream_id = t.id AND penstock_may_run(e.task_id)))
        AND (t.state = 'succeeded' OR (
            -- Its dead letter is its history. The id of a named task can be used
            -- again, and would find the dead letter of the first.
            NOT EXISTS (SELECT FROM dlq_items d WHERE d.task_id = t.id
                AND (d.status <> 'expired' OR t.id >= 'ff000000-0000-0000-0000-000000000000'))
            -- Its entry may still be fetched.
            AND NOT EXISTS (SELECT FROM tombstones b WHERE b.task_id = t.id)))
    $$
$fn$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Whether a task lives, or is a dead letter that may be requeued.
CREATE FUNCTION penstock_may_run(task uuid) RETURNS boolean
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT EXISTS (SELECT FROM tasks_live t WHERE t.id = task)
        OR EXISTS (SELECT FROM dlq_items i JOIN tasks_finished t ON t.id = i.task_id WHERE i.task_id = task AND i.status <> 'expired' AND t.state = 'failed')
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Removes those of the tasks that are finished, and to which nothing has
-- happened for longer than keep (at least 48 hours), with their events and
-- dependencies, and returns how many. Tasks that must be kept, and those that
-- somebody has locked, are passed over. Error 55P03 if another transaction is
-- removing tasks.
CREATE FUNCTION penstock_remove_tasks(ids uuid[], keep interval) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER STRICT SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
DECLARE
    before timestamptz := now() - greatest(keep, interval '48 hours');
    gone   uuid[];
    newest xid8;
BEGIN
    IF cardinality(ids) > 5000 THEN
        RAISE EXCEPTION 'penstock_remove_tasks: at most 5000 tasks at once';
    END IF;
    IF NOT pg_try_advisory_xact_lock(5077002) THEN
        RAISE lock_not_available USING MESSAGE = 'another transaction is removing tasks';
    END IF;
    -- A dependant that was stored meanwhile has moved updated_at, which is looked
    -- at again under the lock.
    EXECUTE format('SELECT array_agg(x.id) FROM (
        SELECT t.id FROM (SELECT DISTINCT unnest($2) AS id) u JOIN tasks_finished t ON t.id = u.id WHERE %s
        ORDER BY t.id FOR UPDATE OF t SKIP LOCKED) x', penstock_removable()) INTO gone USING before, ids;
    IF gone IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE dlq_requeues SET task_removed_at = now() WHERE task_id = ANY(gone);
    UPDATE dlq_items SET task_removed_at = now() WHERE task_id = ANY(gone);
    DELETE FROM task_dependencies e USING unnest(gone) u(id) WHERE e.task_id = u.id;
    DELETE FROM task_dependencies e USING unnest(gone) u(id) WHERE e.upstream_id = u.id;
    DELETE FROM task_clones c USING unnest(gone) u(id) WHERE c.task_id = u.id;
    -- What was decided about a named task must not answer for the next of its name.
    DELETE FROM approvals a USING unnest(gone) u(id) WHERE a.task_id = u.id AND a.status <> 'pending';
    WITH removed AS (DELETE FROM event_log e USING unnest(gone) u(id) WHERE e.task_id = u.id RETURNING e.xid)
    SELECT r.xid INTO newest FROM removed r ORDER BY r.xid DESC LIMIT 1;
    DELETE FROM tasks_finished t USING unnest(gone) u(id) WHERE t.id = u.id;
    UPDATE event_horizon SET xid = newest WHERE xid < newest;
    RETURN cardinality(gone);
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Looks at the next tasks, max_rows at most, of the partition of these days, which
-- must have been over for longer than keep (at least 48 hours): 1 where there may
-- be more, 0 where every one may be removed, so that it can be dropped, null where
-- something must be kept. Nothing that is true now becomes false, but that a new
-- task may depend on one of these: no task gets an id of those days any more, and
-- none of them lives. So it takes any number of calls.
CREATE FUNCTION penstock_check_days(first_day date, next_day date, keep interval, max_rows int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER STRICT SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    before   timestamptz := now() - greatest(keep, interval '48 hours');
    part     regclass := (SELECT d.part FROM dated_partitions d WHERE d.parent = 'tasks_finished' AND d.first_day = $1 AND d.next_day = $2);
    seen     partition_checks;
    last     uuid;
    total    bigint;
    kept     bigint;
BEGIN
    -- Without one of the two, rows of the days are in the default partition.
    IF part IS NULL OR $2::timestamp AT TIME ZONE 'UTC' > before
            OR NOT EXISTS (SELECT FROM dated_partitions d WHERE d.parent = 'event_log' AND d.first_day = $1 AND d.next_day = $2)
            OR EXISTS (SELECT FROM tasks_live t WHERE t.id >= penstock_uuid_floor($1::timestamp AT TIME ZONE 'UTC') AND t.id < penstock_uuid_floor($2::timestamp AT TIME ZONE 'UTC')) THEN
        RETURN NULL;
    END IF;
    IF NOT pg_try_advisory_xact_lock(5077002) THEN
        RAISE lock_not_available USING MESSAGE = 'another transaction is removing tasks';
    END IF;
    SELECT * INTO seen FROM partition_checks c WHERE c.first_day = $1 AND c.next_day = $2;
    IF seen.complete THEN
        RETURN 0;
    END IF;
    EXECUTE format('SELECT (array_agg(x.id ORDER BY x.id DESC))[1], count(*), count(*) FILTER (WHERE x.kept) FROM (
        SELECT t.id, (%s) IS NOT TRUE AS kept FROM %s t WHERE t.id > $2 ORDER BY t.id LIMIT $3) x', penstock_removable(), part)
        INTO last, total, kept USING before, COALESCE(seen.checked, '00000000-0000-0000-0000-000000000000'), least(max_rows, 100000);
    IF kept > 0 THEN
        DELETE FROM partition_checks c WHERE c.first_day = $1 AND c.next_day = $2;
        RETURN NULL;
    END IF;
    INSERT INTO partition_checks AS c VALUES ($1, $2, COALESCE(last, seen.checked, '00000000-0000-0000-0000-000000000000'), total, total < max_rows)
    ON CONFLICT ON CONSTRAINT partition_checks_pkey DO UPDATE SET checked = excluded.checked, tasks = c.tasks + excluded.tasks, complete = excluded.complete;
    RETURN CASE WHEN total < max_rows THEN 0 ELSE 1 END;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Drops the partitions of these days, which penstock_check_days has looked at to
-- the end, with the tasks' dependencies, and returns how many tasks there were; null
-- if it has not, or something must be kept after all. Whoever uses the tables waits
-- for it no longer than about 0.2 s: then it gives up, with error 55P03, and can be
-- called again.
CREATE FUNCTION penstock_drop_days(first_day date, next_day date) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER STRICT SET search_path FROM CURRENT SET lock_timeout = '3s' AS $$
#variable_conflict use_column
DECLARE
    -- Partitions only: by its name alone, a temporary table or view of the
    -- caller's would be found, and its code would run as the owner.
    old_tasks  regclass := (SELECT d.part FROM dated_partitions d WHERE d.parent = 'tasks_finished' AND d.first_day = $1 AND d.next_day = $2);
    old_events regclass := (SELECT d.part FROM dated_partitions d WHERE d.parent = 'event_log' AND d.first_day = $1 AND d.next_day = $2);
    first_id   uuid := penstock_uuid_floor($1::timestamp AT TIME ZONE 'UTC');
    next_id    uuid := penstock_uuid_floor($2::timestamp AT TIME ZONE 'UTC');
    total      bigint;
    newest     xid8;
    now_newest xid8;
BEGIN
    IF old_tasks IS NULL OR old_events IS NULL THEN
        RETURN NULL;
    END IF;
    IF NOT pg_try_advisory_xact_lock(5077002) THEN
        RAISE lock_not_available USING MESSAGE = 'another transaction is removing tasks';
    END IF;
    SELECT c.tasks INTO total FROM partition_checks c WHERE c.first_day = $1 AND c.next_day = $2 AND c.complete;
    IF total IS NULL THEN
        RETURN NULL;
    END IF;
    -- What takes longer comes before the locks.
    UPDATE dlq_requeues r SET task_removed_at = now() WHERE r.task_id >= first_id AND r.task_id < next_id AND r.task_removed_at IS NULL;
    UPDATE dlq_items d SET task_removed_at = now() WHERE d.task_id >= first_id AND d.task_id < next_id AND d.task_removed_at IS NULL;
    DELETE FROM task_dependencies e WHERE e.task_id >= first_id AND e.task_id < next_id;
    -- Not those of a task that was stored meanwhile: they are found below.
    DELETE FROM task_dependencies e WHERE e.upstream_id >= first_id AND e.upstream_id < next_id AND NOT penstock_may_run(e.task_id);
    DELETE FROM task_clones c WHERE c.task_id >= first_id AND c.task_id < next_id;
    EXECUTE format('SELECT e.xid FROM %s e ORDER BY e.xid DESC LIMIT 1', old_events) INTO newest;
    UPDATE event_horizon SET xid = newest WHERE xid < newest;
    DELETE FROM partition_checks c WHERE c.first_day = $1 AND c.next_day = $2;
    -- No partition is made meanwhile, and none is vacuumed: an autovacuum gives
    -- way only to who has waited for a second. The pipeline does not notice.
    PERFORM pg_advisory_xact_lock(5077001);
    EXECUTE format('LOCK TABLE ONLY %s, ONLY %s, ONLY tasks_finished_default, ONLY event_log_default IN SHARE UPDATE EXCLUSIVE MODE', old_tasks, old_events);
    -- From here on it waits. In the order in which it uses the tables.
    PERFORM set_config('lock_timeout', '100ms', true);
    LOCK TABLE ONLY tasks_finished IN ACCESS EXCLUSIVE MODE;
    LOCK TABLE ONLY event_log IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('SELECT e.xid FROM %s e ORDER BY e.xid DESC LIMIT 1', old_events) INTO now_newest;
    IF now_newest IS DISTINCT FROM newest OR EXISTS (SELECT FROM tasks_live t WHERE t.id >= first_id AND t.id < next_id)
            OR EXISTS (SELECT FROM task_dependencies e WHERE e.upstream_id >= first_id AND e.upstream_id < next_id) THEN
        RAISE lock_not_available USING MESSAGE = 'the days were written to just now';
    END IF;
    EXECUTE format('DROP TABLE %s, %s', old_tasks, old_events);
    RETURN total;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Removes decided approvals, with their votes, whose task was removed; looks at
-- most at max_rows of them after an id, and returns the last one looked at; null
-- at the end.
CREATE FUNCTION penstock_remove_approvals(after_id uuid, max_rows int) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER STRICT SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
DECLARE
    last uuid;
BEGIN
    SELECT max(x.id::text)::uuid INTO last FROM (SELECT a.id FROM approvals a WHERE a.id > after_id ORDER BY a.id LIMIT least(max_rows, 5000)) x;
    IF last IS NULL THEN
        RETURN NULL;
    END IF;
    DELETE FROM approvals a WHERE a.id > after_id AND a.id <= last AND a.status <> 'pending'
        AND a.decided_at < now() - interval '48 hours' AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = a.task_id);
    RETURN last;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Looks at the next effects, oldest first, and removes those that have not
-- changed for longer than keep and that no task can use any more: each of their
-- users, and each task that was requeued from one, has ended, and no dead letter
-- of theirs can be requeued. Returns the last effect looked at and how many were
-- removed; no row after the last one. Those that somebody has locked are passed
-- over.
CREATE FUNCTION penstock_remove_effects(after_at timestamptz, after_scope text, after_key text, after_name text, keep interval, max_rows int)
RETURNS TABLE (last_at timestamptz, last_scope text, last_key text, last_name text, removed int)
LANGUAGE plpgsql SECURITY DEFINER STRICT SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE old AS (
        SELECT e.scope, e.key, e.name, e.updated_at, e.users FROM effects e
        WHERE (e.updated_at, e.scope, e.key, e.name) > (after_at, after_scope, after_key, after_name) AND e.updated_at < now() - greatest(keep, interval '1 second')
        ORDER BY e.updated_at, e.scope, e.key, e.name LIMIT least(max_rows, 1000) FOR UPDATE SKIP LOCKED
    ), family (scope, key, name, task_id) AS (
        SELECT o.scope, o.key, o.name, u.id FROM old o, unnest(o.users) u(id)
        UNION
        SELECT f.scope, f.key, f.name, r.task_id FROM family f JOIN dlq_items d ON d.task_id = f.task_id JOIN dlq_requeues r ON r.dlq_id = d.dlq_id
    ), kept AS (
        SELECT DISTINCT f.scope, f.key, f.name FROM family f
            LEFT JOIN tasks_live t ON t.id = f.task_id LEFT JOIN dlq_items d ON d.task_id = f.task_id
        WHERE t.id IS NOT NULL OR d.status IN ('open', 'requeued')
    ), gone AS (
        DELETE FROM effects e USING old o
        WHERE e.scope = o.scope AND e.key = o.key AND e.name = o.name
            AND NOT EXISTS (SELECT FROM kept k WHERE k.scope = o.scope AND k.key = o.key AND k.name = o.name)
        RETURNING 1
    )
    SELECT o.updated_at, o.scope, o.key, o.name, (SELECT count(*)::int FROM gone) FROM old o
    ORDER BY o.updated_at DESC, o.scope DESC, o.key DESC, o.name DESC LIMIT 1;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Erases the content of a task that has ended: what it carried, what its handlers
-- reported, and how it failed, in all rows about it. What people gave as reasons
-- stays, as does the code that an error text begins with. Returns false if it was erased before, or has not ended. Runs as its owner:
-- the application role may not change events, and this is all that may be.
CREATE FUNCTION penstock_erase_task(erased uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    by_a_person boolean;
BEGIN
    PERFORM FROM tasks_finished t WHERE t.id = erased AND t.erased_at IS NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    by_a_person := EXISTS (SELECT FROM event_log e WHERE e.task_id = erased AND e.status = 'cancelled' AND e.previous_status <> 'cancelled' AND e.actor LIKE 'user:%');
    UPDATE tasks_finished t SET payload = 'null', result = NULL, progress = NULL, erased_at = now(),
        last_error_reason = CASE WHEN by_a_person THEN t.last_error_reason ELSE substring(t.last_error_reason FROM '^TASK_[A-Z_]+: ') || 'erased' END
    WHERE t.id = erased;
    UPDATE event_log e SET reason = CASE WHEN e.actor LIKE 'user:%' THEN e.reason ELSE substring(e.reason FROM '^TASK_[A-Z_]+: ') || 'erased' END,
        data = CASE e.type WHEN 'task.progress' THEN NULL WHEN 'dlq.requeued' THEN (e.data::jsonb - 'diff')::json ELSE e.data END
    WHERE e.task_id = erased AND (e.reason IS NOT NULL AND e.actor NOT LIKE 'user:%' OR e.type = 'task.progress' OR e.type = 'dlq.requeued' AND e.data::jsonb ? 'diff');
    UPDATE dlq_edits x SET payload = NULL, diff = NULL FROM dlq_items d WHERE d.task_id = erased AND x.dlq_id = d.dlq_id;
    UPDATE dlq_items d SET payload = NULL, edited_payload = NULL, raw = NULL, errors = NULL,
        error = COALESCE(substring(d.error FROM '^TASK_[A-Z_]+: ') || 'erased', ''), erased_at = now() WHERE d.task_id = erased;
    UPDATE approvals a SET prompt = NULL WHERE a.task_id = erased AND a.prompt IS NOT NULL;
    UPDATE effects e SET result = NULL, result_note = 'erased on request', updated_at = clock_timestamp()
    FROM (SELECT CASE WHEN penstock_effect_own(t.effect_own, t.effect_key, t.idempotency_key) THEN t.tenant ELSE t.idempotency_scope END AS scope,
            CASE WHEN penstock_effect_own(t.effect_own, t.effect_key, t.idempotency_key) THEN 't:' ELSE 'k:' END || penstock_effect_key(t.effect_key, t.idempotency_key, t.name, t.id) AS key
        FROM tasks_finished t WHERE t.id = erased) k
    WHERE e.scope = k.scope AND e.key = k.key AND e.task_id = erased AND e.state = 'done' AND e.result IS NOT NULL;
    RETURN true;
END
$$;
-- +goose StatementEnd

-- The source documents' own words and tables, as views: docs/views.md. The
-- words are those of package protocol, whose tests compare the two.

-- +goose StatementBegin
-- The word that a vocabulary (b2, men, p3c or tqp) has for a state; null for a
-- state that it does not show: the task still seems to be where it was.
CREATE FUNCTION penstock_word(vocabulary text, state text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE vocabulary
        WHEN 'b2' THEN CASE state
            WHEN 'pending' THEN 'queued' WHEN 'waiting_approval' THEN 'queued' WHEN 'queued' THEN 'queued'
            WHEN 'running' THEN 'running' WHEN 'interrupted' THEN 'running' WHEN 'retrying' THEN 'retrying'
            WHEN 'dlq_pending' THEN 'dlq_pending' WHEN 'dlq_recorded' THEN 'dlq_recorded'
            WHEN 'succeeded' THEN 'succeeded' WHEN 'failed' THEN 'failed' WHEN 'cancelled' THEN 'cancelled' END
        WHEN 'men' THEN CASE state
            WHEN 'pending' THEN 'pending' WHEN 'waiting_approval' THEN 'pending' WHEN 'queued' THEN 'ready'
            WHEN 'running' THEN 'running' WHEN 'interrupted' THEN 'ready' WHEN 'retrying' THEN 'ready'
            WHEN 'succeeded' THEN 'succeeded' WHEN 'failed' THEN 'failed' WHEN 'cancelled' THEN 'cancelled' END
        WHEN 'p3c' THEN CASE state
            WHEN 'pending' THEN 'queued' WHEN 'waiting_approval' THEN 'queued' WHEN 'queued' THEN 'queued'
            WHEN 'running' THEN 'running' WHEN 'interrupted' THEN 'interrupted' WHEN 'retrying' THEN 'retry_scheduled'
            WHEN 'succeeded' THEN 'succeeded' WHEN 'failed' THEN 'failed' WHEN 'cancelled' THEN 'cancelled' END
        WHEN 'tqp' THEN CASE state
            WHEN 'pending' THEN 'queued' WHEN 'waiting_approval' THEN 'waiting_approval' WHEN 'queued' THEN 'queued'
            WHEN 'running' THEN 'running' WHEN 'interrupted' THEN 'running' WHEN 'retrying' THEN 'running'
            WHEN 'succeeded' THEN 'succeeded' WHEN 'failed' THEN 'failed' WHEN 'cancelled' THEN 'failed' END
        END
$$;
-- +goose StatementEnd

-- Gate B-2, section 2.
CREATE VIEW jobs AS
SELECT t.id AS job_id, t.tenant AS tenant_id, t.type AS job_type,
    penstock_word('b2', t.state) AS status,
    t.attempt - 1 AS retry_count,
    COALESCE(t.idempotency_key, t.name, t.id::text) AS idempotency_key,
    t.trace_id,
    CASE WHEN t.state = 'succeeded' THEN NULL
        WHEN t.last_error_code = 'TASK_INVALID_TRANSITION' THEN 'WF_STATE_TRANSITION_INVALID'
        ELSE t.last_error_code END AS error_code,
    t.payload AS payload_json, t.created_at, t.updated_at,
    -- Ours: the caller's own id, the state in our words, and the queue.
    t.name AS task_name, t.state AS task_state, t.queue
FROM tasks t;

-- P3C, section 2: one row for each attempt of a task, with the times that its
-- workers measured, where the log has them. An attempt that was followed by
-- another one failed; the last one stands where its task stands.
CREATE VIEW task_runs AS
SELECT t.id::text || ':' || a.attempt AS run_id, t.id AS task_id, a.attempt,
    w.run_status,
    t.id::text || ':' || (a.attempt - 1) AS idempotency_key,
    CASE WHEN w.run_status = 'retry_scheduled' THEN COALESCE(t.next_retry_at, (
        -- Given up while it waited: the row has forgotten the time.
        SELECT e.next_retry_at FROM event_log e WHERE e.task_id = t.id AND e.next_retry_at IS NOT NULL ORDER BY e.seq DESC LIMIT 1)) END AS next_retry_at,
    CASE WHEN a.attempt < t.attempt THEN f.error_code ELSE l.error_code END AS error_code,
    CASE WHEN a.attempt < t.attempt THEN f.reason ELSE l.reason END AS reason,
    CASE WHEN a.attempt > 1 THEN r.first_at ELSE t.created_at END AS created_at,
    LEAST(r.started_at, f.started_at) AS started_at,
    CASE WHEN a.attempt < t.attempt THEN f.finished_at ELSE t.finished_at END AS finished_at,
    r.worker_id, t.trace_id,
    -- Ours: the caller's own id, whose it is, and the task's state in our words.
    t.name AS task_name, t.tenant, t.state AS task_state
FROM tasks t
CROSS JOIN LATERAL generate_series(1, t.attempt) AS a(attempt)
LEFT JOIN LATERAL (
    -- The event of a retry that was scheduled after a failure is about the attempt before.
    SELECT min(e.occurred_at) AS first_at,
        min(COALESCE((e.data->>'started_at')::timestamptz, CASE WHEN e.type = 'task.claimed' THEN e.occurred_at END))
            FILTER (WHERE e.type = 'task.claimed' OR (e.previous_status = 'running' AND e.status <> 'running'
                AND (e.type IN ('task.succeeded', 'task.interrupted', 'task.dlq', 'approval.requested') OR (e.type = 'task.retry_scheduled' AND e.error_code IS NULL)))) AS started_at,
        (array_agg(e.worker_id ORDER BY e.seq DESC) FILTER (WHERE e.type = 'task.claimed'))[1] AS worker_id
    FROM event_log e WHERE e.task_id = t.id AND e.attempt = a.attempt) r ON true
-- How it ended, if another attempt followed.
LEFT JOIN LATERAL (
    SELECT (e.data->>'started_at')::timestamptz AS started_at, COALESCE((e.data->>'finished_at')::timestamptz, e.occurred_at) AS finished_at, e.error_code, e.reason
    FROM event_log e
    WHERE a.attempt < t.attempt AND e.task_id = t.id AND e.attempt = a.attempt + 1 AND e.type = 'task.retry_scheduled'
    ORDER BY e.seq LIMIT 1) f ON true
-- What went wrong in the last one, if it stopped.
LEFT JOIN LATERAL (
    SELECT e.error_code, e.reason FROM event_log e
    WHERE a.attempt = t.attempt AND t.state IN ('interrupted', 'dlq_pending', 'dlq_recorded', 'failed', 'cancelled')
        AND e.task_id = t.id AND e.attempt = a.attempt AND e.previous_status <> e.status AND e.status = CASE
            WHEN t.state IN ('dlq_recorded', 'failed') THEN 'dlq_pending' ELSE t.state END
    ORDER BY e.seq DESC LIMIT 1) l ON true
CROSS JOIN LATERAL (
    SELECT CASE WHEN a.attempt < t.attempt THEN 'failed' ELSE COALESCE(penstock_word('p3c', t.state), (
        -- A state that is not shown: where it was before.
        SELECT penstock_word('p3c', e.previous_status) FROM event_log e
        WHERE e.task_id = t.id AND e.status = 'dlq_pending' AND e.previous_status <> 'dlq_pending' ORDER BY e.seq LIMIT 1)) END AS run_status) w;

-- P3C, section 3: changes of a run's status. What moves between two states
-- with the same word, or into one that is not shown, is none.
CREATE VIEW run_events AS
SELECT c.event_id, 'run.status.changed'::text AS event_type, c.task_id, c.seq,
    json_build_object('run_id', c.task_id::text || ':' || c.attempt, 'task_id', c.task_id, 'previous_status', c.before, 'status', c.word,
        'attempt', c.attempt, 'idempotency_key', c.task_id::text || ':' || (c.attempt - 1), 'next_retry_at', c.next_retry_at,
        'error_code', c.error_code, 'actor', c.actor) AS payload,
    c.trace_id, c.occurred_at
FROM (
    SELECT 'evt_' || e.task_id || '_' || e.seq AS event_id, e.task_id, e.seq, e.attempt, e.next_retry_at, e.error_code, e.actor, e.trace_id, e.occurred_at,
        penstock_word('p3c', e.status) AS word,
        lag(penstock_word('p3c', e.status)) OVER (PARTITION BY e.task_id ORDER BY e.seq) AS before
    FROM event_log e WHERE penstock_word('p3c', e.status) IS NOT NULL
) c WHERE c.before IS DISTINCT FROM c.word;

-- ASTER's event log. A graph of tasks is a workflow, and so is a task that is
-- alone. sequence counts within the workflow; it is what orders a task's
-- events, and those of different tasks as they were committed.
CREATE VIEW workflow_events AS
SELECT x.workflow_id, x.sequence,
    upper(replace(regexp_replace(x.type, '^task\.', ''), '.', '_')) AS event_type,
    x.attempt AS attempt_number, x.backoff_delay_ms,
    CASE WHEN x.error_code IS NOT NULL THEN x.reason END AS failure_reason,
    json_strip_nulls(json_build_object('taskId', COALESCE(x.name, x.task_id::text), 'reason', x.reason)) AS payload,
    x.occurred_at AS "timestamp",
    -- Ours: the task and its own numbering, and what else there is to join with.
    x.task_id, x.seq AS task_sequence, 'evt_' || x.task_id || '_' || x.seq AS event_id, x.error_code, x.trace_id, x.tenant
FROM (
    SELECT t.id AS workflow_id, e.seq::bigint AS sequence, t.name, t.tenant,
        e.task_id, e.seq, e.type, e.attempt, e.backoff_delay_ms, e.error_code, e.reason, e.occurred_at, e.trace_id
    FROM tasks t JOIN event_log e ON e.task_id = t.id WHERE t.graph_id IS NULL
    UNION ALL
    SELECT g.graph_id, row_number() OVER (PARTITION BY g.graph_id ORDER BY g.position, g.task_id, g.seq), g.name, g.tenant,
        g.task_id, g.seq, g.type, g.attempt, g.backoff_delay_ms, g.error_code, g.reason, g.occurred_at, g.trace_id
    FROM (
        SELECT t.graph_id, t.name, t.tenant, e.*, max(e.xid::text::bigint) OVER (PARTITION BY t.graph_id, e.task_id ORDER BY e.seq) AS position
        FROM tasks t JOIN event_log e ON e.task_id = t.id WHERE t.graph_id IS NOT NULL
    ) g
) x;

-- ASTER's workflow state, with the retry context that a replay starts from.
CREATE VIEW workflow_state AS
SELECT x.workflow_id, x.status, x.tasks, x.open_tasks,
    json_build_object('currentAttempt', COALESCE(r.attempt, x.attempt), 'lastBackoff', COALESCE(r.backoff_delay_ms, 0)) AS retry_context,
    x.created_at, x.updated_at, x.tenant
FROM (
    SELECT t.id AS workflow_id, t.state AS status, 1::bigint AS tasks, (t.finished_at IS NULL)::int::bigint AS open_tasks, t.attempt,
        t.created_at, t.updated_at, t.tenant, NULL::uuid AS graph_id
    FROM tasks t WHERE t.graph_id IS NULL
    UNION ALL
    SELECT t.graph_id, CASE WHEN bool_or(t.finished_at IS NULL) THEN 'running' WHEN bool_or(t.state = 'failed') THEN 'failed'
            WHEN bool_or(t.state = 'cancelled') THEN 'cancelled' ELSE 'succeeded' END,
        count(*), count(*) FILTER (WHERE t.finished_at IS NULL), 1, min(t.created_at), max(t.updated_at), min(t.tenant), t.graph_id
    FROM tasks t WHERE t.graph_id IS NOT NULL GROUP BY t.graph_id
) x
LEFT JOIN LATERAL (
    SELECT e.attempt, e.backoff_delay_ms FROM tasks t JOIN event_log e ON e.task_id = t.id
    WHERE (x.graph_id IS NULL AND t.id = x.workflow_id OR t.graph_id = x.graph_id) AND e.type = 'task.retry_scheduled'
    ORDER BY e.occurred_at DESC, e.task_id DESC, e.seq DESC LIMIT 1) r ON true;

COMMENT ON VIEW jobs IS 'Gate B-2''s jobs. Filter by job_id, or by task_state for work that is not finished.';
COMMENT ON VIEW task_runs IS 'P3C''s runs: one row for each attempt of a task. Filter by task_id, or by task_state.';
COMMENT ON VIEW run_events IS 'P3C''s run.status.changed. Filter by task_id.';
COMMENT ON VIEW workflow_events IS 'ASTER''s events. Filter by workflow_id, and attempt_number.';
COMMENT ON VIEW workflow_state IS 'ASTER''s workflow state with its retry context. Filter by workflow_id.';

-- +goose StatementBegin
-- The application's role. Roles belong to the whole cluster: another database
-- or a concurrent migration may have made it.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'penstock_app') THEN
        CREATE ROLE penstock_app NOLOGIN;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
BEGIN
    IF NOT pg_has_role(current_user, 'penstock_app', 'MEMBER') THEN
        EXECUTE format('GRANT penstock_app TO %I', current_user);
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO penstock_app', current_schema());
END
$$;
-- +goose StatementEnd

-- What has ended is moved out of tasks_live, and stays; the log is only appended to.
GRANT SELECT, INSERT, UPDATE ON tasks, tasks_finished, tasks_live, dlq_items TO penstock_app;
GRANT DELETE ON tasks_live TO penstock_app;
GRANT SELECT ON tasks_finished_named, tasks_finished_default, dated_partitions, live_queues, running_tasks TO penstock_app;
GRANT SELECT, INSERT ON event_log TO penstock_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_keys, dispatch_outbox, instances, workers, tombstones, guard_rules, schedules TO penstock_app;
GRANT SELECT ON deployment, event_horizon, key_reuse, goose_db_version TO penstock_app;
GRANT SELECT, UPDATE ON redis_epoch, guard_state TO penstock_app;
-- Who asked for what, on which set, and why, can't be changed afterwards.
GRANT SELECT, INSERT ON dlq_requeues, dlq_edits, dlq_batches, dlq_batch_items TO penstock_app;
GRANT UPDATE (status, done, skipped, next_at, decided_by, decision_reason, controlled_by, started_at, finished_at, started_by) ON dlq_batches TO penstock_app;
GRANT UPDATE (payload, diff) ON dlq_edits TO penstock_app;
GRANT UPDATE (status, task_id, detail) ON dlq_batch_items TO penstock_app;
-- An alert is what its events say it is: neither its name nor its id changes.
GRANT SELECT, INSERT ON alerts TO penstock_app;
GRANT UPDATE (seq, firing, since, seen_at, value, threshold) ON alerts TO penstock_app;
GRANT SELECT ON alert_round TO penstock_app;
GRANT UPDATE (claimed_until, evaluated_at, took_ms, tasks) ON alert_round TO penstock_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON dependency_settlements TO penstock_app;
GRANT SELECT, INSERT, UPDATE ON task_dependencies, effects TO penstock_app;
GRANT SELECT, INSERT ON task_clones, guard_rule_revisions, approval_votes, approvals, tenants TO penstock_app;
GRANT UPDATE (status, decided_at, decided_by, decision) ON approvals TO penstock_app;
GRANT SELECT, INSERT, DELETE ON schedule_fires TO penstock_app;
GRANT SELECT ON jobs, task_runs, run_events, workflow_events, workflow_state TO penstock_app;

REVOKE ALL ON FUNCTION penstock_keys_removed(), penstock_ensure_partition(text, date, int), penstock_check_days(date, date, interval, int),
    penstock_drop_days(date, date), penstock_remove_tasks(uuid[], interval), penstock_remove_approvals(uuid, int),
    penstock_remove_effects(timestamptz, text, text, text, interval, int), penstock_erase_task(uuid) FROM PUBLIC;
-- Every table that these name is there by now: a temporary one can't stand in
-- for one that is still missing.
GRANT EXECUTE ON FUNCTION penstock_ensure_partition(text, date, int), penstock_check_days(date, date, interval, int), penstock_drop_days(date, date),
    penstock_remove_tasks(uuid[], interval), penstock_remove_approvals(uuid, int),
    penstock_remove_effects(timestamptz, text, text, text, interval, int), penstock_erase_task(uuid) TO penstock_app;

-- +goose Down
DROP VIEW workflow_state, workflow_events, run_events, task_runs, jobs, dated_partitions, running_tasks, live_queues;
DROP TABLE tenants, schedule_fires, schedules, effects, approval_votes, approvals, guard_rule_revisions, guard_rules, task_clones, task_dependencies,
    dependency_settlements, guard_state, tombstones, workers, redis_epoch, alert_round, alerts, dlq_batch_items, dlq_batches, dlq_edits, dlq_requeues,
    dlq_items, instances, dispatch_outbox, key_reuse, idempotency_keys, event_horizon, partition_checks, event_log, tasks, deployment;
DROP FUNCTION penstock_word(text, text);
DROP FUNCTION penstock_erase_task(uuid);
DROP FUNCTION penstock_remove_effects(timestamptz, text, text, text, interval, int);
DROP FUNCTION penstock_remove_approvals(uuid, int);
DROP FUNCTION penstock_drop_days(date, date);
DROP FUNCTION penstock_check_days(date, date, interval, int);
DROP FUNCTION penstock_remove_tasks(uuid[], interval);
DROP FUNCTION penstock_may_run(uuid);
DROP FUNCTION penstock_removable();
DROP FUNCTION penstock_ensure_partition(text, date, int);
DROP FUNCTION penstock_uuid_floor(timestamptz);
DROP FUNCTION penstock_cause(text, text);
DROP FUNCTION penstock_effect_own(boolean, text, text);
DROP FUNCTION penstock_effect_key(text, text, text, uuid);
DROP FUNCTION penstock_keys_removed();
