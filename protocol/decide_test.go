package protocol

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// MEN's attempt table: attempts 1 … max_attempts, then exhausted. max_retries 3
// is B2's default: the 4th failure goes to the dead letters.
func TestAttemptTable(t *testing.T) {
	t.Parallel()
	if DefaultMaxRetries != 3 {
		t.Errorf("DefaultMaxRetries = %d, want 3", DefaultMaxRetries)
	}
	for _, maxRetries := range []int{0, 1, 2, DefaultMaxRetries} {
		t.Run(fmt.Sprint("max_retries=", maxRetries), func(t *testing.T) {
			t.Parallel()
			h := newHistory(t, maxRetries)
			want := []State{"queued"}
			for failure := 1; failure <= maxRetries; failure++ {
				if h.task.Attempt != failure {
					t.Fatalf("before failure %d attempt is %d", failure, h.task.Attempt)
				}
				h.do(h.task.Dispatch(h.env))
				h.apply(h.outcome(OutcomeClaimed), Applied)
				e := h.apply(h.failure(true), Applied)[0]
				h.wantState(StateRetrying)
				want = append(want, "running", "retrying")
				if h.task.Attempt != failure+1 || e.Attempt != failure+1 || e.RetryCount() != failure || h.task.RetryCount() != failure {
					t.Fatalf("after failure %d attempt is %d", failure, h.task.Attempt)
				}
				if e.Code != CodeExecutionFailed || h.task.Code != CodeExecutionFailed || e.Reason != "no route to host" {
					t.Fatalf("failure %d: %s %q", failure, e.Code, e.Reason)
				}
			}
			e := h.apply(h.failure(true), Applied)[1]
			h.wantState(StateDLQPending)
			if h.task.Attempt != maxRetries+1 || h.task.Code != CodeRetryExhausted || e.Code != CodeRetryExhausted {
				t.Errorf("attempt %d, code %s, event's code %s", h.task.Attempt, h.task.Code, e.Code)
			}
			if want := "TASK_EXECUTION_FAILED: no route to host"; h.task.Reason != want || e.Reason != want {
				t.Errorf("reason %q, event's %q; want the cause: %q", h.task.Reason, e.Reason, want)
			}
			last := h.do(h.task.RecordDeadLetter(h.env))
			want = append(want, "running", "dlq_pending", "dlq_recorded", "failed")
			if got := h.states(); !slices.Equal(got, want) {
				t.Errorf("went through %s, want %s", got, want)
			}
			if len(last) != 2 || last[1].Code != CodeRetryExhausted || last[1].Type != EventFailed {
				t.Errorf("final events are %+v", last)
			}
		})
	}
}

func TestNotRetryableGoesStraightToTheDeadLetters(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 3)
	o := h.failure(false)
	o.Code = CodeInputInvalid
	h.apply(o, Applied)
	h.wantState(StateDLQPending)
	if h.task.Code != CodeInputInvalid || h.task.Reason != o.Error || h.task.Attempt != 1 {
		t.Errorf("code %s, reason %q, attempt %d", h.task.Code, h.task.Reason, h.task.Attempt)
	}
	var d DLQData
	if err := json.Unmarshal(h.events[2].Data, &d); err != nil || d.Step != StateDLQPending || d.DLQID != DLQID(h.task.ID).String() {
		t.Errorf("data %s, error %v", h.events[2].Data, err)
	}
	h.do(h.task.RecordDeadLetter(h.env))
	if _, ok := h.task.RecordDeadLetter(h.env); ok {
		t.Error("the dead letter was recorded twice")
	}
}

// A crash between dlq_recorded and failed can be finished.
func TestRecordDeadLetterResumes(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	h.apply(h.failure(false), Applied)
	h.keep([]*Event{h.task.move(StateDLQRecorded, EventDLQ, h.env, ActorDeadLetter)})
	events := h.do(h.task.RecordDeadLetter(h.env))
	h.wantState(StateFailed)
	if len(events) != 1 {
		t.Errorf("%d events, want task.failed alone", len(events))
	}
}

func TestFailureWithoutACodeIsAnExecutionFailure(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 1)
	o := h.failure(true)
	o.Code, o.Error = "", ""
	h.apply(o, Applied)
	if h.task.Code != CodeExecutionFailed || h.task.Attempt != 2 {
		t.Errorf("code %q, attempt %d", h.task.Code, h.task.Attempt)
	}
}

func TestReasonIsBounded(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	o := h.failure(true)
	o.Error = strings.Repeat("x", maxText)
	h.apply(o, Applied)
	if len(h.task.Reason) > maxText || !strings.HasPrefix(h.task.Reason, "TASK_EXECUTION_FAILED: xxx") {
		t.Errorf("reason has %d bytes: %.40s", len(h.task.Reason), h.task.Reason)
	}
}

func TestLostWorkersSpendNoRetry(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	for n := 1; n <= 3; n++ {
		h.apply(h.outcome(OutcomeClaimed), Applied)
		h.do(h.task.Lost(h.env, ActorReclaimer, "idle", &ReclaimData{OriginalConsumer: "worker-1", NewConsumer: "orchestrator-1", MessageID: "1-0"}))
		h.wantState(StateInterrupted)
		if h.task.Attempt != 1 || h.task.Interruptions != n || h.task.Delivery != int64(n)+1 ||
			!h.task.DueAt.Equal(epoch.Add(Spread(h.env.Seed, h.task.ID, n))) {
			t.Fatalf("loss %d: %+v", n, *h.task)
		}
		h.do(h.task.Dispatch(h.env))
		h.wantState(StateQueued)
	}
	h.apply(h.outcome(OutcomeClaimed), Applied)
	events := h.do(h.task.Lost(h.env, ActorReclaimer, "idle", nil))
	h.wantState(StateDLQPending)
	if h.task.Code != CodeWorkerLost || h.task.Interruptions != 4 || h.task.Attempt != 1 {
		t.Errorf("%+v", *h.task)
	}
	if got := statesOf(events); !slices.Equal(got, []State{"interrupted", "dlq_pending"}) || events[1].Code != CodeWorkerLost {
		t.Errorf("went through %s, code %s", got, events[1].Code)
	}
}

func TestReclaimIsRecordedBeforeTheInterruption(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	h.apply(h.outcome(OutcomeClaimed), Applied)
	reclaim := ReclaimData{OriginalConsumer: "worker-1", NewConsumer: "orchestrator-1", MessageID: "7-0", IdleMS: 300_001}
	events := h.do(h.task.Lost(h.env, ActorReclaimer, "idle", &reclaim))
	if len(events) != 2 || events[0].Type != EventReclaimed || events[1].Type != EventInterrupted {
		t.Fatalf("events are %+v", events)
	}
	var got ReclaimData
	if err := json.Unmarshal(events[0].Data, &got); err != nil || got != reclaim {
		t.Errorf("data %s, error %v", events[0].Data, err)
	}
	if events[0].Delivery != 1 || events[1].Delivery != 2 || events[1].WorkerID != "worker-1" || events[1].MessageID != "7-0" {
		t.Errorf("events are %+v", events)
	}
}

func TestSnoozeAndReleaseSpendNothing(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	for i := range 20 {
		o := h.outcome([]OutcomeKind{OutcomeSnoozed, OutcomeReleased, OutcomeSkipped}[i%3])
		o.Delay = time.Minute
		h.apply(o, Applied)
		if o.Kind == OutcomeSnoozed {
			h.wantState(StateRetrying)
			if !h.task.NextRetryAt.Equal(epoch.Add(time.Minute)) || !h.task.DueAt.Equal(h.task.NextRetryAt) {
				t.Fatalf("snoozed until %s, due %s", h.task.NextRetryAt, h.task.DueAt)
			}
		} else {
			h.wantState(StateInterrupted)
		}
		if h.task.Attempt != 1 || h.task.Interruptions != 0 || h.task.Delivery != int64(i)+2 {
			t.Fatalf("after %s: %+v", o.Kind, *h.task)
		}
		h.do(h.task.Dispatch(h.env))
	}
}

func TestSnoozeWithoutADelayIsDueNow(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	e := h.apply(h.outcome(OutcomeSnoozed), Applied)[1]
	if e.BackoffDelay != 0 || !h.task.NextRetryAt.Equal(epoch) || e.Code != "" {
		t.Errorf("delay %s, next %s, code %q", e.BackoffDelay, h.task.NextRetryAt, e.Code)
	}
}

// Where the delay of a retry came from stands in its event.
func TestRetryData(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		source string
		make   func(*history) *Outcome
	}{
		{"policy", func(h *history) *Outcome { return h.failure(true) }},
		{"retry_after", func(h *history) *Outcome { o := h.failure(true); o.Delay = 42 * time.Second; return o }},
		{"retry_after", func(h *history) *Outcome { o := h.failure(true); o.Delay = 0; return o }},
		{"snooze", func(h *history) *Outcome { o := h.outcome(OutcomeSnoozed); o.Delay = 42 * time.Second; return o }},
	} {
		h := newHistory(t, 1)
		o := tt.make(h)
		e := h.apply(o, Applied)[1]
		var d RetryData
		if err := json.Unmarshal(e.Data, &d); err != nil || d.DelaySource != tt.source {
			t.Fatalf("%s: data %s, error %v", tt.source, e.Data, err)
		}
		want := o.Delay
		if tt.source == "policy" {
			// A replay recomputes the delay from the event alone.
			want = d.Policy.Delay(h.env.Seed, e.TaskID, e.RetryCount())
			if j := d.Policy.Jitter(h.env.Seed, e.TaskID, e.RetryCount()); j.Milliseconds() != d.JitterMS {
				t.Errorf("jitter_ms %d, recomputed %s", d.JitterMS, j)
			}
		} else if d.Policy != nil || d.JitterMS != 0 {
			t.Errorf("%s: data %s", tt.source, e.Data)
		}
		if e.BackoffDelay != want || !e.NextRetryAt.Equal(epoch.Add(want)) || !h.task.DueAt.Equal(e.NextRetryAt) {
			t.Errorf("%s: delay %s, next %s, want %s", tt.source, e.BackoffDelay, e.NextRetryAt, want)
		}
	}
}

// An outcome whose claim was never recorded brings it along, in order.
func TestOutcomeBringsItsClaim(t *testing.T) {
	t.Parallel()
	for kind, last := range map[OutcomeKind]State{
		OutcomeSucceeded: "succeeded", OutcomeFailed: "dlq_pending", OutcomeSnoozed: "retrying",
		OutcomeReleased: "interrupted", OutcomeApprovalNeeded: "waiting_approval", OutcomeSkipped: "interrupted",
	} {
		h := newHistory(t, 0)
		o := h.outcome(kind)
		events := h.apply(o, Applied)
		if got := statesOf(events); !slices.Equal(got, []State{"running", last}) {
			t.Errorf("%s: went through %s", kind, got)
		}
		if events[0].Type != EventClaimed || events[0].Delivery != 1 || h.task.WorkerID != "worker-1" || !h.task.StartedAt.Equal(epoch) {
			t.Errorf("%s: claim is %+v", kind, events[0])
		}
		h.apply(o, Repeated)
		h.apply(&Outcome{ID: o.ID, Delivery: 1, Kind: OutcomeClaimed, Delay: -1}, Repeated)
	}
}

// What never started was never claimed.
func TestReleaseBeforeTheStart(t *testing.T) {
	t.Parallel()
	for _, kind := range []OutcomeKind{OutcomeReleased, OutcomeSkipped} {
		h := newHistory(t, 0)
		o := h.outcome(kind)
		o.StartedAt, o.FinishedAt = time.Time{}, time.Time{}
		events := h.apply(o, Applied)
		if got := statesOf(events); !slices.Equal(got, []State{"interrupted"}) || !h.task.StartedAt.IsZero() {
			t.Errorf("%s: went through %s, started %s", kind, got, h.task.StartedAt)
		}
		h.apply(o, Repeated)
	}
}

func TestTypeKnown(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	for name, c := range map[string]struct {
		task Task
		want bool
	}{
		"waits for its time":        {Task{State: StateInterrupted, UnknownSince: now, DueAt: now.Add(time.Minute)}, true},
		"due already":               {Task{State: StateInterrupted, UnknownSince: now, DueAt: now}, false},
		"handed back in a shutdown": {Task{State: StateInterrupted, DueAt: now.Add(time.Minute)}, false},
		"dispatched":                {Task{State: StateQueued, UnknownSince: now}, false},
		"cancelled":                 {Task{State: StateCancelled, UnknownSince: now}, false},
	} {
		due := c.task.DueAt
		if got := c.task.TypeKnown(now); got != c.want || got != (c.task.DueAt != due) || got && !c.task.DueAt.Equal(now) {
			t.Errorf("%s: %t, due %s", name, got, c.task.DueAt)
		}
	}
}
