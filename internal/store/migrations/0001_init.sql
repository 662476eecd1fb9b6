-- +goose Up

-- One row: who this deployment is, and the seed of its retry jitter.
CREATE TABLE deployment (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    id         uuid NOT NULL DEFAULT gen_random_uuid(),
    seed       bytea NOT NULL DEFAULT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()),
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO deployment DEFAULT VALUES;

CREATE TABLE tasks (
    id                uuid NOT NULL,
    name              text,
    tenant            text NOT NULL,
    queue             text NOT NULL,
    type              text NOT NULL,
    state             text NOT NULL,
    attempt           int NOT NULL DEFAULT 1,
    max_retries       int NOT NULL,
    delivery          bigint NOT NULL DEFAULT 1,
    interruptions     int NOT NULL DEFAULT 0,
    event_seq         int NOT NULL DEFAULT 1,
    schedule_type     text NOT NULL,
    scheduled_at      timestamptz,
    delay_ms          bigint,
    timeout_ms        int NOT NULL,
    due_at            timestamptz,
    next_retry_at     timestamptz,
    retry_policy      json,
    idempotency_scope text NOT NULL,
    idempotency_key   text,
    -- Which of timeout_ms (1) and max_retries (2) the caller gave; the others are defaults.
    given             smallint NOT NULL,
    trace_id          text NOT NULL,
    payload           json NOT NULL,
    result            json,
    last_error_code   text,
    last_error_reason text,
    worker_id         text,
    applied_kind      text,
    applied_delivery  bigint NOT NULL DEFAULT 0,
    rejected_delivery bigint NOT NULL DEFAULT 0,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    started_at        timestamptz,
    finished_at       timestamptz,
    PRIMARY KEY (id),
    CONSTRAINT tasks_state CHECK (state IN ('pending', 'waiting_approval', 'queued', 'running', 'retrying', 'interrupted',
        'dlq_pending', 'dlq_recorded', 'succeeded', 'failed', 'cancelled')),
    CONSTRAINT tasks_next_retry_at CHECK ((state = 'retrying') = (next_retry_at IS NOT NULL)),
    CONSTRAINT tasks_finished_at CHECK ((state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CONSTRAINT tasks_due_at CHECK (due_at IS NULL OR state IN ('pending', 'queued', 'retrying', 'interrupted')),
    CONSTRAINT tasks_attempt CHECK (attempt >= 1 AND attempt <= max_retries + 1),
    CONSTRAINT tasks_counts CHECK (max_retries >= 0 AND delivery >= 1 AND interruptions >= 0 AND event_seq >= 1 AND timeout_ms >= 1)
) PARTITION BY RANGE (id);

-- What waits in Postgres for dispatch, in due order.
CREATE INDEX tasks_due ON tasks (queue, due_at, id) WHERE due_at IS NOT NULL;
-- Live tasks: reconcile and counts.
CREATE INDEX tasks_live ON tasks (state, id) WHERE state NOT IN ('succeeded', 'failed', 'cancelled');
CREATE INDEX tasks_created ON tasks (created_at, id);

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
CREATE INDEX event_log_position ON event_log (xid, task_id, seq);

COMMENT ON TABLE event_log IS 'Append-only. event_id is evt_{task_id}_{seq}; run_id is {task_id}:{attempt}; idempotency_key is null where it equals the task''s id.';

-- The highest transaction whose events retention removed: a position at or
-- below it is too old to resume from.
CREATE TABLE event_horizon (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    xid xid8 NOT NULL DEFAULT '0'
);
INSERT INTO event_horizon DEFAULT VALUES;

-- Only keys that a caller supplied; every other task's key is its own id.
CREATE TABLE idempotency_keys (
    scope      text NOT NULL,
    key        text NOT NULL,
    task_id    uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, key)
);

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

-- Orchestrators that are alive.
CREATE TABLE instances (
    id         uuid PRIMARY KEY,
    host       text NOT NULL,
    pid        int NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE dlq_items (
    dlq_id      uuid PRIMARY KEY,
    -- Null for a stream entry that was no task.
    task_id     uuid UNIQUE,
    tenant      text NOT NULL,
    queue       text,
    type        text,
    payload     json,
    error_code  text NOT NULL,
    error       text NOT NULL,
    retry_count int NOT NULL,
    failed_at   timestamptz NOT NULL,
    stream      text,
    message_id  text,
    raw         json,
    created_at  timestamptz NOT NULL DEFAULT now(),
    -- When its entry was known to be in stream:dlq.
    recorded_at timestamptz
);
CREATE INDEX dlq_items_failed ON dlq_items (failed_at, dlq_id);
CREATE INDEX dlq_items_unrecorded ON dlq_items (created_at) WHERE recorded_at IS NULL;

-- Ids derived from names sort last and have no date.
CREATE TABLE tasks_named PARTITION OF tasks FOR VALUES FROM ('ff000000-0000-0000-0000-000000000000') TO (MAXVALUE);
CREATE TABLE event_log_named PARTITION OF event_log FOR VALUES FROM ('ff000000-0000-0000-0000-000000000000') TO (MAXVALUE);
-- Whatever has no partition of its own: a missing one never fails an insert.
CREATE TABLE tasks_default PARTITION OF tasks DEFAULT;
CREATE TABLE event_log_default PARTITION OF event_log DEFAULT;

-- +goose StatementBegin
-- The smallest UUIDv7 of a moment.
CREATE FUNCTION penstock_uuid_floor(at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Makes the daily partitions of tasks and event_log from one day to another,
-- both included, and returns how many it made. Runs as its owner, so that the
-- application role needs no right to create tables. A day for which the
-- default partition already holds rows is left to the default partition.
CREATE FUNCTION penstock_ensure_partitions(from_day date, to_day date) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    parent text;
    part   text;
    day    date;
    made   int := 0;
BEGIN
    IF to_day - from_day > 400 THEN
        RAISE EXCEPTION 'penstock_ensure_partitions: at most 400 days at once';
    END IF;
    PERFORM pg_advisory_xact_lock(5077001);
    PERFORM set_config('lock_timeout', '3s', true);
    day := from_day;
    WHILE day <= to_day LOOP
        FOREACH parent IN ARRAY ARRAY['tasks', 'event_log'] LOOP
            part := parent || '_' || to_char(day, 'YYYYMMDD');
            CONTINUE WHEN to_regclass(part) IS NOT NULL;
            BEGIN
                EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED)', part, parent);
                EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part,
                    penstock_uuid_floor(day::timestamp AT TIME ZONE 'UTC'),
                    penstock_uuid_floor((day + 1)::timestamp AT TIME ZONE 'UTC'));
                made := made + 1;
            EXCEPTION WHEN check_violation THEN
                RAISE WARNING 'partition % not made: the default partition already has rows of that day', part;
            END;
        END LOOP;
        day := day + 1;
    END LOOP;
    RETURN made;
END
$$;
-- +goose StatementEnd

SELECT penstock_ensure_partitions((now() AT TIME ZONE 'UTC')::date - 1, (now() AT TIME ZONE 'UTC')::date + 2);

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
GRANT SELECT, INSERT, UPDATE ON tasks, dlq_items TO penstock_app;
GRANT SELECT, INSERT ON event_log TO penstock_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_keys, dispatch_outbox, instances TO penstock_app;
GRANT SELECT ON deployment, event_horizon, goose_db_version TO penstock_app;
REVOKE ALL ON FUNCTION penstock_ensure_partitions(date, date) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock_ensure_partitions(date, date) TO penstock_app;

-- +goose Down
DROP FUNCTION penstock_ensure_partitions(date, date);
DROP TABLE dlq_items, instances, dispatch_outbox, idempotency_keys, event_horizon, event_log, tasks, deployment;
DROP FUNCTION penstock_uuid_floor(timestamptz);
