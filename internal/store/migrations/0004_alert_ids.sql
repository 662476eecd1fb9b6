-- +goose Up

-- An alert's id is a function of its kind and tenant, so the primary key makes
-- it unique. A second unique index let one of two replicas that raise the same
-- alert at once fail: ON CONFLICT waits for the other on one index only.
ALTER TABLE alerts DROP CONSTRAINT alerts_id_key;
CREATE INDEX alerts_id ON alerts (id);

-- +goose Down
DROP INDEX alerts_id;
ALTER TABLE alerts ADD UNIQUE (id);
