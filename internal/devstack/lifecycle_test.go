package devstack

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestRestartKeepsData(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir(), Durable: true}
	begun := time.Now()
	s := mustStart(t, o)
	t.Logf("first start took %s", time.Since(begun))
	if got := queryOne(t, s.PostgresURL, "select current_setting('fsync')"); got != "on" {
		t.Errorf("fsync is %s", got)
	}
	execSQL(t, s.PostgresURL, "create table kept as select 'yes' as answer")
	if err := redisClient(t, s.RedisURL).Set(testContext(t), "kept", "yes", 0).Err(); err != nil {
		t.Fatal(err)
	}
	mustStop(t, s)

	begun = time.Now()
	s = mustStart(t, o)
	t.Logf("second start took %s", time.Since(begun))
	if got := queryOne(t, s.PostgresURL, "select answer from kept"); got != "yes" {
		t.Errorf("Postgres kept %q", got)
	}
	if got := redisClient(t, s.RedisURL).Get(testContext(t), "kept").Val(); got != "yes" {
		t.Errorf("Redis kept %q", got)
	}
}

func TestKillAndStartPostgres(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Options{Postgres: true, TCP: true})
	execSQL(t, s.PostgresURL, "create table kept as select 'yes' as answer")
	pid := s.PostgresPID()
	for range 2 {
		if err := s.KillPostgres(); err != nil {
			t.Fatalf("KillPostgres: %v", err)
		}
	}
	if s.PostgresPID() != 0 || alive(pid) {
		t.Errorf("Postgres lives: %d", pid)
	}
	ctx := testContext(t)
	if err := s.StartPostgres(ctx); err != nil {
		t.Fatalf("StartPostgres: %v", err)
	}
	if got := queryOne(t, s.PostgresURL, "select answer from kept"); got != "yes" {
		t.Errorf("Postgres kept %q", got)
	}
	if err := s.StartPostgres(ctx); err == nil || !strings.Contains(err.Error(), "running already") {
		t.Errorf("StartPostgres while it runs: %v", err)
	}
}

func TestStopAndStartRedis(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Options{Redis: true, Durable: true})
	ctx := testContext(t)
	if err := redisClient(t, s.RedisURL).Set(ctx, "kept", "yes", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for _, kill := range []bool{false, true} {
		pid := s.RedisPID()
		if err := s.StopRedis(kill); err != nil {
			t.Fatalf("StopRedis(%v): %v", kill, err)
		}
		if alive(pid) {
			t.Errorf("Redis is alive after StopRedis(%v)", kill)
		}
		if err := s.StartRedis(ctx); err != nil {
			t.Fatalf("StartRedis: %v", err)
		}
		if got := redisClient(t, s.RedisURL).Get(ctx, "kept").Val(); got != "yes" {
			t.Errorf("after StopRedis(%v) Redis kept %q", kill, got)
		}
	}
}

// lockedBuffer is a buffer for a logger and a test at the same time.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestUnexpectedExitIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	s := mustStart(t, Options{FsyncOff: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err := syscall.Kill(s.RedisPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the exit of Redis is logged", func() bool { return strings.Contains(log.String(), "exited unexpectedly") })
	if s.RedisPID() != 0 {
		t.Errorf("RedisPID is %d", s.RedisPID())
	}

	// A server whose process was killed outright comes back, too: its workers
	// have to go first.
	if err := syscall.Kill(s.PostgresPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the exit of Postgres is noticed", func() bool { return strings.Count(log.String(), "exited unexpectedly") == 2 })
	if err := s.StartPostgres(testContext(t)); err != nil {
		t.Errorf("StartPostgres: %v", err)
	}
	if err := s.KillPostgres(); err != nil {
		t.Errorf("KillPostgres: %v", err)
	}
	mustStop(t, s)
	text := log.String()
	if n := strings.Count(text, "level=ERROR"); n != 2 {
		t.Errorf("%d errors were logged, want 2: %s", n, text)
	}
	wantContains(t, "the log", text, "server=redis", "server=postgres", "signal: killed", "redis.log")
}

func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Options{Redis: true})
	if err := syscall.Kill(s.RedisPID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.Stop(ctx)
	if err == nil {
		t.Fatal("Stop of a frozen server succeeded")
	}
	wantContains(t, "the error", err.Error(), "redis", "ignored terminated", "stopped with killed")
	if again := s.Stop(context.Background()); again == nil || again.Error() != err.Error() {
		t.Errorf("second Stop: %v", again)
	}
	s.stopErr = nil // for the cleanup
}

func TestStopWithClientsConnected(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Options{Postgres: true, FsyncOff: true})
	ctx := testContext(t)
	done := make(chan error, 1)
	go func() {
		done <- withConnExec(ctx, s.PostgresURL, "select pg_sleep(600)")
	}()
	eventually(t, "the client sleeps in the server", func() bool {
		return queryOne(t, s.PostgresURL, "select count(*)::text from pg_stat_activity where query like '%pg_sleep(6%' and pid <> pg_backend_pid()") == "1"
	})
	mustStop(t, s)
	if err := <-done; err == nil {
		t.Error("the client's statement outlived the server")
	}
}
