package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// ran is how a command ended.
type ran struct {
	code     int
	out, err string // standard output; the error as it is shown
}

// run runs a command line of a program in this process.
func run(t *testing.T, root *cobra.Command, stdin string, args ...string) ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Deadline)
	defer cancel()
	var out, errOut bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errOut)
	root.SetIn(strings.NewReader(stdin))
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ran{0, out.String(), errOut.String()}
	}
	return ran{exitCode(ctx, err), out.String(), describe(err)}
}

func want(t *testing.T, what string, got ran, code int, errText ...string) {
	t.Helper()
	if got.code != code {
		t.Errorf("%s: exit code %d, want %d: %s%s", what, got.code, code, got.out, got.err)
	}
	for _, s := range errText {
		if !strings.Contains(got.err, s) {
			t.Errorf("%s: error %q does not tell %q", what, got.err, s)
		}
	}
}

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return m
}

func TestTaskCommands(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	orch := func(args ...string) ran {
		t.Helper()
		return run(t, Orchestrator(), "", append(args, "--server", o.URL)...)
	}
	testkit.Eventually(t, "ready", func() (bool, string) {
		r := orch("task", "count")
		return r.code == 0, r.err
	})

	r := run(t, Orchestrator(), `{"from":"stdin"}`, "enqueue", "x", "-", "--id", "one", "--key", "k", "--delay", "1h", "--server", o.URL, "-o", "json")
	want(t, "enqueue", r, ExitOK)
	if m := decode(t, r.out); m["idempotent_hit"] != false || m["task"].(map[string]any)["payload"].(map[string]any)["from"] != "stdin" {
		t.Errorf("enqueue: %s", r.out)
	}
	want(t, "the same again", orch("enqueue", "x", `{"from":"stdin"}`, "--id", "one", "--key", "k", "--delay", "1h"), ExitOK)
	want(t, "another payload", orch("enqueue", "x", "2", "--id", "one", "--key", "k", "--delay", "1h"), ExitConflict, "TASK_DUPLICATE", "payload")
	want(t, "bad type", orch("enqueue", "a b"), ExitUsage, "TASK_INPUT_INVALID", "type")
	want(t, "bad payload", orch("enqueue", "x", "{"), ExitUsage, "TASK_INPUT_INVALID", "payload")
	want(t, "bad time", orch("enqueue", "x", "--at", "tomorrow"), ExitUsage, "RFC 3339")
	want(t, "at and delay", orch("enqueue", "x", "--at", "2026-01-01T00:00:00Z", "--delay", "1s"), ExitUsage, "exclude")
	want(t, "no type", orch("enqueue"), ExitUsage, "arg")

	r = orch("task", "get", "one", "-o", "json")
	want(t, "get", r, ExitOK)
	if m := decode(t, r.out); m["task_id"] != "one" || m["state"] != "pending" || m["finished_at"] != nil {
		t.Errorf("get: %s", r.out)
	}
	r = orch("task", "get", "one")
	want(t, "get as a table", r, ExitOK)
	if !strings.Contains(r.out, "pending") || !strings.Contains(r.out, "one") {
		t.Errorf("get: %s", r.out)
	}
	for _, args := range [][]string{{"task", "get", "nobody"}, {"task", "events", "nobody"}, {"task", "wait", "nobody"}, {"task", "watch", "nobody"}, {"task", "get", "one", "--tenant", "other"}} {
		want(t, strings.Join(args, " "), orch(args...), ExitNotFound, "TASK_NOT_FOUND")
	}
	want(t, "wait", orch("task", "wait", "one", "--timeout", "200ms"), ExitNotFinished, "not finished")
	want(t, "bad output", orch("task", "list", "-o", "yaml"), ExitUsage, "table or json")
	want(t, "bad state", orch("task", "list", "--state", "nonsense"), ExitUsage, "TASK_INPUT_INVALID", "states")
	want(t, "bad limit", orch("task", "list", "--limit", "0"), ExitUsage, "--limit")
	want(t, "bad page token", orch("task", "list", "--page-token", "x"), ExitUsage, "page_token")
	want(t, "misspelt flag", orch("task", "list", "--stat", "queued"), ExitUsage, "--stat")

	s.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		worker.Handle(w, task.Define[int]("ok"), func(_ context.Context, j *task.Job[int]) error { return j.SetResult("\x1b[31m") })
		worker.Handle(w, task.Define[int]("bad"), func(context.Context, *task.Job[int]) error { return task.Permanent(context.Canceled) })
	})
	want(t, "enqueue ok", orch("enqueue", "ok", "1", "--id", "two"), ExitOK)
	r = orch("task", "wait", "two")
	want(t, "wait ok", r, ExitOK)
	if !strings.Contains(r.out, "succeeded") || strings.Contains(r.out, "\x1b") {
		t.Errorf("wait: %q", r.out)
	}
	want(t, "enqueue bad", orch("enqueue", "bad", "1", "--id", "three"), ExitOK)
	want(t, "wait bad", orch("task", "wait", "three"), ExitFailed, "failed")
	r = orch("task", "events", "two", "-o", "json")
	want(t, "events", r, ExitOK)
	if events := decode(t, r.out)["events"].([]any); len(events) != 3 {
		t.Errorf("events: %s", r.out)
	}
	r = orch("task", "list", "-o", "json")
	tasks := decode(t, r.out)["tasks"].([]any)
	if r.code != 0 || len(tasks) != 3 {
		t.Fatalf("list: %+v", r)
	}
	for _, one := range tasks {
		// What a list says is what get says; what it does not carry it says nothing of.
		listed := one.(map[string]any)
		got := decode(t, orch("task", "get", listed["task_id"].(string), "-o", "json").out)
		for name, value := range got {
			l, ok := listed[name]
			switch carried := name != "payload" && name != "result" && name != "progress" && name != "waits_for"; {
			case ok != carried:
				t.Errorf("list: %s is there: %t", name, ok)
			case carried && fmt.Sprint(l) != fmt.Sprint(value):
				t.Errorf("list: %s is %v, get says %v", name, l, value)
			}
		}
		if got["requested_by"] != "anonymous" {
			t.Errorf("get: requested_by %v", got["requested_by"])
		}
	}
	r = orch("queue", "get", "-o", "json")
	if m := decode(t, r.out); r.code != 0 || m["scheduled"] != 1.0 || m["stream"] != "stream:task" {
		t.Errorf("queue: %+v", r)
	}
	want(t, "enqueue elsewhere", orch("enqueue", "x", "--queue", "mail"), ExitOK)
	want(t, "no such queue", orch("queue", "get", "mial"), ExitNotFound, `no queue "mial"`, "did you mean mail?")
	want(t, "a queue without get", orch("queue", "mail"), ExitUsage, "orchestrator queue get mail")
	want(t, "no name", orch("queue", "get", ""), ExitUsage, "empty")
	r = orch("queue", "list")
	if want(t, "queues", r, ExitOK); !strings.Contains(r.out, "OLDEST") || !strings.Contains(r.out, "\ndefault ") || !strings.Contains(r.out, "\nmail ") || strings.Contains(r.out, "\nlist") {
		t.Errorf("queues: %s", r.out)
	}
	r = orch("queue", "list", "--limit", "1", "-o", "json")
	if m := decode(t, r.out); len(m["queues"].([]any)) != 1 || m["next_page_token"] == "" {
		t.Errorf("one queue: %s", r.out)
	}
	r = orch("queue", "get", "mail")
	if want(t, "one queue", r, ExitOK); !strings.Contains(r.out, "oldest ") || !strings.Contains(r.out, "/min, over 1m0s") {
		t.Errorf("one queue: %s", r.out)
	}
	r = run(t, DLQReplay(), "", "list", "--server", o.URL, "-o", "json")
	letters, _ := decode(t, r.out)["dead_letters"].([]any)
	if r.code != 0 || len(letters) != 1 || letters[0].(map[string]any)["task_id"] != "three" {
		t.Fatalf("dead letters: %+v", r)
	}
	id := letters[0].(map[string]any)["dlq_id"].(string)
	want(t, "show", run(t, DLQReplay(), "", "show", id, "--server", o.URL), ExitOK)
	want(t, "show nothing", run(t, DLQReplay(), "", "show", "ff000000-0000-8000-8000-000000000000", "--server", o.URL), ExitNotFound)
	want(t, "show nonsense", run(t, DLQReplay(), "", "show", "x", "--server", o.URL), ExitUsage, "dlq_id")
	want(t, "another type", orch("enqueue", "y", "1", "--key", "k", "--delay", "1h"), ExitConflict, "TASK_DUPLICATE: type", `task one (type "x"`, `idempotency_scope, such as "default/y"`)
	want(t, "in the scope that was proposed", orch("enqueue", "y", "1", "--key", "k", "--scope", "default/y", "--delay", "1h"), ExitOK)
}

func TestNobodyThere(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	_ = l.Close()
	start := time.Now()
	want(t, "get", run(t, Orchestrator(), "", "task", "get", "x", "--server", url), ExitFailed, "refused")
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %s", d)
	}
	want(t, "bad URL", run(t, Orchestrator(), "", "task", "get", "x", "--server", "nonsense"), ExitUsage, "server")
}

func TestMigrateCommands(t *testing.T) {
	t.Parallel()
	url := devtest.Postgres(t)
	orch := func(args ...string) ran {
		return run(t, Orchestrator(), "", append(args, "--postgres-url", url)...)
	}
	want(t, "status before", orch("migrate", "status"), ExitFailed, "pending", "migrate up")
	if r := orch("migrate", "up"); r.code != 0 || !strings.Contains(r.out, "applied 0001") {
		t.Errorf("up: %+v", r)
	}
	if r := orch("migrate", "up"); r.code != 0 || !strings.Contains(r.out, "nothing to apply") {
		t.Errorf("up again: %+v", r)
	}
	r := orch("migrate", "status", "-o", "json")
	var st []map[string]any
	if err := json.Unmarshal([]byte(r.out), &st); err != nil || r.code != 0 || len(st) == 0 || st[0]["applied"] != true {
		t.Errorf("status: %+v, %v", r, err)
	}
}

// TestConfiguration changes the environment, so it does not run in parallel.
func TestConfiguration(t *testing.T) {
	const secret = "hunter2"
	t.Setenv("PENSTOCK_POSTGRES_URL", "postgres://me:"+secret+"@localhost/db")
	t.Setenv("PENSTOCK_REDIS_URL", "redis://:"+secret+"@localhost:6379/0")
	for _, format := range []string{"table", "json"} {
		r := run(t, Orchestrator(), "", "config", "print", "-o", format)
		want(t, "config print", r, ExitOK)
		if strings.Contains(r.out, secret) || !strings.Contains(r.out, "xxxxx") || !strings.Contains(r.out, "PENSTOCK_POSTGRES_URL") {
			t.Errorf("%s", r.out)
		}
		if format == "json" && !json.Valid([]byte(r.out)) {
			t.Errorf("not JSON: %s", r.out)
		}
		r = run(t, Worker(), "", "config", "-o", format)
		want(t, "worker config", r, ExitOK)
		if strings.Contains(r.out, secret) {
			t.Errorf("%s", r.out)
		}
	}
	want(t, "bad format", run(t, Orchestrator(), "", "config", "print", "-o", "xml"), ExitUsage)
	want(t, "misspelt flag", run(t, Orchestrator(), "", "config", "print", "--postgres-urls", "x"), ExitUsage, "--postgres-urls")
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("postgres:\n  max_conn: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, "misspelt key", run(t, Orchestrator(), "", "config", "print", "--config", file), ExitUsage, "postgres.max_conn", "postgres.max_conns")
	want(t, "no such file", run(t, Orchestrator(), "", "config", "print", "--config", file+"x"), ExitUsage, "config file")
	t.Setenv("PENSTOCK_POSTGERS_URL", "x")
	want(t, "misspelt variable", run(t, Orchestrator(), "", "config", "print"), ExitUsage, "PENSTOCK_POSTGERS_URL", "PENSTOCK_POSTGRES_URL")
}

func TestHelpAndUsage(t *testing.T) {
	t.Parallel()
	for name, root := range map[string]*cobra.Command{"orchestrator": Orchestrator(), "worker": Worker(), "dlq-replay": DLQReplay()} {
		r := run(t, root, "", "--help")
		if r.code != 0 || !strings.Contains(r.out, "Exit codes:") {
			t.Errorf("%s --help: %+v", name, r)
		}
	}
	want(t, "unknown command", run(t, Orchestrator(), "", "tasks"), ExitUsage, "tasks")
	want(t, "unknown subcommand", run(t, Orchestrator(), "", "task", "gett"), ExitUsage, "gett")
	want(t, "unknown dlq command", run(t, DLQReplay(), "", "lst"), ExitUsage, "lst")
	want(t, "worker with an argument", run(t, Worker(), "", "x"), ExitUsage)
}
