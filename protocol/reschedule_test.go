package protocol

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestReschedule(t *testing.T) {
	t.Parallel()
	now := epoch
	env := Env{Now: now}
	for name, c := range map[string]struct {
		task       Task
		to         Schedule
		ok         bool
		due, start time.Duration // from now; -1: none
	}{
		"later":           {Task{State: StatePending, DueAt: now.Add(1)}, Schedule{Type: "at", At: now.Add(time.Hour)}, true, time.Hour, time.Hour},
		"delay":           {Task{State: StatePending, DueAt: now.Add(1)}, Schedule{Type: "delay", DelayMS: 1000}, true, time.Second, time.Second},
		"now":             {Task{State: StatePending, DueAt: now.Add(1), StartAt: now.Add(1)}, Schedule{Type: "now"}, true, 0, -1},
		"the past":        {Task{State: StatePending, DueAt: now.Add(1)}, Schedule{Type: "at", At: now.Add(-time.Hour)}, true, 0, -1},
		"due":             {Task{State: StatePending, DueAt: now}, Schedule{Type: "now"}, false, 0, -1},
		"dependencies":    {Task{State: StatePending, OpenDependencies: 2}, Schedule{Type: "at", At: now.Add(time.Hour)}, true, -1, time.Hour},
		"approval":        {Task{State: StateWaitingApproval}, Schedule{Type: "at", At: now.Add(time.Hour)}, true, -1, time.Hour},
		"asked by itself": {Task{State: StateWaitingApproval, StartedAt: now}, Schedule{Type: "now"}, false, -1, -1},
		"queued":          {Task{State: StateQueued}, Schedule{Type: "now"}, false, -1, -1},
		"running":         {Task{State: StateRunning}, Schedule{Type: "now"}, false, -1, -1},
		"retrying":        {Task{State: StateRetrying, DueAt: now.Add(time.Hour)}, Schedule{Type: "now"}, false, time.Hour, -1},
		"cancelled":       {Task{State: StateCancelled}, Schedule{Type: "now"}, false, -1, -1},
	} {
		task := c.task
		events, ok := task.Reschedule(env, "ada", Schedule{Type: "now"}, c.to, "why")
		at := func(d time.Duration) time.Time {
			if d < 0 {
				return time.Time{}
			}
			return now.Add(d)
		}
		if ok != c.ok || len(events) != map[bool]int{true: 1}[ok] || task.State != c.task.State {
			t.Errorf("%s: ok %t, %d events, state %s", name, ok, len(events), task.State)
			continue
		}
		if !task.DueAt.Equal(at(c.due)) || !task.StartAt.Equal(at(c.start)) {
			t.Errorf("%s: due %s, starts %s", name, task.DueAt, task.StartAt)
		}
		if !ok {
			if r := task.Refuse(env, "user:ada", "reschedule"); task.Delivery > 0 && len(r) != 1 {
				t.Errorf("%s: %d refusals", name, len(r))
			}
			continue
		}
		var d RescheduledData
		if err := json.Unmarshal(events[0].Data, &d); err != nil || d.Principal != "ada" || d.To.Type != c.to.Type || !d.To.At.Equal(c.to.At) {
			t.Errorf("%s: data %s, %v", name, events[0].Data, err)
		}
	}
}

// The event folds, however often a task is moved, and a refusal is recorded once
// for each delivery.
func TestReschedulingFolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		task, events := born(StatePending, 1)
		task.DueAt = epoch.Add(time.Hour)
		env := testEnv()
		for range rapid.IntRange(0, 10).Draw(t, "moves") {
			env.Now = env.Now.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "passes")))
			to := Schedule{Type: "delay", DelayMS: rapid.Int64Range(0, 10_000_000).Draw(t, "delay")}
			ev, ok := task.Reschedule(env, "ada", Schedule{Type: "now"}, to, "")
			if !ok {
				ev = task.Refuse(env, ActorUser("ada"), "reschedule")
			}
			events = append(events, ev...)
		}
		f, err := Fold(events)
		if err != nil || f.State != StatePending || f.Seq != task.Seq || f.Delivery != 1 {
			t.Fatalf("%+v, %v", f, err)
		}
		refused := 0
		for _, e := range events {
			if e.Type == EventTransitionRejected {
				refused++
			}
		}
		if refused > 1 {
			t.Fatalf("%d refusals of one delivery", refused)
		}
	})
}

func TestAskedSchedule(t *testing.T) {
	t.Parallel()
	if _, ok := AskedSchedule(nil); ok {
		t.Error("nothing stored is a schedule")
	}
	s, ok := AskedSchedule([]byte(`{"schedule_type" : "at", "scheduled_at" : "2026-02-25T12:00:00.000001+00:00", "delay_ms" : null}`))
	if !ok || s.Type != "at" || s.DelayMS != 0 || !s.At.Equal(epoch.Add(time.Microsecond)) {
		t.Errorf("%+v, %t", s, ok)
	}
	if s, ok = AskedSchedule([]byte(`{"schedule_type" : "delay", "scheduled_at" : null, "delay_ms" : 5}`)); !ok || s.DelayMS != 5 || !s.At.IsZero() {
		t.Errorf("%+v, %t", s, ok)
	}
}
