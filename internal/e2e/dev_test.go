package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-dev/penstock/internal/testkit"
)

// descendants returns the processes below pid.
func descendants(t *testing.T, pid int) (out []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	children := map[int][]int{}
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // has ended meanwhile
		}
		// pid (name) state ppid …; the name may contain anything.
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], child)
	}
	for todo := []int{pid}; len(todo) > 0; todo = todo[1:] {
		out = append(out, children[todo[0]]...)
		todo = append(todo, children[todo[0]]...)
	}
	return out
}

// gone waits until no process of the list exists.
func gone(t *testing.T, pids []int) {
	t.Helper()
	if len(pids) < 2 {
		t.Fatalf("only processes %v were seen, want at least a Postgres and a Redis", pids)
	}
	testkit.Eventually(t, "all child processes have ended", func() (bool, string) {
		for _, pid := range pids {
			if syscall.Kill(pid, 0) == nil {
				line, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
				return false, strings.ReplaceAll(string(line), "\x00", " ")
			}
		}
		return true, ""
	})
}

// run1 runs a command of the orchestrator program to its end.
func run1(t *testing.T, want int, args ...string) string {
	t.Helper()
	p := start(t, "orchestrator", nil, args...)
	if code := p.wait(t); code != want {
		t.Fatalf("orchestrator %s: exit code %d, want %d:\n%s", strings.Join(args, " "), code, want, p.out.tail())
	}
	return p.out.String()
}

func TestDev(t *testing.T) {
	t.Parallel()
	addr := freeAddr(t)
	url := "http://" + addr
	d := start(t, "orchestrator", []string{"PENSTOCK_SERVER_LISTEN=" + addr, "PENSTOCK_LOG_LEVEL=warn"}, "dev", "--ephemeral")
	d.says(t, "Penstock is up.")
	d.says(t, "Ctrl-C")
	for _, want := range []string{url, "postgres://", "redis://", "echo (echo)", "inject (inject)", "export PENSTOCK_TOKEN_FILE=", "/bob.token", "orchestrator enqueue echo '{\"n\":1}' --server " + url} {
		if !strings.Contains(d.out.String(), want) {
			t.Errorf("the output does not show %q:\n%s", want, d.out.String())
		}
	}
	waitReady(t, addr)
	id := strings.TrimSpace(run1(t, 0, "enqueue", "echo", `{"n":1}`, "--server", url))
	if out := run1(t, 0, "task", "wait", id, "--server", url); !strings.Contains(out, "succeeded") {
		t.Errorf("task wait: %s", out)
	}
	out := run1(t, 0, "task", "events", id, "--server", url)
	if !regexp.MustCompile(`(?s)task\.created.*task\.claimed.*task\.succeeded`).MatchString(out) {
		t.Errorf("task events: %s", out)
	}
	var got struct {
		State  string
		Result struct{ N int }
	}
	if err := json.Unmarshal([]byte(run1(t, 0, "task", "get", id, "-o", "json", "--server", url)), &got); err != nil || got.State != "succeeded" || got.Result.N != 1 {
		t.Errorf("task get: %+v, %v", got, err)
	}
	run1(t, 3, "task", "get", "no such task", "--server", url)

	pids := descendants(t, d.cmd.Process.Pid)
	d.stop(t, syscall.SIGINT)
	gone(t, pids)
}

func TestKillDev(t *testing.T) {
	t.Parallel()
	d := start(t, "orchestrator", []string{"PENSTOCK_SERVER_LISTEN=127.0.0.1:0"}, "dev", "--ephemeral")
	d.says(t, "Penstock is up.")
	pids := descendants(t, d.cmd.Process.Pid)
	d.kill()
	gone(t, pids)
}

func TestDemo(t *testing.T) {
	t.Parallel()
	out := run1(t, 0, "demo", "--tasks", "20")
	for _, want := range []string{
		"Enqueued 60 tasks of 3 types", `succeeded +260`, `failed +0`, `Throughput: 60 tasks`, `p50 .* p99`, "task.created", "task.claimed", "task.succeeded",
		"20 file hashes are right; the HTTP receiver got 20 requests with 20 different idempotency keys",
		"stream:task, group cg:workers: pending = 0", "now it gets kill -9", "task.reclaimed", "succeeded .* after the kill", "Everything is as it must be",
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("the demo does not say %q:\n%s", want, out)
		}
	}
	if regexp.MustCompile(`(?m)^\{"time"|task failed`).MatchString(out) {
		t.Errorf("log records stand among what the demo tells:\n%s", out)
	}
}

func TestDemoSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env, want string
		code      int
	}{
		{"PENSTOCK_ENQUEUE_MAX_BATCH=0", "enqueue.max_batch", 2},
		{"PENSTOCK_ENQUEUE_MAX_BTCH=5", "PENSTOCK_ENQUEUE_MAX_BATCH", 2},
		{"PENSTOCK_ENQUEUE_MAX_PAYLOAD_BYTES=5", "enqueue.max_payload_bytes", 2}, // found out by the demo itself
		{"PENSTOCK_REDIS_URL=redis://127.0.0.1:1/0", "Redis could not be used within 300ms", 1},
	} {
		p := start(t, "orchestrator", []string{tt.env, "PENSTOCK_SERVER_START_DEADLINE=300ms"}, "demo", "--tasks", "5")
		if code := p.wait(t); code != tt.code || !strings.Contains(p.out.String(), tt.want) || strings.Contains(p.out.String(), "as it must be") {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", tt.env, code, tt.code, tt.want, p.out.tail())
		}
	}
}
