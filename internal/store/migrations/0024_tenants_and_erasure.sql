-- +goose Up

-- The tenants whose dead letters a batch holds; empty for batches of before this
-- migration, which only principals see that are not bound to tenants.
ALTER TABLE dlq_batches ADD COLUMN tenants text[] NOT NULL DEFAULT '{}';

-- +goose Down
ALTER TABLE dlq_batches DROP COLUMN tenants;
