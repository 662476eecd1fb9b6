-- +goose Up

-- Whether effect_key is the id of a task that has no idempotency key.
ALTER TABLE tasks ADD COLUMN effect_own boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT tasks_effect_own CHECK (NOT effect_own OR effect_key IS NOT NULL) NOT VALID; -- 0017

-- The side-effect ledger: what handlers do outside, once per key and name. The
-- key is k: and the task's idempotency key, in its idempotency scope; or, where
-- it has none, t: and its own id, in its tenant. A requeued dead letter inherits
-- it. A reservation whose execution does not run any more is in doubt.
CREATE TABLE effects (
    scope             text NOT NULL,
    key               text NOT NULL,
    name              text NOT NULL,
    state             text NOT NULL,
    -- The client's name for the last reservation.
    token             uuid NOT NULL,
    task_id           uuid NOT NULL,
    delivery          bigint NOT NULL,
    worker_id         text NOT NULL,
    -- The tasks that were given the effect or its result: it is kept while one of
    -- them, or what was requeued from it, can still run.
    users             uuid[] NOT NULL,
    runs              int NOT NULL,
    reserved_at       timestamptz NOT NULL,
    done_at           timestamptz,
    result            json,
    -- Why a done effect has no result.
    result_note       text,
    -- The last end of a doubt; resolved_by is a person, or null.
    resolution        text,
    resolved_by       text,
    resolution_reason text,
    resolved_at       timestamptz,
    -- Reports that contradicted the ledger.
    conflicts         int NOT NULL DEFAULT 0,
    -- [{at, what, by, task_id, delivery, reason}], the latest.
    history           json NOT NULL DEFAULT '[]',
    updated_at        timestamptz NOT NULL,
    PRIMARY KEY (scope, key, name),
    CONSTRAINT effects_key CHECK (key ~ '^[kt]:.'),
    CONSTRAINT effects_name CHECK (octet_length(name) BETWEEN 1 AND 128),
    CONSTRAINT effects_state CHECK (state IN ('reserved', 'done', 'free')),
    CONSTRAINT effects_done CHECK ((state = 'done') = (done_at IS NOT NULL)),
    CONSTRAINT effects_result CHECK (state = 'done' OR (result IS NULL AND result_note IS NULL)),
    CONSTRAINT effects_users CHECK (task_id = ANY (users)),
    CONSTRAINT effects_counts CHECK (runs >= 1 AND delivery >= 1 AND conflicts >= 0),
    CONSTRAINT effects_resolution CHECK (resolution IN ('done', 'not_done', 'check_done', 'check_not_done', 'run_again')),
    -- Only a person says done or not done, and it is known who.
    CONSTRAINT effects_resolved CHECK ((resolution IS NULL) = (resolved_at IS NULL)
        AND (resolution IS NULL OR resolution NOT IN ('done', 'not_done') OR resolved_by NOT IN ('', 'anonymous')) IS TRUE)
);
CREATE INDEX effects_reserved ON effects (scope, key, name) WHERE state = 'reserved';
CREATE INDEX effects_updated ON effects (updated_at, scope, key, name);

GRANT SELECT, INSERT, UPDATE ON effects TO penstock_app;

SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- +goose StatementBegin
-- Looks at the next effects, oldest first, and removes those that have not
-- changed for longer than keep and that no task can use any more: each of their
-- users, and each task that was requeued from one, has ended, and no dead letter
-- of theirs can be requeued. Returns the last effect looked at and how many were
-- removed; no row after the last one. Those that somebody has locked are passed
-- over.
CREATE FUNCTION penstock_remove_effects(after_at timestamptz, after_scope text, after_key text, after_name text, keep interval, max_rows int)
RETURNS TABLE (last_at timestamptz, last_scope text, last_key text, last_name text, removed int)
LANGUAGE plpgsql SECURITY DEFINER STRICT SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE old AS (
        SELECT e.scope, e.key, e.name, e.updated_at, e.users FROM effects e
        WHERE (e.updated_at, e.scope, e.key, e.name) > (after_at, after_scope, after_key, after_name) AND e.updated_at < now() - greatest(keep, interval '1 second')
        ORDER BY e.updated_at, e.scope, e.key, e.name LIMIT least(max_rows, 1000) FOR UPDATE SKIP LOCKED
    ), family (scope, key, name, task_id) AS (
        SELECT o.scope, o.key, o.name, u.id FROM old o, unnest(o.users) u(id)
        UNION
        SELECT f.scope, f.key, f.name, r.task_id FROM family f JOIN dlq_items d ON d.task_id = f.task_id JOIN dlq_requeues r ON r.dlq_id = d.dlq_id
    ), kept AS (
        SELECT DISTINCT f.scope, f.key, f.name FROM family f
            LEFT JOIN tasks t ON t.id = f.task_id LEFT JOIN dlq_items d ON d.task_id = f.task_id
        WHERE t.state NOT IN ('succeeded', 'failed', 'cancelled') OR d.status IN ('open', 'requeued')
    ), gone AS (
        DELETE FROM effects e USING old o
        WHERE e.scope = o.scope AND e.key = o.key AND e.name = o.name
            AND NOT EXISTS (SELECT FROM kept k WHERE k.scope = o.scope AND k.key = o.key AND k.name = o.name)
        RETURNING 1
    )
    SELECT o.updated_at, o.scope, o.key, o.name, (SELECT count(*)::int FROM gone) FROM old o
    ORDER BY o.updated_at DESC, o.scope DESC, o.key DESC, o.name DESC LIMIT 1;
END
$$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION penstock_remove_effects(timestamptz, text, text, text, interval, int) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock_remove_effects(timestamptz, text, text, text, interval, int) TO penstock_app;

-- +goose Down
DROP FUNCTION penstock_remove_effects(timestamptz, text, text, text, interval, int);
DROP TABLE effects;
ALTER TABLE tasks DROP COLUMN effect_own;
