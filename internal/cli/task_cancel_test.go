package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func TestTaskCancelCommand(t *testing.T) {
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
	for i := range 5 {
		want(t, "enqueue", orch("enqueue", "x", "1", "--id", fmt.Sprint("x", i), "--queue", "mail"), ExitOK)
	}
	r := orch("task", "cancel", "x0", "x1", "--reason", "why not")
	want(t, "cancel two", r, ExitOK)
	if n := strings.Count(r.out, "cancelled"); n != 2 || !strings.HasPrefix(r.out, "TASK ID") {
		t.Errorf("cancel: %s", r.out)
	}
	r = orch("task", "get", "x0")
	if !strings.Contains(r.out, "TASK_CANCELLED: why not") {
		t.Errorf("get: %s", r.out)
	}
	r = orch("task", "cancel", "x0", "-o", "json")
	want(t, "cancel again", r, ExitOK)
	if m := decode(t, r.out); m["already_cancelled"] != true {
		t.Errorf("cancel again: %s", r.out)
	}
	want(t, "cancel nobody", orch("task", "cancel", "nobody"), ExitNotFound, "TASK_NOT_FOUND")
	want(t, "one of two is nobody", orch("task", "cancel", "nobody", "x1"), ExitFailed, "1 of 2 tasks")
	want(t, "long reason", orch("task", "cancel", "x2", "--reason", strings.Repeat("x", 1025)), ExitUsage, "reason")

	want(t, "nothing named", orch("task", "cancel"), ExitUsage, "--all")
	want(t, "both", orch("task", "cancel", "x2", "--queue", "mail"), ExitUsage, "exclude")
	want(t, "without --yes", orch("task", "cancel", "--queue", "mail"), ExitUsage, "--dry-run")
	want(t, "bad state", orch("task", "cancel", "--state", "failed", "--yes"), ExitUsage, "states")
	want(t, "bad time", orch("task", "cancel", "--created-before", "noon", "--yes"), ExitUsage, "RFC 3339")
	r = orch("task", "cancel", "--queue", "mail", "--dry-run")
	if want(t, "dry run", r, ExitOK); r.out != "would cancel 3 tasks\n" {
		t.Errorf("dry run: %s", r.out)
	}
	atTerminal := func(answer string, args ...string) ran {
		t.Helper()
		return run(t, orchestrator(&console{interactive: true}), answer, append(args, "--server", o.URL)...)
	}
	for _, no := range []string{"n\n", "\n", ""} {
		want(t, fmt.Sprintf("%q at the question", no), atTerminal(no, "task", "cancel", "--all"), ExitFailed, "nothing was cancelled")
	}
	want(t, "at a terminal, with --dry-run", atTerminal("", "task", "cancel", "--all", "--dry-run"), ExitOK)
	r = atTerminal("yes\n", "task", "cancel", "--type", "x", "--state", "queued", "--tenant", "nobody")
	if want(t, "nothing to ask", r, ExitOK); r.out != "cancelled 0 tasks\n" || strings.Contains(r.err, "[y/N]") {
		t.Errorf("nothing to ask: %s%s", r.out, r.err)
	}
	want(t, "enqueue", orch("enqueue", "y", "--id", "y0", "--queue", "other"), ExitOK)
	r = atTerminal("y\n", "task", "cancel", "--queue", "other")
	if want(t, "yes at the question", r, ExitOK, "Cancel 1 task for good: tenant default, queue other? [y/N]"); r.out != "cancelled 1 tasks\n" {
		t.Errorf("yes at the question: %s", r.out)
	}
	r = orch("task", "cancel", "--queue", "mail", "--type", "x", "--yes")
	if want(t, "by filter", r, ExitOK); r.out != "cancelled 3 tasks\n" {
		t.Errorf("by filter: %s", r.out)
	}

	want(t, "two times to start", orch("enqueue", "x", "--expires-at", "2030-01-01T00:00:00Z", "--start-within", "1s"), ExitUsage, "exclude")
	want(t, "bad time to start", orch("enqueue", "x", "--expires-at", "noon"), ExitUsage, "RFC 3339")
	want(t, "enqueue with a time to start", orch("enqueue", "x", "--id", "e", "--start-within", "1ms", "--delay", "1h", "--heartbeat-timeout", "2s"), ExitOK)
	r = orch("task", "get", "e")
	if !strings.Contains(r.out, "expires_at") || !strings.Contains(r.out, "heartbeat_timeout") {
		t.Errorf("get: %s", r.out)
	}
	if r = orch("task", "list", "--state", "pending"); !strings.Contains(r.out, "EXPIRES") {
		t.Errorf("list: %s", r.out)
	}
	s.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("ok", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	want(t, "enqueue", orch("enqueue", "ok", "--id", "done"), ExitOK)
	want(t, "wait", orch("task", "wait", "done"), ExitOK)
	want(t, "too late", orch("task", "cancel", "done"), ExitConflict, "TASK_INVALID_TRANSITION")
	testkit.VerifyEvents(t, s)
}
