-- +goose Up

-- What a task may wait for besides its time: a person's decision, and other
-- tasks.
ALTER TABLE tasks
    -- Who asked for it: a principal, or anonymous.
    ADD COLUMN requested_by text NOT NULL DEFAULT 'anonymous',
    -- When its schedule lets it start; null: at once.
    ADD COLUMN start_at timestamptz,
    -- The first task of the graph it belongs to; null: it is alone.
    ADD COLUMN graph_id uuid,
    -- How many of the tasks it depends on have not ended yet.
    ADD COLUMN open_dependencies int NOT NULL DEFAULT 0,
    -- What a dependency that does not succeed means; null: it depends on none.
    ADD COLUMN on_dependency_failure text,
    -- Digest of what it depends on, as the caller gave it.
    ADD COLUMN dependencies_digest text,
    -- Other tasks depend on it.
    ADD COLUMN has_dependants boolean NOT NULL DEFAULT false,
    -- The schedule that made it.
    ADD COLUMN schedule_id uuid,
    -- What its handler is told of approvals that were given.
    ADD COLUMN approvals json,
    -- Nobody waits here while all tasks are read: 0017 validates them.
    ADD CONSTRAINT tasks_open_dependencies_count CHECK (open_dependencies >= 0) NOT VALID,
    ADD CONSTRAINT tasks_on_dependency_failure CHECK (on_dependency_failure IN ('cancel', 'run')) NOT VALID,
    ADD CONSTRAINT tasks_open_dependencies CHECK (open_dependencies = 0 OR (due_at IS NULL AND state IN ('pending', 'waiting_approval', 'cancelled'))) NOT VALID;
UPDATE tasks SET start_at = due_at WHERE state = 'pending';

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

GRANT SELECT, UPDATE ON guard_state TO penstock_app;
GRANT SELECT, INSERT, DELETE ON dependency_settlements TO penstock_app;

-- +goose Down
DROP TABLE dependency_settlements, guard_state;
ALTER TABLE tasks DROP COLUMN requested_by, DROP COLUMN start_at, DROP COLUMN graph_id, DROP COLUMN open_dependencies,
    DROP COLUMN on_dependency_failure, DROP COLUMN dependencies_digest, DROP COLUMN has_dependants, DROP COLUMN schedule_id, DROP COLUMN approvals;
