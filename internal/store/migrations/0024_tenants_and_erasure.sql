-- +goose Up

-- The tenants whose dead letters a batch holds; empty for batches of before this
-- migration, which only principals see that are not bound to tenants.
ALTER TABLE dlq_batches ADD COLUMN tenants text[] NOT NULL DEFAULT '{}';

-- When the content of a task was erased on request.
ALTER TABLE tasks ADD COLUMN erased_at timestamptz;
ALTER TABLE dlq_items ADD COLUMN erased_at timestamptz;
ALTER TABLE dlq_items DROP CONSTRAINT dlq_items_edited;
ALTER TABLE dlq_items ADD CONSTRAINT dlq_items_edited CHECK ((revision > 0) = (edited_payload IS NOT NULL) OR status = 'expired' OR erased_at IS NOT NULL) NOT VALID;
ALTER TABLE dlq_items VALIDATE CONSTRAINT dlq_items_edited;
CREATE INDEX dlq_items_erased ON dlq_items (dlq_id) WHERE erased_at IS NOT NULL AND entry_id IS NOT NULL;

-- Runs with the rights of its owner: see 0010.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- +goose StatementBegin
-- Erases the content of a task that has ended: what it carried, what its handlers
-- reported, and how it failed, in all rows about it. What people gave as reasons
-- stays, as does the code that an error text begins with. Returns false if it was erased before, or has not ended. Runs as its owner:
-- the application role may not change events, and this is all that may be.
CREATE FUNCTION penstock_erase_task(erased uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    by_a_person boolean;
BEGIN
    PERFORM FROM tasks t WHERE t.id = erased AND t.erased_at IS NULL AND t.state IN ('succeeded', 'failed', 'cancelled') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    by_a_person := EXISTS (SELECT FROM event_log e WHERE e.task_id = erased AND e.status = 'cancelled' AND e.previous_status <> 'cancelled' AND e.actor LIKE 'user:%');
    UPDATE tasks t SET payload = 'null', result = NULL, progress = NULL, erased_at = now(),
        last_error_reason = CASE WHEN by_a_person THEN t.last_error_reason ELSE substring(t.last_error_reason FROM '^TASK_[A-Z_]+: ') || 'erased' END
    WHERE t.id = erased;
    UPDATE event_log e SET reason = CASE WHEN e.actor LIKE 'user:%' THEN e.reason ELSE substring(e.reason FROM '^TASK_[A-Z_]+: ') || 'erased' END,
        data = CASE e.type WHEN 'task.progress' THEN NULL WHEN 'dlq.requeued' THEN (e.data::jsonb - 'diff')::json ELSE e.data END
    WHERE e.task_id = erased AND (e.reason IS NOT NULL AND e.actor NOT LIKE 'user:%' OR e.type = 'task.progress' OR e.type = 'dlq.requeued' AND e.data::jsonb ? 'diff');
    UPDATE dlq_edits x SET payload = NULL, diff = NULL FROM dlq_items d WHERE d.task_id = erased AND x.dlq_id = d.dlq_id;
    UPDATE dlq_items d SET payload = NULL, edited_payload = NULL, raw = NULL, errors = NULL,
        error = COALESCE(substring(d.error FROM '^TASK_[A-Z_]+: ') || 'erased', ''), erased_at = now() WHERE d.task_id = erased;
    UPDATE approvals a SET prompt = NULL WHERE a.task_id = erased AND a.prompt IS NOT NULL;
    UPDATE effects e SET result = NULL, result_note = 'erased on request', updated_at = clock_timestamp()
    FROM (SELECT CASE WHEN (t.effect_own OR t.effect_key IS NULL AND t.idempotency_key IS NULL) THEN t.tenant ELSE t.idempotency_scope END AS scope,
            CASE WHEN (t.effect_own OR t.effect_key IS NULL AND t.idempotency_key IS NULL) THEN 't:' ELSE 'k:' END || COALESCE(t.effect_key, t.idempotency_key, t.name, t.id::text) AS key
        FROM tasks t WHERE t.id = erased) k
    WHERE e.scope = k.scope AND e.key = k.key AND e.task_id = erased AND e.state = 'done' AND e.result IS NOT NULL;
    RETURN true;
END
$$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION penstock_erase_task(uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock_erase_task(uuid) TO penstock_app;

-- +goose Down
DROP FUNCTION penstock_erase_task(uuid);
DROP INDEX dlq_items_erased;
ALTER TABLE dlq_items DROP CONSTRAINT dlq_items_edited;
ALTER TABLE dlq_items ADD CONSTRAINT dlq_items_edited CHECK ((revision > 0) = (edited_payload IS NOT NULL) OR status = 'expired') NOT VALID;
ALTER TABLE dlq_items DROP COLUMN erased_at;
ALTER TABLE tasks DROP COLUMN erased_at;
ALTER TABLE dlq_batches DROP COLUMN tenants;
