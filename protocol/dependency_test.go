package protocol

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// However the ends of what a task depends on are spread over calls: it is due once
// all have ended and not before, at its time if that is later; with policy cancel
// the first that did not succeed cancels it, once; and in other states only the
// count moves.
func TestSettle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		task, log := born(StatePending, 0)
		task.DueAt = time.Time{}
		n := rapid.IntRange(1, 8).Draw(t, "dependencies")
		task.OpenDependencies = n
		task.OnDependencyFailure = rapid.SampledFrom([]DependencyPolicy{DependencyCancel, DependencyRun, ""}).Draw(t, "policy")
		env := testEnv()
		if rapid.Bool().Draw(t, "scheduled") {
			task.StartAt = epoch.Add(time.Duration(rapid.IntRange(-20, 20).Draw(t, "start")) * time.Second)
		}
		if rapid.IntRange(0, 3).Draw(t, "waits for approval") == 0 {
			log = append(log, task.move(StateWaitingApproval, EventApprovalRequested, env, ActorAPI))
		}
		kinds := []State{StateSucceeded, StateSucceeded, StateFailed, StateCancelled, ""}
		failed := false
		for left := n; left > 0; {
			env.Now = env.Now.Add(time.Second)
			ended := make([]Ended, rapid.IntRange(1, left).Draw(t, "ends"))
			first := ""
			for i := range ended {
				ended[i] = Ended{TaskID: "up-" + string(rune('a'+i)), State: rapid.SampledFrom(kinds).Draw(t, "state")}
				if ended[i].State != StateSucceeded && first == "" {
					first = ended[i].TaskID
				}
			}
			left -= len(ended)
			before := *task
			events := task.Settle(env, ended)
			log = append(log, events...)
			if task.OpenDependencies != left {
				t.Fatalf("%d are open, want %d", task.OpenDependencies, left)
			}
			cancels := first != "" && !failed && task.OnDependencyFailure != DependencyRun
			if failed = failed || cancels; cancels {
				if task.State != StateCancelled || task.Code != CodeDependencyFailed || len(events) != 1 || events[0].Actor != ActorDependency ||
					!strings.Contains(task.Reason, first) || !strings.Contains(string(events[0].Data), first) {
					t.Fatalf("%s failed, but the task is %s, %s: %s with %d events", first, task.State, task.Code, task.Reason, len(events))
				}
			} else if len(events) > 0 || task.State != before.State {
				t.Fatalf("%s became %s with %d events", before.State, task.State, len(events))
			}
			if due := task.State == StatePending && left == 0; due != !task.DueAt.IsZero() || due && !task.DueAt.Equal(slices.MaxFunc([]time.Time{env.Now, task.StartAt}, time.Time.Compare)) {
				t.Fatalf("%s with %d open, start %s, now %s: due at %s", task.State, left, task.StartAt, env.Now, task.DueAt)
			}
			if failed && !cancels {
				before.OpenDependencies = left
				if !reflect.DeepEqual(before, *task) {
					t.Fatalf("a cancelled task changed: %+v → %+v", before, *task)
				}
			}
		}
		if err := foldsTo(log, task); err != nil {
			t.Fatal(err)
		}
	})
}
