package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/acceptance"
	"github.com/penstock-dev/penstock/internal/testkit"
)

func TestAcceptanceUsage(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	verify := func(args ...string) ran {
		t.Helper()
		return run(t, Orchestrator(), "", append([]string{"verify", "--acceptance"}, args...)...)
	}
	want(t, "task ids", verify("abc"), ExitUsage, "takes no task ids")
	for _, flag := range []string{"--gate-b2", "--all", "--since=2h", "--until=1h", "--tenant=x", "--no-redis", "--max-differences=3"} {
		want(t, flag, verify(flag), ExitUsage, strings.SplitN(flag, "=", 2)[0], "exclude each other")
	}
	for _, flag := range []string{"--only=TQP", "--timeout=1m", "--line-timeout=1m", "--approver-token-file=x", "--steps=20"} {
		want(t, flag, run(t, Orchestrator(), "", "verify", flag), ExitUsage, "is for --acceptance")
	}
	want(t, "a bad format", verify("-o", "yaml"), ExitUsage, "table or json")
	want(t, "no such line", verify("--only", "TQP-9"), ExitUsage, `no line is called "TQP-9"`, "ASTER-replay")
	file := filepath.Join(t.TempDir(), "token")
	want(t, "no such token file", verify("--redis-url", s.RedisURL, "--postgres-url", s.PostgresURL, "--approver-token-file", file), ExitUsage, "--approver-token-file")
	if err := os.WriteFile(file, []byte("0123456789abcdef0123\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, "the same person", verify("--redis-url", s.RedisURL, "--postgres-url", s.PostgresURL, "--approver-token-file", file, "--token-file", file), ExitUsage, "somebody else")
	want(t, "a negative time", verify("--line-timeout", "-1s"), ExitUsage, "--line-timeout")
	want(t, "few steps", verify("--steps", "3"), ExitUsage, "at least 20 steps")
	want(t, "no servers", verify("--data-dir", t.TempDir()), ExitUsage, "neither postgres.url nor redis.url is set")
	want(t, "no Postgres", verify("--redis-url", s.RedisURL), ExitUsage, "postgres.url")
	want(t, "no orchestrator", verify("--redis-url", s.RedisURL, "--postgres-url", s.PostgresURL, "--server", "http://127.0.0.1:1"), ExitFailed, "no orchestrator answers")
}

// The command runs the lines that are asked for, prints each, and says with its
// exit code what became of them.
func TestAcceptanceCommand(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	verify := func(args ...string) ran {
		t.Helper()
		return run(t, Orchestrator(), "", append([]string{"verify", "--acceptance", "--redis-url", s.RedisURL, "--postgres-url", s.PostgresURL, "--server", o.URL}, args...)...)
	}
	var r ran
	testkit.Eventually(t, "the orchestrator answers", func() (bool, string) {
		r = verify("--only", "TQP-1,P3C-transient")
		return !strings.Contains(r.err, "no orchestrator answers") && !strings.Contains(r.err, "unavailable"), r.err
	})
	want(t, "two lines", r, ExitOK)
	if !strings.Contains(r.out, "pass  TQP-1 ") || !strings.Contains(r.out, "pass  P3C-transient ") || !strings.Contains(r.out, "2 of 2 lines passed, 0 failed, 0 not known; queue acceptance-") {
		t.Errorf("two lines: %s", r.out)
	}
	r = verify("--only", "MEN-idempotent-hit", "-o", "json")
	want(t, "as JSON", r, ExitOK)
	doc := decode(t, r.out)
	lines, _ := doc["lines"].([]any)
	if doc["passed"] != 1.0 || len(lines) != 1 || lines[0].(map[string]any)["name"] != "MEN-idempotent-hit" || lines[0].(map[string]any)["verdict"] != "pass" {
		t.Errorf("as JSON: %s", r.out)
	}
	// The default visibility timeout is longer than this waits.
	r = verify("--only", "P3C-restart", "--timeout", "2s", "--recovery-visibility-timeout", "5m")
	want(t, "a line that is not known", r, ExitNotFinished, "1 of 1 lines are not known: P3C-restart")
	if !strings.Contains(r.out, "????  P3C-restart ") {
		t.Errorf("a line that is not known: %s", r.out)
	}
	if _, err := s.SQL(t).Exec(t.Context(), "ALTER TABLE tasks DROP CONSTRAINT tasks_attempt"); err != nil {
		t.Fatal(err)
	}
	r = verify("--only", "P3C-fields")
	want(t, "a line that fails", r, ExitFailed, "1 of 1 lines failed")
	if !strings.Contains(r.out, "FAIL  P3C-fields ") || !strings.Contains(r.out, "the database takes an attempt below 1") {
		t.Errorf("a line that fails: %s", r.out)
	}
}

func TestAcceptanceLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	for _, l := range []acceptance.Line{
		{Name: "TQP-1", Title: "a title", Verdict: acceptance.Pass, Notes: []string{"unseen"}, Seconds: 1.25},
		{Name: "RP-001", Title: "a title", Verdict: acceptance.Pass, Notes: []string{"trace_id=t", "job_id=j"}, Seconds: 61},
		{Name: "MEN-create", Title: "a title", Verdict: acceptance.Fail, Reasons: []string{"one", "two\nlines"}},
		{Name: "ASTER-retry-once", Title: "a title", Verdict: acceptance.Inconclusive, Reasons: []string{"busy"}, Notes: []string{"p99 1s"}},
	} {
		acceptanceLine(&out, l)
	}
	const want = `pass  TQP-1                 1.2 s  a title
pass  RP-001               61.0 s  a title [trace_id=t; job_id=j]
FAIL  MEN-create            0.0 s  one; two lines
????  ASTER-retry-once      0.0 s  busy [p99 1s]
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// Events are found by workflow, attempt and type, and shown in the words of the
// task scheduling contract.
func TestEventCommands(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	cmd := func(a ...string) ran { return run(t, Orchestrator(), "", append(a, "--server", o.URL)...) }
	var id string
	testkit.Eventually(t, "a task is taken", func() (bool, string) {
		r := cmd("enqueue", "x", "--delay", "1h", "-o", "json")
		if r.code == 0 {
			task, _ := decode(t, r.out)["task"].(map[string]any)
			id, _ = task["task_id"].(string)
		}
		return id != "", r.out + r.err
	})
	want(t, "cancel", cmd("task", "cancel", id), ExitOK)
	r := cmd("events", "--workflow", id, "--type", "task.cancelled")
	want(t, "search", r, ExitOK)
	if !strings.Contains(r.out, id) || !strings.Contains(r.out, "task.cancelled") || strings.Contains(r.out, "task.created") {
		t.Errorf("search: %s", r.out)
	}
	events, _ := decode(t, cmd("events", "--since", time.Now().Add(-time.Minute).Format(time.RFC3339), "-o", "json").out)["events"].([]any)
	if len(events) != 2 {
		t.Errorf("events of the last minute: %v", events)
	}
	r = cmd("task", "events", id, "--format", "men")
	want(t, "men", r, ExitOK)
	if !strings.Contains(r.out, "TASK_CANCELLED") || !strings.Contains(r.out, "pending") {
		t.Errorf("men: %s", r.out)
	}
	if r := cmd("task", "events", id, "--type", "task.created", "--attempt", "1"); !strings.Contains(r.out, "task.created") || strings.Contains(r.out, "task.cancelled") {
		t.Errorf("filtered: %s", r.out)
	}
	want(t, "no such format", cmd("task", "events", id, "--format", "xml"), ExitUsage, "want log or men")
	want(t, "men with a filter", cmd("task", "events", id, "--format", "men", "--attempt", "1"), ExitUsage, "do not go with it")
	want(t, "a bad type", cmd("events", "--type", "nonsense"), ExitUsage, "types")
	want(t, "a bad time", cmd("events", "--since", "yesterday"), ExitUsage, "--since")
	want(t, "no such workflow", cmd("events", "--workflow", "nothing"), ExitNotFound, "there is no workflow")
}
