package protocol

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A worker that does not answer spends a retry, as a failure does: the delay is
// the policy's, and who decided and why is in the event.
func TestTimedOutIsARetry(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 3)
	h.apply(h.outcome(OutcomeClaimed), Applied)
	h.env.Now = epoch.Add(70 * time.Second)
	e := h.do(h.task.TimedOut(h.env, time.Minute, 10*time.Second))[0]
	h.wantState(StateRetrying)
	delay := h.task.Policy.Delay(h.env.Seed, h.task.ID, 1)
	if h.task.Attempt != 2 || h.task.Delivery != 2 || h.task.Code != CodeTimeout ||
		!h.task.NextRetryAt.Equal(h.env.Now.Add(delay)) || !h.task.DueAt.Equal(h.task.NextRetryAt) {
		t.Errorf("%+v", *h.task)
	}
	const reason = "start-to-close timeout: the worker did not answer within 10s after the timeout of 1m0s"
	if e.Type != EventRetryScheduled || e.Actor != ActorTimeout || e.WorkerID != "worker-1" || e.Code != CodeTimeout ||
		e.Reason != reason || h.task.Reason != reason || e.BackoffDelay != delay {
		t.Errorf("event %+v, reason %q", e, h.task.Reason)
	}
	var d RetryData
	if err := json.Unmarshal(e.Data, &d); err != nil || d.DelaySource != DelayFromPolicy || !reflect.DeepEqual(*d.Policy, h.task.Policy) {
		t.Errorf("data %s, error %v", e.Data, err)
	}
}

func TestTimedOutUntilExhausted(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 2)
	var late []*Outcome
	for range 3 {
		h.apply(h.outcome(OutcomeClaimed), Applied)
		late = append(late, h.outcome(OutcomeSucceeded))
		h.env.Now = h.env.Now.Add(time.Hour)
		h.do(h.task.TimedOut(h.env, time.Second, 0))
	}
	h.wantState(StateDLQPending)
	last := h.events[len(h.events)-1]
	if h.task.Code != CodeRetryExhausted || !strings.HasPrefix(h.task.Reason, "TASK_TIMEOUT: start-to-close timeout: ") || h.task.Attempt != 3 {
		t.Errorf("code %s, reason %q, attempt %d", h.task.Code, h.task.Reason, h.task.Attempt)
	}
	if last.Type != EventDLQ || last.Actor != ActorTimeout || last.WorkerID != "worker-1" || last.Code != CodeRetryExhausted {
		t.Errorf("last event %+v", last)
	}
	h.do(h.task.RecordDeadLetter(h.env))
	for _, o := range late { // the one of the last delivery is refused by the state
		if events := h.apply(o, Rejected); len(events) != 1 || events[0].Type != EventTransitionRejected {
			t.Errorf("late outcome of delivery %d: %+v", o.Delivery, events)
		}
	}
	h.wantState(StateFailed)
}

func TestLateOutcomeOfATimedOutExecution(t *testing.T) {
	t.Parallel()
	for _, kind := range OutcomeKinds() {
		h := newHistory(t, 3)
		h.apply(h.outcome(OutcomeClaimed), Applied)
		late := h.outcome(kind)
		h.env.Now = epoch.Add(time.Hour)
		h.do(h.task.TimedOut(h.env, time.Second, time.Second))
		if events := h.apply(late, Rejected); len(events) != 1 {
			t.Errorf("%s: %d events, want it recorded", kind, len(events))
		}
		if events := h.apply(late, Rejected); len(events) != 0 {
			t.Errorf("%s: recorded twice", kind)
		}
		h.wantState(StateRetrying)
		h.do(h.task.Dispatch(h.env))
		h.apply(h.outcome(OutcomeSucceeded), Applied)
		h.wantState(StateSucceeded)
	}
}

func TestTimedOutOnlyWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	for _, state := range States() {
		for _, tt := range []struct {
			age  time.Duration
			over bool
		}{{-time.Hour, false}, {0, false}, {5 * time.Second, false}, {7*time.Second - 1, false}, {7 * time.Second, true}, {time.Hour, true}} {
			task := &Task{ID: testID(3), State: state, Attempt: 1, Delivery: 4, MaxRetries: 1, Seq: 9, StartedAt: epoch, Policy: DefaultRetryPolicy()}
			if state == StateRetrying {
				task.NextRetryAt = epoch
			}
			before, env := *task, testEnv()
			env.Now = epoch.Add(tt.age)
			events, ok := task.TimedOut(env, 5*time.Second, 2*time.Second)
			if want := tt.over && state == StateRunning; ok != want || len(events) > 0 != want {
				t.Errorf("%s, %s after its start: %v with %d events, want %v", state, tt.age, ok, len(events), want)
			}
			if !ok && !reflect.DeepEqual(*task, before) {
				t.Errorf("%s, %s after its start: refused, but changed: %+v", state, tt.age, *task)
			}
		}
	}
}

// timeout is one of the random decisions of TestDecisions.
func (m *machine) timeout(t *rapid.T) {
	before := *m.task
	limit := time.Duration(rapid.IntRange(0, 3).Draw(t, "timeout")) * time.Second
	grace := time.Duration(rapid.IntRange(0, 2).Draw(t, "grace")) * time.Second
	events, ok := m.task.TimedOut(m.env, limit, grace)
	if before.State == "running" && m.env.Now.Sub(before.ClaimedAt) < limit+grace {
		if ok || len(events) > 0 || !reflect.DeepEqual(before, *m.task) {
			t.Fatalf("timed out too early, or something changed: %+v → %+v", before, *m.task)
		}
		return
	}
	m.decided(t, before, events, ok, "running")
	if !ok {
		return
	}
	want := []State{StateRetrying}
	if before.Attempt > before.MaxRetries {
		want = []State{StateDLQPending}
	}
	if !slices.Equal(statesOf(events), want) || m.task.AppliedDelivery != before.AppliedDelivery || m.task.Interruptions != before.Interruptions {
		t.Fatalf("timed out: %+v → %+v", before, *m.task)
	}
}
