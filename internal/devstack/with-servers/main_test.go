package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// roleEnv makes the test binary play the part of with-servers itself.
const roleEnv = "WITH_SERVERS_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// script returns with-servers running a shell script that can print its
// servers' directory as $dir.
func script(text string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "--", "sh", "-c",
		`socket=${PENSTOCK_TEST_REDIS_URL#unix://}; dir=$(dirname "$(dirname "$socket")"); `+text)
	cmd.Env = append(os.Environ(), roleEnv+"=1")
	cmd.Stderr = os.Stderr
	return cmd
}

func exitCodeOf(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

func wantGone(t *testing.T, dir string) {
	t.Helper()
	if !strings.Contains(dir, "penstock-dev-") {
		t.Fatalf("the servers' directory is %q", dir)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the servers' directory is left behind: %v", err)
	}
}

func TestExitCodeAndEnvironment(t *testing.T) {
	t.Parallel()
	out, err := script(`echo "$dir"; test -S "$socket" || exit 1; case $PENSTOCK_TEST_POSTGRES_URL in postgres://*) exit 7;; esac`).Output()
	if code := exitCodeOf(t, err); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
	wantGone(t, strings.TrimSpace(string(out)))
}

func TestSignalsAreForwarded(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			cmd := script(`trap 'exit 9' INT TERM; echo "$dir"; while :; do sleep 0.05; done`)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			dir, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if code := exitCodeOf(t, cmd.Wait()); code != 9 {
				t.Errorf("exit code %d, want the command's own 9", code)
			}
			wantGone(t, strings.TrimSpace(dir))
		})
	}
}

func TestKilledWithServersStopsEverything(t *testing.T) {
	t.Parallel()
	cmd := script(`echo "$$ $dir $(head -n 1 "$dir/postgres/postmaster.pid")"; exec sleep 600`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var command, postgres int
	var dir string
	if _, err := fmt.Sscan(line, &command, &dir, &postgres); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The pipe ends when the last process that holds it has ended.
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for running(dir, postgres) {
		select {
		case <-deadline.C:
			t.Fatal("Postgres outlived with-servers")
		case <-tick.C:
		}
	}
}

// running reports whether the process still works in the Postgres data of dir.
func running(dir string, pid int) bool {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	return err == nil && cwd == filepath.Join(dir, "postgres")
}

func TestUsageAndUnknownCommand(t *testing.T) {
	t.Parallel()
	for want, args := range map[int][]string{
		exitUsage:   {"--"},
		exitCommand: {"--", "no-such-command-anywhere"},
		128 + 9:     {"sh", "-c", "kill -9 $$"},
	} {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), roleEnv+"=1")
		if code := exitCodeOf(t, cmd.Run()); code != want {
			t.Errorf("with-servers %q exits with %d, want %d", args, code, want)
		}
	}
}
