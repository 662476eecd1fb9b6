package protocol

import (
	"fmt"
	"time"
)

// ActorExpiry cancels tasks that were not started in time.
const ActorExpiry = "expiry"

// Cancellable reports whether a task in this state can be cancelled: it has
// not been given up and is not terminal.
func (s State) Cancellable() bool { return Allowed(s, StateCancelled) }

// Dispatched reports whether the task's current delivery was handed to Redis:
// it is in an open dispatch, in a stream, or with a worker. A cancellation of
// such a task needs a tombstone.
func (t *Task) Dispatched() bool {
	return t.DueAt.IsZero() && (t.State == StateQueued || t.State == StateRetrying || t.State == StateRunning)
}

// Cancel ends the task for good: it is terminal from now on, and an outcome of
// the execution that may be under way is refused, because the delivery grows. A
// tombstone is due for the delivery it had before, if that was Dispatched. code
// says why: TASK_CANCELLED, TASK_EXPIRED, TASK_APPROVAL_REJECTED or
// TASK_DEPENDENCY_FAILED. ok is false, and nothing changes, if the task was
// given up or is terminal.
func (t *Task) Cancel(env Env, actor string, code Code, reason string) (events []*Event, ok bool) {
	if !t.State.Cancellable() {
		return nil, false
	}
	t.Delivery++
	t.DueAt = time.Time{}
	t.Code, t.Reason = code, Text(reason)
	e := t.move(StateCancelled, EventCancelled, env, actor)
	e.Code, e.Reason = t.Code, t.Reason
	e.WorkerID = t.workerOf(e.From)
	return []*Event{e}, true
}

// Refuse records that the task could not be moved as somebody asked, at most once
// for each delivery. What names the move in the reason: cancel, reschedule,
// approve, reject.
func (t *Task) Refuse(env Env, actor, what string) []*Event {
	if t.Delivery <= t.RejectedDelivery {
		return nil
	}
	t.RejectedDelivery = t.Delivery
	e := t.event(t.State, EventTransitionRejected, env, actor)
	e.Code, e.Reason = CodeInvalidTransition, fmt.Sprintf("%s in state %s", what, t.State)
	e.Data = data(RejectedData{Delivery: t.Delivery})
	return []*Event{e}
}

// workerOf is the worker that a task in a state is with.
func (t *Task) workerOf(s State) string {
	if s == StateRunning {
		return t.WorkerID
	}
	return ""
}

// Expire cancels a task that no worker has started although its time to start
// is over, by Postgres' clock. One that was dispatched gets the grace, so that a
// claim under way can arrive. ok is false if the task has no such time, the time
// is not over, or the task runs or has ended.
func (t *Task) Expire(env Env, grace time.Duration) (events []*Event, ok bool) {
	if t.ExpiresAt.IsZero() || t.State == StateRunning {
		return nil, false
	}
	end := t.ExpiresAt
	if t.Dispatched() {
		end = end.Add(grace)
	}
	if env.Now.Before(end) {
		return nil, false
	}
	reason := fmt.Sprintf("not started by %s", t.ExpiresAt.UTC().Format(time.RFC3339Nano))
	if t.Code != "" {
		reason += fmt.Sprintf("; last error: %s: %s", t.Code, t.Reason)
	}
	return t.Cancel(env, ActorExpiry, CodeExpired, reason)
}
