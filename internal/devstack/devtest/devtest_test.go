package devtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/penstock-dev/penstock/internal/devstack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(Runner{M: m}) }

// patience bounds every wait of a test.
const patience = 60 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func exec1(ctx context.Context, url, sql string) error {
	return withConn(ctx, url, func(conn *pgx.Conn) error { return execAll(ctx, conn, sql) })
}

func count(t *testing.T, url, table string) (n int) {
	t.Helper()
	ctx := testContext(t)
	err := withConn(ctx, url, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select count(*) from "+table).Scan(&n)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPostgresIsolation(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	a, b := Postgres(t), Postgres(t)
	if a == b {
		t.Fatalf("two tests share %s", a)
	}
	for _, url := range []string{a, b} {
		if err := exec1(ctx, url, "create table mine (id int)"); err != nil {
			t.Error(err)
		}
	}
}

func TestPostgresDropsADatabaseInUse(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	var url string
	var left *pgx.Conn
	t.Run("user", func(t *testing.T) {
		url = Postgres(t)
		var err error
		if left, err = pgx.Connect(ctx, url); err != nil {
			t.Fatal(err)
		}
	})
	defer func() { _ = left.Close(ctx) }()
	if err := left.Ping(ctx); err == nil {
		t.Error("the connection outlived its database")
	}
	if err := exec1(ctx, url, "select 1"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("connecting after the test: %v", err)
	}
}

func TestPostgresTemplate(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	name := fmt.Sprintf("Schema/%d", time.Now().UnixNano())
	var prepared atomic.Int32
	prepare := func(url string) error {
		prepared.Add(1)
		return exec1(ctx, url, "create table things as select generate_series(1, 3) as id")
	}
	urls := make([]string, 6)
	var wg sync.WaitGroup
	for i := range urls {
		wg.Go(func() { urls[i] = PostgresTemplate(t, name, prepare) })
	}
	wg.Wait()
	if n := prepared.Load(); n != 1 {
		t.Errorf("prepare ran %d times", n)
	}
	if err := exec1(ctx, urls[0], "delete from things"); err != nil {
		t.Fatal(err)
	}
	if n := count(t, urls[1], "things"); n != 3 {
		t.Errorf("another copy has %d rows, want 3", n)
	}
}

func TestPostgresTemplateAfterAFailure(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	base := postgresServer.get(t)
	template := templateName(fmt.Sprintf("failing %d", time.Now().UnixNano()))
	broken := errors.New("broken migration")
	ensure := func(prepare func(string) error) error {
		return withConn(ctx, base, func(conn *pgx.Conn) error {
			return ensureTemplate(ctx, conn, base, template, prepare)
		})
	}
	err := ensure(func(url string) error {
		return errors.Join(exec1(ctx, url, "create table half (id int)"), broken)
	})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	err = ensure(func(url string) error { return exec1(ctx, url, "create table half (id int)") })
	if err != nil {
		t.Errorf("the second attempt did not start afresh: %v", err)
	}
}

func TestTemplateNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100)
	a, b := templateName(long+"1"), templateName(long+"2")
	if a == b || len(a) > 63 || templateName("A b") == templateName("a_b") {
		t.Errorf("names %q and %q", a, b)
	}
}

func TestRedisIsolation(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	seen := map[int]bool{}
	for range 8 {
		o, err := redis.ParseURL(Redis(t))
		if err != nil {
			t.Fatal(err)
		}
		if o.DB == 0 || seen[o.DB] {
			t.Fatalf("database %d was handed out twice or is 0", o.DB)
		}
		seen[o.DB] = true
		rdb := redis.NewClient(o)
		if n := rdb.DBSize(ctx).Val(); n != 0 {
			t.Errorf("database %d starts with %d keys", o.DB, n)
		}
		if err := rdb.Set(ctx, "k", "v", 0).Err(); err != nil {
			t.Error(err)
		}
		_ = rdb.Close()
	}
}

func TestRedisReleases(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := Stack(t, devstack.Options{Redis: true, RedisDatabases: 2})
	first, err := claim(ctx, s.RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	first.extend()

	// The only database is taken until it is released.
	got := make(chan error, 1)
	go func() {
		second, err := claim(ctx, s.RedisURL)
		if err == nil {
			err = second.release()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("a claimed database was claimed again: %v", err)
	case <-time.After(3 * claimEvery):
	}
	if err := first.release(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

func TestRedisClaimOfADeadProcess(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := Stack(t, devstack.Options{Redis: true, RedisDatabases: 2})
	c, err := claim(ctx, s.RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.release(); err != nil {
		t.Fatal(err)
	}

	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	client, err := redisClient(s.RedisURL, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	dead := strings.Join([]string{place(), fmt.Sprint(gone.Process.Pid), "1", "x"}, " ")
	if err := client.Set(ctx, c.key, dead, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	c, err = claim(ctx, s.RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.release(); err != nil {
		t.Error(err)
	}
}

func TestOwners(t *testing.T) {
	t.Parallel()
	me := thisOwner()
	pid := fmt.Sprint(os.Getpid())
	for _, o := range []owner{me, "", "elsewhere 1 1 x", owner(place() + " " + pid + "  x")} {
		if o.dead() {
			t.Errorf("owner %q counts as dead", o)
		}
	}
	if reused := owner(place() + " " + pid + " 1 x"); !reused.dead() {
		t.Errorf("owner %q, whose process id was reused, counts as alive", reused)
	}
}

func TestURLsWithAnotherDatabase(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]string{
		"unix:///run/r.sock":                 "unix:///run/r.sock?db=7",
		"unix://u:p@/run/r.sock?db=2":        "unix://u:p@/run/r.sock?db=7",
		"redis://u:p@host:1/3?max_retries=2": "redis://u:p@host:1/7?max_retries=2",
		"redis://host:1?db=3":                "redis://host:1/7",
	} {
		if got := redisURL(base, 7); got != want {
			t.Errorf("redisURL(%q) = %q, want %q", base, got, want)
		}
	}
	got, err := withDatabase("postgres://u@/old?host=%2Frun&port=1", "new")
	if want := "postgres://u@/new?host=%2Frun&port=1"; err != nil || got != want {
		t.Errorf("withDatabase = %q, %v, want %q", got, err, want)
	}
	if _, err := withDatabase("host=/run dbname=x", "new"); err == nil {
		t.Error("withDatabase accepts what is not a URL")
	}
}
