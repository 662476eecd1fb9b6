package alert_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// fetched enqueues n tasks and has a consumer take them.
func fetched(t *testing.T, r *testkit.Rig, n int) []testkit.Held {
	t.Helper()
	r.Enqueue(t, testkit.Requests(n, "t")...)
	hs := r.Fetch(t, "w", n)
	r.Ack(t, hs...)
	return hs
}

func succeeded(h testkit.Held) *protocol.Outcome {
	o := h.Outcome(protocol.OutcomeSucceeded)
	o.Result = []byte("1")
	return o
}

func failed(h testkit.Held) *protocol.Outcome {
	o := h.Outcome(protocol.OutcomeFailed)
	o.Code, o.Error, o.Retryable, o.Delay = protocol.CodeExecutionFailed, "boom", true, 0
	return o
}

// foreign is an outcome of a delivery that never was: refused.
func foreign(h testkit.Held, delivery int64) *protocol.Outcome {
	o := succeeded(h)
	o.Delivery = delivery
	return o
}

// tell reports outcomes, waits until they are judged, and has the replica raise
// what it saw.
func tell(t *testing.T, r *testkit.Rig, outcomes ...*protocol.Outcome) {
	t.Helper()
	r.Report(t, outcomes...)
	settled(t, r)
	if _, err := r.Alerts.Look(t.Context()); err != nil {
		t.Errorf("look: %v", err)
	}
}

func TestRefusedInARow(t *testing.T) {
	t.Parallel()
	rs := replicas(t)
	r := rs[0]
	r.StartDispatch(t)
	stop := r.Start(t, r.Results.Run)
	hs := fetched(t, r, 3)
	bad := func(n int) (out []*protocol.Outcome) {
		for range n {
			out = append(out, foreign(hs[0], 99))
		}
		return out
	}
	tell(t, r, bad(3)...)
	tell(t, r, succeeded(hs[1]))
	tell(t, r, bad(3)...)
	want(t, r, "three, an applied one, three", "")
	tell(t, r, succeeded(hs[1]), succeeded(hs[1]), hs[1].Outcome(protocol.OutcomeClaimed))
	want(t, r, "repeats of what was applied, which the task remembers", "")
	tell(t, r, bad(1)...)
	want(t, r, "the fourth, in spite of repeats between", "invalid_transitions =1!")
	e := raised(t, r, protocol.AlertInvalidTransitions, "", 1)
	if e.Data != `{"kind":"invalid_transitions","severity":"P1","tenant":"","value":4,"threshold":4,"window_ms":3600000}` ||
		!strings.HasPrefix(e.Reason, "4 outcomes in a row were refused with TASK_INVALID_TRANSITION within 1h0m0s, alerts.invalid_in_a_row = 4: ") {
		t.Errorf("%+v", e)
	}
	tell(t, r, append(append(bad(5), succeeded(hs[2])), bad(7)...)...)
	want(t, r, "twice more", "invalid_transitions =1!")

	// The other replica sees a row of its own: what this one saw does not add to
	// it, and it does not raise what is firing.
	tell(t, r, bad(2)...)
	stop()
	r2 := rs[1]
	r2.Start(t, r2.Results.Run)
	sql(t, r, "UPDATE alerts SET seen_at = now() - interval '59 minutes'")
	evaluate(t, rs)
	want(t, r, "the window is not over", "invalid_transitions =1!")
	sql(t, r, "UPDATE alerts SET seen_at = now() - interval '61 minutes'")
	evaluate(t, rs)
	want(t, r, "quiet for a window", "invalid_transitions =1")
	tell(t, r2, bad(3)...)
	want(t, r, "two at one replica, three at the other", "invalid_transitions =1")
	tell(t, r2, bad(1)...)
	want(t, r, "four at the other", "invalid_transitions =2!")
	tell(t, r2, succeeded(hs[0]))
	testkit.VerifyLog(t, r.Stores)
}

// Outcomes of earlier attempts that come again are not refused, although a task
// remembers only its last one, and are no alarm: not among themselves, and not
// as part of a row.
func TestRepeatsOfEarlierAttempts(t *testing.T) {
	t.Parallel()
	rs := replicas(t)
	r := rs[0]
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	hs := fetched(t, r, 5)
	snoozed := hs[1].Outcome(protocol.OutcomeSnoozed)
	snoozed.Delay = 0
	first := []*protocol.Outcome{
		failed(hs[0]), hs[0].Outcome(protocol.OutcomeClaimed), snoozed, hs[1].Outcome(protocol.OutcomeClaimed),
		hs[2].Outcome(protocol.OutcomeReleased), hs[2].Outcome(protocol.OutcomeClaimed), hs[3].Outcome(protocol.OutcomeSkipped), succeeded(hs[4]),
	}
	tell(t, r, first...)
	second := r.Fetch(t, "w", 4)
	r.Ack(t, second...)
	var last []*protocol.Outcome
	for i, h := range second {
		if i == 0 {
			o := failed(h)
			o.Retryable = false
			last = append(last, o)
			continue
		}
		last = append(last, succeeded(h))
	}
	tell(t, r, last...)
	refused := func() int {
		return r.Count(t, "SELECT count(*) FROM event_log WHERE type = 'task.transition_rejected'")
	}
	for range 3 {
		tell(t, r, append(first, last...)...)
	}
	if n := refused(); n != 0 {
		t.Errorf("%d repeats were refused", n)
	}
	want(t, r, "repeats", "")
	tell(t, r, foreign(hs[0], 99), first[0], first[1], foreign(hs[1], 99), first[2], foreign(hs[2], 99))
	want(t, r, "three refused outcomes among repeats", "")
	tell(t, r, first[5], first[0], foreign(hs[3], 99))
	want(t, r, "the fourth", "invalid_transitions =1!")
	testkit.VerifyEvents(t, r.Stores)
}

// The execution that a cancellation ended reports in vain, once: that is no
// alarm, but what claims to be another execution is.
func TestOutcomesAfterACancel(t *testing.T) {
	t.Parallel()
	rs := replicas(t)
	r := rs[0]
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	hs := fetched(t, r, 6)
	var in, later []*protocol.Outcome
	for _, h := range hs {
		in = append(in, h.Outcome(protocol.OutcomeClaimed))
		later = append(later, failed(h))
	}
	tell(t, r, in...)
	sql(t, r, `WITH t AS (UPDATE tasks SET state = 'cancelled', delivery = delivery + 1, event_seq = event_seq + 1, finished_at = now() RETURNING *)
		INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, actor, trace_id, occurred_at)
		SELECT id, event_seq, 'task.cancelled', 'running', 'cancelled', attempt, delivery, 'api', trace_id, now() FROM t`)
	tell(t, r, later...)
	want(t, r, "the cancelled executions", "")
	var foreigners []*protocol.Outcome
	for _, h := range hs {
		foreigners = append(foreigners, foreign(h, 99))
	}
	tell(t, r, foreigners...)
	want(t, r, "others", "invalid_transitions =1!")
	testkit.VerifyEvents(t, r.Stores)
}

// What could not be raised is raised when the store is back.
func TestRowWaitsForTheStore(t *testing.T) {
	t.Parallel()
	rs := replicas(t)
	r := rs[0]
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	hs := fetched(t, r, 1)
	evaluate(t, rs)
	sql(t, r, "ALTER TABLE alerts RENAME TO gone")
	for range 4 {
		r.Report(t, foreign(hs[0], 99))
	}
	settled(t, r)
	if _, err := r.Alerts.Look(t.Context()); err == nil {
		t.Error("raised without a table")
	}
	sql(t, r, "ALTER TABLE gone RENAME TO alerts")
	for range 2 {
		if _, err := r.Alerts.Look(t.Context()); err != nil {
			t.Error(err)
		}
		want(t, r, "the table is back", "invalid_transitions =1!")
	}
}

// Refusals further apart than the window are no row.
func TestRowIsWithinTheWindow(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Alerts.InvalidInARow, cfg.Alerts.Window = 4, time.Second
	r := testkit.NewRig(t, s, cfg)
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	h := fetched(t, r, 1)[0]
	for range 3 {
		tell(t, r, foreign(h, 99), foreign(h, 99), foreign(h, 99))
		told := time.Now()
		testkit.Eventually(t, "the window passes", func() (bool, string) { return time.Since(told) > cfg.Alerts.Window, "" })
	}
	want(t, r, "three, nothing, three, nothing, three", "")
	tell(t, r, foreign(h, 99), foreign(h, 99), foreign(h, 99), foreign(h, 99))
	want(t, r, "four", "invalid_transitions =1!")
}

// Both replicas see a row and raise it in the same moment, again and again: one
// event each time.
func TestBothRaiseAtOnce(t *testing.T) {
	t.Parallel()
	rs := replicas(t)
	evaluate(t, rs)
	for n := 1; n <= 30; n++ {
		sql(t, rs[0], "UPDATE alerts SET firing = false")
		var wg sync.WaitGroup
		for _, r := range rs {
			judged(t, r, "rrrr")
			wg.Go(func() {
				if _, err := r.Alerts.Look(t.Context()); err != nil {
					t.Errorf("look: %v", err)
				}
			})
		}
		wg.Wait()
		want(t, rs[0], "both", fmt.Sprintf("invalid_transitions =%d!", n))
	}
}

// judged tells a replica of a batch: of outcomes that were refused (r), applied
// (a), repeats (p), or of no task (u).
func judged(t *testing.T, r *testkit.Rig, batch string) {
	t.Helper()
	verdicts := map[rune]string{'r': "rejected", 'a': "applied", 'p': "repeated", 'u': "unknown_task"}
	r.Alerts.Judged(t.Context(), func(yield func(*protocol.Outcome, string) bool) {
		for i, v := range batch {
			if !yield(&protocol.Outcome{ID: protocol.ID{byte(i)}, Kind: protocol.OutcomeSucceeded}, verdicts[v]) {
				return
			}
		}
	})
}

// What is a row of four, within a batch and across batches.
func TestRows(t *testing.T) {
	t.Parallel()
	rs := replicas(t)
	evaluate(t, rs)
	for batches, row := range map[string]bool{
		"rrrr": true, "rrrrrrrr": true, "rrra": false, "rrrarrr": false, "rrrarrrr": true, "rrrra": true, "arrrra": true,
		"rpruppurr": true, "r r r r": true, "rr r a r": false, "rra rr": false, "arr rr": true, "rr p u rr": true, "rrr rarrr": true, "rrr arrr": false,
		"aaaa": false, "pppp": false, "uuuu": false,
	} {
		sql(t, rs[0], "UPDATE alerts SET firing = false")
		for _, b := range strings.Fields(batches + " a") {
			judged(t, rs[0], b)
		}
		if _, err := rs[0].Alerts.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := strings.HasSuffix(state(t, rs[0]), "!"); got != row {
			t.Errorf("%s: raised %t, want %t", batches, got, row)
		}
	}
}
