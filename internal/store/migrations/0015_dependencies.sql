-- +goose Up

-- Which tasks depend on which. No foreign keys: both ends are rows of a
-- partitioned table, and retention removes edges with their tasks.
CREATE TABLE task_dependencies (
    task_id     uuid NOT NULL,
    upstream_id uuid NOT NULL,
    -- Its place in depends_on, from 0.
    position    int NOT NULL,
    -- What the task's handler knows the upstream by: its local name in the call
    -- that made both; empty: it had none.
    name        text NOT NULL DEFAULT '',
    -- The end of the upstream was counted in the task's open_dependencies.
    settled     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (task_id, upstream_id)
);
CREATE INDEX task_dependencies_upstream ON task_dependencies (upstream_id, task_id);
-- Tasks that wait for others, for the sweep.
CREATE INDEX tasks_depending ON tasks (id) WHERE open_dependencies > 0;

-- Notes in the order in which they are worked off.
CREATE INDEX dependency_settlements_next ON dependency_settlements (created_at, upstream_id);

-- Tasks that were cancelled because of a dependency and made anew when the dead
-- letter behind it was requeued: at most once each.
CREATE TABLE task_clones (
    task_id    uuid PRIMARY KEY,
    clone_id   uuid NOT NULL,
    dlq_id     uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

GRANT SELECT, INSERT, UPDATE ON task_dependencies TO penstock_app;
GRANT SELECT, INSERT ON task_clones TO penstock_app;
-- To lock them.
GRANT UPDATE ON dependency_settlements TO penstock_app;

-- The functions run with the rights of their owner: nobody's temporary table
-- must stand in for one of theirs. Unless pg_temp is named last, it is searched
-- first.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- +goose StatementBegin
-- As in 0006, and an upstream is kept as long as a task that depends on it lives,
-- or is a dead letter that may be requeued: its handler is told how it ended.
CREATE OR REPLACE FUNCTION penstock_removable() RETURNS text
LANGUAGE sql IMMUTABLE AS $fn$
    SELECT $$
        t.state IN ('succeeded', 'failed', 'cancelled') AND t.finished_at < $1 AND t.updated_at < $1
        -- It still answers for an idempotency key.
        AND (t.idempotency_key IS NULL OR NOT EXISTS (
            SELECT FROM idempotency_keys k WHERE k.scope = t.idempotency_scope AND k.key = t.idempotency_key AND k.task_id = t.id))
        -- A task depends on it that lives or may be requeued.
        AND (NOT t.has_dependants OR NOT EXISTS (
            SELECT FROM task_dependencies e JOIN tasks d ON d.id = e.task_id
            WHERE e.upstream_id = t.id AND (d.state NOT IN ('succeeded', 'failed', 'cancelled')
                OR d.state = 'failed' AND EXISTS (SELECT FROM dlq_items i WHERE i.task_id = d.id AND i.status <> 'expired'))))
        AND (t.state = 'succeeded' OR (
            -- Its dead letter is its history. The id of a named task can be used
            -- again, and would find the dead letter of the first.
            NOT EXISTS (SELECT FROM dlq_items d WHERE d.task_id = t.id
                AND (d.status <> 'expired' OR t.id >= 'ff000000-0000-0000-0000-000000000000'))
            -- Its entry may still be fetched.
            AND NOT EXISTS (SELECT FROM tombstones b WHERE b.task_id = t.id)))
    $$
$fn$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Removes those of the tasks that are finished, and to which nothing has
-- happened for longer than keep (at least 48 hours), with their events and
-- dependencies, and returns how many. Tasks that must be kept, and those that
-- somebody has locked, are passed over. Error 55P03 if another transaction is
-- removing tasks.
CREATE OR REPLACE FUNCTION penstock_remove_tasks(ids uuid[], keep interval) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER STRICT SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
DECLARE
    before timestamptz := now() - greatest(keep, interval '48 hours');
    gone   uuid[];
    newest xid8;
BEGIN
    IF cardinality(ids) > 5000 THEN
        RAISE EXCEPTION 'penstock_remove_tasks: at most 5000 tasks at once';
    END IF;
    IF NOT pg_try_advisory_xact_lock(5077002) THEN
        RAISE lock_not_available USING MESSAGE = 'another transaction is removing tasks';
    END IF;
    -- A dependant that was stored meanwhile has moved updated_at, which is looked
    -- at again under the lock.
    EXECUTE format('SELECT array_agg(x.id) FROM (
        SELECT t.id FROM (SELECT DISTINCT unnest($2) AS id) u JOIN tasks t ON t.id = u.id WHERE %s
        ORDER BY t.id FOR UPDATE OF t SKIP LOCKED) x', penstock_removable()) INTO gone USING before, ids;
    IF gone IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE dlq_requeues SET task_removed_at = now() WHERE task_id = ANY(gone);
    UPDATE dlq_items SET task_removed_at = now() WHERE task_id = ANY(gone);
    DELETE FROM task_dependencies e USING unnest(gone) u(id) WHERE e.task_id = u.id;
    DELETE FROM task_dependencies e USING unnest(gone) u(id) WHERE e.upstream_id = u.id;
    DELETE FROM task_clones c USING unnest(gone) u(id) WHERE c.task_id = u.id;
    -- What was decided about a named task must not answer for the next of its name.
    DELETE FROM approvals a USING unnest(gone) u(id) WHERE a.task_id = u.id AND a.status <> 'pending';
    WITH removed AS (DELETE FROM event_log e USING unnest(gone) u(id) WHERE e.task_id = u.id RETURNING e.xid)
    SELECT r.xid INTO newest FROM removed r ORDER BY r.xid DESC LIMIT 1;
    DELETE FROM tasks t USING unnest(gone) u(id) WHERE t.id = u.id;
    UPDATE event_horizon SET xid = newest WHERE xid < newest;
    RETURN cardinality(gone);
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Drops the partitions of tasks and event_log of a day that has been over for
-- longer than keep (at least 48 hours), if every task in them may be removed,
-- with the tasks' dependencies, and returns how many there were; null if the day
-- must be kept. Whoever uses the tables waits for it no longer than about 0.2 s:
-- then it gives up, with error 55P03, and can be called again.
CREATE OR REPLACE FUNCTION penstock_drop_day(day date, keep interval) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER STRICT SET search_path FROM CURRENT SET lock_timeout = '3s' SET enable_seqscan = on AS $$
DECLARE
    before     timestamptz := now() - greatest(keep, interval '48 hours');
    -- Partitions only: by its name alone, a temporary table or view of the
    -- caller's would be found, and its code would run as the owner.
    day_tasks  regclass := (SELECT c.oid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'tasks'::regclass AND c.relkind = 'r' AND c.relname = 'tasks_' || to_char(day, 'YYYYMMDD'));
    day_events regclass := (SELECT c.oid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'event_log'::regclass AND c.relkind = 'r' AND c.relname = 'event_log_' || to_char(day, 'YYYYMMDD'));
    first_id   uuid := penstock_uuid_floor(day::timestamp AT TIME ZONE 'UTC');
    next_id    uuid := penstock_uuid_floor((day + 1)::timestamp AT TIME ZONE 'UTC');
    total      bigint;
    kept       bigint;
    newest     xid8;
    now_newest xid8;
    alive      boolean;
BEGIN
    -- Without one of them, rows of the day are in the default partition.
    IF day_tasks IS NULL OR day_events IS NULL OR (day + 1)::timestamp AT TIME ZONE 'UTC' > before THEN
        RETURN NULL;
    END IF;
    IF NOT pg_try_advisory_xact_lock(5077002) THEN
        RAISE lock_not_available USING MESSAGE = 'another transaction is removing tasks';
    END IF;
    -- What takes long comes before the locks. Nothing that is true now becomes
    -- false, but that a new task may depend on one of these: no task gets an id of
    -- that day any more, none of these moves on.
    EXECUTE format('SELECT EXISTS (SELECT FROM %s t WHERE t.state NOT IN (''succeeded'', ''failed'', ''cancelled''))', day_tasks) INTO alive;
    IF alive THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT count(*), count(*) FILTER (WHERE (%s) IS NOT TRUE) FROM %s t', penstock_removable(), day_tasks) INTO total, kept USING before;
    IF kept > 0 THEN
        RETURN NULL;
    END IF;
    EXECUTE format('UPDATE dlq_requeues r SET task_removed_at = now() FROM %s t WHERE t.origin_dlq_id IS NOT NULL AND r.task_id = t.id', day_tasks);
    EXECUTE format('UPDATE dlq_items d SET task_removed_at = now() FROM %s t WHERE t.state <> ''succeeded'' AND d.task_id = t.id', day_tasks);
    PERFORM set_config('enable_seqscan', 'off', true);
    DELETE FROM task_dependencies e WHERE e.task_id >= first_id AND e.task_id < next_id;
    -- Not those of a task that was stored meanwhile: they are found below.
    DELETE FROM task_dependencies e WHERE e.upstream_id >= first_id AND e.upstream_id < next_id
        AND NOT EXISTS (SELECT FROM tasks d WHERE d.id = e.task_id AND (d.state NOT IN ('succeeded', 'failed', 'cancelled')
            OR d.state = 'failed' AND EXISTS (SELECT FROM dlq_items i WHERE i.task_id = d.id AND i.status <> 'expired')));
    DELETE FROM task_clones c WHERE c.task_id >= first_id AND c.task_id < next_id;
    EXECUTE format('SELECT e.xid FROM %s e ORDER BY e.xid DESC LIMIT 1', day_events) INTO newest;
    UPDATE event_horizon SET xid = newest WHERE xid < newest;
    -- No partition is made meanwhile, and none is vacuumed: an autovacuum gives
    -- way only to who has waited for a second. The pipeline does not notice.
    PERFORM pg_advisory_xact_lock(5077001);
    EXECUTE format('LOCK TABLE ONLY %s, ONLY %s, ONLY tasks_default, ONLY event_log_default IN SHARE UPDATE EXCLUSIVE MODE', day_tasks, day_events);
    -- From here on it waits. In the order in which it uses the tables.
    PERFORM set_config('lock_timeout', '100ms', true);
    LOCK TABLE ONLY tasks IN ACCESS EXCLUSIVE MODE;
    LOCK TABLE ONLY event_log IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('SELECT EXISTS (SELECT FROM %s t WHERE t.state NOT IN (''succeeded'', ''failed'', ''cancelled''))', day_tasks) INTO alive;
    EXECUTE format('SELECT e.xid FROM %s e ORDER BY e.xid DESC LIMIT 1', day_events) INTO now_newest;
    alive := alive OR EXISTS (SELECT FROM task_dependencies e WHERE e.upstream_id >= first_id AND e.upstream_id < next_id);
    IF alive OR now_newest IS DISTINCT FROM newest THEN
        RAISE lock_not_available USING MESSAGE = 'the day was written to just now';
    END IF;
    EXECUTE format('DROP TABLE %s, %s', day_tasks, day_events);
    RETURN total;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- The functions as 0006 has them: these name tables that go.
-- The functions run with the rights of their owner: nobody's temporary table
-- must stand in for one of theirs.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- +goose StatementBegin
-- What retention may remove: the condition on a row t of tasks, with $1 for the
-- time before which nothing must have happened to it since. One place for all
-- that keeps a task.
CREATE OR REPLACE FUNCTION penstock_removable() RETURNS text
LANGUAGE sql IMMUTABLE AS $fn$
    SELECT $$
        t.state IN ('succeeded', 'failed', 'cancelled') AND t.finished_at < $1 AND t.updated_at < $1
        -- It still answers for an idempotency key.
        AND (t.idempotency_key IS NULL OR NOT EXISTS (
            SELECT FROM idempotency_keys k WHERE k.scope = t.idempotency_scope AND k.key = t.idempotency_key AND k.task_id = t.id))
        AND (t.state = 'succeeded' OR (
            -- Its dead letter is its history. The id of a named task can be used
            -- again, and would find the dead letter of the first.
            NOT EXISTS (SELECT FROM dlq_items d WHERE d.task_id = t.id
                AND (d.status <> 'expired' OR t.id >= 'ff000000-0000-0000-0000-000000000000'))
            -- Its entry may still be fetched.
            AND NOT EXISTS (SELECT FROM tombstones b WHERE b.task_id = t.id)))
    $$
$fn$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Removes those of the tasks that are finished, and to which nothing has
-- happened for longer than keep (at least 48 hours), with their events, and
-- returns how many. Tasks that must be kept, and those that somebody has locked,
-- are passed over. Error 55P03 if another transaction is removing tasks.
CREATE OR REPLACE FUNCTION penstock_remove_tasks(ids uuid[], keep interval) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER STRICT SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
DECLARE
    before timestamptz := now() - greatest(keep, interval '48 hours');
    gone   uuid[];
    newest xid8;
BEGIN
    IF cardinality(ids) > 5000 THEN
        RAISE EXCEPTION 'penstock_remove_tasks: at most 5000 tasks at once';
    END IF;
    IF NOT pg_try_advisory_xact_lock(5077002) THEN
        RAISE lock_not_available USING MESSAGE = 'another transaction is removing tasks';
    END IF;
    EXECUTE format('SELECT array_agg(x.id) FROM (
        SELECT t.id FROM (SELECT DISTINCT unnest($2) AS id) u JOIN tasks t ON t.id = u.id WHERE %s
        ORDER BY t.id FOR UPDATE OF t SKIP LOCKED) x', penstock_removable()) INTO gone USING before, ids;
    IF gone IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE dlq_requeues SET task_removed_at = now() WHERE task_id = ANY(gone);
    UPDATE dlq_items SET task_removed_at = now() WHERE task_id = ANY(gone);
    WITH removed AS (DELETE FROM event_log e USING unnest(gone) u(id) WHERE e.task_id = u.id RETURNING e.xid)
    SELECT r.xid INTO newest FROM removed r ORDER BY r.xid DESC LIMIT 1;
    DELETE FROM tasks t USING unnest(gone) u(id) WHERE t.id = u.id;
    UPDATE event_horizon SET xid = newest WHERE xid < newest;
    RETURN cardinality(gone);
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Drops the partitions of tasks and event_log of a day that has been over for
-- longer than keep (at least 48 hours), if every task in them may be removed,
-- and returns how many there were; null if the day must be kept. Whoever uses
-- the tables waits for it no longer than about 0.2 s: then it gives up, with
-- error 55P03, and can be called again.
CREATE OR REPLACE FUNCTION penstock_drop_day(day date, keep interval) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER STRICT SET search_path FROM CURRENT SET lock_timeout = '3s' SET enable_seqscan = on AS $$
DECLARE
    before     timestamptz := now() - greatest(keep, interval '48 hours');
    -- Partitions only: by its name alone, a temporary table or view of the
    -- caller's would be found, and its code would run as the owner.
    day_tasks  regclass := (SELECT c.oid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'tasks'::regclass AND c.relkind = 'r' AND c.relname = 'tasks_' || to_char(day, 'YYYYMMDD'));
    day_events regclass := (SELECT c.oid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'event_log'::regclass AND c.relkind = 'r' AND c.relname = 'event_log_' || to_char(day, 'YYYYMMDD'));
    total      bigint;
    kept       bigint;
    newest     xid8;
    now_newest xid8;
    alive      boolean;
BEGIN
    -- Without one of them, rows of the day are in the default partition.
    IF day_tasks IS NULL OR day_events IS NULL OR (day + 1)::timestamp AT TIME ZONE 'UTC' > before THEN
        RETURN NULL;
    END IF;
    IF NOT pg_try_advisory_xact_lock(5077002) THEN
        RAISE lock_not_available USING MESSAGE = 'another transaction is removing tasks';
    END IF;
    -- What takes long comes before the locks. Nothing that is true now becomes
    -- false: no task gets an id of that day any more, none of these moves on.
    EXECUTE format('SELECT EXISTS (SELECT FROM %s t WHERE t.state NOT IN (''succeeded'', ''failed'', ''cancelled''))', day_tasks) INTO alive;
    IF alive THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT count(*), count(*) FILTER (WHERE (%s) IS NOT TRUE) FROM %s t', penstock_removable(), day_tasks) INTO total, kept USING before;
    IF kept > 0 THEN
        RETURN NULL;
    END IF;
    EXECUTE format('UPDATE dlq_requeues r SET task_removed_at = now() FROM %s t WHERE t.origin_dlq_id IS NOT NULL AND r.task_id = t.id', day_tasks);
    EXECUTE format('UPDATE dlq_items d SET task_removed_at = now() FROM %s t WHERE t.state <> ''succeeded'' AND d.task_id = t.id', day_tasks);
    PERFORM set_config('enable_seqscan', 'off', true);
    EXECUTE format('SELECT e.xid FROM %s e ORDER BY e.xid DESC LIMIT 1', day_events) INTO newest;
    UPDATE event_horizon SET xid = newest WHERE xid < newest;
    -- No partition is made meanwhile, and none is vacuumed: an autovacuum gives
    -- way only to who has waited for a second. The pipeline does not notice.
    PERFORM pg_advisory_xact_lock(5077001);
    EXECUTE format('LOCK TABLE ONLY %s, ONLY %s, ONLY tasks_default, ONLY event_log_default IN SHARE UPDATE EXCLUSIVE MODE', day_tasks, day_events);
    -- From here on it waits. In the order in which it uses the tables.
    PERFORM set_config('lock_timeout', '100ms', true);
    LOCK TABLE ONLY tasks IN ACCESS EXCLUSIVE MODE;
    LOCK TABLE ONLY event_log IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('SELECT EXISTS (SELECT FROM %s t WHERE t.state NOT IN (''succeeded'', ''failed'', ''cancelled''))', day_tasks) INTO alive;
    EXECUTE format('SELECT e.xid FROM %s e ORDER BY e.xid DESC LIMIT 1', day_events) INTO now_newest;
    IF alive OR now_newest IS DISTINCT FROM newest THEN
        RAISE lock_not_available USING MESSAGE = 'the day was written to just now';
    END IF;
    EXECUTE format('DROP TABLE %s, %s', day_tasks, day_events);
    RETURN total;
END
$$;
-- +goose StatementEnd

DROP INDEX dependency_settlements_next, tasks_depending;
DROP TABLE task_clones, task_dependencies;
