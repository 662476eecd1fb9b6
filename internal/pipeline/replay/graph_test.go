package replay_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// tree stores a graph and returns the tasks by their names.
func tree(t *testing.T, r *testkit.Rig, on map[string][]string) map[string]protocol.ID {
	t.Helper()
	var rs []*enqueue.Request
	for name, ups := range on {
		q := &enqueue.Request{TaskID: uuid.Must(uuid.NewV7()).String(), Type: "t", Payload: json.RawMessage(`{"is": "` + name + `"}`), Name: name}
		if name == "end" {
			q.IdempotencyKey = "end's key"
		}
		for _, u := range ups {
			q.DependsOn = append(q.DependsOn, enqueue.Dependency{Name: u})
		}
		rs = append(rs, q)
	}
	res, err := r.Enqueuer.EnqueueGraph(t.Context(), rs)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]protocol.ID{}
	for i, x := range res {
		ids[rs[i].Name] = protocol.ID(x.Task().ID)
	}
	return ids
}

func settle(t *testing.T, r *testkit.Rig) {
	t.Helper()
	if _, err := r.Dependency.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func requeueGraph(t *testing.T, r *testkit.Rig, ids ...protocol.ID) []replay.Requeued {
	t.Helper()
	out, err := r.Replay.Requeue(t.Context(), ids, replay.RequeueOptions{Principal: "ada", Graph: true})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// cloneOf is the task that was made in place of another.
func cloneOf(t *testing.T, r *testkit.Rig, id protocol.ID) (clone protocol.ID) {
	t.Helper()
	var c pgid.ID
	if err := r.DB.QueryRow(t.Context(), "SELECT clone_id FROM task_clones WHERE task_id = $1", pgid.ID(id)).Scan(&c); err != nil {
		t.Fatalf("clone of %s: %v", id, err)
	}
	return protocol.ID(c)
}

// A dead letter requeued with its graph: what was cancelled because of it runs
// anew, with the results of what it depends on; the rest is left alone.
func TestRequeueWithGraph(t *testing.T) {
	t.Parallel()
	r := rig(t)
	root := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	g := tree(t, r, map[string][]string{"bad": nil, "good": nil, "left": {"bad", "good"}, "end": {"left"}, "other": {"good"}})
	held := r.Fetch(t, "w", 3)
	for _, h := range held {
		o := h.Outcome(protocol.OutcomeSucceeded)
		if o.Result = []byte(`"ok"`); h.ID == g["bad"] {
			o = h.Outcome(protocol.OutcomeFailed)
			o.Error = "no"
		}
		r.Report(t, o)
	}
	r.Ack(t, held...)
	r.WaitState(t, protocol.StateFailed, g["bad"])
	r.WaitState(t, protocol.StateSucceeded, root, g["good"])
	settle(t, r)
	r.WaitState(t, protocol.StateCancelled, g["left"], g["end"])
	out := requeueGraph(t, r, protocol.DLQID(g["bad"]))
	if out[0].Err != nil || out[0].Clones != 2 {
		t.Fatalf("requeued: %+v, want 2 clones", out[0])
	}
	left, end := cloneOf(t, r, g["left"]), cloneOf(t, r, g["end"])
	settle(t, r) // good has ended before
	if n := r.Count(t, "SELECT open_dependencies FROM tasks WHERE id = $1", pgid.ID(left)); n != 1 {
		t.Errorf("the clone waits for %d tasks, want 1", n)
	}
	for clone, key := range map[protocol.ID]string{left: "t:" + g["left"].String(), end: "k:end's key"} {
		rows, err := r.Store.EffectKeys(t.Context(), []pgid.ID{pgid.ID(clone)})
		if err != nil || len(rows) != 1 || rows[0].Key != key || rows[0].Scope != "default" {
			t.Errorf("effects of a clone: %+v, %v, want them under its original's key %s", rows, err, key)
		}
	}
	seen := map[protocol.ID]testkit.Held{}
	for range 4 { // the new bad, other, and then the clones in turn
		h := r.Fetch(t, "w", 1)[0]
		seen[h.ID] = h
		o := h.Outcome(protocol.OutcomeSucceeded)
		o.Result = []byte(`"fine"`)
		r.Report(t, o)
		r.Ack(t, h)
		r.WaitState(t, protocol.StateSucceeded, h.ID)
		settle(t, r)
	}
	var deps protocol.Dependencies
	if err := json.Unmarshal(seen[left].Dependencies, &deps); err != nil || len(deps.Tasks) != 2 ||
		deps.Tasks[0].Name != "bad" || deps.Tasks[0].TaskID != out[0].Task.String() || string(deps.Tasks[0].Result) != `"fine"` || deps.Tasks[1].Name != "good" {
		t.Errorf("the clone is told %s, %v", seen[left].Dependencies, err)
	}
	if _, ok := seen[end]; !ok {
		t.Error("the clone at the end did not run")
	}
	if again := requeueGraph(t, r, protocol.DLQID(g["bad"]))[0]; code(again.Err) != protocol.CodeInvalidTransition {
		t.Errorf("requeued again: %+v", again)
	}
	if n := r.Count(t, "SELECT count(*) FROM tasks"); n != 9 {
		t.Errorf("%d tasks, want 9", n)
	}
	testkit.VerifyLog(t, r.Stores)
}

// Two dead letters above one task, requeued one after the other by different
// callers at the same time: it is made anew once.
func TestRequeueGraphConcurrently(t *testing.T) {
	t.Parallel()
	r := rig(t)
	g := tree(t, r, map[string][]string{"a": nil, "b": nil, "end": {"a", "b"}})
	ids := kill(t, r, "no", g["a"], g["b"])
	settle(t, r)
	r.WaitState(t, protocol.StateCancelled, g["end"])
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			testkit.Eventually(t, "the dead letter is requeued", func() (bool, string) {
				_, err := r.Replay.Requeue(t.Context(), []protocol.ID{id}, replay.RequeueOptions{Graph: true})
				if code(err) == protocol.CodeInvalidTransition { // the clone of the other call is being told
					settle(t, r)
				}
				return err == nil, fmt.Sprint(err)
			})
		})
	}
	wg.Wait()
	settle(t, r)
	// The clone of the first depends on a dead letter that was not requeued yet, and
	// was cancelled; the second made that one anew.
	succeedAll(t, r, 2)
	settle(t, r)
	succeedAll(t, r, 1)
	if n := r.Count(t, "SELECT count(*) FROM tasks WHERE on_dependency_failure IS NOT NULL AND state = 'succeeded'"); n != 1 {
		t.Errorf("%d tasks stand for one", n)
	}
	testkit.VerifyLog(t, r.Stores)
}

// Both at once, in one call.
func TestRequeueTwoWithGraph(t *testing.T) {
	t.Parallel()
	r := rig(t)
	g := tree(t, r, map[string][]string{"a": nil, "b": nil, "mid": {"a", "b"}, "end": {"mid", "a"}})
	ids := kill(t, r, "no", g["a"], g["b"])
	settle(t, r)
	r.WaitState(t, protocol.StateCancelled, g["mid"], g["end"])
	out := requeueGraph(t, r, ids...)
	if out[0].Clones+out[1].Clones != 2 {
		t.Errorf("%d and %d clones, want 2 in all", out[0].Clones, out[1].Clones)
	}
	for range 4 {
		succeedAll(t, r, 1)
		settle(t, r)
	}
	r.WaitState(t, protocol.StateSucceeded, cloneOf(t, r, g["mid"]), cloneOf(t, r, g["end"]))
	testkit.VerifyLog(t, r.Stores)
}

// What a task made anew depends on besides: the newest of several tasks that a
// dead letter and those of its successors were requeued as.
func TestRequeueGraphNewestStandIn(t *testing.T) {
	t.Parallel()
	r := rig(t)
	g := tree(t, r, map[string][]string{"a": nil, "b": nil, "end": {"a", "b"}})
	ids := kill(t, r, "no", g["a"], g["b"])
	settle(t, r)
	again := func(id protocol.ID) protocol.ID {
		t.Helper()
		out, err := r.Replay.Requeue(t.Context(), []protocol.ID{id}, replay.RequeueOptions{})
		if err != nil || out[0].Err != nil {
			t.Fatal(out, err)
		}
		return out[0].Task
	}
	second := again(ids[0])
	third := again(kill(t, r, "no", second)[0])
	fourth := again(kill(t, r, "no", third)[0])
	out := requeueGraph(t, r, ids[1])
	if out[0].Err != nil || out[0].Clones != 1 {
		t.Fatalf("requeued: %+v, want 1 clone", out[0])
	}
	for _, up := range []protocol.ID{fourth, out[0].Task} {
		if n := r.Count(t, "SELECT count(*) FROM task_dependencies WHERE task_id = $1 AND upstream_id = $2", pgid.ID(cloneOf(t, r, g["end"])), pgid.ID(up)); n != 1 {
			t.Errorf("the clone does not depend on %s", up)
		}
	}
	succeedAll(t, r, 2)
	settle(t, r)
	succeedAll(t, r, 1)
	r.WaitState(t, protocol.StateSucceeded, cloneOf(t, r, g["end"]))
	testkit.VerifyLog(t, r.Stores)
}

// A dead letter that depended on others itself: they are locked, so that
// retention cannot remove them meanwhile, and touched, so that it does not after.
func TestRequeueTouchesUpstreams(t *testing.T) {
	t.Parallel()
	r := rig(t)
	g := tree(t, r, map[string][]string{"up": nil, "end": {"up"}})
	succeedAll(t, r, 1)
	r.WaitState(t, protocol.StateSucceeded, g["up"])
	settle(t, r)
	id := kill(t, r, "no", g["end"])[0]
	if _, err := r.DB.Exec(t.Context(), "UPDATE tasks SET updated_at = now() - interval '90 days' WHERE id = $1", pgid.ID(g["up"])); err != nil {
		t.Fatal(err)
	}
	if out, err := r.Replay.Requeue(t.Context(), []protocol.ID{id}, replay.RequeueOptions{}); err != nil || out[0].Err != nil {
		t.Fatal(out, err)
	}
	if n := r.Count(t, "SELECT count(*) FROM tasks WHERE id = $1 AND updated_at > now() - interval '1 hour'", pgid.ID(g["up"])); n != 1 {
		t.Error("retention may remove what the new task depends on")
	}
}
