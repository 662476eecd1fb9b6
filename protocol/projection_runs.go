package protocol

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// P3CEvent is the only type of P3C's run events.
const P3CEvent = "run.status.changed"

// Run is one attempt of a task, as P3C's task_runs show it.
type Run struct {
	TaskID ID
	// Attempt is 1, 2, 3 …
	Attempt int
	// Status is a word of VocabularyP3C. An attempt that another one followed
	// failed; the last one stands where its task stands.
	Status string
	// NextRetryAt is set exactly in retry_scheduled.
	NextRetryAt time.Time
	// CreatedAt is when the task was created, or when the attempt before
	// failed. StartedAt is when its first execution began and FinishedAt when its
	// last one ended, by their workers (see Times), else when that was recorded.
	// Zero: not yet.
	CreatedAt, StartedAt, FinishedAt time.Time
	// Code and Reason are those of the event that ended or interrupted it.
	Code   Code
	Reason string
	// WorkerID is who claimed it last.
	WorkerID string
}

// RunID identifies a run: task_id:attempt.
func RunID(id ID, attempt int) string { return fmt.Sprintf("%s:%d", id, attempt) }

// ExecutionKey is the idempotency key of a run: task_id:retry_count.
func ExecutionKey(id ID, attempt int) string { return fmt.Sprintf("%s:%d", id, max(attempt-1, 0)) }

// Runs projects a task's whole log onto P3C's runs, one for each attempt.
func Runs(events []*Event) []Run {
	var runs []Run
	word := ""
	for _, e := range events {
		for len(runs) < e.Attempt {
			if n := len(runs); n > 0 {
				last := &runs[n-1]
				last.ran(e)
				last.Status, last.NextRetryAt, last.FinishedAt = "failed", time.Time{}, cmp.Or(e.Times().FinishedAt, e.OccurredAt)
				last.Code, last.Reason = e.Code, e.Reason
			}
			runs = append(runs, Run{TaskID: e.TaskID, Attempt: len(runs) + 1, CreatedAt: e.OccurredAt})
		}
		r := &runs[len(runs)-1]
		word = VocabularyP3C.Project(e.To, word)
		r.Status = word
		r.add(e)
	}
	return runs
}

// add takes an event of the run's attempt.
func (r *Run) add(e *Event) {
	if e.Type == EventClaimed {
		r.WorkerID = e.WorkerID
		if r.StartedAt.IsZero() {
			r.StartedAt = e.OccurredAt
		}
	}
	if e.Type != EventRetryScheduled || e.Code == "" { // else it is about the attempt before
		r.ran(e)
	}
	if e.From == e.To && !e.Changes() {
		return
	}
	switch e.To {
	case StateRetrying:
		if !e.NextRetryAt.IsZero() {
			r.NextRetryAt = e.NextRetryAt
		}
		r.Code, r.Reason = "", ""
	case StateInterrupted, StateDLQPending, StateCancelled:
		r.Code, r.Reason = e.Code, e.Reason
	case StateDLQRecorded, StateFailed:
	default:
		r.Code, r.Reason = "", ""
	}
	if r.Status != VocabularyP3C.Project(StateRetrying, "") {
		r.NextRetryAt = time.Time{}
	}
	if e.To.Terminal() {
		r.FinishedAt = cmp.Or(e.Times().FinishedAt, e.OccurredAt)
	}
}

// ran takes when an execution of the run began, if that is before what is known.
func (r *Run) ran(e *Event) {
	if at := e.Times().StartedAt; !at.IsZero() && (r.StartedAt.IsZero() || at.Before(r.StartedAt)) {
		r.StartedAt = at
	}
}

// AsterType is ASTER's name for a type of event: task.retry_scheduled is its
// RETRY_SCHEDULED, and the others are made in the same way.
func AsterType(t EventType) string {
	return strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(string(t), "task."), ".", "_"))
}
