package protocol

import (
	"encoding/json"
	"time"
)

// Schedule is when a task is to run, as its caller says it.
type Schedule struct {
	// Type is now, at or delay.
	Type string `json:"schedule_type"`
	// At is set exactly with type at; DelayMS is 0 unless the type is delay.
	At      time.Time `json:"scheduled_at,omitzero"`
	DelayMS int64     `json:"delay_ms,omitempty"`
}

// RescheduledData is the data of task.rescheduled.
type RescheduledData struct {
	From      Schedule `json:"from"`
	To        Schedule `json:"to"`
	Principal string   `json:"principal"`
	// StartFrom and StartTo are the moments before which the task does not
	// start; absent: none.
	StartFrom time.Time `json:"start_from,omitzero"`
	StartTo   time.Time `json:"start_to,omitzero"`
}

// Start is the moment before which a task of the schedule does not start, zero
// if that is not after now.
func (s Schedule) Start(now time.Time) time.Time {
	at := s.At
	if s.DelayMS > 0 {
		at = now.Add(time.Duration(s.DelayMS) * time.Millisecond).Truncate(time.Microsecond)
	}
	if at.After(now) {
		return at
	}
	return time.Time{}
}

// Reschedulable reports whether the task can still be given another time: it is
// pending and not due yet, or waits for other tasks or for a person's decision,
// and no execution of it has begun.
func (t *Task) Reschedulable(now time.Time) bool {
	switch t.State {
	case StatePending:
		return t.OpenDependencies > 0 || t.DueAt.IsZero() || t.DueAt.After(now)
	case StateWaitingApproval:
		return t.StartedAt.IsZero()
	}
	return false
}

// Reschedule gives the task another time; its state stays. It is due then, or,
// if other tasks or a decision have to come first, not before. from is what its
// schedule was. ok is false, and nothing changes, if it is not Reschedulable.
func (t *Task) Reschedule(env Env, principal string, from, to Schedule, reason string) (events []*Event, ok bool) {
	if !t.Reschedulable(env.Now) {
		return nil, false
	}
	d := RescheduledData{From: from, To: to, Principal: principal, StartFrom: t.StartAt, StartTo: to.Start(env.Now)}
	t.StartAt = d.StartTo
	if t.State == StatePending && t.OpenDependencies == 0 {
		t.DueAt = t.StartAt
		if t.DueAt.IsZero() {
			t.DueAt = env.Now
		}
	}
	return []*Event{t.Note(EventRescheduled, env, ActorUser(principal), Text(reason), d)}, true
}

// AskedSchedule reads what a task's caller asked for, where it was rescheduled
// since; ok is false if it was not.
func AskedSchedule(stored []byte) (s Schedule, ok bool) {
	if len(stored) == 0 || json.Unmarshal(stored, &s) != nil {
		return Schedule{}, false
	}
	return s, true
}
