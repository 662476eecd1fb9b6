package protocol

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
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
		{StatePending, future, []EventType{EventRedispatched}, StatePending, future},           // may have been rescheduled to be due
		{StatePending, time.Time{}, []EventType{EventRedispatched}, StatePending, time.Time{}}, // waits for something else
		{StatePending, past, []EventType{EventRedispatched}, StatePending, past},               // the guard was not asked yet
		{StateWaitingApproval, time.Time{}, []EventType{EventRedispatched}, StateWaitingApproval, time.Time{}},
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

// times drives one task through several times, each of which forgets the last
// one back to a backup.
type times struct {
	*machine
	backup  *machine
	highest int64          // delivery of any time
	seen    map[State]bool // in which a restore found it
}

func (m *machine) clone() *machine {
	c, task := *m, *m.task
	c.task, c.events = &task, slices.Clone(m.events)
	return &c
}

func (x *times) actions() map[string]func(*rapid.T) {
	actions := x.machine.actions()
	check := actions[""]
	actions[""] = func(t *rapid.T) {
		check(t)
		x.highest = max(x.highest, x.task.Delivery)
	}
	actions["back up"] = func(*rapid.T) { x.backup = x.machine.clone() }
	actions["restore"] = x.restore
	return actions
}

func (x *times) restore(t *rapid.T) {
	if x.backup == nil { // a standby that lacks nothing
		x.backup = x.machine.clone()
	}
	now, sent := x.env.Now, x.sent // the clock goes on, and Redis holds what it held
	*x.machine, x.backup = *x.backup, nil
	x.env.Now, x.sent = now, sent
	x.task.OpenDependencies = rapid.IntRange(0, 3).Draw(t, "open dependencies")
	if x.task.State == StatePending {
		x.task.DueAt = rapid.SampledFrom([]time.Time{{}, now.Add(-time.Second), now.Add(time.Hour)}).Draw(t, "due")
	}
	before := *x.task
	floor := before.Delivery + RestoredJump
	events, ok := x.task.Restored(x.env, floor, "restored")
	x.events = append(x.events, events...)
	x.seen[before.State] = true
	after := *x.task
	if lives := !slices.Contains([]State{"dlq_pending", "dlq_recorded", "succeeded", "failed", "cancelled"}, before.State); ok != lives {
		t.Fatalf("%s: raised is %t, want %t", before.State, ok, lives)
	}
	if !ok {
		if len(events) > 0 || !reflect.DeepEqual(after, before) {
			t.Fatalf("not raised, but changed: %+v → %+v", before, after)
		}
		return
	}
	if after.Delivery < floor || after.Delivery <= x.highest {
		t.Fatalf("%s goes on at delivery %d: the floor is %d, and other times came to %d", before.State, after.Delivery, floor, x.highest)
	}
	want := before.State
	if want == StateRunning || want == StateInterrupted {
		want = StateQueued
	}
	due := before.DueAt
	if before.Dispatched() {
		due = now
	}
	if after.State != want || !after.DueAt.Equal(due) {
		t.Fatalf("restored: %s due %s → %s due %s, want %s due %s", before.State, before.DueAt, after.State, after.DueAt, want, due)
	}
	after.State, after.Delivery, after.DueAt, after.Seq, after.UpdatedAt = before.State, before.Delivery, before.DueAt, before.Seq, before.UpdatedAt
	if !reflect.DeepEqual(after, before) {
		t.Fatalf("more than state, delivery and due time changed: %+v → %+v", before, after)
	}
	if again, ok := x.task.Restored(x.env, floor, "restored"); ok || len(again) > 0 {
		t.Fatalf("raised twice in %s", before.State)
	}
}

// However often a task is forgotten and in whatever state it is found again: two
// times have no delivery in common, the log folds, and no outcome of another
// time counts, wherever the task goes from there.
func TestTimesShareNoDelivery(t *testing.T) {
	t.Parallel()
	seen := map[State]bool{}
	unseen := func() []State {
		return slices.DeleteFunc(States(), func(s State) bool { return seen[s] || !s.Cancellable() })
	}
	for range 20 { // most cases end soon, so that one run may miss a state
		rapid.Check(t, func(t *rapid.T) {
			x := &times{machine: newMachine(t), highest: 1, seen: seen}
			t.Repeat(x.actions())
		})
		if len(unseen()) == 0 || t.Failed() {
			return
		}
	}
	t.Errorf("nothing was restored in %s", unseen())
}
