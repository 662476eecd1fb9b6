package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func TestVerifyCommand(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	s.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		worker.Handle(w, task.Define[int]("ok"), func(context.Context, *task.Job[int]) error { return nil })
		worker.Handle(w, task.Define[int]("bad"), func(context.Context, *task.Job[int]) error { return task.Permanent(errors.New("never")) })
	})
	orch := func(args ...string) ran {
		return run(t, Orchestrator(), "", append(args, "--server", o.URL)...)
	}
	verify := func(args ...string) ran {
		return run(t, Orchestrator(), "", append(append([]string{"verify"}, args...), "--postgres-url", s.PostgresURL, "--redis-url", s.RedisURL)...)
	}
	testkit.Eventually(t, "ready", func() (bool, string) {
		r := orch("task", "count")
		return r.code == 0, r.err
	})
	want(t, "enqueue ok", orch("enqueue", "ok", "1", "--id", "one"), ExitOK)
	want(t, "wait ok", orch("task", "wait", "one"), ExitOK)
	want(t, "enqueue bad", orch("enqueue", "bad", "1", "--id", "two"), ExitOK)
	want(t, "wait bad", orch("task", "wait", "two"), ExitFailed)

	r := verify()
	want(t, "verify", r, ExitOK)
	if !strings.Contains(r.out, "2 tasks, ") || !strings.Contains(r.out, "1 dead letters") || !strings.HasSuffix(r.out, "clean\n") {
		t.Errorf("%s", r.out)
	}
	for _, args := range [][]string{{"--all"}, {"one", "two"}, {"two", "--no-redis"}, {"--since", "1h"}, {"--since", "2026-01-01T00:00:00Z", "--until", "0s"}} {
		if r := verify(args...); r.code != 0 || !strings.HasSuffix(r.out, "clean\n") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if r := verify("--until", "24h", "-o", "json"); r.code != 0 || decode(t, r.out)["summary"].(map[string]any)["tasks"] != 0.0 {
		t.Errorf("a time without tasks: %+v", r)
	}

	if _, err := s.SQL(t).Exec(t.Context(), "UPDATE tasks SET interruptions = 7, worker_id = E'\\x1b[31m'"); err != nil {
		t.Fatal(err)
	}
	r = verify()
	want(t, "verify after tampering", r, ExitFailed, "4 differences")
	if !strings.Contains(r.out, "row          task two: interruptions: expected 0, found 7\n") || strings.Contains(r.out, "clean") || strings.Contains(r.out, "\x1b") {
		t.Errorf("%q", r.out)
	}
	r = verify("--max-differences", "1")
	want(t, "one difference printed", r, ExitFailed, "4 differences")
	if n := strings.Count(r.out, "expected"); n != 1 || !strings.Contains(r.out, "3 more") {
		t.Errorf("%s", r.out)
	}
	r = verify("two", "-o", "json", "--max-differences", "1")
	want(t, "JSON", r, ExitFailed)
	m := decode(t, r.out)
	ds := m["differences"].([]any)
	if d := ds[0].(map[string]any); m["clean"] != false || len(ds) != 1 || m["summary"].(map[string]any)["differences"] != 2.0 ||
		d["check"] != "row" || d["task_id"] != "two" || d["field"] != "interruptions" || d["expected"] != "0" || d["found"] != "7" {
		t.Errorf("%s", r.out)
	}

	want(t, "unknown task", verify("two", "nobody"), ExitNotFound, "TASK_NOT_FOUND", "nobody")
	want(t, "another tenant", verify("two", "--tenant", "x"), ExitNotFound, "TASK_NOT_FOUND")
	want(t, "ids and a time", verify("two", "--since", "1h"), ExitUsage, "exclude")
	want(t, "all and a time", verify("--all", "--until", "1h"), ExitUsage, "exclude")
	want(t, "no time", verify("--since", "yesterday"), ExitUsage, "--since", "RFC 3339")
	want(t, "ahead", verify("--until", "-1h"), ExitUsage, "--until")
	want(t, "backwards", verify("--since", "1h", "--until", "2h"), ExitUsage, "not before")
	want(t, "bad limit", verify("--max-differences", "-1"), ExitUsage, "--max-differences")
	want(t, "bad format", verify("-o", "yaml"), ExitUsage, "table or json")
	want(t, "no Redis URL", run(t, Orchestrator(), "", "verify", "--postgres-url", s.PostgresURL), ExitUsage, "redis.url")
	want(t, "no Redis needed", run(t, Orchestrator(), "", "verify", "--no-redis", "--postgres-url", s.PostgresURL), ExitFailed, "differences")
	want(t, "no schema", run(t, Orchestrator(), "", "verify", "--no-redis", "--postgres-url", devtest.Postgres(t)), ExitFailed, "migrate up")
}

// Without URLs the servers of a running dev are found.
func TestVerifyFindsDev(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dev")
	verify := func(args ...string) ran {
		return run(t, Orchestrator(), "", append(args, "verify", "--data-dir", dir)...)
	}
	want(t, "nothing runs", verify(), ExitUsage, "postgres.url", dir)
	stack := devtest.Stack(t, devstack.Options{Dir: dir, TCP: true, FsyncOff: true})
	if _, err := store.Migrate(t.Context(), stack.PostgresURL); err != nil {
		t.Fatal(err)
	}
	r := verify()
	want(t, "dev runs", r, ExitOK)
	if !strings.HasSuffix(r.out, "clean\n") {
		t.Errorf("%s", r.out)
	}
	// Half of another system and half of this one is no system.
	for _, command := range []string{"verify", "reconcile --dry-run", "verify --acceptance"} {
		half := func(flag, url string) ran {
			return run(t, Orchestrator(), "", append(strings.Fields(command), "--data-dir", dir, flag, url)...)
		}
		want(t, command+" with Redis alone", half("--redis-url", "redis://127.0.0.1:1/0"), ExitUsage, "redis.url is set, but postgres.url is not: set both, or neither")
		want(t, command+" with Postgres alone", half("--postgres-url", "postgres://127.0.0.1:1/x"), ExitUsage, "postgres.url is set, but redis.url is not: set both, or neither")
	}
	want(t, "the gate with Postgres alone", run(t, Orchestrator(), "", "verify", "--gate-b2", "--data-dir", dir, "--postgres-url", "postgres://127.0.0.1:1/x"),
		ExitUsage, "postgres.url is set, but redis.url is not")
	want(t, "without Redis, with Redis alone", run(t, Orchestrator(), "", "verify", "--no-redis", "--data-dir", dir, "--redis-url", "redis://127.0.0.1:1/0"),
		ExitUsage, "redis.url is set, but postgres.url is not")
	if err := os.Rename(filepath.Join(dir, "state.json"), filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	want(t, "no state", verify(), ExitUsage)
}

func TestMoment(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for s, want := range map[string]time.Time{
		"": {}, "90m": now.Add(-90 * time.Minute), "0s": now, "2026-03-01T00:00:00+01:00": time.Date(2026, 2, 28, 23, 0, 0, 0, time.UTC),
	} {
		if got, err := moment("--since", s, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %s, error %v", s, got, err)
		}
	}
	for _, s := range []string{"x", "-1h", "2026-03-01", "1969-01-01T00:00:00Z", "5"} {
		if got, err := moment("--since", s, now); err == nil {
			t.Errorf("%q is taken for %s", s, got)
		}
	}
}
