package protocol

import (
	"cmp"
	"time"
)

// Defaults of a MENView.
const (
	MENSource     = "gateway.scheduler"
	MENSessionKey = "scheduler:default"
	menStateEvent = "task_state_changed"
)

// MENEvent is a change of state as the task scheduling contract writes it; its
// JSON has that contract's names in that contract's order.
type MENEvent struct {
	Type       string     `json:"type"`
	Source     string     `json:"source"`
	SessionKey string     `json:"session_key"`
	EventID    string     `json:"event_id"`
	Payload    MENPayload `json:"payload"`
}

// MENPayload is what a MENEvent is about.
type MENPayload struct {
	TaskID string `json:"task_id"`
	// FromState and ToState are words of VocabularyMEN; FromState is empty at
	// the task's creation.
	FromState  string    `json:"from_state"`
	ToState    string    `json:"to_state"`
	OccurredAt time.Time `json:"occurred_at"`
	// Attempt is the task's after the change: 1, 2, 3 …
	Attempt int `json:"attempt"`
	// ReasonCode and ReasonMessage are empty where there was no error.
	ReasonCode    Code   `json:"reason_code"`
	ReasonMessage string `json:"reason_message"`
	IdempotentHit bool   `json:"idempotent_hit"`
}

// MENView renders a task's log as MEN's events. It remembers the word that the
// task was last shown in: MEN does not know the dead-letter sub-flow, so a task
// that was given up while running goes from running to failed.
type MENView struct {
	// Source and SessionKey are copied into each event; empty means MENSource
	// and MENSessionKey.
	Source, SessionKey string
	// TaskID is the id by which callers know the task; empty means its UUID.
	TaskID string
	// IdempotentHit is copied into each event: the enqueue that is being
	// answered hit an existing task.
	IdempotentHit bool

	at string
}

// Add takes the next event of the log, from the first on. ok is false if MEN
// shows no change.
func (v *MENView) Add(e *Event) (m MENEvent, ok bool) {
	word := VocabularyMEN.Project(e.To, v.at)
	if word == v.at {
		return MENEvent{}, false
	}
	m = MENEvent{
		Type: menStateEvent, Source: cmp.Or(v.Source, MENSource), SessionKey: cmp.Or(v.SessionKey, MENSessionKey),
		EventID: e.EventID(),
		Payload: MENPayload{
			TaskID: cmp.Or(v.TaskID, e.TaskID.String()), FromState: v.at, ToState: word, OccurredAt: e.OccurredAt.UTC(),
			Attempt: e.Attempt, ReasonCode: e.Code, ReasonMessage: e.Reason, IdempotentHit: v.IdempotentHit,
		},
	}
	v.at = word
	return m, true
}
