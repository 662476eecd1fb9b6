package api_test

import (
	"fmt"
	"testing"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// cancelledChain stores a task that fails for good, and n tasks after it, each
// after the one before, and waits until they are cancelled. It returns the dead
// letter and the ids of the n.
func (e *env) cancelledChain(t *testing.T, n int) (dlq string, after []string) {
	t.Helper()
	var g client.Graph
	g.Add("0", &task.Request{Type: "report", Payload: []byte(`{}`)})
	for i := range n {
		g.Add(fmt.Sprint(i+1), &task.Request{Type: "mail", Payload: []byte(`{"to": "ann"}`)}, fmt.Sprint(i))
	}
	ids, err := testkit.Client(t, e.orch.URL).EnqueueGraph(t.Context(), &g)
	if err != nil {
		t.Fatal(err)
	}
	get := func(name string) *penstockv1.Task {
		t.Helper()
		res, err := e.rpc.GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: ids[name].TaskID}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg.Task
	}
	for i := range n {
		after = append(after, ids[fmt.Sprint(i+1)].TaskID)
	}
	testkit.Eventually(t, "the graph is cancelled", func() (bool, string) {
		first, last := get("0"), get(fmt.Sprint(n))
		dlq = first.DlqId
		return first.State == "failed" && last.State == "cancelled", first.State + ", " + last.State
	})
	return dlq, after
}

// A requeue with graph makes the tasks anew that were cancelled because of the dead
// letters, and tells how many of each; one without does not.
func TestRequeueWithGraph(t *testing.T) {
	t.Parallel()
	e := operated(t)
	db := e.conn(t)
	alone, untouched := e.cancelledChain(t, 1)
	one, after := e.cancelledChain(t, 2)
	two, below := e.cancelledChain(t, 1)
	requeue := func(graph bool, ids ...string) []*penstockv1.RequeueResult {
		t.Helper()
		res, err := e.rpc.RequeueDeadLetters(t.Context(), as(aliceToken, &penstockv1.RequeueDeadLettersRequest{DlqIds: ids, Graph: graph}))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range res.Msg.Results {
			if r.Error != nil || r.TaskId == "" {
				t.Errorf("requeued: %v", r)
			}
		}
		return res.Msg.Results
	}
	if r := requeue(false, alone); r[0].Clones != 0 {
		t.Errorf("without graph %d tasks are made anew", r[0].Clones)
	}
	if n := scan[int](t, db, "SELECT count(*) FROM task_clones"); n != 0 {
		t.Errorf("%d clones are stored", n)
	}
	if r := requeue(true, one, two); len(r) != 2 || r[0].Clones != 2 || r[1].Clones != 1 {
		t.Errorf("results %v, want 2 clones and 1", r)
	}
	for dlq, ids := range map[string][]string{alone: nil, one: after, two: below} {
		if n := scan[int](t, db, "SELECT count(*) FROM task_clones c JOIN tasks t ON t.id = c.clone_id WHERE c.dlq_id = $1::text::uuid AND c.task_id = ANY($2::text[]::uuid[])", dlq, ids); n != len(ids) {
			t.Errorf("dead letter %s: %d of %d tasks are made anew", dlq, n, len(ids))
		}
	}
	if n := scan[int](t, db, "SELECT count(*) FROM task_clones"); n != 3 {
		t.Errorf("%d clones, want 3; task %v was not asked for", n, untouched)
	}
	// The template is still missing: they wait for tasks that fail again.
	testkit.Eventually(t, "the clones are cancelled in turn", func() (bool, string) {
		n := scan[int](t, db, "SELECT count(*) FROM task_clones c JOIN tasks t ON t.id = c.clone_id WHERE t.state = 'cancelled' AND t.last_error_code = $1", protocol.CodeDependencyFailed)
		return n == 3, fmt.Sprint(n)
	})
	testkit.VerifyLog(t, e.stores)
}
