package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib" // goose needs database/sql
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// MigrationStatus is one migration and whether it has been applied.
type MigrationStatus struct {
	Version   int64     `json:"version"`
	Name      string    `json:"name"`
	Applied   bool      `json:"applied"`
	AppliedAt time.Time `json:"applied_at,omitzero"`
}

// lockRetries × 1 s is how long a migrator waits for another one.
const lockRetries = 120

func withProvider(ctx context.Context, url string, fn func(*goose.Provider) error) error {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("postgres.url: %w", err)
	}
	pin(cfg.RuntimeParams, common)
	db := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(func(ctx context.Context, c *pgx.Conn) error {
		return checkSession(ctx, c.PgConn(), common)
	}))
	defer func() { _ = db.Close() }()
	if err := db.PingContext(ctx); err != nil {
		return fmt.Errorf("connect to postgres: %w", sessionError(err))
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, lockRetries))
	if err != nil {
		return fmt.Errorf("migration lock: %w", err)
	}
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("embedded migrations: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, dir, goose.WithSessionLocker(locker))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if err := knownSchema(ctx, db, p); err != nil {
		return err
	}
	return fn(p)
}

// ErrForeignSchema means that the database has migrations which this program does
// not know.
var ErrForeignSchema = errors.New("the database has a schema that this program does not know")

// knownSchema refuses, before anything is changed, a database of a later release,
// or of before the first one, whose migrations have nothing in common with ours.
func knownSchema(ctx context.Context, db *sql.DB, p *goose.Provider) error {
	var exists, first bool
	if err := db.QueryRowContext(ctx, "SELECT to_regclass('goose_db_version') IS NOT NULL, to_regclass('tasks') IS NULL OR to_regclass('tasks_live') IS NOT NULL").Scan(&exists, &first); err != nil {
		return fmt.Errorf("look for the schema: %w", err)
	}
	if !first {
		return fmt.Errorf("%w: it is of before the first release, and can't be migrated; create an empty database and set postgres.url to it", ErrForeignSchema)
	}
	if !exists {
		return nil
	}
	var newest int64
	if err := db.QueryRowContext(ctx, "SELECT COALESCE(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&newest); err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	sources := p.ListSources()
	if known := sources[len(sources)-1].Version; newest > known {
		return fmt.Errorf("%w: it is of migration %d, the last one here is %d; use the release that it was migrated by, or a later one", ErrForeignSchema, newest, known)
	}
	return nil
}

// Migrate applies what is pending and returns the names of what it applied.
// Any number of processes may call it at once: one migrates, the others wait.
// The login role of url needs the right to create tables and, the first time,
// roles.
func Migrate(ctx context.Context, url string) (applied []string, err error) {
	err = withProvider(ctx, url, func(p *goose.Provider) error {
		rs, err := p.Up(ctx)
		for _, r := range rs {
			applied = append(applied, r.Source.Path)
		}
		if HasCode(err, "42501") {
			return fmt.Errorf("migrate: %w (the login role must own the database and be able to create roles; or let a superuser run CREATE ROLE penstock_app NOLOGIN; GRANT penstock_app TO the login role)", err)
		}
		if err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
		return nil
	})
	return applied, err
}

// Migrations lists every migration this program knows and whether the
// database has it.
func Migrations(ctx context.Context, url string) (out []MigrationStatus, err error) {
	err = withProvider(ctx, url, func(p *goose.Provider) error {
		st, err := p.Status(ctx)
		if err != nil {
			return fmt.Errorf("migration status: %w", err)
		}
		for _, m := range st {
			out = append(out, MigrationStatus{
				Version: m.Source.Version, Name: m.Source.Path,
				Applied: m.State == goose.StateApplied, AppliedAt: m.AppliedAt,
			})
		}
		return nil
	})
	return out, err
}

// ErrPending means that the database lacks migrations of this program.
var ErrPending = errors.New("the database schema is not up to date: run `orchestrator migrate up`, or set postgres.auto_migrate")

// CheckMigrated returns ErrPending unless every migration is applied.
func CheckMigrated(ctx context.Context, url string) error {
	st, err := Migrations(ctx, url)
	if err != nil {
		return err
	}
	for _, m := range st {
		if !m.Applied {
			return ErrPending
		}
	}
	return nil
}

// MigrationFiles returns the embedded migrations, for tools that need their
// text.
func MigrationFiles() fs.FS { return migrations }
