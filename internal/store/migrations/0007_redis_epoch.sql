-- +goose Up

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

ALTER TABLE alerts DROP CONSTRAINT alerts_kind_check;
ALTER TABLE alerts ADD CONSTRAINT alerts_kind_check CHECK (kind IN ('retrying_share', 'dlq_growth', 'invalid_transitions', 'redis_lost'));

GRANT SELECT, UPDATE ON redis_epoch TO penstock_app;

-- +goose Down
DELETE FROM alerts WHERE kind = 'redis_lost';
ALTER TABLE alerts DROP CONSTRAINT alerts_kind_check;
ALTER TABLE alerts ADD CONSTRAINT alerts_kind_check CHECK (kind IN ('retrying_share', 'dlq_growth', 'invalid_transitions'));
DROP TABLE redis_epoch;
