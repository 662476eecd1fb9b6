package protocol

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"
)

// End says how an execution ended.
type End string

// The ends of an execution.
const (
	// EndSucceeded: the handler returned.
	EndSucceeded End = "succeeded"
	// EndRetried: it failed, and a retry was scheduled.
	EndRetried End = "retried"
	// EndSnoozed: the handler asked to run again later.
	EndSnoozed End = "snoozed"
	// EndReleased: the worker handed it back: shutdown, or an unknown type.
	EndReleased End = "released"
	// EndLost: its worker was lost.
	EndLost End = "lost"
	// EndRedispatched: its stream entry was lost before any worker claimed it.
	EndRedispatched End = "redispatched"
	// EndApproval: the handler asked for approval.
	EndApproval End = "approval_needed"
	// EndDead: it failed, and the task was given up.
	EndDead End = "dead"
	// EndCancelled: the task was cancelled while it ran.
	EndCancelled End = "cancelled"
)

// Execution is one delivery of a task, from its claim to its end.
type Execution struct {
	Attempt  int
	Delivery int64
	// WorkerID is who claimed it or, if it was never claimed, who handed it
	// back or was lost with it; empty if nobody had it.
	WorkerID string
	// ClaimedAt is when its claim was recorded; zero if it ended before.
	ClaimedAt time.Time
	// EndedAt is when its end was recorded; zero, and End empty, while it runs.
	EndedAt time.Time
	// StartedAt and FinishedAt are when it ran, as its worker measured it; zero if
	// the log does not say.
	StartedAt, FinishedAt time.Time
	End                   End
	// Code and Reason are those of the event that ended it.
	Code   Code
	Reason string
	// Retry is the delay after it; nil unless End is retried or snoozed.
	Retry *Retry
}

// Retry is a delay between two executions, as the log has it.
type Retry struct {
	// Delay is what was waited; negative if the log does not say.
	Delay time.Duration
	// At is next_retry_at.
	At time.Time
	// RetryData says where the delay came from; zero if it can't be read.
	RetryData
}

// RetryContext is what a task's log says about its retries (the workflow
// retry document's retryContext).
type RetryContext struct {
	CurrentAttempt int `json:"currentAttempt"`
	// LastBackoff is the last delay that task.retry_scheduled recorded, in
	// milliseconds: a retry's or a snooze's. 0 before the first.
	LastBackoff int64 `json:"lastBackoff"`
}

// Replay reads a task's event log in order of seq and reproduces the task's
// history: its executions, how each ended, and the delays between them. Delays
// are read from the log, never computed anew; those that came from a policy
// are recomputed to verify the log (see Difference). The zero value is ready
// for the first event.
//
// It keeps what it found until the caller takes it: a caller that clears
// Executions and Differences between events needs constant memory however long
// the log is.
type Replay struct {
	// Folded is the state so far; see Fold.
	Folded
	// Seed is the deployment's jitter seed. Without it, delays that came from
	// a policy are not recomputed; everything else is still verified.
	Seed []byte
	// Executions are those that ended, in order.
	Executions []Execution
	// Differences are what the log contradicts itself in.
	Differences []Difference

	task    Task // what the log implies beyond Folded
	open    Execution
	backoff int64
	err     error
}

// ReplayLog replays a task's whole log. The error is Add's; Differences are
// complete even if there is one.
func ReplayLog(seed []byte, events []*Event) (*Replay, error) {
	r := &Replay{Seed: seed}
	for _, e := range events {
		_ = r.Add(e) // kept in r.err
	}
	return r, r.err
}

// Add replays one more event. The error is a *FoldError: the event can't have
// happened (see Fold), or is another task's. The history then ends before that
// event, and every later Add returns the same error; the events' delays are
// still verified.
func (r *Replay) Add(e *Event) error {
	before := r.Folded
	if r.err == nil {
		r.err = r.fold(e)
	}
	retry := r.verify(e)
	if r.err != nil {
		return r.err
	}
	r.note(before, e)
	if e.Changes() {
		r.record(before, e, retry)
	}
	return nil
}

func (r *Replay) fold(e *Event) error {
	if r.Seq > 0 && e.TaskID != r.task.ID {
		return &FoldError{TaskID: r.task.ID, Seq: e.Seq, Reason: fmt.Sprintf("is an event of task %s", e.TaskID)}
	}
	return r.Folded.Add(e)
}

// note keeps what the task's row has besides Folded.
func (r *Replay) note(before Folded, e *Event) {
	t := &r.task
	if before.Seq == 0 {
		t.ID, t.TraceID = e.TaskID, e.TraceID
	}
	if e.Type == EventTransitionRejected {
		var d RejectedData
		if json.Unmarshal(e.Data, &d) == nil {
			t.RejectedDelivery = max(t.RejectedDelivery, d.Delivery)
		}
	}
	if !e.Changes() {
		return
	}
	t.NextRetryAt = e.NextRetryAt
	ran := e.Times()
	t.StartedAt = cmp.Or(ran.StartedAt, t.StartedAt)
	switch {
	case e.Type == EventClaimed:
		t.WorkerID, t.UnknownSince, t.EndedAt = e.WorkerID, time.Time{}, time.Time{}
		t.ClaimedAt, t.StartedAt = e.OccurredAt, cmp.Or(ran.StartedAt, e.OccurredAt)
	case e.Type == EventInterrupted && e.Code == CodeUnknownType && t.UnknownSince.IsZero():
		t.UnknownSince = e.OccurredAt
	case e.Type == EventRetryScheduled:
		r.backoff = max(e.BackoffDelay.Milliseconds(), 0)
		if e.Code != "" {
			t.Code, t.Reason = e.Code, e.Reason
		}
	case e.To == StateDLQPending:
		t.DLQID, t.Code, t.Reason, t.EndedAt = DLQID(e.TaskID), e.Code, e.Reason, ran.FinishedAt
	case e.To == StateCancelled:
		t.Code, t.Reason = e.Code, e.Reason
	}
	if e.To.Terminal() {
		t.FinishedAt = cmp.Or(ran.FinishedAt, e.OccurredAt)
	}
}

// record opens or ends an execution.
func (r *Replay) record(before Folded, e *Event, retry *Retry) {
	ran := e.Times()
	if e.Type == EventClaimed {
		r.open = Execution{Attempt: e.Attempt, Delivery: e.Delivery, WorkerID: e.WorkerID, ClaimedAt: e.OccurredAt, StartedAt: ran.StartedAt}
		return
	}
	end, applied := endOf(e)
	if end == "" {
		return
	}
	x := r.open
	if before.State != StateRunning {
		x = Execution{Attempt: before.Attempt, Delivery: before.Delivery, WorkerID: e.WorkerID}
	}
	x.End, x.EndedAt, x.Code, x.Reason, x.Retry = end, e.OccurredAt, e.Code, e.Reason, retry
	x.StartedAt, x.FinishedAt = cmp.Or(ran.StartedAt, x.StartedAt), ran.FinishedAt
	r.Executions = append(r.Executions, x)
	if e.Actor == ActorWorker {
		r.task.AppliedKind, r.task.AppliedDelivery = applied, before.Delivery
	}
}

// endOf tells how the event ended an execution, if it did, and by which
// outcome if that came from a worker.
func endOf(e *Event) (End, OutcomeKind) {
	ran := e.From == StateRunning
	switch {
	case e.Type == EventSucceeded:
		return EndSucceeded, OutcomeSucceeded
	case e.Type == EventRetryScheduled && e.Code == "":
		return EndSnoozed, OutcomeSnoozed
	case e.Type == EventRetryScheduled:
		return EndRetried, OutcomeFailed
	case e.Type == EventInterrupted && e.Code == CodeWorkerLost:
		return EndLost, ""
	case e.Type == EventInterrupted:
		return EndReleased, OutcomeReleased
	case raises(e): // nothing was dispatched that the log knows
		return "", ""
	case e.Type == EventRedispatched:
		return EndRedispatched, ""
	case ran && e.To == StateWaitingApproval:
		return EndApproval, OutcomeApprovalNeeded
	case ran && e.To == StateDLQPending:
		return EndDead, OutcomeFailed
	case ran && e.To == StateCancelled:
		return EndCancelled, ""
	}
	return "", ""
}

// Running returns the execution that has been claimed and has not ended; ok is
// false if there is none.
func (r *Replay) Running() (x Execution, ok bool) {
	if r.State != StateRunning {
		return Execution{}, false
	}
	return r.open, true
}

// RetryContext returns the task's retry context after the events so far.
func (r *Replay) RetryContext() RetryContext {
	return RetryContext{CurrentAttempt: r.Attempt, LastBackoff: r.backoff}
}

// Task returns the task that the log implies. What the log does not have is
// zero: MaxRetries, Policy, DueAt, ExpiresAt, CreatedAt, UpdatedAt and Result. An execution that was handed back
// counts as released; whether it was skipped is not in the log either.
func (r *Replay) Task() Task {
	t := r.task
	t.State, t.Attempt, t.Delivery, t.Interruptions, t.Seq = r.State, r.Attempt, r.Delivery, r.Interruptions, r.Seq
	return t
}
