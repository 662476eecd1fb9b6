-- +goose Up

-- Runs with the rights of its owner: see 0010.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- +goose StatementBegin
-- Makes the daily partition of tasks or event_log of a day, and returns 1, or 0
-- if there is one. Runs as its owner, so that the application role needs no
-- right to create tables. A day for which the default partition already holds
-- rows is left to the default partition.
--
-- To attach one locks the default partition of the table against everybody. Call
-- it for one table a transaction: whoever reads the other first and this one
-- then would wait for us, and we for them. All others wait behind us, so we wait
-- for 0.2 s at most (error 55P03).
CREATE FUNCTION penstock_ensure_partition(parent text, day date) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    part text := parent || '_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF parent NOT IN ('tasks', 'event_log') THEN
        RAISE EXCEPTION 'penstock_ensure_partition: % has no partitions by day', parent;
    END IF;
    -- In the schema of the parent: a temporary table of that name is none.
    IF EXISTS (SELECT FROM pg_class c WHERE c.relname = part
            AND c.relnamespace = (SELECT p.relnamespace FROM pg_class p WHERE p.oid = parent::regclass)) THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(5077001);
    PERFORM set_config('lock_timeout', '200ms', true);
    IF EXISTS (SELECT FROM pg_class c WHERE c.relname = part
            AND c.relnamespace = (SELECT p.relnamespace FROM pg_class p WHERE p.oid = parent::regclass)) THEN
        RETURN 0; -- made by whoever had the lock
    END IF;
    BEGIN
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED)', part, parent);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part,
            penstock_uuid_floor(day::timestamp AT TIME ZONE 'UTC'),
            penstock_uuid_floor((day + 1)::timestamp AT TIME ZONE 'UTC'));
    EXCEPTION WHEN check_violation THEN
        RAISE WARNING 'partition % not made: the default partition already has rows of that day', part;
        RETURN 0;
    END;
    RETURN 1;
END
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION penstock_ensure_partition(text, date) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock_ensure_partition(text, date) TO penstock_app;

-- +goose Down
DROP FUNCTION penstock_ensure_partition(text, date);
