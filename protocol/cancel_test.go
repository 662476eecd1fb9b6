package protocol

import (
	"strings"
	"testing"
	"time"
)

// What a cancellation does in each state, and what it leaves for outcomes of
// the execution under way.
func TestCancel(t *testing.T) {
	t.Parallel()
	claimed := func(h *history) { h.apply(h.outcome(OutcomeClaimed), Applied) }
	for name, c := range map[string]struct {
		prepare    func(h *history)
		dispatched bool
	}{
		"queued, in Redis": {func(h *history) { h.do(h.task.Dispatch(h.env)) }, true},
		"queued, waiting":  {func(h *history) { h.task.DueAt = h.env.Now }, false},
		"running":          {claimed, true},
		"retrying":         {func(h *history) { h.apply(h.failure(true), Applied) }, false},
		"retrying, in Redis": {func(h *history) {
			h.apply(h.failure(true), Applied)
			h.do(h.task.Dispatch(h.env))
		}, true},
		"interrupted": {func(h *history) { h.do(h.task.Lost(h.env, ActorReclaimer, "gone", nil)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(t, 3)
			c.prepare(h)
			if got := h.task.Dispatched(); got != c.dispatched {
				t.Errorf("dispatched is %t", got)
			}
			late, before := h.outcome(OutcomeSucceeded), h.task.Delivery
			events := h.do(h.task.Cancel(h.env, ActorUser("alice"), CodeCancelled, "no longer wanted"))
			h.wantState(StateCancelled)
			e := events[0]
			if len(events) != 1 || e.Type != EventCancelled || e.Code != CodeCancelled || e.Reason != "no longer wanted" || e.Actor != "user:alice" {
				t.Errorf("events %+v", events)
			}
			if h.task.Delivery != before+1 || h.task.Code != CodeCancelled || !h.task.DueAt.IsZero() || h.task.FinishedAt != h.env.Now {
				t.Errorf("task %+v", h.task)
			}
			h.apply(late, Rejected)
			if _, ok := h.task.Cancel(h.env, ActorAPI, CodeCancelled, ""); ok {
				t.Error("cancelled twice")
			}
			skipped := *late
			skipped.Kind = OutcomeSkipped
			h.apply(&skipped, Repeated)
		})
	}
}

// A task that was given up can't be cancelled, nor one that has ended.
func TestNoCancelAfterTheEnd(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	h.apply(h.failure(true), Applied)
	h.wantState(StateDLQPending)
	for _, then := range []func(){func() { h.do(h.task.RecordDeadLetter(h.env)) }, func() {}} {
		before := *h.task
		if events, ok := h.task.Cancel(h.env, ActorAPI, CodeCancelled, ""); ok || events != nil || h.task.Seq != before.Seq {
			t.Errorf("cancelled in %s", before.State)
		}
		then()
	}
}

func TestExpire(t *testing.T) {
	t.Parallel()
	const grace = 5 * time.Second
	h := newHistory(t, 3)
	h.task.ExpiresAt = h.env.Now.Add(time.Minute)
	h.do(h.task.Dispatch(h.env))
	never := func(what string) {
		t.Helper()
		if _, ok := h.task.Expire(h.env, grace); ok {
			t.Errorf("expired %s", what)
		}
	}
	never("before its time")
	h.env.Now = h.task.ExpiresAt.Add(grace - time.Millisecond)
	never("within the grace, while it may be about to start")
	h.apply(h.outcome(OutcomeClaimed), Applied)
	h.env.Now = h.env.Now.Add(time.Hour)
	never("while it runs")
	h.apply(h.failure(true), Applied)
	e := h.do(h.task.Expire(h.env, grace))[0]
	h.wantState(StateCancelled)
	if e.Code != CodeExpired || e.Actor != ActorExpiry || !strings.HasPrefix(e.Reason, "not started by ") || !strings.HasSuffix(e.Reason, "TASK_EXECUTION_FAILED: no route to host") {
		t.Errorf("event %+v", e)
	}
	waiting := newHistory(t, 0)
	waiting.task.DueAt, waiting.task.ExpiresAt = waiting.env.Now, waiting.env.Now
	if _, ok := waiting.task.Expire(waiting.env, grace); !ok {
		t.Error("a task that was not dispatched got the grace")
	}
}

// A type that no worker has known for the configured time makes a dead letter;
// a worker that knows it starts the time anew.
func TestUnknownTypeEnds(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 3)
	h.env.MaxUnknown = time.Hour
	unknown := func() []*Event {
		o := h.outcome(OutcomeReleased)
		o.Code, o.Error, o.StartedAt = CodeUnknownType, "no handler for type t", time.Time{}
		return h.apply(o, Applied)
	}
	unknown()
	h.env.Now = h.env.Now.Add(59 * time.Minute)
	h.do(h.task.Dispatch(h.env))
	unknown()
	h.wantState(StateInterrupted)
	h.do(h.task.Dispatch(h.env))
	h.apply(h.failure(true), Applied)
	h.env.Now = h.env.Now.Add(2 * time.Hour)
	unknown()
	h.wantState(StateInterrupted)
	h.env.Now = h.env.Now.Add(time.Hour)
	h.do(h.task.Dispatch(h.env))
	events := unknown()
	h.wantState(StateDLQPending)
	if len(events) != 2 || events[0].Type != EventInterrupted || events[1].Type != EventDLQ || events[1].Code != CodeUnknownType {
		t.Errorf("events %+v", events)
	}
	if want := "no worker has known the type for 1h0m0s; last: no handler for type t"; h.task.Reason != want {
		t.Errorf("reason %q", h.task.Reason)
	}
	if h.task.Interruptions != 0 || h.task.Attempt != 2 {
		t.Errorf("interruptions %d, attempt %d", h.task.Interruptions, h.task.Attempt)
	}
}

// A worker that hands a task back may ask for a short delay.
func TestReleaseWithADelay(t *testing.T) {
	t.Parallel()
	for delay, want := range map[time.Duration]time.Duration{-1: 0, 0: 0, time.Second: time.Second, time.Hour: time.Minute} {
		h := newHistory(t, 0)
		o := h.outcome(OutcomeReleased)
		o.Delay = delay
		h.apply(o, Applied)
		if got := h.task.DueAt.Sub(h.env.Now); got != want {
			t.Errorf("asked for %s, got %s, want %s", delay, got, want)
		}
	}
}
