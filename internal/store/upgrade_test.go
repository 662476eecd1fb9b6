package store_test

import (
	"database/sql"
	"io/fs"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/store"
)

// TestUpgradeWithTasks: a database with tasks is upgraded in steps; partitions
// can be made after each of them, and no constraint stays unchecked.
func TestUpgradeWithTasks(t *testing.T) {
	t.Parallel()
	url := devtest.Postgres(t)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	dir, err := fs.Sub(store.MigrationFiles(), "migrations")
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	c := connect(t, url, "", nil)
	for _, tenant := range []string{"acme", "acme", "default"} {
		if _, err := c.Exec(t.Context(), `INSERT INTO tasks (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, idempotency_scope, given, trace_id, payload, due_at)
			VALUES (gen_random_uuid(), $1, 'default', 't', 'pending', 0, 'delay', 60000, $1, 0, 'trace', '{}', now() + interval '1 hour')`, tenant); err != nil {
			t.Fatal(err)
		}
	}
	const unchecked = "SELECT count(*) FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid WHERE c.contype = 'c' AND NOT c.convalidated AND t.relname LIKE 'tasks%'"
	for version := int64(11); version <= 19; version++ {
		if _, err := p.UpTo(t.Context(), version); err != nil {
			t.Fatal(err)
		}
		if made := get[int](t, c, "SELECT penstock_ensure_partitions(current_date + $1::int, current_date + $1::int)", 100+version); made != 2 {
			t.Errorf("at version %d %d partitions are made, want 2", version, made)
		}
		if n := get[int](t, c, unchecked); n == 0 != (version < 11 || version >= 17) {
			t.Errorf("at version %d %d constraints are not validated", version, n)
		}
	}
	if n := get[int](t, c, "SELECT count(*) FROM tasks WHERE start_at = due_at AND open_dependencies = 0"); n != 3 {
		t.Errorf("%d of 3 tasks know when they start", n)
	}
	if n := get[int](t, c, "SELECT count(*) FROM tenants WHERE name IN ('acme', 'default')"); n != 2 {
		t.Errorf("%d of 2 tenants are known", n)
	}
	// Where there were tasks, keys may have expired: those that are taken from now on are
	// not taken for them.
	if _, err := p.UpTo(t.Context(), 20); err != nil {
		t.Fatal(err)
	}
	if n := get[int](t, c, "SELECT count(*) FROM key_reuse WHERE since IS NOT NULL"); n != 1 {
		t.Error("keys of a database with tasks count as never used before")
	}
	// They hold in every partition, also for what is written before they are checked.
	for _, part := range []string{"tasks_named", "tasks_default", "tasks_" + get[string](t, c, "SELECT to_char(current_date + 111, 'YYYYMMDD')")} {
		if n := get[int](t, c, `SELECT count(*) FROM pg_constraint WHERE conrelid = $1::text::regclass AND convalidated
			AND conname IN ('tasks_open_dependencies_count', 'tasks_on_dependency_failure', 'tasks_open_dependencies', 'tasks_effect_own')`, part); n != 4 {
			t.Errorf("%s has %d of the 4 constraints", part, n)
		}
	}
}
