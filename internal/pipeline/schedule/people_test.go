package schedule_test

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/schedule"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// Who resumes a schedule has a hand in what it makes; who pauses it has not.
func TestWhoResumesIsARequester(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	r.create(t, "s", definition(600))
	for _, c := range []struct {
		paused bool
		who    string
	}{{true, "bob"}, {false, "carol"}, {false, "dave"}, {true, "ada"}, {false, "ada"}, {true, "bob"}, {false, "carol"}} {
		if _, err := r.stage.Pause(t.Context(), "", "s", c.paused, c.who); err != nil {
			t.Fatal(err)
		}
	}
	r.late(t, "s", 0)
	r.fire(t)
	if n := r.Count(t, "SELECT count(*) FROM tasks WHERE requested_by = 'ada' AND rescheduled_by = '{carol}'"); n != 1 {
		t.Errorf("%d tasks name who resumed the schedule, want 1", n)
	}
}

func (r *rig) guardType(t *testing.T, typ string) {
	t.Helper()
	rule := guard.Rule{Name: "of-" + typ, Expression: `task.type == "` + typ + `"`, Required: 1, Enabled: true}
	if _, _, err := r.Approval.SaveRule(t.Context(), rule, nil, "root"); err != nil {
		t.Fatal(err)
	}
}

// asked waits until a person is asked about a task, and returns the request.
func (r *rig) asked(t *testing.T, task protocol.ID) protocol.ID {
	t.Helper()
	var id pgid.ID
	testkit.Eventually(t, "a person is asked", func() (bool, string) {
		err := r.DB.QueryRow(t.Context(), "SELECT a.id FROM approvals a JOIN tasks t ON t.id = a.task_id WHERE a.task_id = $1 AND a.status = 'pending' AND t.state = 'waiting_approval'", pgid.ID(task)).Scan(&id)
		return err == nil, "no request"
	})
	return protocol.ID(id)
}

// decide has those who had a hand in a task refused, and then one approve it.
func (r *rig) decide(t *testing.T, request protocol.ID, who string, refused ...string) {
	t.Helper()
	person := func(name string) approval.Person {
		return approval.Person{Principal: name, Roles: []string{"approver"}}
	}
	for _, name := range refused {
		if _, err := r.Approval.Approve(t.Context(), request, person(name), ""); !errors.Is(err, approval.ErrRequester) {
			t.Errorf("%s, who had a hand in the task, approves: %v", name, err)
		}
	}
	if d, err := r.Approval.Approve(t.Context(), request, person(who), "fine"); err != nil || !d.Released {
		t.Fatalf("%s approves: %+v, %v", who, d, err)
	}
}

// A guard stops the tasks of a schedule before they are dispatched, and nobody
// who had a hand in the schedule releases them.
func TestGuardStopsTasksOfSchedules(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	r.guardType(t, "t")
	r.StartDispatch(t)
	r.create(t, "s", definition(600))
	if _, err := r.stage.Update(t.Context(), "", "s", definition(600, func(d *schedule.Definition) { d.Task.Payload = []byte(`{"n":2}`) }), 0, "bob"); err != nil {
		t.Fatal(err)
	}
	for _, paused := range []bool{true, false} {
		if _, err := r.stage.Pause(t.Context(), "", "s", paused, "carol"); err != nil {
			t.Fatal(err)
		}
	}
	r.late(t, "s", 0)
	r.fire(t)
	var raw pgid.ID
	if err := r.DB.QueryRow(t.Context(), "SELECT id FROM tasks WHERE schedule_id IS NOT NULL").Scan(&raw); err != nil {
		t.Fatal(err)
	}
	due := protocol.ID(raw)
	request := r.asked(t, due)
	f, _, err := r.stage.Trigger(t.Context(), "", "s", "by-hand", "dave")
	if err != nil {
		t.Fatal(err)
	}
	byHand := protocol.ID(*f.TaskID)
	r.decide(t, r.asked(t, byHand), "erin", "ada", "bob", "carol", "dave")
	r.decide(t, request, "dave", "ada", "bob", "carol") // he triggered the other one
	held := r.Fetch(t, "w", 2)
	if len(held) != 2 || held[0].ID != byHand || held[1].ID != due {
		t.Errorf("fetched %v, want the two tasks in the order of their approval", held)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// A guard stops what is moved to now as it does what was to run then.
func TestGuardStopsRescheduledTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	hour := time.Hour.Milliseconds()
	later := func(typ string) *enqueue.Request {
		return &enqueue.Request{Type: typ, Payload: []byte(`{}`), ScheduleType: "delay", DelayMS: hour, RequestedBy: "ada"}
	}
	r.StartDispatch(t)
	before := r.Enqueue(t, later("t"))[0] // when there was no rule yet
	r.guardType(t, "t")
	after := r.Enqueue(t, later("t"))[0]
	now := func(id protocol.ID) {
		t.Helper()
		if err := r.Enqueuer.Reschedule(t.Context(), enqueue.Reschedule{ID: id, ScheduleType: "now", Principal: "bob"}); err != nil {
			t.Fatal(err)
		}
	}
	now(before)
	now(after)
	// Who is asked already is asked anew: another time is another matter.
	_, err := r.Approval.Approve(t.Context(), r.asked(t, after), approval.Person{Principal: "carol", Roles: []string{"approver"}}, "")
	if protocol.CodeOf(err) != protocol.CodeInvalidTransition {
		t.Errorf("carol approves what she was not shown: %v", err)
	}
	for _, id := range []protocol.ID{before, after} {
		r.decide(t, r.asked(t, id), "carol", "ada", "bob")
	}
	// An approval is one of the time that was shown.
	moved := r.Enqueue(t, later("t"))[0]
	r.decide(t, r.asked(t, moved), "carol", "ada")
	now(moved)
	r.decide(t, r.asked(t, moved), "carol", "ada", "bob")
	if held := r.Fetch(t, "w", 3); len(held) != 3 {
		t.Errorf("%d tasks are dispatched, want 3", len(held))
	}
	testkit.VerifyEvents(t, r.Stores)
}
