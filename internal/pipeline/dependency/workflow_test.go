package dependency_test

import (
	"sync"
	"testing"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A task that was alone is in the graph of those that come to depend on it, and of
// a graph call that it stands first in: each workflow is there once.
func TestGraphOfATaskThatWasAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.Enqueue(t, testkit.Requests(4, "t")...)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := r.Enqueuer.Enqueue(t.Context(), onTasks(ids[0], ids[3])); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	root := *req("root")
	root.TaskID = ids[1].String() // a hit of a task that exists
	graph(t, r, &root, req("below", "root"))
	below := *req("alone")
	below.DependsOn = []enqueue.Dependency{{TaskID: ids[2].String()}}
	graph(t, r, req("first"), &below)
	for i, want := range []int{4, 2, 1, 1} {
		if n := r.Count(t, "SELECT coalesce(sum(tasks), 0) FROM workflow_state WHERE workflow_id = $1", pgid.ID(ids[i])); n != want {
			t.Errorf("workflow %d has %d tasks, want %d", i, n, want)
		}
	}
	finish(t, r, true, ids...)
	settle(t, r)
	for what, sql := range map[string]string{
		"workflows that are there twice":        "SELECT count(*) FROM (SELECT FROM workflow_state GROUP BY workflow_id HAVING count(*) > 1) x",
		"numbers that a workflow has twice":     "SELECT count(*) FROM (SELECT FROM workflow_events GROUP BY workflow_id, sequence HAVING count(*) > 1) x",
		"graphs whose first task is not in it":  "SELECT count(*) FROM tasks t JOIN tasks g ON g.id = t.graph_id WHERE g.graph_id IS DISTINCT FROM g.id",
		"tasks in a graph that is of one alone": "SELECT count(*) FROM tasks t WHERE t.graph_id = t.id AND NOT EXISTS (SELECT FROM tasks o WHERE o.graph_id = t.id AND o.id <> t.id)",
	} {
		if n := r.Count(t, sql); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
	if st := r.Row(t, ids[0]).State; st != protocol.StateSucceeded {
		t.Errorf("the first is %s", st)
	}
	consistent(t, r)
	testkit.VerifyEvents(t, r.Stores)
}
