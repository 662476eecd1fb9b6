-- +goose Up

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

GRANT SELECT, INSERT, UPDATE, DELETE ON tombstones TO penstock_app;

-- +goose Down
DROP TABLE tombstones;
