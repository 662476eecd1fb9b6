-- +goose Up

-- No execution of a task starts after expires_at; start_within_ms is what the
-- caller gave instead of a time, counted from when the task was due first.
ALTER TABLE tasks
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN start_within_ms bigint CHECK (start_within_ms > 0),
    -- How long a handler may go without reporting progress.
    ADD COLUMN heartbeat_timeout_ms int CHECK (heartbeat_timeout_ms > 0),
    -- When its worker last said that it runs, and what the handler last reported.
    ADD COLUMN heartbeat_at timestamptz,
    ADD COLUMN progress json,
    -- When a worker first handed the task back because it did not know its
    -- type; null once one has started it.
    ADD COLUMN unknown_since timestamptz;

CREATE INDEX tasks_expires ON tasks (expires_at, id)
    WHERE expires_at IS NOT NULL AND state IN ('pending', 'waiting_approval', 'queued', 'retrying', 'interrupted');

-- +goose Down
DROP INDEX tasks_expires;
ALTER TABLE tasks DROP COLUMN expires_at, DROP COLUMN start_within_ms, DROP COLUMN heartbeat_timeout_ms, DROP COLUMN heartbeat_at,
    DROP COLUMN progress, DROP COLUMN unknown_since;
