package protocol

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"
)

// DependencyPolicy says what becomes of a task when one that it depends on does
// not succeed.
type DependencyPolicy string

// The policies.
const (
	// DependencyCancel cancels the task with TASK_DEPENDENCY_FAILED.
	DependencyCancel DependencyPolicy = "cancel"
	// DependencyRun lets it run all the same, once all have ended.
	DependencyRun DependencyPolicy = "run"
)

// Valid reports whether it is one of the policies.
func (p DependencyPolicy) Valid() bool { return p == DependencyCancel || p == DependencyRun }

// ActorDependency cancels tasks because of what they depend on.
const ActorDependency = "dependency"

// MaxDependencies is the most tasks that one can depend on.
const MaxDependencies = 10_000

// Ended is a task as those that depend on it see it once it has ended.
type Ended struct {
	// TaskID is the id that callers know it by, Name what the dependant calls it,
	// if it has a name for it.
	TaskID, Name string
	// State is terminal; empty if the task is gone, and how it ended with it.
	State  State
	Code   Code
	Reason string
}

// Failed reports whether the task did not succeed. Of one that is gone that is
// not known: it counts as failed.
func (e *Ended) Failed() bool { return e.State != StateSucceeded }

func (e *Ended) String() string {
	s := "dependency " + e.TaskID
	if e.Name != "" && e.Name != e.TaskID {
		s += fmt.Sprintf(" (%s)", e.Name)
	}
	s += " is " + cmp.Or(string(e.State), "gone")
	if e.Code != "" {
		s += ": " + string(e.Code)
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// DependencyData is the data of task.cancelled with TASK_DEPENDENCY_FAILED: the
// task that did not succeed.
type DependencyData struct {
	TaskID string `json:"upstream_id"`
	Name   string `json:"upstream_name,omitempty"`
	State  State  `json:"upstream_state"`
	Code   Code   `json:"upstream_code,omitempty"`
}

// Settle counts tasks that this one depends on and that have ended, each once.
// With policy cancel the first that did not succeed cancels the task, as long as
// it waits. When the last has ended a pending task is due, as soon as its schedule
// lets it start; no event tells of that, task.queued will. One that waits for
// approval goes on waiting, for that alone.
func (t *Task) Settle(env Env, ended []Ended) (events []*Event) {
	t.OpenDependencies = max(t.OpenDependencies-len(ended), 0)
	if t.State != StatePending && t.State != StateWaitingApproval {
		return nil
	}
	if t.OnDependencyFailure != DependencyRun {
		for i := range ended {
			if e := &ended[i]; e.Failed() {
				events, _ = t.Cancel(env, ActorDependency, CodeDependencyFailed, e.String())
				events[0].Data = data(DependencyData{TaskID: e.TaskID, Name: e.Name, State: e.State, Code: e.Code})
				return events
			}
		}
	}
	if t.OpenDependencies == 0 && t.State == StatePending {
		t.DueAt = latest(env.Now, t.StartAt)
	}
	return nil
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// DependencyResult is how one task ended that another depends on, as that one's
// handler sees it.
type DependencyResult struct {
	TaskID string `json:"task_id"`
	// Name is the local name in the call that made both tasks.
	Name  string `json:"name,omitempty"`
	Type  string `json:"type"`
	State State  `json:"state"`
	// Result is the JSON that its handler returned; null if there is none.
	Result    json.RawMessage `json:"result"`
	ErrorCode Code            `json:"error_code,omitempty"`
	Error     string          `json:"error,omitempty"`
}

// Dependencies is the content of TaskEntry.Dependencies, in the order in which
// the task names what it depends on.
type Dependencies struct {
	// Complete: all are there. Else the rest is to be asked for.
	Complete bool               `json:"complete"`
	Tasks    []DependencyResult `json:"tasks"`
}

// MaxInlineDependencies bounds the dependencies that travel in a task's entry, in
// bytes of their JSON.
const MaxInlineDependencies = 64 << 10
