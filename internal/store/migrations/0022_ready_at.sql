-- +goose Up

-- When the task had become due that was dispatched: due_at is null from then on.
-- Null for one that went straight to its stream: it was due when it was created.
ALTER TABLE tasks ADD COLUMN ready_at timestamptz;

-- +goose Down
ALTER TABLE tasks DROP COLUMN ready_at;
