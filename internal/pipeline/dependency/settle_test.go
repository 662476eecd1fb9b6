package dependency_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A diamond runs from its root to its end, each task once what it needs is done.
func TestDiamond(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := graph(t, r, req("end", "left", "right"), req("left", "root"), req("right", "root"), req("root"))
	want(t, r, g["root"], protocol.StateQueued, true, 0)
	want(t, r, g["left"], protocol.StatePending, false, 1)
	want(t, r, g["end"], protocol.StatePending, false, 2)
	finish(t, r, true, g["root"])
	if n := settle(t, r); n != 2 {
		t.Errorf("%d dependencies counted, want 2", n)
	}
	want(t, r, g["left"], protocol.StatePending, true, 0)
	want(t, r, g["end"], protocol.StatePending, false, 2)
	finish(t, r, true, g["left"])
	settle(t, r)
	want(t, r, g["end"], protocol.StatePending, false, 1)
	finish(t, r, true, g["right"])
	settle(t, r)
	want(t, r, g["end"], protocol.StatePending, true, 0)
	consistent(t, r)
	testkit.VerifyEvents(t, r.Stores)
}

// The policy decides what an upstream that did not succeed means; cancelling goes
// on from level to level.
func TestPolicies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	run := req("run", "root", "other")
	run.OnDependencyFailure = "run"
	g := graph(t, r, req("root"), req("other"), req("cancelled", "root", "other"), req("below", "cancelled"), run, req("after-run", "run"))
	finish(t, r, false, g["root"])
	settle(t, r)
	want(t, r, g["cancelled"], protocol.StateCancelled, false, 1)
	want(t, r, g["below"], protocol.StateCancelled, false, 0)
	want(t, r, g["run"], protocol.StatePending, false, 1)
	row := r.Row(t, g["cancelled"])
	if row.Code != string(protocol.CodeDependencyFailed) || !strings.Contains(row.Reason, g["root"].String()) ||
		!strings.Contains(row.Reason, "(root) is cancelled: TASK_CANCELLED: not needed") {
		t.Errorf("code %s, reason %q", row.Code, row.Reason)
	}
	finish(t, r, true, g["other"])
	settle(t, r)
	want(t, r, g["cancelled"], protocol.StateCancelled, false, 0)
	want(t, r, g["run"], protocol.StatePending, true, 0)
	want(t, r, g["after-run"], protocol.StatePending, false, 1)
	consistent(t, r)
	testkit.VerifyEvents(t, r.Stores)
}

// A schedule holds a task back even once all it depends on has ended.
func TestSchedule(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	later := req("later", "root")
	later.ScheduleType, later.DelayMS = "delay", time.Hour.Milliseconds()
	g := graph(t, r, req("root"), later)
	finish(t, r, true, g["root"])
	settle(t, r)
	if n := r.Count(t, "SELECT count(*) FROM tasks WHERE due_at = start_at AND due_at > now() + interval '59 minutes'"); n != 1 {
		t.Errorf("%d tasks are due in an hour, want 1", n)
	}
	want(t, r, g["later"], protocol.StatePending, true, 0)
}

// What is cancelled or expires while it waits stays so.
func TestEndedWhileWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	expires := req("expires", "root")
	ms := int64(1)
	expires.StartWithinMS = &ms
	g := graph(t, r, req("root"), req("cancelled", "root"), expires, req("below", "expires"))
	finish(t, r, false, g["cancelled"])
	testkit.Eventually(t, "the task expires", func() (bool, string) {
		_, err := r.Cancel.ExpireWaiting(t.Context())
		s := r.Row(t, g["expires"])
		return err == nil && s.State == protocol.StateCancelled && s.Code == string(protocol.CodeExpired), string(s.State)
	})
	settle(t, r)
	want(t, r, g["below"], protocol.StateCancelled, false, 0)
	finish(t, r, true, g["root"])
	settle(t, r)
	want(t, r, g["cancelled"], protocol.StateCancelled, false, 0)
	if code := r.Row(t, g["cancelled"]).Code; code != string(protocol.CodeCancelled) {
		t.Errorf("code %s, want that of the cancellation", code)
	}
	consistent(t, r)
	testkit.VerifyEvents(t, r.Stores)
}

// A task may depend on tasks that exist, whether they have ended or not.
func TestDependOnExisting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.Enqueue(t, testkit.Requests(3, "t")...)
	finish(t, r, true, ids[0])
	finish(t, r, false, ids[1])
	done := r.Enqueue(t, onTasks(ids[0]))[0]
	failed := r.Enqueue(t, onTasks(ids[0], ids[1]))[0]
	both := r.Enqueue(t, onTasks(ids[0], ids[2]))[0]
	settle(t, r)
	want(t, r, done, protocol.StatePending, true, 0)
	want(t, r, failed, protocol.StateCancelled, false, 0)
	want(t, r, both, protocol.StatePending, false, 1)
	finish(t, r, true, ids[2])
	settle(t, r)
	want(t, r, both, protocol.StatePending, true, 0)
	consistent(t, r)
	testkit.VerifyEvents(t, r.Stores)
}

// Ends that nobody noted are found by the sweep.
func TestSweep(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := graph(t, r, req("a"), req("b"), req("c", "a", "b"))
	finish(t, r, true, g["a"], g["b"])
	if _, err := r.DB.Exec(t.Context(), "DELETE FROM dependency_settlements"); err != nil {
		t.Fatal(err)
	}
	if n := settle(t, r); n != 0 {
		t.Errorf("%d dependencies counted, want 0", n)
	}
	if n, err := r.Dependency.Sweep(t.Context()); err != nil || n != 2 {
		t.Errorf("sweep: %d, %v, want 2", n, err)
	}
	settle(t, r)
	want(t, r, g["c"], protocol.StatePending, true, 0)
	if n, err := r.Dependency.Sweep(t.Context()); err != nil || n != 0 {
		t.Errorf("second sweep: %d, %v, want 0", n, err)
	}
	consistent(t, r)
}

// The loop tells dependants at once after a commit, and finds what other replicas
// left.
func TestRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	r.Start(t, r.Dependency.Run)
	g := graph(t, r, req("a"), req("b", "a"), req("c", "b"))
	for range 3 {
		h := r.Fetch(t, "w", 1)[0]
		o := h.Outcome(protocol.OutcomeSucceeded)
		o.Result = []byte(`{"n":1}`)
		r.Report(t, o)
		r.Ack(t, h)
		if h.ID == g["b"] && string(h.Dependencies) != `{"complete":true,"tasks":[{"task_id":"`+g["a"].String()+`","name":"a","type":"t","state":"succeeded","result":{"n":1}}]}` {
			t.Errorf("dependencies %s", h.Dependencies)
		}
	}
	r.WaitState(t, protocol.StateSucceeded, g["a"], g["b"], g["c"])
	testkit.Eventually(t, "all notes are worked off", func() (bool, string) {
		return r.Count(t, "SELECT count(*) FROM dependency_settlements") == 0, ""
	})
	consistent(t, r)
	testkit.VerifyLog(t, r.Stores)
}

var _ = enqueue.MaxGraphTasks
