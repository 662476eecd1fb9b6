package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/store"
)

func TestSessionsPinTheirSettings(t *testing.T) {
	t.Parallel()
	url := devtest.Postgres(t)
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	cfg := c.Config()
	hostile := map[string]string{
		"default_transaction_isolation": "'serializable'", "search_path": "'pg_temp'", "timezone": "'Asia/Tokyo'", "client_encoding": "'LATIN1'",
		"statement_timeout": "'1ms'", "lock_timeout": "'1ms'", "datestyle": "'German'", "plan_cache_mode": "'auto'", "enable_indexscan": "off",
	}
	for name, value := range hostile {
		if _, err := c.Exec(t.Context(), "ALTER DATABASE "+pgx.Identifier{cfg.Database}.Sanitize()+" SET "+name+" = "+value); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), store.Options{URL: url, MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, want := range map[string]string{
		"transaction_isolation": "read committed", "search_path": "public", "timezone": "UTC", "client_encoding": "UTF8",
		"statement_timeout": "1min", "lock_timeout": "0", "datestyle": "ISO, MDY", "plan_cache_mode": "force_generic_plan", "enable_indexscan": "on",
	} {
		if got, err := s.Setting(t.Context(), name); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
}

// Who has the tables in a schema of their own says so in the URL, either way.
func TestSearchPathOfTheURL(t *testing.T) {
	t.Parallel()
	url := devtest.Postgres(t)
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	if _, err := c.Exec(t.Context(), "CREATE SCHEMA pen"); err != nil {
		t.Fatal(err)
	}
	for _, params := range []string{"&search_path=pen", "&options=-csearch_path%3Dpen"} {
		if _, err := store.Migrate(t.Context(), url+params); err != nil {
			t.Fatal(err)
		}
		s, err := store.Open(t.Context(), store.Options{URL: url + params, MaxConns: 2})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Setting(t.Context(), "search_path"); err != nil || got != "pen" {
			t.Errorf("%s: search_path is %q, %v", params, got, err)
		}
		s.Close()
	}
}

// What PgBouncer 1.18 answers in transaction mode, and a connection whose settings
// it ignored (ignore_startup_parameters), are refused in words.
func TestPoolersAreRefused(t *testing.T) {
	t.Parallel()
	for _, e := range []*pgconn.PgError{
		{Code: "08P01", Message: "unsupported startup parameter: plan_cache_mode"}, {Code: "42P05", Message: `prepared statement "stmtcache_1" already exists`},
	} {
		if err := store.SessionError(fmt.Errorf("connect: %w", e)); !store.Unfit(err) || !strings.Contains(err.Error(), "PgBouncer") {
			t.Errorf("%s: %v", e.Message, err)
		}
	}
	if err := store.SessionError(&pgconn.PgError{Code: "42P05", Message: "another statement"}); store.Unfit(err) {
		t.Errorf("another error: %v", err)
	}
	c, err := pgx.Connect(t.Context(), devtest.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	if err := store.CheckSession(t.Context(), c); !store.Unfit(err) || !strings.Contains(err.Error(), "plan_cache_mode = auto") {
		t.Errorf("without its settings: %v", err)
	}
}

func TestADatabaseOfAnotherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	url := devtest.Postgres(t)
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	name := c.Config().Database + "_latin1"
	if _, err := c.Exec(t.Context(), "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = c.Exec(t.Context(), "DROP DATABASE "+pgx.Identifier{name}.Sanitize()) }()
	latin1 := strings.Replace(url, c.Config().Database, name, 1)
	if _, err := store.Migrate(t.Context(), latin1); !store.Unfit(err) || !strings.Contains(err.Error(), "encoding is LATIN1") {
		t.Errorf("migrate: %v", err)
	}
	if _, err := store.Open(t.Context(), store.Options{URL: latin1, MaxConns: 2}); !store.Unfit(err) || !strings.Contains(err.Error(), "encoding is LATIN1") {
		t.Errorf("open: %v", err)
	}
}
