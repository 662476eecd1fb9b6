package store_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/testkit"
)

// bait makes temporary relations of the application's that bear the names of a
// day's partitions. Whoever reads them, or fills them, runs pg_temp.evil.
func bait(t *testing.T, c *pgx.Conn, day string) {
	t.Helper()
	exec(t, c, `CREATE FUNCTION pg_temp.evil() RETURNS text LANGUAGE plpgsql AS $$
		BEGIN
			EXECUTE 'GRANT DELETE ON public.event_log TO penstock_app';
			RETURN 'pending';
		EXCEPTION WHEN insufficient_privilege THEN
			RETURN 'pending';
		END $$`)
	exec(t, c, "CREATE TEMP TABLE event_log_"+day+" (xid xid8)")
	exec(t, c, "CREATE TEMP VIEW tasks_finished_"+day+` AS SELECT pg_temp.evil() AS state, gen_random_uuid() AS id, now() AS finished_at, now() AS updated_at,
		NULL::text AS idempotency_key, NULL::text AS idempotency_scope, NULL::uuid AS origin_dlq_id`)
	exec(t, c, "GRANT SELECT ON pg_temp.event_log_"+day+", pg_temp.tasks_finished_"+day+" TO PUBLIC")
}

// harmless fails the test if the application got a right from a function that
// runs as the owner of the schema.
func harmless(t *testing.T, c *pgx.Conn) {
	t.Helper()
	if get[bool](t, c, "SELECT has_table_privilege('penstock_app', 'public.event_log', 'DELETE')") {
		t.Error("the application's code ran as the owner of the schema: it may delete events now")
	}
	_, err := c.Exec(t.Context(), "DELETE FROM public.event_log")
	if code, _ := sqlState(err); code != "42501" {
		t.Errorf("DELETE on event_log: %v, want permission denied", err)
	}
}

// TestDropDayPassesOverTemporaryRelations: only partitions are read and dropped.
func TestDropDayPassesOverTemporaryRelations(t *testing.T) {
	t.Parallel()
	c := connect(t, testkit.Database(t), "penstock_app", nil)
	bait(t, c, "20200101_20200102")
	check := func() *int32 {
		t.Helper()
		return get[*int32](t, c, "SELECT penstock_check_days('2020-01-01', '2020-01-02', '48 hours', 100)")
	}
	if n := check(); n != nil {
		t.Errorf("a day without partitions may be dropped: %d", *n)
	}
	if n := get[*int64](t, c, "SELECT penstock_drop_days('2020-01-01', '2020-01-02')"); n != nil {
		t.Errorf("dropped a day without partitions, with %d tasks", *n)
	}
	harmless(t, c)
	if n := get[int](t, c, "SELECT count(*) FROM pg_class WHERE relname IN ('tasks_finished_20200101_20200102', 'event_log_20200101_20200102')"); n != 2 {
		t.Errorf("%d of the 2 temporary relations are left", n)
	}
	// With partitions of that day it takes these.
	exec(t, c, "SELECT penstock_ensure_partition(parent, '2020-01-01', 1) FROM (VALUES ('tasks_finished'), ('event_log')) p(parent)")
	if n := check(); n == nil || *n != 0 {
		t.Errorf("look at an empty day: %v, want 0", n)
	}
	if n := get[*int64](t, c, "SELECT penstock_drop_days('2020-01-01', '2020-01-02')"); n == nil || *n != 0 {
		t.Errorf("drop of an empty day: %v, want 0", n)
	}
	harmless(t, c)
	if n := get[int](t, c, "SELECT count(*) FROM pg_class WHERE relname IN ('tasks_finished_20200101_20200102', 'event_log_20200101_20200102') AND relpersistence = 't'"); n != 2 {
		t.Errorf("%d of the 2 temporary relations are left", n)
	}
}

// TestRemoveTasksPassesOverTemporaryRelations: temporary relations don't stand
// in for the tables of the schema.
func TestRemoveTasksPassesOverTemporaryRelations(t *testing.T) {
	t.Parallel()
	c := connect(t, testkit.Database(t), "penstock_app", nil)
	bait(t, c, "20200101_20200102")
	for _, table := range []string{"tasks", "tasks_finished", "tombstones", "dlq_items", "idempotency_keys"} {
		exec(t, c, "CREATE TEMP VIEW "+table+" AS SELECT * FROM public."+table+" WHERE pg_temp.evil() IS NOT NULL")
		exec(t, c, "GRANT SELECT ON pg_temp."+table+" TO PUBLIC")
	}
	if n := get[int](t, c, "SELECT penstock_remove_tasks(ARRAY[gen_random_uuid()], '48 hours')"); n != 0 {
		t.Errorf("removed %d tasks that don't exist", n)
	}
	harmless(t, c)
}

// TestEnsurePartitionsPassesOverTemporaryRelations: what is made are partitions
// of the tables of the schema, whatever temporary relations there are.
func TestEnsurePartitionsPassesOverTemporaryRelations(t *testing.T) {
	t.Parallel()
	c := connect(t, testkit.Database(t), "penstock_app", nil)
	bait(t, c, "20200101_20200102")
	for table, key := range map[string]string{"tasks_finished": "id", "event_log": "task_id"} {
		exec(t, c, "CREATE TEMP TABLE "+table+" ("+key+" uuid, bait text DEFAULT pg_temp.evil() CHECK (pg_temp.evil() IS NOT NULL)) PARTITION BY RANGE ("+key+")")
	}
	for _, day := range []string{"2020-01-01", "2020-01-02"} {
		if n := get[int](t, c, "SELECT sum(penstock_ensure_partition(parent, $1::text::date, 1)) FROM (VALUES ('tasks_finished'), ('event_log')) p(parent)", day); n != 2 {
			t.Errorf("%s: made %d partitions, want 2", day, n)
		}
	}
	harmless(t, c)
	if n := get[int](t, c, `SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent IN ('public.tasks_finished'::regclass, 'public.event_log'::regclass) AND c.relname ~ '_2020010[12]_2020010[23]$' AND c.relpersistence = 'p'`); n != 4 {
		t.Errorf("%d partitions, want 4", n)
	}
}

// TestRemovedKeysAreNoted: the transaction that removes an idempotency key notes it,
// whatever the application puts in the way; one that gives back its own key does not.
func TestRemovedKeysAreNoted(t *testing.T) {
	t.Parallel()
	c := connect(t, testkit.Database(t), "penstock_app", nil)
	noted := func() int {
		t.Helper()
		return get[int](t, c, "SELECT count(*) FROM public.key_reuse WHERE since IS NOT NULL")
	}
	exec(t, c, "CREATE TEMP TABLE key_reuse (one boolean, since timestamptz)")
	exec(t, c, "CREATE TEMP TABLE removed (created_at timestamptz)")
	const take = "INSERT INTO idempotency_keys (scope, key, task_id) VALUES ('s', 'k', gen_random_uuid())"
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{take, "DELETE FROM idempotency_keys"} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, c, "DELETE FROM idempotency_keys") // of none
	if noted() != 0 {
		t.Error("a key that was given back counts as used")
	}
	exec(t, c, take)
	exec(t, c, "DELETE FROM idempotency_keys")
	if noted() != 1 {
		t.Error("a key that was removed is not noted")
	}
}
