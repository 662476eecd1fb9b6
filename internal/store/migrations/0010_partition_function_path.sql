-- +goose Up

-- The function runs with the rights of its owner: nobody's temporary table must
-- stand in for one of its own. Unless pg_temp is named last, it is searched first.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- +goose StatementBegin
-- Makes the daily partitions of tasks and event_log from one day to another,
-- both included, and returns how many it made. Runs as its owner, so that the
-- application role needs no right to create tables. A day for which the
-- default partition already holds rows is left to the default partition.
CREATE OR REPLACE FUNCTION penstock_ensure_partitions(from_day date, to_day date) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    parent text;
    part   text;
    day    date;
    made   int := 0;
BEGIN
    IF to_day - from_day > 400 THEN
        RAISE EXCEPTION 'penstock_ensure_partitions: at most 400 days at once';
    END IF;
    PERFORM pg_advisory_xact_lock(5077001);
    PERFORM set_config('lock_timeout', '3s', true);
    day := from_day;
    WHILE day <= to_day LOOP
        FOREACH parent IN ARRAY ARRAY['tasks', 'event_log'] LOOP
            part := parent || '_' || to_char(day, 'YYYYMMDD');
            -- In the schema of the parent: a temporary table of that name is none.
            CONTINUE WHEN EXISTS (SELECT FROM pg_class c WHERE c.relname = part
                AND c.relnamespace = (SELECT p.relnamespace FROM pg_class p WHERE p.oid = parent::regclass));
            BEGIN
                EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED)', part, parent);
                EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part,
                    penstock_uuid_floor(day::timestamp AT TIME ZONE 'UTC'),
                    penstock_uuid_floor((day + 1)::timestamp AT TIME ZONE 'UTC'));
                made := made + 1;
            EXCEPTION WHEN check_violation THEN
                RAISE WARNING 'partition % not made: the default partition already has rows of that day', part;
            END;
        END LOOP;
        day := day + 1;
    END LOOP;
    RETURN made;
END
$$;
-- +goose StatementEnd

-- Every table that these name is there by now: a temporary one can't stand in
-- for one that is still missing.
GRANT EXECUTE ON FUNCTION penstock_remove_tasks(uuid[], interval), penstock_drop_day(date, interval) TO penstock_app;

-- +goose Down
-- penstock_ensure_partitions stays as it is: it does the same as before.
REVOKE EXECUTE ON FUNCTION penstock_remove_tasks(uuid[], interval), penstock_drop_day(date, interval) FROM penstock_app;
