package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// complete runs `PROGRAM __complete ARGS...` as a shell does, and returns the
// candidates without their descriptions.
func complete(t *testing.T, root func() *cobra.Command, server string, args ...string) []string {
	t.Helper()
	at := len(args) - 1 // of what was begun, and the flag that it belongs to
	if at > 0 && strings.HasPrefix(args[at-1], "--") {
		at--
	}
	r := run(t, root(), "", slices.Concat([]string{"__complete"}, args[:at], []string{"--server", server}, args[at:])...)
	if r.code != 0 {
		t.Errorf("%v: %+v", args, r)
	}
	lines := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	if !strings.HasPrefix(lines[len(lines)-1], ":") {
		t.Fatalf("%v: %q", args, r.out)
	}
	var out []string
	for _, l := range lines[:len(lines)-1] {
		word, _, _ := strings.Cut(l, "\t")
		out = append(out, word)
	}
	return out
}

// TestCompletion: ids and names that are there are completed, of every kind.
func TestCompletion(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Guard.Rules = map[string]config.GuardRule{"big": {Expression: `task.type == "pay"`, Timeout: time.Hour, Approvers: []string{"role:approver"}}}
	o := testkit.StartOrchestrator(t, cfg)
	s.StartWorker(t, worker.Options{Name: "w"}, func(w *worker.Worker) {
		w.HandleRaw("bad", func(context.Context, *task.Raw) (json.RawMessage, error) {
			return nil, task.Permanent(errors.New("no"))
		})
		w.HandleRaw("ok", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	orch := func(args ...string) ran { return run(t, Orchestrator(), "", append(args, "--server", o.URL)...) }
	testkit.Eventually(t, "ready", func() (bool, string) {
		r := orch("task", "count")
		return r.code == 0, r.err
	})
	want(t, "a failed one", orch("enqueue", "bad", "--id", "order-1", "--wait"), ExitFailed)
	want(t, "one that waits", orch("enqueue", "mail.send", "--id", "order-2", "--delay", "1h", "--queue", "mail"), ExitOK)
	want(t, "another", orch("enqueue", "mail.send", "--id", "invoice-3", "--delay", "1h", "--queue", "mail"), ExitOK)
	want(t, "of another tenant", orch("enqueue", "mail.send", "--id", "order-4", "--delay", "1h", "--tenant", "acme"), ExitOK)
	want(t, "for approval", orch("enqueue", "pay", "--id", "pay-5"), ExitOK)
	want(t, "a schedule", orch("schedule", "create", "nightly", "mail.send", "--cron", "0 3 * * *"), ExitOK)
	dlq := decode(t, run(t, DLQReplay(), "", "list", "-o", "json", "--server", o.URL).out)["dead_letters"].([]any)[0].(map[string]any)
	dlqID, fingerprint := dlq["dlq_id"].(string), dlq["fingerprint"].(string)
	batch := decode(t, run(t, DLQReplay(), "", "requeue", dlqID, "--dry-run", "-o", "json", "--server", o.URL).out)["batch_id"].(string)
	approval := decode(t, orch("approval", "list", "-o", "json").out)["approvals"].([]any)[0].(map[string]any)["approval_id"].(string)

	for _, c := range []struct {
		program func() *cobra.Command
		line    string // ends with what was begun
		want    []string
	}{
		{Orchestrator, "task get |", []string{"pay-5", "invoice-3", "order-2", "order-1"}},
		{Orchestrator, "task get |ord", []string{"order-2", "order-1"}},
		{Orchestrator, "task get --tenant acme |", []string{"order-4"}},
		{Orchestrator, "task get order-1 |", nil},
		{Orchestrator, "task cancel |order", []string{"order-2"}},
		{Orchestrator, "task cancel order-2 |", []string{"pay-5", "invoice-3"}},
		{Orchestrator, "enqueue x --depends-on |inv", []string{"invoice-3"}},
		{Orchestrator, "enqueue |", []string{"bad", "mail.send", "pay"}},
		{Orchestrator, "enqueue bad |", nil},
		{Orchestrator, "enqueue x --queue |", []string{"default", "mail"}},
		{Orchestrator, "queue get |ma", []string{"mail"}},
		{Orchestrator, "task list --type |mail", []string{"mail.send"}},
		{Orchestrator, "task list --state |", nil}, // checked below
		{Orchestrator, "schedule show |", []string{"nightly"}},
		{Orchestrator, "approval show |", []string{approval}},
		{Orchestrator, "task get x --output |", []string{"table", "json"}},
		{DLQReplay, "show |", []string{dlqID}},
		{DLQReplay, "requeue |" + dlqID[:4], []string{dlqID}},
		{DLQReplay, "requeue --fingerprint |", []string{fingerprint}},
		{DLQReplay, "requeue --batch |", []string{batch}},
		{DLQReplay, "batch show |", []string{batch}},
		{DLQReplay, "batch pause |", nil},
		{DLQReplay, "list --queue |d", []string{"default"}},
	} {
		head, begun, _ := strings.Cut(c.line, "|")
		got := complete(t, c.program, o.URL, append(strings.Fields(head), begun)...)
		if strings.HasSuffix(head, "--state ") {
			if len(got) != 11 || !slices.Contains(got, "retrying") {
				t.Errorf("%s: %v", c.line, got)
			}
			continue
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.line, got, c.want)
		}
	}
	if got := complete(t, Orchestrator, o.URL, "task", "watch", "--type", "task.fa"); !slices.Equal(got, []string{"task.failed"}) {
		t.Errorf("event types: %v", got)
	}
}

// TestCompletionFails: a shell that completes gets no text, and soon, from an
// orchestrator that is not there, does not answer, or does not let the caller in.
func TestCompletionFails(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	for name, args := range map[string][]string{
		"silent":       {"--server", "http://" + l.Addr().String()},
		"nobody":       {"--server", "http://127.0.0.1:1"},
		"a bad server": {"--server", "ftp://x"},
		"a bad token":  {"--server", "http://example.invalid", "--token-file", "/nonexistent"},
	} {
		start := time.Now()
		r := run(t, Orchestrator(), "", append(append([]string{"__complete", "task", "get"}, args...), "")...)
		if r.code != 0 || strings.Count(r.out, "\n") != 1 || strings.Contains(strings.ReplaceAll(r.err, "Completion ended with directive", ""), "rror") {
			t.Errorf("%s: %+v", name, r)
		}
		if took := time.Since(start); took > completionTime+testkit.Deadline/4 {
			t.Errorf("%s took %s", name, took)
		}
	}
}
