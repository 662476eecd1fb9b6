-- +goose Up

ALTER TABLE tasks
    -- Who changed it after it was asked for: who moved its time, who changed the
    -- schedule that made it, who triggered that by hand.
    ADD COLUMN rescheduled_by text[] NOT NULL DEFAULT '{}',
    -- The schedule as the caller asked for it, if it was changed since:
    -- {schedule_type, scheduled_at, delay_ms}.
    ADD COLUMN asked_schedule json;

-- Live tasks of a schedule: overlap.
CREATE INDEX tasks_schedule ON tasks (schedule_id)
    WHERE schedule_id IS NOT NULL AND state NOT IN ('succeeded', 'failed', 'cancelled');

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

GRANT SELECT, INSERT, UPDATE, DELETE ON schedules TO penstock_app;
GRANT SELECT, INSERT, DELETE ON schedule_fires TO penstock_app;
GRANT SELECT, INSERT ON tenants TO penstock_app;

-- +goose Down
DROP TABLE tenants, schedule_fires, schedules;
DROP INDEX tasks_schedule;
ALTER TABLE tasks DROP COLUMN rescheduled_by, DROP COLUMN asked_schedule;
