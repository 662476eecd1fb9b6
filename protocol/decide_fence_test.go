package protocol

import (
	"encoding/json"
	"slices"
	"testing"
	"time"
)

func TestStaleDeliveryIsFenced(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 3)
	stale := h.outcome(OutcomeSucceeded)
	h.apply(h.outcome(OutcomeClaimed), Applied)
	h.do(h.task.Lost(h.env, ActorReclaimer, "idle", nil))
	h.do(h.task.Dispatch(h.env))
	events := h.apply(stale, Rejected)
	if len(events) != 1 || events[0].Type != EventTransitionRejected || events[0].Code != CodeInvalidTransition {
		t.Fatalf("events are %+v", events)
	}
	var d RejectedData
	if err := json.Unmarshal(events[0].Data, &d); err != nil || d != (RejectedData{OutcomeSucceeded, 1}) {
		t.Errorf("data %s, error %v", events[0].Data, err)
	}
	h.wantState(StateQueued)
	if again := h.apply(stale, Rejected); len(again) != 0 {
		t.Errorf("recorded again: %+v", again)
	}
	if other := h.apply(&Outcome{Delivery: 1, Kind: OutcomeFailed, Delay: -1}, Rejected); len(other) != 0 {
		t.Errorf("one delivery recorded twice: %+v", other)
	}
	h.apply(h.outcome(OutcomeSucceeded), Applied)
	h.wantState(StateSucceeded)
}

func TestFutureDeliveryIsFenced(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 3)
	o := h.outcome(OutcomeSucceeded)
	o.Delivery = 2
	h.apply(o, Rejected)
	h.wantState(StateQueued)
	// When the task comes to that delivery, its outcome counts.
	h.do(h.task.Redispatch(h.env, "lost"))
	h.do(h.task.Dispatch(h.env))
	h.apply(h.outcome(OutcomeSucceeded), Applied)
}

// B2's RP-005: a second, different end is refused; the same one is a repeat.
func TestSecondEnd(t *testing.T) {
	t.Parallel()
	for _, first := range []OutcomeKind{OutcomeSucceeded, OutcomeFailed, OutcomeSnoozed, OutcomeReleased, OutcomeApprovalNeeded, OutcomeSkipped} {
		for _, second := range OutcomeKinds() {
			h := newHistory(t, 0)
			h.apply(h.outcome(OutcomeClaimed), Applied)
			one, two := h.outcome(first), h.outcome(second)
			h.apply(one, Applied)
			want := Rejected
			if second == first || second == OutcomeClaimed {
				want = Repeated
			}
			events := h.apply(two, want)
			if (want == Rejected) != (len(events) == 1) {
				t.Errorf("%s after %s: %d events", second, first, len(events))
			}
		}
	}
}

func TestClaimTwice(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	h.apply(h.outcome(OutcomeClaimed), Applied)
	h.apply(h.outcome(OutcomeClaimed), Repeated)
	h.wantState(StateRunning)
}

// In states in which no worker can hold the task, outcomes of its current
// delivery are refused too.
func TestOutcomesWhereNobodyHoldsTheTask(t *testing.T) {
	t.Parallel()
	for _, state := range []State{StatePending, StateWaitingApproval, StateInterrupted, StateDLQPending, StateDLQRecorded, StateSucceeded, StateFailed, StateCancelled} {
		for _, kind := range OutcomeKinds() {
			task := &Task{ID: testID(2), State: state, Attempt: 1, Delivery: 5, MaxRetries: 3, Seq: 9}
			events, verdict := task.ApplyOutcome(&Outcome{ID: task.ID, Delivery: 5, Kind: kind, StartedAt: epoch, Delay: -1}, testEnv())
			if verdict != Rejected || len(events) != 1 || task.State != state || task.Delivery != 5 || task.Attempt != 1 {
				t.Errorf("%s in %s: %s, %d events, %+v", kind, state, verdict, len(events), *task)
			}
		}
	}
}

func TestSkippedAfterACancelIsExpected(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	skipped := h.outcome(OutcomeSkipped)
	late := h.outcome(OutcomeSucceeded)
	h.task.Delivery++
	h.keep([]*Event{h.task.move(StateCancelled, EventCancelled, h.env, ActorAPI)})
	h.apply(skipped, Repeated)
	h.apply(late, Rejected)
	h.wantState(StateCancelled)
}

func TestUnknownTypeGrowsItsDelay(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	var got []time.Duration
	for range 9 {
		o := h.outcome(OutcomeReleased)
		o.Code, o.StartedAt, o.FinishedAt = CodeUnknownType, time.Time{}, time.Time{}
		e := h.apply(o, Applied)[0]
		if e.Code != CodeUnknownType || h.task.Code != "" {
			t.Fatalf("event's code %q, task's %q", e.Code, h.task.Code)
		}
		got = append(got, h.task.DueAt.Sub(h.env.Now))
		h.do(h.task.Dispatch(h.env))
	}
	s := time.Second
	if want := []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, 60 * s, 60 * s}; !slices.Equal(got, want) {
		t.Errorf("delays are %s, want %s", got, want)
	}
	h.task.Delivery = 1 << 61 // after a jump of the delivery
	if e := h.task.release(&Outcome{Code: CodeUnknownType}, h.env)[0]; e.Type != EventInterrupted || h.task.DueAt.Sub(h.env.Now) != time.Minute {
		t.Errorf("due in %s", h.task.DueAt.Sub(h.env.Now))
	}
}

// A worker that hands a task back can't pass for a lost one: interruptions are
// counted from the events.
func TestReleaseIsNeverAnInterruption(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	o := h.outcome(OutcomeReleased)
	o.Code = CodeWorkerLost
	h.apply(o, Applied)
	if h.task.Interruptions != 0 {
		t.Errorf("%d interruptions", h.task.Interruptions)
	}
}

// A claim ends the wait, whatever the dispatcher had written.
func TestClaimClearsDueAt(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 3)
	h.do(h.task.Redispatch(h.env, "lost"))
	h.apply(h.outcome(OutcomeClaimed), Applied)
	if !h.task.DueAt.IsZero() {
		t.Errorf("running, and due at %s", h.task.DueAt)
	}
}

func TestApproval(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	h.apply(h.outcome(OutcomeClaimed), Applied)
	o := h.outcome(OutcomeApprovalNeeded)
	o.Error = "more than 1000 EUR"
	e := h.apply(o, Applied)[0]
	if e.Type != EventApprovalRequested || e.Reason != o.Error || h.task.Delivery != 2 || e.Delivery != 2 {
		t.Errorf("event %+v, delivery %d", e, h.task.Delivery)
	}
	if _, ok := h.task.Dispatch(h.env); ok {
		t.Error("dispatched without an approval")
	}
}

func TestSuccess(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	o := h.outcome(OutcomeSucceeded)
	o.Result = []byte(`{"sent":1}`)
	h.env.Now = epoch.Add(time.Minute)
	events := h.apply(o, Applied)
	if string(h.task.Result) != `{"sent":1}` || !h.task.FinishedAt.Equal(epoch.Add(time.Second)) {
		t.Errorf("result %s, finished %s", h.task.Result, h.task.FinishedAt)
	}
	if got := string(events[1].Data); got != `{"started_at":"2026-02-25T12:00:00Z","finished_at":"2026-02-25T12:00:01Z","duration_ms":1000}` {
		t.Errorf("data %s", got)
	}
	if events[1].TraceID != "trace-1" || events[1].Actor != ActorWorker {
		t.Errorf("event %+v", events[1])
	}
}

// A retrying task that is dispatched stays retrying, without an event.
func TestDispatchOfARetry(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 1)
	h.apply(h.failure(true), Applied)
	next := h.task.NextRetryAt
	if events := h.do(h.task.Dispatch(h.env)); len(events) != 0 {
		t.Errorf("events %+v", events)
	}
	h.wantState(StateRetrying)
	if !h.task.NextRetryAt.Equal(next) || !h.task.DueAt.IsZero() {
		t.Errorf("next retry %s, due %s", h.task.NextRetryAt, h.task.DueAt)
	}
	e := h.do(h.task.Redispatch(h.env, "gone"))[0]
	if e.Reason != "gone" || !e.NextRetryAt.Equal(next) || e.Actor != ActorReconciler {
		t.Errorf("event %+v", e)
	}
	h.do(h.task.Dispatch(h.env))
	h.apply(h.outcome(OutcomeClaimed), Applied)
	h.wantState(StateRunning)
}
