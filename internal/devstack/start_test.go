package devstack

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	s := mustStart(t, Options{FsyncOff: true, RedisDatabases: 40, MaxConnections: 50})
	t.Logf("start took %s", time.Since(begun))

	for setting, want := range map[string]string{
		"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
		"max_connections": "50", "shared_buffers": "256MB", "listen_addresses": "",
		"TimeZone": "UTC", "server_encoding": "UTF8", "lc_collate": "C.UTF-8",
	} {
		if got := queryOne(t, s.PostgresURL, "select current_setting('"+setting+"')"); got != want {
			t.Errorf("Postgres setting %s is %q, want %q", setting, got, want)
		}
	}
	if got := queryOne(t, s.PostgresURL, "select current_database() || ' ' || usesuper from pg_user where usename = current_user"); got != "penstock true" {
		t.Errorf("database and superuser: %q", got)
	}
	ctx := testContext(t)
	rdb := redisClient(t, s.RedisURL)
	for setting, want := range map[string]string{
		"databases": "40", "appendonly": "no", "save": "", "maxmemory-policy": "noeviction", "port": "0",
	} {
		if got := rdb.ConfigGet(ctx, setting).Val()[setting]; got != want {
			t.Errorf("Redis setting %s is %q, want %q", setting, got, want)
		}
	}

	pids := []int{s.PostgresPID(), s.RedisPID()}
	for range 2 {
		mustStop(t, s)
	}
	for _, pid := range pids {
		if pid == 0 || alive(pid) {
			t.Errorf("process %d is 0 or alive after Stop", pid)
		}
	}
	if s.PostgresPID() != 0 || s.RedisPID() != 0 {
		t.Errorf("process ids after Stop: %d and %d, want 0", s.PostgresPID(), s.RedisPID())
	}
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Errorf("temporary directory after Stop: %v", err)
	}
	if err := s.StartRedis(ctx); !errors.Is(err, errStopped) {
		t.Errorf("StartRedis after Stop: %v", err)
	}
}

func TestOneServerOnly(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Options{Redis: true})
	if s.PostgresURL != "" || s.PostgresPID() != 0 || s.RedisURL == "" {
		t.Errorf("got %+v", s)
	}
	if err := s.KillPostgres(); err == nil || !strings.Contains(err.Error(), "not part of this stack") {
		t.Errorf("KillPostgres: %v", err)
	}
}

// TestStockPostgres: what initdb leaves is what counts, but for what was asked for.
func TestStockPostgres(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Options{Postgres: true, Stock: true, Preload: "auto_explain"})
	for name, want := range map[string]string{"max_wal_size": "1GB", "wal_compression": "off", "fsync": "on", "shared_preload_libraries": "auto_explain"} {
		if got := queryOne(t, s.PostgresURL, "SHOW "+name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestTCP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := mustStart(t, Options{Dir: dir, TCP: true, FsyncOff: true})
	if got := queryOne(t, s.PostgresURL, "select host(inet_server_addr())"); got != "127.0.0.1" {
		t.Errorf("Postgres answers on %q", got)
	}
	ctx := testContext(t)
	if err := redisClient(t, s.RedisURL).Ping(ctx).Err(); err != nil {
		t.Errorf("Redis over TCP: %v", err)
	}

	wrong, err := url.Parse(s.PostgresURL)
	if err != nil {
		t.Fatal(err)
	}
	wrong.User = url.UserPassword("penstock", "guess")
	if conn, err := pgx.Connect(ctx, wrong.String()); err == nil {
		_ = conn.Close(ctx)
		t.Error("Postgres accepts a wrong password over TCP")
	}
	o, err := redis.ParseURL(s.RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	o.Password = "guess"
	guess := redis.NewClient(o)
	defer func() { _ = guess.Close() }()
	if err := guess.Ping(ctx).Err(); err == nil {
		t.Error("Redis accepts a wrong password")
	}

	mustStop(t, s)
	again := mustStart(t, Options{Dir: dir, TCP: true, FsyncOff: true})
	if again.PostgresURL != s.PostgresURL || again.RedisURL != s.RedisURL {
		t.Errorf("addresses changed from %s, %s to %s, %s", s.PostgresURL, s.RedisURL, again.PostgresURL, again.RedisURL)
	}
}

func TestPortTakenMeanwhile(t *testing.T) {
	t.Parallel()
	port, attempts := 0, 0
	err := onFreePort(true, &port, func() error {
		attempts++
		if attempts < 3 {
			return &serverError{name: "postgres", tail: "could not bind: Address already in use"}
		}
		return nil
	})
	if err != nil || attempts != 3 || port < lowestPort || port > highestPort {
		t.Errorf("error %v after %d attempts with port %d", err, attempts, port)
	}
}

func TestLongDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long name/", 12), `quo"ted`)
	s := mustStart(t, Options{Dir: dir, FsyncOff: true})
	if got := queryOne(t, s.PostgresURL, "select 'up'"); got != "up" {
		t.Errorf("got %q", got)
	}
	if err := redisClient(t, s.RedisURL).Ping(testContext(t)).Err(); err != nil {
		t.Error(err)
	}
	sockets := s.redis.sockets
	if strings.HasPrefix(sockets, s.Dir) || len(sockets) > 60 {
		t.Errorf("sockets are in %s", sockets)
	}
	mustStop(t, s)
	if _, err := os.Stat(filepath.Dir(sockets)); !os.IsNotExist(err) {
		t.Errorf("socket directory after Stop: %v", err)
	}
}

func TestSecondStartIsRefused(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Options{Dir: t.TempDir(), Redis: true})
	_, err := Start(testContext(t), Options{Dir: s.Dir, Redis: true})
	if err == nil || !errors.Is(err, errLocked) {
		t.Fatalf("second Start: %v", err)
	}
	wantContains(t, "the error", err.Error(), s.Dir, "is in use", "held by process ", "choose another directory")
	if s.RedisPID() == 0 {
		t.Error("the first stack did not survive the second Start")
	}
}

func TestMissingPrograms(t *testing.T) {
	t.Parallel()
	nowhere := finder{path: t.TempDir(), postgres: "/nowhere/*/bin"}
	dir := filepath.Join(t.TempDir(), "data")
	_, err := start(testContext(t), Options{Dir: dir}, nowhere)
	missing, ok := errors.AsType[*MissingError](err)
	if !ok || len(missing.What) != 2 {
		t.Fatalf("got %v", err)
	}
	wantContains(t, "the error", err.Error(), "postgres (", "redis-server or valkey-server",
		"apt-get install -y --no-install-recommends postgresql redis-server")
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the data directory was touched: %v", err)
	}

	_, err = start(testContext(t), Options{Redis: true}, nowhere)
	if missing, ok := errors.AsType[*MissingError](err); !ok || strings.Contains(missing.Error(), "postgres") {
		t.Errorf("with only Redis wanted: %v", err)
	}
}

func TestStartFailureQuotesTheLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mustStop(t, mustStart(t, Options{Dir: dir, FsyncOff: true}))
	if err := os.WriteFile(filepath.Join(dir, "postgres", "postgresql.auto.conf"), []byte("nonsense = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(testContext(t), Options{Dir: dir, FsyncOff: true})
	if err == nil {
		t.Fatal("Start succeeded")
	}
	wantContains(t, "the error", err.Error(), "postgres exited while starting", "postgres.log", `unrecognized configuration parameter "nonsense"`)
	if pids := append(processesIn(filepath.Join(dir, "postgres")), processesIn(filepath.Join(dir, "redis"))...); len(pids) > 0 {
		t.Errorf("left running: %v", pids)
	}
}

func TestStartCalledOff(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("changed my mind")
	cancel(cause)
	if s, err := Start(ctx, Options{FsyncOff: true}); err == nil {
		mustStop(t, s)
		t.Fatal("Start succeeded with a cancelled context")
	}
}
