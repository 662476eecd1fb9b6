package dependency_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// calm has nothing but the stage under test move tasks on by itself.
func calm(s testkit.Stores) config.Orchestrator {
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout = time.Hour
	cfg.Recovery.ReconcileInterval = time.Hour
	return cfg
}

func newRig(t *testing.T) *testkit.Rig {
	t.Helper()
	s := testkit.NewStores(t)
	return testkit.NewRig(t, s, calm(s))
}

// req makes a request with a local name that depends on others by theirs.
func req(name string, on ...string) *enqueue.Request {
	r := &enqueue.Request{TaskID: uuid.Must(uuid.NewV7()).String(), Type: "t", Payload: []byte(`{}`), Name: name}
	for _, o := range on {
		r.DependsOn = append(r.DependsOn, enqueue.Dependency{Name: o})
	}
	return r
}

// onTasks makes a request that depends on existing tasks.
func onTasks(ids ...protocol.ID) *enqueue.Request {
	r := &enqueue.Request{TaskID: uuid.Must(uuid.NewV7()).String(), Type: "t", Payload: []byte(`{}`)}
	for _, id := range ids {
		r.DependsOn = append(r.DependsOn, enqueue.Dependency{TaskID: id.String()})
	}
	return r
}

// graph stores requests and returns the tasks' ids by their local names.
func graph(t *testing.T, r *testkit.Rig, rs ...*enqueue.Request) map[string]protocol.ID {
	t.Helper()
	res, err := r.Enqueuer.EnqueueGraph(t.Context(), rs)
	if err != nil {
		t.Fatalf("enqueue a graph of %d: %v", len(rs), err)
	}
	ids := map[string]protocol.ID{}
	for i, x := range res {
		ids[rs[i].Name] = protocol.ID(x.Task().ID)
	}
	return ids
}

// finish ends tasks that wait to run, in one transaction, without a worker: with
// success, or by cancelling them.
func finish(t testing.TB, r *testkit.Rig, ok bool, ids ...protocol.ID) {
	t.Helper()
	if err := end(t, r, ok, ids...); err != nil {
		t.Errorf("finish: %v", err)
	}
}

func end(t testing.TB, r *testkit.Rig, ok bool, ids ...protocol.ID) error {
	t.Helper()
	return r.Store.Decide(t.Context(), ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
		env := protocol.Env{Now: now}
		for _, l := range tasks {
			if !ok {
				ev, can := l.Cancel(env, protocol.ActorUser("ada"), protocol.CodeCancelled, "not needed")
				if !can {
					t.Errorf("task %s in state %s can't be cancelled", l.ID, l.State)
				}
				changed, events = append(changed, l), append(events, ev...)
				continue
			}
			if ev, can := l.Dispatch(env); can {
				events = append(events, ev...)
			}
			ev, verdict := l.ApplyOutcome(&protocol.Outcome{
				ID: l.ID, Delivery: l.Delivery, Kind: protocol.OutcomeSucceeded, WorkerID: "w", MessageID: "1-1", StartedAt: now, FinishedAt: now,
				Result: []byte(`"done"`), Delay: -1,
			}, env)
			if verdict != protocol.Applied {
				t.Errorf("task %s in state %s: outcome %s", l.ID, l.State, verdict)
			}
			changed, events = append(changed, l), append(events, ev...)
		}
		return changed, events
	})
}

// settle works off all notes.
func settle(t testing.TB, r *testkit.Rig) int {
	t.Helper()
	n, err := r.Dependency.Settle(t.Context())
	if err != nil {
		t.Fatalf("settle: %v", err)
	}
	return n
}

// want checks a task's state, and that it is due exactly if it should be.
func want(t testing.TB, r *testkit.Rig, id protocol.ID, state protocol.State, due bool, open int) {
	t.Helper()
	row := r.Row(t, id)
	n := r.Count(t, "SELECT open_dependencies FROM tasks WHERE id = $1", pgid.ID(id))
	if row.State != state || row.Due != due || n != open {
		t.Errorf("task %s is %s, due %t, with %d open dependencies; want %s, %t, %d", id, row.State, row.Due, n, state, due, open)
	}
}

// consistent checks what holds whenever nothing is under way.
func consistent(t testing.TB, r *testkit.Rig) {
	t.Helper()
	for what, sql := range map[string]string{
		"tasks whose counter is not that of their edges": `SELECT count(*) FROM tasks t WHERE t.open_dependencies <>
			(SELECT count(*) FROM task_dependencies e WHERE e.task_id = t.id AND NOT e.settled)`,
		"tasks that wait for nothing": `SELECT count(*) FROM tasks t WHERE t.state = 'pending' AND t.due_at IS NULL AND t.open_dependencies = 0`,
		"notes":                       `SELECT count(*) FROM dependency_settlements`,
		"edges to ended tasks that are not counted": `SELECT count(*) FROM task_dependencies e JOIN tasks u ON u.id = e.upstream_id
			WHERE NOT e.settled AND u.state IN ('succeeded', 'failed', 'cancelled')`,
	} {
		if n := r.Count(t, sql); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
}

func names(n int, prefix string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return out
}

var _ = dbsqlc.New
