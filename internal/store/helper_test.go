package store_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// connect opens a connection; role may be empty. Warnings of the server are
// appended to notices.
func connect(t *testing.T, url, role string, notices *[]string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if notices != nil {
		cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { *notices = append(*notices, n.Message) }
	}
	c, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	if role != "" {
		exec(t, c, "SET ROLE "+role)
	}
	return c
}

func exec(t *testing.T, c *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func get[T any](t *testing.T, c *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := c.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// sqlState returns the SQLSTATE of err and the constraint it names.
func sqlState(err error) (code, constraint string) {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code, e.ConstraintName
	}
	return "", ""
}
