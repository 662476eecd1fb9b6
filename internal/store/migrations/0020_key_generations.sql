-- +goose Up

-- Since when a caller's idempotency key may have been used before: retention has
-- removed one. Null: none was removed, ever, so a key that is taken is new. Two
-- tasks with one key are two acts: the later ones' effects have an effect_key of
-- their own (see InsertTasks).
CREATE TABLE key_reuse (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    since timestamptz
);
-- What was removed before is not known: wherever there was a task, a key may have been.
INSERT INTO key_reuse (since)
SELECT CASE WHEN h.xid <> '0' OR EXISTS (SELECT FROM tasks) OR EXISTS (SELECT FROM effects) THEN now() END FROM event_horizon h;

GRANT SELECT ON key_reuse TO penstock_app;

SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- +goose StatementBegin
-- Notes in the transaction that removes an idempotency key that keys may be used
-- again from now on. Runs as its owner: the application can't unsay it. A key that
-- its own transaction gives back had no task.
CREATE FUNCTION penstock_keys_removed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE key_reuse SET since = now() WHERE one AND since IS NULL AND EXISTS (SELECT FROM removed r WHERE r.created_at <> now());
    RETURN NULL;
END
$$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION penstock_keys_removed() FROM PUBLIC;

CREATE TRIGGER idempotency_keys_removed AFTER DELETE ON idempotency_keys REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_keys_removed();

COMMENT ON COLUMN tasks.effect_key IS 'The key of the task''s effects, where it is not the idempotency key or the task''s own id: that of the task it was requeued from, or one with a generation.';

-- +goose Down
DROP TRIGGER idempotency_keys_removed ON idempotency_keys;
DROP FUNCTION penstock_keys_removed();
DROP TABLE key_reuse;
