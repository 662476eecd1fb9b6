package devtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// prepareLimit bounds the wait for a template, which another process may be
// preparing.
const prepareLimit = 5 * time.Minute

// Postgres creates an empty database on the shared server and returns its URL,
// in a form for pgx.ParseConfig. The database is dropped when the test ends,
// whoever is still connected to it.
func Postgres(t testing.TB) string {
	t.Helper()
	return freshDatabase(t, postgresServer.get(t), "template0")
}

// PostgresTemplate returns the URL of a fresh copy of a database that prepare
// has filled, for example with a migrated schema. prepare gets the URL of an
// empty database and runs once per server and name, even if several processes
// ask at the same time; it must close its connections. The copy is dropped when
// the test ends.
//
// The template stays on the server, so name has to change with what prepare
// does: include a hash of the schema.
func PostgresTemplate(t testing.TB, name string, prepare func(url string) error) string {
	t.Helper()
	base := postgresServer.get(t)
	template := templateName(name)
	if _, known := prepared.Load(base + " " + template); !known {
		ctx, cancel := context.WithTimeout(context.Background(), prepareLimit)
		defer cancel()
		err := withConn(ctx, base, func(conn *pgx.Conn) error {
			return ensureTemplate(ctx, conn, base, template, prepare)
		})
		if err != nil {
			t.Fatalf("devtest: preparing the template database %q: %v", name, err)
		}
		prepared.Store(base+" "+template, true)
	}
	return freshDatabase(t, base, template)
}

// prepared are the templates that this process knows to be there, by server and
// name.
var prepared sync.Map

// ensureTemplate creates the template unless it is complete, under a lock that
// ends with the connection. The template mark is set last and so tells complete
// databases from those whose preparation was cut short.
func ensureTemplate(ctx context.Context, conn *pgx.Conn, base, template string, prepare func(string) error) (err error) {
	complete := func() (done bool, err error) {
		err = conn.QueryRow(ctx,
			"select exists (select from pg_database where datname = $1 and datistemplate)", template).Scan(&done)
		return done, err
	}
	if done, err := complete(); done || err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "select pg_advisory_lock($1)", lockKey(template)); err != nil {
		return fmt.Errorf("waiting for its lock: %w", err)
	}
	if done, err := complete(); done || err != nil {
		return err
	}
	quoted := pgx.Identifier{template}.Sanitize()
	drop := "drop database if exists " + quoted + " with (force)"
	if err := execAll(ctx, conn, drop, "create database "+quoted+" template template0"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, execAll(ctx, conn, drop))
		}
	}()
	target, err := withDatabase(base, template)
	if err != nil {
		return err
	}
	if err := prepare(target); err != nil {
		return fmt.Errorf("its prepare function failed: %w", err)
	}
	// Without connections nothing can get in the way of copying.
	return execAll(ctx, conn,
		"alter database "+quoted+" allow_connections false",
		"select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = '"+template+"'",
		"alter database "+quoted+" is_template true",
	)
}

// freshDatabase copies a template to a database that lives as long as the test.
func freshDatabase(t testing.TB, base, template string) string {
	t.Helper()
	name := "test_" + strings.ToLower(rand.Text())
	quoted := pgx.Identifier{name}.Sanitize()
	// Copying files costs a seventh of copying pages through the log, the default.
	if err := onServer(base, "create database "+quoted+" strategy file_copy template "+pgx.Identifier{template}.Sanitize()); err != nil {
		t.Fatalf("devtest: creating a test database: %v", err)
	}
	t.Cleanup(func() {
		if err := onServer(base, "drop database if exists "+quoted+" with (force)"); err != nil {
			t.Errorf("devtest: dropping the test database: %v", err)
		}
	})
	target, err := withDatabase(base, name)
	if err != nil {
		t.Fatalf("devtest: %v", err)
	}
	return target
}

// administrator is one connection of this process for making and dropping
// databases: hundreds of tests would open two each.
type administrator struct {
	mu   sync.Mutex
	url  string
	conn *pgx.Conn
}

var admin administrator

// onServer runs one statement in the database of url.
func onServer(url, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	admin.mu.Lock()
	defer admin.mu.Unlock()
	if admin.conn != nil && (admin.url != url || admin.conn.IsClosed()) {
		admin.close(ctx)
	}
	if admin.conn == nil {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return fmt.Errorf("connecting to the shared server: %w", err)
		}
		admin.url, admin.conn = url, conn
	}
	return execAll(ctx, admin.conn, sql)
}

func (a *administrator) close(ctx context.Context) {
	if a.conn != nil {
		_ = a.conn.Close(ctx)
		a.conn = nil
	}
}

func withConn(ctx context.Context, url string, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connecting to the shared server: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	return f(conn)
}

func execAll(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// withDatabase returns the server's URL with another database.
func withDatabase(base, name string) (string, error) {
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return "", fmt.Errorf("%s must hold a URL like postgres://user@host:5432/database", PostgresEnv)
	}
	u.Path = "/" + name
	return u.String(), nil
}

// templateName maps a caller's name to a database name, which is limited in
// length, in a way that keeps different names apart.
func templateName(name string) string {
	sum := sha256.Sum256([]byte(name))
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
	return "template_" + readable[:min(len(readable), 30)] + "_" + hex.EncodeToString(sum[:8])
}

// lockKey returns the advisory lock that guards a template.
func lockKey(template string) int64 {
	sum := sha256.Sum256([]byte("penstock devtest " + template))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}
