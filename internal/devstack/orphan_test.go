//go:build linux

package devstack

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// supervisor is another process with a stack.
type supervisor struct {
	cmd             *exec.Cmd
	postgres, redis int
	dir, url        string
}

// startSupervisor runs the test binary as the supervisor of a stack in dir.
func startSupervisor(t *testing.T, dir string) *supervisor {
	t.Helper()
	s := &supervisor{cmd: exec.Command(os.Args[0], "-test.run=^$")}
	s.cmd.Env = append(os.Environ(), roleEnv+"="+dir)
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the supervisor said %q: %v", line, err)
	}
	if _, err := fmt.Sscan(line, &s.postgres, &s.redis, &s.dir, &s.url); err != nil {
		t.Fatalf("the supervisor said %q: %v", line, err)
	}
	return s
}

// kill ends the supervisor with SIGKILL.
func (s *supervisor) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func TestKilledParentLeavesNoChild(t *testing.T) {
	t.Parallel()
	s := startSupervisor(t, "")
	if !alive(s.postgres) || !alive(s.redis) {
		t.Fatalf("not both of %d and %d are alive", s.postgres, s.redis)
	}
	// A busy worker notices nothing by itself.
	ctx := testContext(t)
	busy := make(chan struct{})
	go func() {
		defer close(busy)
		_ = withConnExec(ctx, s.url, "do $$ begin loop end loop; end $$")
	}()
	eventually(t, "a worker is busy", func() bool {
		return queryOne(t, s.url, "select count(*)::text from pg_stat_activity where query like 'do %'") == "1"
	})

	s.kill()
	l := layoutOf(s.dir)
	eventually(t, "the servers are gone", func() bool {
		return !alive(s.postgres) && !alive(s.redis) &&
			len(processesIn(l.postgres)) == 0 && len(processesIn(l.redis)) == 0
	})
	<-busy

	// What the dead supervisor could not remove, the next one does.
	sweep(filepath.Dir(s.dir), dataPrefix)
	if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
		t.Errorf("the temporary directory of the killed supervisor: %v", err)
	}
}

func TestDirectoryOfAKilledParent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startSupervisor(t, dir)
	execSQL(t, s.url, "create table kept as select 'yes' as answer")

	_, err := Start(testContext(t), Options{Dir: dir, FsyncOff: true})
	if err == nil {
		t.Fatal("Start on a directory that another process uses succeeded")
	}
	wantContains(t, "the error", err.Error(), "is in use", "process "+strconv.Itoa(s.cmd.Process.Pid))

	s.kill()
	again := mustStart(t, Options{Dir: dir})
	if got := queryOne(t, again.PostgresURL, "select answer from kept"); got != "yes" {
		t.Errorf("Postgres kept %q", got)
	}
}

func TestStalePidOfAnotherProcess(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir(), Postgres: true, FsyncOff: true}
	s := mustStart(t, o)
	pidFile := filepath.Join(s.postgres.data(), "postmaster.pid")
	stale, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	// A live process of the servers' user that has nothing to do with the data.
	other := mustStart(t, Options{Redis: true})
	mustStop(t, s)
	stale = append([]byte(strconv.Itoa(other.RedisPID())), stale[len(strconv.Itoa(pidOf(t, stale))):]...)
	if err := os.WriteFile(pidFile, stale, 0o600); err != nil {
		t.Fatal(err)
	}
	s = mustStart(t, o)
	if got := queryOne(t, s.PostgresURL, "select 'up'"); got != "up" {
		t.Errorf("got %q", got)
	}
}

func pidOf(t *testing.T, pidFile []byte) int {
	t.Helper()
	var pid int
	if _, err := fmt.Sscan(string(pidFile), &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestSweepSparesTheLiving(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir, lock, err := newTempDir(base, dataPrefix)
	if err != nil {
		t.Fatal(err)
	}
	unlocked := filepath.Join(base, dataPrefix+"being-made")
	if err := os.Mkdir(unlocked, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(unlocked, time.Time{}, time.Now()); err != nil { // the disk's clock may be another
		t.Fatal(err)
	}
	sweep(base, dataPrefix)
	for _, d := range []string{dir, unlocked} {
		if _, err := os.Stat(d); err != nil {
			t.Errorf("the sweep removed a directory in use: %v", err)
		}
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	sweep(base, dataPrefix)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("an abandoned directory after a sweep: %v", err)
	}
}
