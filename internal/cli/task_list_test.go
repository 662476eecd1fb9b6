package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/testkit"
)

// TestTaskListFilters: the filters of task list, and how a list that was cut by a
// relative time goes on.
func TestTaskListFilters(t *testing.T) {
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
	sql := s.SQL(t)
	for i, set := range []string{
		// In a queue that no loop looks at: a running task that no worker runs would be interrupted.
		"queue = 'internal-jobs', state = 'running', due_at = NULL, worker_id = 'w1', started_at = now() - interval '1 hour', created_at = now() - interval '3 hours'",
		"state = 'cancelled', due_at = NULL, worker_id = 'w2', started_at = now() - interval '10 s', finished_at = now() - interval '8 s', created_at = now() - interval '1 minute', last_error_code = 'TASK_RETRY_EXHAUSTED', last_error_reason = 'TASK_TIMEOUT: No Answer'",
		"created_at = now() - interval '1 minute'",
	} {
		id := fmt.Sprint("t", i+1)
		want(t, "enqueue", orch("enqueue", "x", "--id", id, "--delay", "1h"), ExitOK)
		if _, err := sql.Exec(t.Context(), "UPDATE tasks SET "+set+" WHERE name = $1", id); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct{ args, want string }{
		{"", "t1 t2 t3"}, {"--since 2h", "t2 t3"}, {"--until 2h", "t1"}, {"--since " + time.Now().Add(-2*time.Hour).Format(time.RFC3339), "t2 t3"},
		{"--worker w1", "t1"}, {"--code TASK_TIMEOUT", "t2"}, {"--code TASK_RETRY_EXHAUSTED", "t2"}, {"--code TASK_CANCELLED", ""}, {"--error answer", "t2"},
		{"--longer-than 30m", "t1"}, {"--shorter-than 3s", "t2"}, {"--longer-than 1s --shorter-than 3s", "t2"}, {"--state running --longer-than 2h", ""},
	} {
		r := orch(append([]string{"task", "list", "-o", "json"}, strings.Fields(x.args)...)...)
		want(t, x.args, r, ExitOK)
		got := map[string]bool{}
		for _, task := range decode(t, r.out)["tasks"].([]any) {
			got[task.(map[string]any)["task_id"].(string)] = true
		}
		if len(got) != len(strings.Fields(x.want)) {
			t.Errorf("%s: %v, want %s", x.args, got, x.want)
		}
		for _, id := range strings.Fields(x.want) {
			if !got[id] {
				t.Errorf("%s: %v, want %s", x.args, got, x.want)
			}
		}
	}
	for args, word := range map[string]string{"--since tomorrow": "--since", "--until x": "--until", "--longer-than -1s": "--longer-than", "--shorter-than 1us": "--shorter-than", "--longer-than 2s --shorter-than 1s": "max_duration_ms"} {
		want(t, args, orch(append([]string{"task", "list"}, strings.Fields(args)...)...), ExitUsage, word)
	}
	// What is said to go on with does go on, though --since 2h is another time by then.
	r := orch("task", "list", "--since", "2h", "--limit", "1")
	_, rest, ok := strings.Cut(r.err, "there are more: ")
	if want(t, "cut", r, ExitOK); !ok || !strings.Contains(rest, "--since ") {
		t.Fatalf("cut: %q", r.err)
	}
	r = orch(append([]string{"task", "list", "--limit", "5"}, strings.Fields(rest)...)...)
	if want(t, "the rest", r, ExitOK); strings.Count(r.out, "\n") != 2 {
		t.Errorf("the rest: %s", r.out)
	}
	r = orch(append([]string{"task", "list"}, strings.Fields(rest)[:2]...)...)
	want(t, "another filter", r, ExitUsage, "page_token", "other filters")
	r = orch("task", "get", "t3")
	want(t, "get", r, ExitOK)
	if !strings.Contains(r.out, "waits_for") || !strings.Contains(r.out, "its time, ") {
		t.Errorf("get: %s", r.out)
	}
}

// TestSearching: a search that goes on says how far it is, but not all the time.
func TestSearching(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := searching{w: &out}
	at := timestamppb.New(time.Date(2026, 2, 25, 12, 0, 0, 0, time.UTC))
	s.until(nil)
	s.until(at)
	s.until(at)
	if got := out.String(); got != "searched until 2026-02-25 12:00:00.000Z, going on\n" {
		t.Errorf("%q", got)
	}
	s.told = s.told.Add(-sayEvery)
	if s.until(at); strings.Count(out.String(), "\n") != 2 {
		t.Errorf("%q", out.String())
	}
}
