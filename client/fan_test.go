package client_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

var (
	fanRoot = task.Define[int]("fan.root")
	fanPart = task.Define[int]("fan.part")
	fanEnd  = task.Define[int]("fan.end")
)

// Ten thousand tasks wait for one and get its result; one waits for ten thousand
// and gets the result of each.
func TestFan(t *testing.T) {
	t.Parallel()
	n, base := 2000, 1_000_000
	if devtest.Full() {
		n = protocol.MaxDependencies
	}
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout = time.Minute // nothing is lost here, however slow the machine
	o := testkit.StartOrchestrator(t, cfg)
	c := testkit.Client(t, o.URL)
	s.StartWorker(t, worker.Options{OrchestratorURL: o.URL, Concurrency: 64, VisibilityTimeout: cfg.Recovery.VisibilityTimeout}, func(w *worker.Worker) {
		worker.Handle(w, fanRoot, func(_ context.Context, j *task.Job[int]) error { return j.SetResult(j.Args) })
		worker.Handle(w, fanPart, func(ctx context.Context, j *task.Job[int]) error {
			root, err := task.DependencyResult[int](ctx, "root")
			if err != nil {
				return err
			}
			return j.SetResult(root + j.Args)
		})
		worker.Handle(w, fanEnd, func(ctx context.Context, j *task.Job[int]) error {
			right, err := rightResults(ctx, base)
			if err != nil {
				return err
			}
			return j.SetResult(right)
		})
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ids, err := c.EnqueueGraph(ctx, fan(t, n, base))
	if err != nil {
		t.Fatal(err)
	}
	if len(ids) != n+2 {
		t.Fatalf("%d tasks, want %d", len(ids), n+2)
	}
	end, err := c.Wait(ctx, "", ids["end"].TaskID)
	if err != nil || end.State != "succeeded" || string(end.Result) != fmt.Sprint(n) {
		t.Fatalf("the end is %s, saw %s right results of %d: %s; %v", end.GetState(), end.GetResult(), n, end.GetLastErrorReason().GetValue(), err)
	}
	if all, ok := countTasks(t, s, ""), countTasks(t, s, "WHERE state = 'succeeded'"); all != n+2 || ok != all {
		t.Errorf("%d of %d tasks have succeeded, want %d", ok, all, n+2)
	}
	testkit.VerifyLog(t, s)
}

// fan is a graph of a root that returns base, n parts that depend on it, and an
// end that depends on the parts.
func fan(t *testing.T, n, base int) *client.Graph {
	t.Helper()
	var g client.Graph
	add := func(name string, r *task.Request, err error, on ...string) {
		if err != nil {
			t.Fatal(err)
		}
		g.Add(name, r, on...)
	}
	r, err := fanRoot.Request(base)
	add("root", r, err)
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprint("part", i)
		r, err := fanPart.Request(i)
		add(parts[i], r, err, "root")
	}
	r, err = fanEnd.Request(0)
	add("end", r, err, parts...)
	return &g
}

// rightResults counts the parts that the task depends on. The error says which one
// is not where it must be or has the wrong result.
func rightResults(ctx context.Context, base int) (int, error) {
	all, err := worker.Dependencies(ctx)
	if err != nil {
		return 0, err
	}
	for i := range all {
		var got int
		if err := all[i].Decode(&got); err != nil {
			return 0, task.Permanent(err)
		}
		if want := fmt.Sprint("part", i); all[i].Name != want || got != base+i {
			return 0, task.Permanent(fmt.Errorf("dependency %d is %s with result %d, want %s with %d", i, all[i].Name, got, want, base+i))
		}
	}
	return len(all), nil
}
