package protocol

import (
	"testing"
	"time"
)

// Every state, with and without a time to wait for.
func TestRestored(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	past, future := now.Add(-time.Minute), now.Add(time.Hour)
	const floor = 2_000_000
	for _, tt := range []struct {
		state State
		due   time.Time
		types []EventType
		to    State
		wants time.Time // due
	}{
		{StatePending, future, nil, StatePending, future},
		{StatePending, time.Time{}, nil, StatePending, time.Time{}},              // waits for something else
		{StatePending, past, []EventType{EventRedispatched}, StatePending, past}, // the guard was not asked yet
		{StateWaitingApproval, time.Time{}, nil, StateWaitingApproval, time.Time{}},
		{StateQueued, time.Time{}, []EventType{EventRedispatched}, StateQueued, now},
		{StateQueued, past, []EventType{EventRedispatched}, StateQueued, past},
		{StateRunning, time.Time{}, []EventType{EventInterrupted, EventQueued, EventRedispatched}, StateQueued, now},
		{StateRetrying, time.Time{}, []EventType{EventRedispatched}, StateRetrying, now},
		{StateRetrying, future, []EventType{EventRedispatched}, StateRetrying, future},
		{StateInterrupted, now, []EventType{EventQueued, EventRedispatched}, StateQueued, now},
		{StateInterrupted, future, []EventType{EventQueued, EventRedispatched}, StateQueued, future},
		{StateDLQPending, time.Time{}, nil, StateDLQPending, time.Time{}},
		{StateDLQRecorded, time.Time{}, nil, StateDLQRecorded, time.Time{}},
		{StateSucceeded, time.Time{}, nil, StateSucceeded, time.Time{}},
		{StateFailed, time.Time{}, nil, StateFailed, time.Time{}},
		{StateCancelled, time.Time{}, nil, StateCancelled, time.Time{}},
	} {
		task := Task{ID: ID{1}, State: tt.state, Attempt: 2, MaxRetries: 3, Delivery: 5, Interruptions: 2, Seq: 9, DueAt: tt.due, WorkerID: "w", Policy: DefaultRetryPolicy()}
		if tt.state == StateRetrying {
			task.NextRetryAt = future
		}
		f := Folded{State: tt.state, Attempt: 2, Delivery: 5, Interruptions: 2, Seq: 9}
		before := task
		events, ok := task.Restored(Env{Now: now}, floor, "restored")
		if ok != (tt.types != nil) || len(events) != len(tt.types) {
			t.Errorf("%s due %s: %t with %d events, want %d", tt.state, tt.due, ok, len(events), len(tt.types))
			continue
		}
		for i, e := range events {
			if e.Type != tt.types[i] {
				t.Errorf("%s: event %s, want %s", tt.state, e.Type, tt.types[i])
			}
			if err := f.Add(e); err != nil {
				t.Errorf("%s: %v", tt.state, err)
			}
		}
		if !ok {
			if task.Delivery != before.Delivery || task.State != before.State || !task.DueAt.Equal(before.DueAt) || task.Seq != before.Seq {
				t.Errorf("%s: changed: %+v", tt.state, task)
			}
			continue
		}
		if f.State != tt.to || task.State != tt.to || f.Delivery != task.Delivery || task.Delivery < floor || f.Interruptions != 2 || task.Interruptions != 2 ||
			task.Attempt != 2 || f.Seq != task.Seq || !task.DueAt.Equal(tt.wants) || task.NextRetryAt != before.NextRetryAt {
			t.Errorf("%s: %+v, the log says %+v", tt.state, task, f)
		}
		if _, again := task.Restored(Env{Now: now}, floor, "restored"); again {
			t.Errorf("%s: done twice", tt.state)
		}
		old := &Outcome{ID: task.ID, Delivery: 5, Kind: OutcomeSucceeded, WorkerID: "w", StartedAt: past, FinishedAt: past}
		if _, v := task.ApplyOutcome(old, Env{Now: now}); v != Rejected {
			t.Errorf("%s: an outcome of the old delivery is %s", tt.state, v)
		}
	}
}
