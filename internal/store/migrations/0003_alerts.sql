-- +goose Up

-- What the alert rules found: one row for each alert that was ever raised.
CREATE TABLE alerts (
    kind      text NOT NULL CHECK (kind IN ('retrying_share', 'dlq_growth', 'invalid_transitions')),
    -- Empty for an alert that is about the whole deployment.
    tenant    text NOT NULL,
    -- Its events are in event_log under this id, numbered by seq.
    id        uuid NOT NULL UNIQUE,
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

-- An alert is what its events say it is: neither its name nor its id changes.
GRANT SELECT, INSERT ON alerts TO penstock_app;
GRANT UPDATE (seq, firing, since, seen_at, value, threshold) ON alerts TO penstock_app;
GRANT SELECT ON alert_round TO penstock_app;
GRANT UPDATE (claimed_until, evaluated_at, took_ms, tasks) ON alert_round TO penstock_app;

-- +goose Down
DROP TABLE alert_round, alerts;
