package devstack

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestRunning(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	none := func(when string) {
		t.Helper()
		if pg, rd, ok := Running(dir); ok || pg != "" || rd != "" {
			t.Errorf("%s: %q, %q, %t", when, pg, rd, ok)
		}
	}
	none("no directory")
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory was made: %v", err)
	}
	s := mustStart(t, Options{Dir: dir, TCP: true, FsyncOff: true})
	if pg, rd, ok := Running(dir); !ok || pg != s.PostgresURL || rd != s.RedisURL {
		t.Errorf("%q, %q, %t; want %q, %q", pg, rd, ok, s.PostgresURL, s.RedisURL)
	}
	if got := queryOne(t, s.PostgresURL, "select 'x'"); got != "x" {
		t.Errorf("Postgres says %q", got)
	}
	if err := s.StopRedis(false); err != nil {
		t.Fatal(err)
	}
	if pg, rd, ok := Running(dir); !ok || pg != s.PostgresURL || rd != "" {
		t.Errorf("without Redis: %q, %q, %t", pg, rd, ok)
	}
	mustStop(t, s)
	none("stopped")
	if err := os.WriteFile(filepath.Join(dir, lockName), []byte("2147483647\n"), 0o600); err != nil { // above any process id
		t.Fatal(err)
	}
	none("of a process that is gone")
}

// A stack without TCP can't be found: its sockets are for its own user.
func TestRunningWithoutTCP(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	mustStart(t, Options{Dir: dir, Redis: true})
	if pg, rd, ok := Running(dir); ok {
		t.Errorf("%q, %q", pg, rd)
	}
	if pid, err := os.ReadFile(filepath.Join(dir, lockName)); err != nil || string(pid) != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("lock %q, error %v", pid, err)
	}
}
