package reconcile_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/pipeline/cancel"
	"github.com/penstock-dev/penstock/internal/pipeline/effect"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/reconcile"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

var bob = approval.Person{Principal: "bob", Roles: []string{"approver"}}

// waits are tasks that have not been dispatched: they wait for people, for
// another task, or for their time.
type waits struct {
	*testkit.Rig
	// approved, rejected, expired and withdrawn are stopped by a rule, asked by its
	// handler; after waits for first, and later for its time.
	approved, rejected, expired, withdrawn, asked, after, later protocol.ID

	first testkit.Held
}

func newWaits(t *testing.T, r *testkit.Rig) *waits {
	t.Helper()
	rule := guard.Rule{Name: "guarded", Expression: `task.type == "guarded"`, Enabled: true}
	if _, _, err := r.Approval.SaveRule(t.Context(), rule, nil, "root"); err != nil {
		t.Fatal(err)
	}
	asked := r.Enqueue(t, &enqueue.Request{Type: "asks", Payload: []byte("{}"), RequestedBy: "alice"})[0]
	h := r.Fetch(t, "w", 1)[0]
	o := h.Outcome(protocol.OutcomeApprovalNeeded)
	o.Approval = []byte(`{"name": "go on"}`)
	r.Report(t, o)
	r.Ack(t, h)
	r.WaitState(t, protocol.StateWaitingApproval, asked)
	guarded := func() protocol.ID {
		return r.Enqueue(t, &enqueue.Request{Type: "guarded", Payload: []byte("{}"), RequestedBy: "alice"})[0]
	}
	w := &waits{Rig: r, asked: asked, approved: guarded(), rejected: guarded(), expired: guarded(), withdrawn: guarded()}
	first := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	w.first = r.Fetch(t, "w", 1)[0]
	w.after = r.Enqueue(t, &enqueue.Request{Type: "t", Payload: []byte("{}"), DependsOn: []enqueue.Dependency{{TaskID: first.String()}}})[0]
	w.later = r.Enqueue(t, later())[0]
	w.settled(t)
	return w
}

func (w *waits) all() []protocol.ID {
	return []protocol.ID{w.approved, w.rejected, w.expired, w.withdrawn, w.asked, w.after, w.later}
}

// settled waits until no dispatch is open.
func (w *waits) settled(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "no dispatch is open", func() (bool, string) {
		n := w.Count(t, "SELECT count(*) FROM dispatch_outbox")
		return n == 0, fmt.Sprint(n)
	})
}

func (w *waits) request(t *testing.T, id protocol.ID) protocol.ID {
	t.Helper()
	var request pgid.ID
	if err := w.DB.QueryRow(t.Context(), "SELECT id FROM approvals WHERE task_id = $1 AND status = 'pending'", pgid.ID(id)).Scan(&request); err != nil {
		t.Fatalf("the request about task %s: %v", id, err)
	}
	return protocol.ID(request)
}

func (w *waits) approve(t *testing.T, ids ...protocol.ID) {
	t.Helper()
	for _, id := range ids {
		if d, err := w.Approval.Approve(t.Context(), w.request(t, id), bob, "fine"); err != nil || !d.Released {
			t.Fatalf("approve task %s: %+v, %v", id, d, err)
		}
	}
}

// finish has the task end on which another one waits.
func (w *waits) finish(t *testing.T, first testkit.Held) {
	t.Helper()
	w.Report(t, first.Outcome(protocol.OutcomeSucceeded))
	w.Ack(t, first)
	w.WaitState(t, protocol.StateSucceeded, first.ID)
	if _, err := w.Dependency.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// hasten makes the scheduled task due.
func (w *waits) hasten(t *testing.T) {
	t.Helper()
	if err := w.Enqueuer.Reschedule(t.Context(), enqueue.Reschedule{ID: w.later, ScheduleType: "now", Principal: "alice"}); err != nil {
		t.Fatal(err)
	}
}

// fetch has a worker fetch exactly these tasks.
func (w *waits) fetch(t *testing.T, consumer string, ids ...protocol.ID) map[protocol.ID]testkit.Held {
	t.Helper()
	got := map[protocol.ID]testkit.Held{}
	for _, h := range w.Fetch(t, consumer, len(ids)) {
		got[h.ID] = h
	}
	for _, id := range ids {
		if _, ok := got[id]; !ok {
			t.Fatalf("task %s was not fetched", id)
		}
	}
	return got
}

// unchanged checks that the tasks wait as before, but under other deliveries.
func (w *waits) unchanged(t *testing.T) {
	t.Helper()
	for _, id := range w.all() {
		want := protocol.StateWaitingApproval
		if id == w.after || id == w.later {
			want = protocol.StatePending
		}
		if row := w.Row(t, id); row.State != want || row.Delivery < protocol.RestoredJump || row.Due != (id == w.later) {
			t.Errorf("task %s, want it %s: %+v", id, want, row)
		}
	}
	if n := w.Count(t, "SELECT open_dependencies FROM tasks WHERE id = $1", w.after[:]); n != 1 {
		t.Errorf("%d open dependencies, want 1", n)
	}
	if n := w.Count(t, "SELECT count(*) FROM approvals WHERE status = 'pending'"); n != 5 {
		t.Errorf("%d requests are pending, want 5", n)
	}
	testkit.VerifyEvents(t, w.Stores)
}

func (w *waits) planned(t *testing.T) {
	t.Helper()
	tasks := map[string]reconcile.PlanTask{}
	for _, x := range plan(t, w.Rig).Tasks {
		tasks[x.ID] = x
	}
	for _, id := range w.all() {
		if x := tasks[id.String()]; x.Action != "raise the delivery; the state stays" || x.State != w.Row(t, id).State {
			t.Errorf("task %s is planned as %+v", id, x)
		}
	}
	if x := tasks[w.first.ID.String()]; len(tasks) != 8 || x.Action != "redispatch under a raised delivery" {
		t.Errorf("%d tasks are planned; the one that was dispatched as %+v", len(tasks), x)
	}
}

// Tasks that had not been dispatched when the backup was made were approved, had
// their time moved and were told of the end of another one in the time that is
// forgotten, and its workers have them under the deliveries that the backup
// knows. None of those counts, whatever comes of the tasks this time.
func TestPostgresRestoredWhileTasksWait(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := all(t, s)
	history(t, r)
	round(t, r)
	complete(t, r)
	w := newWaits(t, r)
	restore := backUp(t, r)

	w.approve(t, w.approved, w.rejected, w.expired, w.withdrawn, w.asked)
	w.finish(t, w.first)
	w.hasten(t)
	old := w.fetch(t, "old", w.all()...)
	for range 3 {
		round(t, r)
	}
	w.settled(t)
	restore()

	w.planned(t)
	round(t, r)
	complete(t, r)
	w.unchanged(t)
	if got := told(t, r); len(got) != 2 || got[1] != "rebuilt postgres_restored 1+0+0" {
		t.Errorf("told %q: only one task had been dispatched", got)
	}
	w.approve(t, w.approved, w.asked)
	if _, err := r.Approval.Reject(t.Context(), w.request(t, w.rejected), bob, "no"); err != nil {
		t.Fatal(err)
	}
	exec(t, r, "UPDATE approvals SET expires_at = requested_at WHERE task_id = $1", w.expired)
	if _, err := r.Approval.Expire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Cancel.Cancel(t.Context(), w.withdrawn, cancel.Reason{Principal: "alice"}); err != nil {
		t.Fatal(err)
	}
	w.finish(t, w.fetch(t, "new", w.first.ID)[w.first.ID])
	w.hasten(t)
	now := w.fetch(t, "new", w.approved, w.asked, w.after, w.later)
	w.refused(t, old)
	w.ends(t, slices.Collect(maps.Values(now)))
}

// refused has a worker of the forgotten time reserve effects and tell that it has
// run the tasks.
func (w *waits) refused(t *testing.T, old map[protocol.ID]testkit.Held) {
	t.Helper()
	ledger := effect.New(effect.Options{Store: w.Store, Waiting: w.Approval, Log: testkit.Log(t)})
	for id, h := range old {
		before := w.Row(t, id)
		a, err := ledger.Reserve(t.Context(), &effect.Reservation{
			EffectHolder: protocol.EffectHolder{TaskID: id, Delivery: h.Delivery, WorkerID: h.Consumer},
			MessageID:    h.MessageID, Name: "charge", Token: protocol.ID(uuid.New()),
		})
		if err == nil && a.Verdict == protocol.EffectGranted {
			t.Errorf("task %s: delivery %d of the forgotten time may have an effect", id, h.Delivery)
		}
		w.Report(t, h.Outcome(protocol.OutcomeSucceeded))
		w.Ack(t, h)
		testkit.Eventually(t, "the outcome is refused", func() (bool, string) {
			n := w.Count(t, "SELECT count(*) FROM event_log WHERE task_id = $1 AND type = 'task.transition_rejected'", id[:])
			return n == 1, fmt.Sprint(id, n)
		})
		if row := w.Row(t, id); row.State != before.State || row.Delivery != before.Delivery {
			t.Errorf("task %s was %+v, and is %+v", id, before, row)
		}
	}
}

// ends has the tasks that were fetched run, and checks how all of them ended.
func (w *waits) ends(t *testing.T, now []testkit.Held) {
	t.Helper()
	for _, h := range now {
		if h.Delivery < protocol.RestoredJump {
			t.Errorf("task %s is dispatched as delivery %d", h.ID, h.Delivery)
		}
		var grants []protocol.Grant
		if h.ID == w.asked {
			if err := json.Unmarshal(h.Approvals, &grants); err != nil || len(grants) != 1 || grants[0].ApprovalID != protocol.ApprovalID(w.asked, 1).String() {
				t.Errorf("the handler that asked is told %s, %v", h.Approvals, err)
			}
		}
		w.Report(t, h.Outcome(protocol.OutcomeSucceeded))
		w.Ack(t, h)
	}
	w.WaitState(t, protocol.StateSucceeded, w.approved, w.asked, w.after, w.later)
	w.WaitState(t, protocol.StateCancelled, w.rejected, w.expired, w.withdrawn)
	for id, want := range map[protocol.ID]string{w.approved: "approved", w.asked: "approved", w.rejected: "rejected", w.expired: "expired", w.withdrawn: "withdrawn"} {
		if n := w.Count(t, "SELECT count(*) FROM approvals WHERE task_id = $1 AND status = $2", id[:], want); n != 1 {
			t.Errorf("%d requests about task %s are %s, want 1", n, id, want)
		}
	}
	testkit.VerifyLog(t, w.Stores)
}

// A task that is approved while outcomes are still waited for has its new
// delivery already: one of the forgotten time is not let in.
func TestApprovedWhileOutcomesAreWaitedFor(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, short(s))
	stop := r.Start(t, r.Results.Run)
	r.StartDispatch(t)
	round(t, r)
	complete(t, r)
	w := newWaits(t, r)
	stop()
	w.Report(t, (&testkit.Held{TaskEntry: &protocol.TaskEntry{ID: w.approved, Delivery: 1}, MessageID: "1-0", Consumer: "old"}).Outcome(protocol.OutcomeSucceeded))
	sql(t, r, "UPDATE redis_epoch SET cluster = '7/00000001'")
	done := make(chan error, 1)
	go func() { done <- r.Reconcile.Round(t.Context()) }()
	testkit.Eventually(t, "the delivery is raised", func() (bool, string) {
		row := w.Row(t, w.approved)
		return row.Delivery >= protocol.RestoredJump, fmt.Sprintf("%+v", row)
	})
	w.approve(t, w.approved)
	r.Start(t, r.Results.Run)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	events(t, r, w.approved, "task.created", "approval.requested", "task.redispatched", "approval.approved", "task.transition_rejected")
	if row := w.Row(t, w.approved); row.State != protocol.StateQueued {
		t.Errorf("the task is %+v", row)
	}
}

// However many tasks wait, one transaction raises few of them, and all are
// raised.
func TestPostgresRestoredWithManyWaiting(t *testing.T) {
	t.Parallel()
	r := all(t, testkit.NewStores(t))
	round(t, r)
	complete(t, r)
	const n = 1100
	var reqs []*enqueue.Request
	for range n {
		reqs = append(reqs, later())
	}
	r.Enqueue(t, reqs...)
	sql(t, r, "UPDATE redis_epoch SET cluster = '7/00000001'")
	started := time.Now()
	round(t, r)
	t.Logf("%d tasks raised in %s", n, time.Since(started))
	complete(t, r)
	if got := r.Count(t, "SELECT count(*) FROM tasks WHERE delivery >= $1 AND state = 'pending' AND due_at > now()", protocol.RestoredJump); got != n {
		t.Errorf("%d tasks are raised and wait for their time, want %d", got, n)
	}
	if most := r.Count(t, "SELECT max(c) FROM (SELECT count(*) AS c FROM tasks GROUP BY xmin::text) x"); most > 500 {
		t.Errorf("one transaction raised %d tasks", most)
	}
	testkit.VerifyEvents(t, r.Stores)
}
