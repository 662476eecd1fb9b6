-- +goose Up

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

GRANT SELECT, INSERT, UPDATE, DELETE ON workers TO penstock_app;

-- +goose Down
DROP TABLE workers;
