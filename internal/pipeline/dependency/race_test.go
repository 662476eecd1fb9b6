package dependency_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// Upstreams that end in concurrent transactions of two replicas, while their
// dependants are being enqueued on both, never leave a dependant waiting.
func TestConcurrentEnds(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	a, b := testkit.NewRig(t, s, calm(s)), testkit.NewRig(t, s, calm(s))
	for round := range 60 {
		ups := a.Enqueue(t, testkit.Requests(2, "t")...)
		var wg sync.WaitGroup
		for i, r := range []*testkit.Rig{a, b} {
			wg.Go(func() {
				if err := end(t, r, round%5 > 0 || i == 0, ups[i]); err != nil {
					t.Errorf("finish: %v", err)
				}
			})
			wg.Go(func() {
				if _, err := r.Enqueuer.Enqueue(t.Context(), onTasks(ups...)); err != nil {
					t.Errorf("enqueue: %v", err)
				}
			})
			wg.Go(func() { settle(t, r) })
		}
		wg.Wait()
		settle(t, a)
		if t.Failed() {
			return
		}
	}
	if n := a.Count(t, "SELECT count(*) FROM tasks WHERE open_dependencies > 0 OR state = 'pending' AND due_at IS NULL"); n != 0 {
		t.Errorf("%d tasks wait for ever", n)
	}
	if n := a.Count(t, "SELECT count(*) FROM tasks WHERE on_dependency_failure IS NOT NULL AND state = 'cancelled'"); n != 24 {
		t.Errorf("%d dependants cancelled, want the 24 of the rounds in which an upstream failed", n)
	}
	if n, err := a.Dependency.Sweep(t.Context()); err != nil || n != 0 {
		t.Errorf("the sweep found %d lost ends, %v", n, err)
	}
	consistent(t, a)
	testkit.VerifyEvents(t, s)
}

// Whatever the graph, the order in which tasks end and what fails: every task
// ends or is due, none waits for ever, and the policy is obeyed.
func TestRandomGraphs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(rt, "tasks")
		rs := make([]*enqueue.Request, n)
		ups := make([][]int, n)
		for i := range rs {
			rs[i] = req(fmt.Sprint(i))
			for j := range i {
				if rapid.IntRange(0, 2).Draw(rt, "edge") == 0 {
					ups[i] = append(ups[i], j)
					rs[i].DependsOn = append(rs[i].DependsOn, enqueue.Dependency{Name: fmt.Sprint(j)})
				}
			}
			if len(ups[i]) > 0 && rapid.Bool().Draw(rt, "run") {
				rs[i].OnDependencyFailure = "run"
			}
		}
		shuffled := append([]*enqueue.Request(nil), rs...)
		rand.Shuffle(n, func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		g := graph(t, r, shuffled...)
		fails := rapid.SliceOfN(rapid.IntRange(0, 3), n, n).Draw(rt, "fails")
		ended := make([]protocol.State, n)
		for range n + 1 {
			for i := range n {
				row := r.Row(t, g[fmt.Sprint(i)])
				if row.State.Terminal() {
					ended[i] = row.State
				} else if row.Due && rapid.IntRange(0, 3).Draw(rt, "waits") > 0 {
					finish(t, r, fails[i] > 0, g[fmt.Sprint(i)])
				}
			}
			settle(t, r)
		}
		for i := range n { // whoever waited out of luck
			for range n {
				if row := r.Row(t, g[fmt.Sprint(i)]); !row.State.Terminal() && row.Due {
					finish(t, r, fails[i] > 0, g[fmt.Sprint(i)])
					settle(t, r)
				}
			}
			row := r.Row(t, g[fmt.Sprint(i)])
			if ended[i] = row.State; !row.State.Terminal() {
				rt.Fatalf("task %d is %s and waits for ever", i, row.State)
			}
			failed := false
			for _, j := range ups[i] {
				failed = failed || ended[j] != protocol.StateSucceeded
			}
			byDependency := row.Code == string(protocol.CodeDependencyFailed)
			if want := failed && rs[i].OnDependencyFailure != "run"; byDependency != want {
				rt.Fatalf("task %d with policy %q is %s, %s; an upstream failed: %t", i, rs[i].OnDependencyFailure, row.State, row.Code, failed)
			}
		}
	})
	consistent(t, r)
	testkit.VerifyEvents(t, r.Stores)
}

// Ten thousand tasks wait for one, and one for ten thousand.
func TestFan(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const n = 10_000
	rs := []*enqueue.Request{req("root")}
	mid := names(n, "m")
	for _, m := range mid {
		rs = append(rs, req(m, "root"))
	}
	rs = append(rs, req("end", mid...))
	g := graph(t, r, rs...)
	finish(t, r, true, g["root"])
	if counted := settle(t, r); counted != n {
		t.Errorf("%d dependencies counted, want %d", counted, n)
	}
	ids := make([]protocol.ID, n)
	for i, m := range mid {
		ids[i] = g[m]
	}
	for i := 0; i < n; i += 500 {
		finish(t, r, true, ids[i:i+500]...)
	}
	want(t, r, g["end"], protocol.StatePending, false, n)
	settle(t, r)
	want(t, r, g["end"], protocol.StatePending, true, 0)
	consistent(t, r)
}
