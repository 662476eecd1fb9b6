package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func TestReconcileCommand(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Recovery.ReconcileInterval = time.Hour
	o := testkit.StartOrchestrator(t, cfg)
	db, raw := s.SQL(t), s.Redis(t)
	reconcile := func(args ...string) ran {
		return run(t, Orchestrator(), "", append(append([]string{"reconcile"}, args...),
			"--postgres-url", s.PostgresURL, "--redis-url", s.RedisURL, "--recovery-visibility-timeout", "1s")...)
	}
	epoch := func() (id string) {
		_ = db.QueryRow(t.Context(), "SELECT COALESCE(id::text, '') FROM redis_epoch").Scan(&id)
		return id
	}
	testkit.Eventually(t, "the orchestrator notes that Redis is complete", func() (bool, string) { return epoch() != "", "" })
	r := reconcile("--dry-run")
	want(t, "nothing to do", r, ExitOK)
	if !strings.HasSuffix(r.out, "\nnothing to do\n") || !strings.Contains(r.out, epoch()) {
		t.Errorf("%s", r.out)
	}
	c := testkit.Client(t, o.URL)
	if out, err := c.EnqueueMany(t.Context(), []*task.Request{{Type: "t", TaskID: "one", Payload: []byte("1")}}); err != nil || out[0].Err != nil {
		t.Fatalf("%v, %v", out, err)
	}
	testkit.Eventually(t, "it is dispatched", func() (bool, string) {
		return raw.XLen(t.Context(), protocol.StreamTask).Val() == 1, ""
	})
	o.Stop(t)
	if err := raw.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first changes nothing
		r = reconcile("--dry-run")
		want(t, "dry run of a loss", r, ExitNotFound, "not where it must be")
		for _, x := range []string{"epoch_missing", "redispatch as delivery 2", "group cg:workers", "1 tasks, 3 groups"} {
			if !strings.Contains(r.out, x) {
				t.Errorf("no %q in\n%s", x, r.out)
			}
		}
	}
	if n := raw.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("a dry run made %d keys", n)
	}
	r = reconcile("--dry-run", "-o", "json")
	want(t, "as JSON", r, ExitNotFound)
	m := decode(t, r.out)
	if tasks := m["tasks"].([]any); m["clean"] != false || m["done"] != false || len(tasks) != 1 || tasks[0].(map[string]any)["state"] != "queued" ||
		m["epoch"].(map[string]any)["state"] != "epoch_missing" {
		t.Errorf("%s", r.out)
	}
	r = reconcile()
	want(t, "for real", r, ExitOK)
	if !strings.Contains(r.out, "one round made") {
		t.Errorf("%s", r.out)
	}
	r = reconcile("--dry-run")
	want(t, "afterwards", r, ExitOK)
	s.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		worker.Handle(w, task.Define[int]("t"), func(context.Context, *task.Job[int]) error { return nil })
	})
	testkit.StartOrchestrator(t, cfg)
	testkit.Eventually(t, "the task is done", func() (done bool, saw string) {
		_ = db.QueryRow(t.Context(), "SELECT bool_and(state = 'succeeded'), string_agg(state, ' ') FROM tasks").Scan(&done, &saw)
		return done, saw
	})
	testkit.VerifyLog(t, s)

	want(t, "an output that there is not", reconcile("-o", "xml"), ExitUsage)
	want(t, "arguments", reconcile("x"), ExitUsage)
	want(t, "no stores", run(t, Orchestrator(), "", "reconcile", "--data-dir", t.TempDir()), ExitUsage)
}
