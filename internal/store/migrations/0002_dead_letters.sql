-- +goose Up

-- A requeued dead letter: where the task comes from, and the key that its
-- handler passes on so that effects of the original are not repeated.
ALTER TABLE tasks ADD COLUMN origin_dlq_id uuid, ADD COLUMN effect_key text;

ALTER TABLE dlq_items
    ADD COLUMN status               text NOT NULL DEFAULT 'open',
    -- Groups dead letters with the same normalised error.
    ADD COLUMN fingerprint          text NOT NULL DEFAULT '',
    -- The error of every attempt: [{attempt, at, code, error, worker_id, delay_ms}].
    ADD COLUMN errors               json,
    -- Its entry in stream:dlq.
    ADD COLUMN entry_id             text,
    -- The last edit; 0: payload as it failed.
    ADD COLUMN revision             int NOT NULL DEFAULT 0,
    ADD COLUMN edited_payload       json,
    ADD COLUMN requeues             int NOT NULL DEFAULT 0,
    ADD COLUMN settled_at           timestamptz,
    ADD COLUMN discard_batch_id     uuid,
    ADD COLUMN discard_reason       text,
    ADD COLUMN discard_proposed_by  text,
    ADD COLUMN discard_confirmed_by text,
    -- Events of a stream entry that was no task: they are numbered here.
    ADD COLUMN event_seq            int NOT NULL DEFAULT 0,
    ADD CONSTRAINT dlq_items_status CHECK (status IN ('open', 'requeued', 'discarded', 'expired')),
    ADD CONSTRAINT dlq_items_settled CHECK ((status = 'open') = (settled_at IS NULL)),
    ADD CONSTRAINT dlq_items_requeued CHECK (status <> 'requeued' OR requeues > 0),
    ADD CONSTRAINT dlq_items_edited CHECK ((revision > 0) = (edited_payload IS NOT NULL) OR status = 'expired'),
    -- Giving a dead letter up takes a reason and two different people.
    ADD CONSTRAINT dlq_items_two_people CHECK (status <> 'discarded' OR (discard_batch_id IS NOT NULL AND discard_reason <> ''
        AND discard_proposed_by <> '' AND discard_confirmed_by <> '' AND lower(discard_proposed_by) <> lower(discard_confirmed_by)) IS TRUE);
-- What is there already gets the errors that its task's log tells.
UPDATE dlq_items d SET errors = (SELECT json_agg(json_build_object('attempt', CASE e.type WHEN 'task.retry_scheduled' THEN e.attempt - 1 ELSE e.attempt END,
        'at', e.occurred_at, 'code', e.error_code, 'error', left(COALESCE(e.reason, ''), 2000), 'worker_id', COALESCE(e.worker_id, ''), 'delay_ms', e.backoff_delay_ms) ORDER BY e.seq)
    FROM event_log e WHERE e.task_id = d.task_id AND e.error_code IS NOT NULL AND (e.type = 'task.retry_scheduled'
        OR (e.type = 'task.dlq' AND e.status = 'dlq_pending' AND e.error_code <> 'TASK_WORKER_LOST') OR (e.type = 'task.interrupted' AND e.error_code = 'TASK_WORKER_LOST')))
WHERE d.task_id IS NOT NULL;
CREATE INDEX dlq_items_fingerprint ON dlq_items (fingerprint, failed_at);
CREATE INDEX dlq_items_open ON dlq_items (failed_at, dlq_id) WHERE status = 'open';
CREATE INDEX dlq_items_settled_at ON dlq_items (settled_at) WHERE status IN ('requeued', 'discarded');
CREATE INDEX dlq_items_expired ON dlq_items (dlq_id) WHERE status = 'expired' AND entry_id IS NOT NULL;

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

-- Who asked for what, on which set, and why, can't be changed afterwards.
GRANT SELECT, INSERT ON dlq_requeues, dlq_edits, dlq_batches, dlq_batch_items TO penstock_app;
GRANT UPDATE (status, done, skipped, next_at, decided_by, decision_reason, controlled_by, started_at, finished_at) ON dlq_batches TO penstock_app;
GRANT UPDATE (payload, diff) ON dlq_edits TO penstock_app;
GRANT UPDATE (status, task_id, detail) ON dlq_batch_items TO penstock_app;

-- +goose Down
DROP TABLE dlq_batch_items, dlq_batches, dlq_edits, dlq_requeues;
ALTER TABLE dlq_items DROP COLUMN status, DROP COLUMN fingerprint, DROP COLUMN errors, DROP COLUMN entry_id, DROP COLUMN revision,
    DROP COLUMN edited_payload, DROP COLUMN requeues, DROP COLUMN settled_at, DROP COLUMN discard_batch_id, DROP COLUMN discard_reason,
    DROP COLUMN discard_proposed_by, DROP COLUMN discard_confirmed_by, DROP COLUMN event_seq;
ALTER TABLE tasks DROP COLUMN origin_dlq_id, DROP COLUMN effect_key;
