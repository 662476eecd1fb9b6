package worker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// A handler sees the results of what its task depends on: those that fit with the
// task, all of them from an orchestrator where they don't.
func TestHandlerSeesDependencies(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	c := testkit.Client(t, o.URL)
	long := strings.Repeat("x", 30_000)
	s.StartWorker(t, worker.Options{OrchestratorURL: o.URL}, func(w *worker.Worker) {
		worker.Handle(w, part, func(_ context.Context, j *task.Job[int]) error {
			return j.SetResult(fmt.Sprint(j.Args, long[:j.Args*5000]))
		})
		worker.Handle(w, join, func(ctx context.Context, j *task.Job[string]) error {
			all, err := worker.Dependencies(ctx)
			if err != nil {
				return err
			}
			last, err := task.DependencyResult[string](ctx, j.Args)
			if err != nil {
				return err
			}
			names := ""
			for _, d := range all {
				names += d.Name + " "
			}
			return j.SetResult(names + last[:2])
		})
	})
	var g client.Graph
	add := func(name string, r *task.Request, err error, on ...string) {
		if err != nil {
			t.Fatal(err)
		}
		g.Add(name, r, on...)
	}
	var parts []string
	for i := 1; i <= 5; i++ { // 30,000 bytes of the first three, 75,000 of all
		r, err := part.Request(i)
		parts = append(parts, fmt.Sprintf("p%d", i))
		add(parts[i-1], r, err)
	}
	few, err := join.Request("p3")
	add("few", few, err, parts[:3]...)
	many, err := join.Request("p5")
	add("many", many, err, append(parts, "few")...)
	ids, err := c.EnqueueGraph(t.Context(), &g)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"few": `"p1 p2 p3 3x"`, "many": `"p1 p2 p3 p4 p5 few 5x"`} {
		done, err := c.Wait(t.Context(), "", ids[name].TaskID)
		if err != nil || string(done.Result) != want {
			t.Errorf("%s: %s, %v; want %s", name, done.GetResult(), err, want)
		}
	}
	res, err := c.RPC().GetTaskGraph(t.Context(), connect.NewRequest(&penstockv1.GetTaskGraphRequest{TaskId: ids["p1"].TaskID}))
	if err != nil || len(res.Msg.Tasks) != 7 || len(res.Msg.Edges) != 9 || res.Msg.Truncated || res.Msg.Tasks[0].TaskId != ids["p1"].TaskID {
		t.Errorf("graph: %d tasks, %d edges, %v", len(res.Msg.GetTasks()), len(res.Msg.GetEdges()), err)
	}
	res, err = c.RPC().GetTaskGraph(t.Context(), connect.NewRequest(&penstockv1.GetTaskGraphRequest{TaskId: ids["p1"].TaskID, MaxTasks: 3}))
	if err != nil || len(res.Msg.Tasks) != 3 || !res.Msg.Truncated {
		t.Errorf("bounded graph: %d tasks, %v", len(res.Msg.GetTasks()), err)
	}
	page, err := c.RPC().ListDependencies(t.Context(), connect.NewRequest(&penstockv1.ListDependenciesRequest{TaskId: ids["many"].TaskID, PageSize: 4}))
	if err != nil || len(page.Msg.Dependencies) != 4 || page.Msg.Dependencies[3].Name != "p4" || page.Msg.NextPageToken == "" {
		t.Fatalf("page: %v, %v", page, err)
	}
	page, err = c.RPC().ListDependencies(t.Context(), connect.NewRequest(&penstockv1.ListDependenciesRequest{TaskId: ids["many"].TaskID, PageSize: 4, PageToken: page.Msg.NextPageToken}))
	if err != nil || len(page.Msg.Dependencies) != 2 || page.Msg.Dependencies[1].Name != "few" || page.Msg.NextPageToken != "" {
		t.Errorf("last page: %v, %v", page, err)
	}
}

var (
	part = task.Define[int]("part")
	join = task.Define[string]("join")
)
