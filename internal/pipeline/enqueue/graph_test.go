package enqueue_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// node is an item of a graph.
func node(name string, on ...string) *penstockv1.EnqueueRequest {
	r := req(func(r *penstockv1.EnqueueRequest) { r.Name = name })
	for _, o := range on {
		r.DependsOn = append(r.DependsOn, &penstockv1.Dependency{Name: o})
	}
	return r
}

func (e *env) graph(t *testing.T, rs ...*penstockv1.EnqueueRequest) ([]*penstockv1.EnqueueResult, error) {
	t.Helper()
	res, err := e.orch[0].EnqueueBatch(t.Context(), connect.NewRequest(&penstockv1.EnqueueBatchRequest{Tasks: rs}))
	if err != nil {
		return nil, err
	}
	return res.Msg.Results, nil
}

// refusedGraph enqueues what must be refused, and nothing of it stored.
func (e *env) refusedGraph(t *testing.T, what string, code protocol.Code, field, words string, rs ...*penstockv1.EnqueueRequest) {
	t.Helper()
	_, err := e.graph(t, rs...)
	info := rpc.InfoOf(err)
	if info.GetCode() != string(code) || info.GetField() != field || !strings.Contains(info.GetMessage(), words) || info.GetRetryable() {
		t.Errorf("%s: %v, %v; want %s of %s: … %s", what, err, info, code, field, words)
	}
}

func TestBadGraphs(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	other := e.must(t, req(func(r *penstockv1.EnqueueRequest) { r.Tenant = "other" }), false)
	invalid, missing := protocol.CodeInputInvalid, protocol.CodeNotFound
	e.refusedGraph(t, "self", invalid, "tasks[1].depends_on[0].name", "the task itself", node("a"), node("b", "b"))
	e.refusedGraph(t, "cycle", invalid, "tasks[1].depends_on", "cycle, in which each task waits for the one before: ", node("a"), node("b", "d"), node("c", "b"), node("d", "c", "a"))
	e.refusedGraph(t, "unknown name", invalid, "tasks[1].depends_on[1].name", `"x", but no task of this call`, node("a"), node("b", "a", "x"))
	e.refusedGraph(t, "name twice", invalid, "tasks[1].name", `"a", as is that of tasks[0]`, node("a"), node("a"))
	e.refusedGraph(t, "dependency twice", invalid, "tasks[1].depends_on[1]", "name each task once", node("a"), node("b", "a", "a"))
	e.refusedGraph(t, "long name", invalid, "tasks[0].name", "255", node(strings.Repeat("x", 256)))
	both := node("b")
	both.DependsOn = []*penstockv1.Dependency{{Name: "a", TaskId: "x"}}
	e.refusedGraph(t, "name and id", invalid, "tasks[1].depends_on[0]", "either a task_id or a name", node("a"), both)
	e.refusedGraph(t, "policy", invalid, "tasks[1].on_dependency_failure", "want cancel or run", node("a"),
		func() *penstockv1.EnqueueRequest { r := node("b", "a"); r.OnDependencyFailure = "stop"; return r }())
	for what, id := range map[string]string{"unknown id": uuid.Must(uuid.NewV7()).String(), "unknown task": "nobody", "another tenant's": other.TaskId} {
		r := node("b", "a")
		r.DependsOn = append(r.DependsOn, &penstockv1.Dependency{TaskId: id})
		e.refusedGraph(t, what, missing, "tasks[1].depends_on[1].task_id", "no task", node("a"), r)
	}
	sameID := uuid.Must(uuid.NewV7()).String()
	withID := func(r *penstockv1.EnqueueRequest) *penstockv1.EnqueueRequest { r.TaskId = sameID; return r }
	e.refusedGraph(t, "id twice", invalid, "tasks[1].task_id", "tasks[0]", withID(node("a")), withID(node("b")))
	e.refusedGraph(t, "fault of an item", invalid, "tasks[1].type", "1 to 128", node("a"), func() *penstockv1.EnqueueRequest { r := node("b", "a"); r.Type = ""; return r }())
	e.wantCounts(t, 1, 0)
	if _, err := e.enqueue(t, node("", "a")); rpc.InfoOf(err).GetField() != "depends_on[0].name" {
		t.Errorf("a local name outside of a graph: %v", err)
	}
	if n := e.count(t, "task_dependencies"); n != 0 {
		t.Errorf("%d dependencies stored", n)
	}
}

// Repeating a graph is a hit for every item, however it was given its identity;
// changing what one depends on is a duplicate, and nothing is stored.
func TestRepeatedGraph(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	up := e.must(t, req(), false)
	build := func() []*penstockv1.EnqueueRequest {
		a, b, c := node("a"), node("b", "a"), node("c", "a", "b")
		a.TaskId, b.IdempotencyKey, c.TaskId = "graph-a", "graph-b", "graph-c"
		b.DependsOn = append(b.DependsOn, &penstockv1.Dependency{TaskId: up.TaskId})
		return []*penstockv1.EnqueueRequest{c, b, a}
	}
	first, err := e.graph(t, build()...)
	if err != nil {
		t.Fatal(err)
	}
	if g := first[0].Task.GraphId; g != protocol.NameID("default", "graph-a").String() || first[1].Task.GraphId != g || first[2].Task.GraphId != g {
		t.Errorf("graph ids %s, %s, %s; want that of the first in order", g, first[1].Task.GraphId, first[2].Task.GraphId)
	}
	var wg sync.WaitGroup
	for i := range 6 { // lost replies, repeated on both replicas
		wg.Go(func() {
			res, err := e.orch[i%2].EnqueueBatch(t.Context(), connect.NewRequest(&penstockv1.EnqueueBatchRequest{Tasks: build()}))
			if err != nil {
				t.Errorf("repeat: %v", err)
				return
			}
			for n, r := range res.Msg.Results {
				if !r.IdempotentHit || r.TaskId != first[n].TaskId {
					t.Errorf("item %d: hit %t, task %s, want %s", n, r.IdempotentHit, r.TaskId, first[n].TaskId)
				}
			}
		})
	}
	wg.Wait()
	changed := build()
	changed[1].DependsOn = changed[1].DependsOn[:1]
	e.refusedGraph(t, "other dependencies", protocol.CodeDuplicate, "tasks[1].depends_on", "differs from task", append(changed, node("new"))...)
	changed = build()
	changed[1].OnDependencyFailure = "run"
	e.refusedGraph(t, "other policy", protocol.CodeDuplicate, "tasks[1].depends_on", "differs from task", changed...)
	e.wantCounts(t, 4, 1)
	// A new task may depend on one that was there, by its local name.
	grown := append(build(), node("d", "b"))
	grown[3].TaskId = "graph-d"
	res, err := e.graph(t, grown...)
	if err != nil || short(res[0]) != "hit" || short(res[3]) != "new" {
		t.Errorf("a larger graph: %v, %v", res, err)
	}
	if n := e.count(t, "task_dependencies WHERE upstream_id = $1 AND name = 'b'", first[1].TaskId); n != 2 {
		t.Errorf("%d tasks depend on b, want 2", n)
	}
	if n := e.count(t, "task_dependencies"); n != 5 {
		t.Errorf("%d dependencies, want 5", n)
	}
}

// Concurrent calls for the same graph, each complete or not there at all.
func TestConcurrentGraphs(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	for round := range 15 {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				a, b := node("a"), node("b", "a")
				a.IdempotencyKey, b.IdempotencyKey = fmt.Sprintf("a%d", round), fmt.Sprintf("b%d", round)
				res, err := e.orch[i%2].EnqueueBatch(t.Context(), connect.NewRequest(&penstockv1.EnqueueBatchRequest{Tasks: []*penstockv1.EnqueueRequest{a, b}}))
				if err != nil || res.Msg.Results[0].IdempotentHit != res.Msg.Results[1].IdempotentHit {
					t.Errorf("round %d: %v, %v", round, res, err)
				}
			})
		}
		wg.Wait()
	}
	e.wantCounts(t, 30, 30)
	if n := e.count(t, "task_dependencies"); n != 15 {
		t.Errorf("%d dependencies, want 15", n)
	}
}

// Without local names each item is for itself, dependencies or not.
func TestBatchWithDependencies(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	up := e.must(t, req(func(r *penstockv1.EnqueueRequest) { r.TaskId = "up" }), false)
	on := func(ids ...string) *penstockv1.EnqueueRequest {
		r := req()
		for _, id := range ids {
			r.DependsOn = append(r.DependsOn, &penstockv1.Dependency{TaskId: id})
		}
		return r
	}
	keyed := func() *penstockv1.EnqueueRequest { r := on("up"); r.IdempotencyKey = "k"; return r }
	wrong := on("up", "second")
	wrong.IdempotencyKey = "k"
	second := req(func(r *penstockv1.EnqueueRequest) { r.TaskId = "second" })
	third := on("second")
	third.TaskId = "third"
	res := e.batch(t, on("up"), on("nobody"), keyed(), keyed(), wrong, second, third, on("third", "up"))
	want := []string{"new", "TASK_NOT_FOUND depends_on[0].task_id", "new", "hit", "TASK_DUPLICATE depends_on", "new", "new", "new"}
	for i, r := range res {
		if short(r) != want[i] {
			t.Errorf("item %d: %s, want %s", i, short(r), want[i])
		}
	}
	if res[0].Task.OpenDependencies != 1 || res[0].Task.State != "pending" || res[0].Task.OnDependencyFailure != "cancel" {
		t.Errorf("stored as %v", res[0].Task)
	}
	if id := protocol.NameID("default", up.TaskId).String(); res[0].Task.GraphId != id || res[7].Task.GraphId != protocol.NameID("default", "second").String() {
		t.Errorf("graphs %s and %s", res[0].Task.GraphId, res[7].Task.GraphId)
	}
	e.wantCounts(t, 6, 1)
	if n := e.count(t, "task_dependencies"); n != 5 {
		t.Errorf("%d dependencies, want 5", n)
	}
}

// A scope belongs to the tenant whose keys are in it.
func TestForeignScope(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	keyed := func(tenant, scope, key string) *penstockv1.EnqueueRequest {
		return req(func(r *penstockv1.EnqueueRequest) {
			r.Tenant, r.IdempotencyScope, r.IdempotencyKey = tenant, scope, key
		})
	}
	e.must(t, keyed("ada", "", "k1"), false)
	e.must(t, keyed("ada", "orders", "k1"), false)
	for what, r := range map[string]*penstockv1.EnqueueRequest{
		"another tenant's own, its key": keyed("bob", "ada", "k1"), "another tenant's own": keyed("bob", "ada", "k2"),
		"one that another uses, its key": keyed("bob", "orders", "k1"), "one that another uses": keyed("bob", "orders", "k3"), "without a key": keyed("bob", "orders", ""), "another tenant's own, without a key": keyed("bob", "ada", ""),
	} {
		_, err := e.enqueue(t, r)
		info := rpc.InfoOf(err)
		if info.GetCode() != string(protocol.CodeInputInvalid) || info.GetField() != "idempotency_scope" || strings.Contains(info.GetMessage(), "ada") && r.IdempotencyScope != "ada" {
			t.Errorf("%s: %v, %v", what, err, info)
		}
	}
	e.must(t, keyed("bob", "", "k1"), false)
	e.must(t, keyed("bob", "invoices", "k1"), false)
	e.must(t, keyed("ada", "orders", "k1"), true)
	e.wantCounts(t, 4, 4)
	// Within a batch, beside others.
	res := e.batch(t, keyed("bob", "orders", "k9"), keyed("bob", "", "k9"), keyed("ada", "orders", "k9"))
	if got := short(res[0]) + ", " + short(res[1]) + ", " + short(res[2]); got != "TASK_INPUT_INVALID idempotency_scope, new, new" {
		t.Errorf("batch: %s", got)
	}
	e.wantCounts(t, 6, 6)
}

// Of two tenants that begin a scope at the same moment, on two orchestrators or in
// one call, one gets it, and the other one is told so.
func TestTwoBeginAScope(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	keyed := func(tenant, scope string) *penstockv1.EnqueueRequest {
		return req(func(r *penstockv1.EnqueueRequest) {
			r.Tenant, r.IdempotencyScope, r.IdempotencyKey = tenant, scope, tenant
		})
	}
	const rounds = 40
	for i := range rounds {
		var errs [2]error
		var wg sync.WaitGroup
		for n, tenant := range []string{"ada", "bob"} {
			wg.Go(func() {
				_, errs[n] = e.orch[n].Enqueue(t.Context(), connect.NewRequest(keyed(tenant, fmt.Sprint("scope ", i))))
			})
		}
		wg.Wait()
		lost := errs[0]
		if lost == nil {
			lost = errs[1]
		}
		if (errs[0] == nil) == (errs[1] == nil) || rpc.InfoOf(lost).GetField() != "idempotency_scope" {
			t.Fatalf("round %d: %v", i, errs)
		}
	}
	res := e.batch(t, keyed("ada", "together"), keyed("bob", "together"))
	if got := short(res[0]) + ", " + short(res[1]); got != "new, TASK_INPUT_INVALID idempotency_scope" {
		t.Errorf("in one call: %s", got)
	}
	e.wantCounts(t, rounds+1, rounds+1)
}
