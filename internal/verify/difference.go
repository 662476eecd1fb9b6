package verify

import (
	"fmt"
	"strings"
)

// Check names a kind of comparison. The names are stable.
type Check string

// The checks.
const (
	// CheckSeq: a task's events are numbered 1, 2, 3 … without gaps, up to the
	// row's event_seq.
	CheckSeq Check = "seq"
	// CheckFold: every event can follow the ones before it.
	CheckFold Check = "fold"
	// CheckEvent: an event's details agree with the event and its task.
	CheckEvent Check = "event"
	// CheckRow: the row is what its events imply.
	CheckRow Check = "row"
	// CheckTerminal: a finished task has one terminal event, others none.
	CheckTerminal Check = "terminal"
	// CheckBackoff: a retry's delay is what its policy gives.
	CheckBackoff Check = "backoff"
	// CheckDue: a task waits in Postgres for dispatch exactly where its state
	// allows or demands it.
	CheckDue Check = "due"
	// CheckDependencies: a task waits for as many others as have not ended, and
	// the end of each is counted.
	CheckDependencies Check = "dependencies"
	// CheckIdempotency: an idempotency key and its task point at each other.
	CheckIdempotency Check = "idempotency"
	// CheckDeadLetter: exactly the tasks that were given up have a dead letter,
	// and it says what the task says.
	CheckDeadLetter Check = "dead_letter"
	// CheckStreamDLQ: a recorded dead letter has its entry in stream:dlq.
	CheckStreamDLQ Check = "stream_dlq"
	// CheckRequeue: a requeued dead letter and its new tasks point at each
	// other, and its log tells of each.
	CheckRequeue Check = "requeue"
	// CheckDiscard: a dead letter is discarded if and only if its log says so,
	// by two different people.
	CheckDiscard Check = "discard"
	// CheckBatch: a batch of dead letters counts what its items add up to.
	CheckBatch Check = "batch"
	// CheckApproval: a task waits for approval exactly where people are asked about
	// it, and what was approved is backed by enough different people.
	CheckApproval Check = "approval"
	// CheckOrphan: every event belongs to a task.
	CheckOrphan Check = "orphan"
	// CheckRedis: a dispatched live task is undelivered or pending in its
	// stream, or has an outcome in stream:result that is not yet applied.
	CheckRedis Check = "redis"
)

// Checks lists all of them.
func Checks() []Check {
	return []Check{
		CheckSeq, CheckFold, CheckEvent, CheckRow, CheckRuns, CheckTerminal, CheckBackoff, CheckDue, CheckDependencies, CheckIdempotency, CheckDeadLetter,
		CheckStreamDLQ, CheckRequeue, CheckDiscard, CheckBatch, CheckApproval, CheckEffect, CheckSchedule, CheckOrphan, CheckRedis,
	}
}

// Difference is one contradiction between what was found and what follows from
// the rest.
type Difference struct {
	Check Check `json:"check"`
	// TaskID is the id that callers know the task by; empty if the difference
	// is not about a task.
	TaskID string `json:"task_id,omitempty"`
	// ID is the UUID that the task is stored under; empty like TaskID.
	ID string `json:"id,omitempty"`
	// Object names what else the difference is about.
	Object string `json:"object,omitempty"`
	// Seq is the event's number; 0 if it is not about one event.
	Seq int `json:"seq,omitempty"`
	// Field is what differs.
	Field    string `json:"field"`
	Expected string `json:"expected"`
	Found    string `json:"found"`
}

// String returns the difference in one line without the check's name.
func (d Difference) String() string {
	about := d.Object
	if d.TaskID != "" {
		about = "task " + d.TaskID
		if d.Object != "" {
			about += ", " + d.Object
		}
	}
	if d.Seq > 0 {
		about += fmt.Sprintf(", event %d", d.Seq)
	}
	return fmt.Sprintf("%s: %s: expected %s, found %s", about, d.Field, d.Expected, d.Found)
}

// none stands for a value that is missing.
const none = "none"

// text shows a string value.
func text(s string) string {
	if s == "" {
		return none
	}
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}
