package store_test

import (
	"database/sql"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/testkit"
)

// TestConcurrentMigrators: eight at once on an empty database; one applies.
func TestConcurrentMigrators(t *testing.T) {
	t.Parallel()
	url := devtest.Postgres(t)
	if err := store.CheckMigrated(t.Context(), url); !errors.Is(err, store.ErrPending) {
		t.Errorf("check of an empty database: %v", err)
	}
	_, err := store.Open(t.Context(), store.Options{URL: url, MaxConns: 1})
	if err == nil || !strings.Contains(err.Error(), "migrate up") {
		t.Errorf("open of an empty database: %v", err)
	}
	files, err := fs.Glob(store.MigrationFiles(), "migrations/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("migrations: %v, %v", files, err)
	}
	var mu sync.Mutex
	total, migrators := 0, 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			applied, err := store.Migrate(t.Context(), url)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("migrate: %v", err)
			}
			if total += len(applied); len(applied) > 0 {
				migrators++
			}
		})
	}
	wg.Wait()
	if total != len(files) || migrators != 1 {
		t.Errorf("%d migrations applied by %d migrators, want %d by one", total, migrators, len(files))
	}
	applied, err := store.Migrate(t.Context(), url)
	if err != nil || len(applied) != 0 {
		t.Errorf("again: %v, %v", applied, err)
	}
	if err := store.CheckMigrated(t.Context(), url); err != nil {
		t.Errorf("check: %v", err)
	}
	st, err := store.Migrations(t.Context(), url)
	if err != nil || len(st) != len(files) || !st[0].Applied || st[0].AppliedAt.IsZero() {
		t.Errorf("status: %v, %v", st, err)
	}
	s, err := store.Open(t.Context(), store.Options{URL: url, Role: "penstock_app", MaxConns: 1})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer s.Close()
	if d := s.Deployment(); d.ID.IsZero() || len(d.Seed) < 16 {
		t.Errorf("deployment %+v", d)
	}
}

// TestMigrateDown: the schema can be taken away and made again.
func TestMigrateDown(t *testing.T) {
	t.Parallel()
	url := devtest.Postgres(t)
	for range 2 {
		if _, err := store.Migrate(t.Context(), url); err != nil {
			t.Fatal(err)
		}
		db, err := sql.Open("pgx", url)
		if err != nil {
			t.Fatal(err)
		}
		dir, err := fs.Sub(store.MigrationFiles(), "migrations")
		if err != nil {
			t.Fatal(err)
		}
		p, err := goose.NewProvider(goose.DialectPostgres, db, dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.DownTo(t.Context(), 0); err != nil {
			t.Fatalf("down: %v", err)
		}
		_ = db.Close()
		c := connect(t, url, "", nil)
		if left := get[int](t, c, "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'S') AND relname NOT LIKE 'goose%'"); left != 0 {
			t.Errorf("%d tables are left", left)
		}
		if left := get[int](t, c, "SELECT count(*) FROM pg_proc WHERE proname LIKE 'penstock%'"); left != 0 {
			t.Errorf("%d functions are left", left)
		}
		if err := store.CheckMigrated(t.Context(), url); !errors.Is(err, store.ErrPending) {
			t.Errorf("check after down: %v", err)
		}
	}
}

// TestForeignSchema: a database of a later release, and one from before the first,
// is refused with what to do, and stays as it is.
func TestForeignSchema(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ sql, want string }{
		"later":  {"INSERT INTO goose_db_version (version_id, is_applied) VALUES (900, true)", "of migration 900"},
		"before": {"ALTER TABLE tasks_live RENAME TO tasks_20260225", "create an empty database"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testkit.Database(t)
			exec(t, connect(t, url, "", nil), c.sql)
			_, err := store.Migrate(t.Context(), url)
			if !errors.Is(err, store.ErrForeignSchema) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("migrate: %v", err)
			}
			if err := store.CheckMigrated(t.Context(), url); !errors.Is(err, store.ErrForeignSchema) {
				t.Errorf("check: %v", err)
			}
		})
	}
}
