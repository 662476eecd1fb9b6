package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// A list shows what each worker runs, also of those that send no heartbeats; a
// living worker that is evicted learns that it has lost its leases, and its task
// runs again.
func TestAnEvictedWorkerLosesItsLeases(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(6*time.Second))
	runs, causes := make(chan string, 4), make(chan error, 1)
	handler := func(who string) func(w *worker.Worker) {
		return func(w *worker.Worker) {
			w.HandleRaw("t", func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
				runs <- who
				if r.Delivery == 1 {
					<-ctx.Done()
					causes <- context.Cause(ctx)
				}
				return nil, nil
			})
		}
	}
	first := b.worker(worker.Options{Concurrency: 1, OrchestratorURL: b.orch.URL, HeartbeatInterval: time.Minute}, handler("first"))
	id := b.enqueue(task.Request{})
	if who := receive(t, "it runs", runs); who != "first" {
		t.Fatal(who)
	}
	b.waitState(id, protocol.StateRunning)
	c := b.client.Workers()
	list := func() *penstockv1.WorkerInfo {
		t.Helper()
		res, err := c.ListWorkers(t.Context(), connect.NewRequest(&penstockv1.ListWorkersRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(res.Msg.Workers, func(w *penstockv1.WorkerInfo) bool { return w.WorkerId == first.ID() })
		if i < 0 {
			return nil
		}
		return res.Msg.Workers[i]
	}
	if w := list(); w == nil || len(w.Tasks) != 1 || w.Tasks[0].TaskId != id || w.Tasks[0].Type != "t" || w.Tasks[0].Attempt != 1 || w.Tasks[0].StartedAt == nil ||
		w.Concurrency != 1 || w.SeenAt == nil || w.Version == "" || w.TasksCut {
		t.Errorf("the list shows %v", w)
	}
	if _, err := b.SQL(t).Exec(t.Context(), "DELETE FROM workers"); err != nil {
		t.Fatal(err)
	}
	if w := list(); w == nil || len(w.Tasks) != 1 || w.SeenAt != nil {
		t.Errorf("without heartbeats the list shows %v", w)
	}
	evict := func(force bool) (*penstockv1.EvictWorkerResponse, error) {
		res, err := c.EvictWorker(t.Context(), connect.NewRequest(&penstockv1.EvictWorkerRequest{WorkerId: first.ID(), Reason: "a test", Force: force}))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	res, err := evict(true)
	if err != nil || res.Reclaimed != 1 || res.Entries != 1 {
		t.Fatalf("%v, %v", res, err)
	}
	if cause := receive(t, "the handler is told", causes); !errors.Is(cause, task.ErrLeaseLost) {
		t.Errorf("the handler's context ended with %v, want ErrLeaseLost", cause)
	}
	if got := b.wait(id); got.State != "succeeded" || got.Delivery != 2 || got.Interruptions != 1 {
		t.Errorf("%v", got)
	}
	e := find(b.events(id), protocol.EventReclaimed)
	if e.Actor != "user:anonymous" || e.Reason != "its worker was evicted: a test" {
		t.Errorf("task.reclaimed: %v", e)
	}
	if w := list(); w != nil && len(w.Tasks) > 0 {
		t.Errorf("it still runs %v", w)
	}
	testkit.VerifyLog(t, b.Stores)
}
