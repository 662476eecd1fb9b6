package cli

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func TestWorkerCommands(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	w := s.StartWorker(t, worker.Options{OrchestratorURL: o.URL, HeartbeatInterval: 50 * time.Millisecond}, func(w *worker.Worker) {
		w.HandleRaw("t", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	cmd := func(a ...string) ran {
		return run(t, Orchestrator(), "", append([]string{"worker", "--server", o.URL}, a...)...)
	}
	testkit.Eventually(t, "the worker is listed", func() (bool, string) {
		r := cmd("list")
		return r.code == 0 && strings.Contains(r.out, w.ID()), r.out + r.err
	})
	if r := cmd("list"); !strings.HasPrefix(r.out, "WORKER ID") || !strings.Contains(r.out, "0/10") {
		t.Errorf("list: %s", r.out)
	}
	list, _ := decode(t, cmd("list", "-o", "json").out)["workers"].([]any)
	if len(list) != 1 || list[0].(map[string]any)["worker_id"] != w.ID() {
		t.Errorf("list as JSON: %v", list)
	}
	want(t, "drain of nobody", cmd("drain", "nobody"), ExitNotFound, `no worker "nobody"`)
	want(t, "drain without an id", cmd("drain"), ExitUsage)
	r := cmd("drain", w.ID())
	want(t, "drain", r, ExitOK)
	if !strings.HasPrefix(r.out, w.ID()+" drains: ordered at ") || !strings.Contains(r.out, "by anonymous; it runs 0 tasks") {
		t.Errorf("drain: %s", r.out)
	}
	w.Ended(t)
	if r := cmd("list"); strings.Contains(r.out, w.ID()) {
		t.Errorf("a worker that has left is listed: %s", r.out)
	}
}
