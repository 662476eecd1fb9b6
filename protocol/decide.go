package protocol

import (
	"cmp"
	"fmt"
	"time"
)

// Task is what decisions depend on and change: one row of tasks without its
// constant fields. Methods return the events of the moves they made; a task
// and its events must be stored in one transaction.
type Task struct {
	ID            ID
	State         State
	Attempt       int
	MaxRetries    int
	Delivery      int64
	Interruptions int
	// Seq is the seq of the task's last event.
	Seq int
	// DueAt is when the task is to be dispatched; zero if it is not waiting
	// in Postgres.
	DueAt       time.Time
	NextRetryAt time.Time
	// ExpiresAt: no execution starts after it; zero: it does not expire.
	ExpiresAt time.Time
	// StartAt is when the task's schedule lets it start; zero: at once.
	StartAt time.Time
	// OpenDependencies is how many of the tasks that it depends on have not ended.
	OpenDependencies int
	// OnDependencyFailure says what becomes of the task if one of those does not
	// succeed; "" if it depends on none.
	OnDependencyFailure DependencyPolicy
	// HasDependants: other tasks depend on this one.
	HasDependants bool
	// UnknownSince is when a worker first handed the task back because it had
	// no handler for its type; zero once one has started it.
	UnknownSince time.Time
	Policy       RetryPolicy
	// Applied is the last outcome that ended an execution, so that a repeat
	// of it is recognised.
	AppliedKind     OutcomeKind
	AppliedDelivery int64
	// RejectedDelivery is the highest delivery of which a refused outcome was
	// recorded.
	RejectedDelivery int64
	WorkerID         string
	Code             Code
	Reason           string
	// CreatedAt and UpdatedAt are when the row was made and last written, by
	// Postgres' clock: an execution that is not claimed yet began after both.
	CreatedAt, UpdatedAt time.Time
	// ClaimedAt is when the last claim was recorded, by Postgres' clock.
	ClaimedAt time.Time
	// StartedAt is when the last execution began and FinishedAt when the task ended,
	// with its last execution if that ended it: as their workers measured them (see
	// Times), else when it was recorded.
	StartedAt, FinishedAt time.Time
	// EndedAt is when the execution that failed for good ended; zero if its worker
	// did not say, or did not end it. Not in the row: only in the log.
	EndedAt time.Time
	Result  []byte
	TraceID string
	DLQID   ID
}

// RetryCount is Attempt - 1.
func (t *Task) RetryCount() int { return t.Attempt - 1 }

// Env is what a decision needs besides the task.
type Env struct {
	// Now is the time of the decision, by Postgres' clock.
	Now time.Time
	// Seed is the deployment's jitter seed.
	Seed []byte
	// MaxInterruptions: more interruptions than this make a dead letter.
	MaxInterruptions int
	// MaxUnknown: a task that workers have handed back for longer than this,
	// because none knows its type, becomes a dead letter; 0: never.
	MaxUnknown time.Duration
}

// Verdict says what became of an outcome.
type Verdict int

const (
	// Applied: the task moved; store it with its events.
	Applied Verdict = iota
	// Repeated: the outcome was applied before, or a claim came after its
	// outcome. Nothing to store; no alarm.
	Repeated
	// Rejected: fenced or illegal (TASK_INVALID_TRANSITION). The state did not
	// change; there may be a task.transition_rejected event to store.
	Rejected
)

// String returns the verdict's name as metrics show it.
func (v Verdict) String() string { return [...]string{"applied", "repeated", "rejected"}[v] }

// move makes one transition and its event. It panics on a pair outside the
// table: callers check first, and a decision that reached here with such a
// pair must never be stored.
func (t *Task) move(to State, typ EventType, env Env, actor string) *Event {
	if !Allowed(t.State, to) {
		panic(fmt.Sprintf("protocol: %s: %s → %s is not in the transition table", t.ID, t.State, to))
	}
	from := t.State
	t.State, t.UpdatedAt = to, env.Now
	if to != StateRetrying {
		t.NextRetryAt = time.Time{}
	}
	if to.Terminal() {
		t.FinishedAt = env.Now
	}
	return t.event(from, typ, env, actor)
}

// event appends an event that describes the task as it stands.
func (t *Task) event(from State, typ EventType, env Env, actor string) *Event {
	t.Seq++
	return &Event{
		TaskID: t.ID, Seq: t.Seq, Type: typ, From: from, To: t.State,
		Attempt: t.Attempt, Delivery: t.Delivery, NextRetryAt: t.NextRetryAt,
		BackoffDelay: -1, Actor: actor, TraceID: t.TraceID, OccurredAt: env.Now,
	}
}

// ApplyOutcome decides what an outcome from a worker does to the task. Only an
// outcome of the task's current delivery counts; one whose claim was never
// recorded brings its claim with it.
func (t *Task) ApplyOutcome(o *Outcome, env Env) ([]*Event, Verdict) {
	if o.Delivery == t.AppliedDelivery && (o.Kind == OutcomeClaimed || o.Kind == t.AppliedKind) {
		return nil, Repeated
	}
	if o.Delivery != t.Delivery {
		if o.Kind == OutcomeSkipped && t.State == StateCancelled {
			return nil, Repeated
		}
		return t.reject(o, env, fmt.Sprintf("delivery %d is not the current %d", o.Delivery, t.Delivery))
	}
	if o.Kind == OutcomeClaimed && t.State == StateRunning {
		return nil, Repeated
	}
	var events []*Event
	unclaimed := t.State == StateQueued || t.State == StateRetrying
	if unclaimed && (o.Kind == OutcomeReleased || o.Kind == OutcomeSkipped) && o.StartedAt.IsZero() {
		return t.release(o, env), Applied
	}
	if !unclaimed && t.State != StateRunning {
		return t.reject(o, env, fmt.Sprintf("outcome %s in state %s", o.Kind, t.State))
	}
	ran := t.ran(o, env)
	if unclaimed {
		events = append(events, t.claim(o, env, ran))
	}
	if o.Kind == OutcomeClaimed {
		return events, Applied
	}
	return append(events, t.end(o, env, ran)...), Applied
}

// end ends the execution that a worker reports, which is running.
func (t *Task) end(o *Outcome, env Env, ran Times) (events []*Event) {
	if !ran.StartedAt.IsZero() {
		t.StartedAt = ran.StartedAt
	}
	switch o.Kind {
	case OutcomeSucceeded:
		events = append(events, t.succeed(o, env, ran))
	case OutcomeFailed:
		events = append(events, t.fail(o, env, ActorWorker))
		if t.State == StateDLQPending {
			t.EndedAt = ran.FinishedAt
		}
	case OutcomeSnoozed:
		events = append(events, t.retry(o, env, ActorWorker, max(o.Delay, 0), RetryData{DelaySource: DelayFromSnooze}))
	case OutcomeApprovalNeeded:
		t.Delivery++
		e := t.move(StateWaitingApproval, EventApprovalRequested, env, ActorWorker)
		e.Reason = o.Error
		if r, err := ParseApproval(o.Approval); err == nil { // outcomes are checked when they are read
			e.Reason, e.Data = cmp.Or(r.Prompt, o.Error), data(r.data(t.ID, o.Delivery))
		}
		events = append(events, e)
	default: // released, skipped
		events = t.release(o, env)
		events[0].tell(ran)
		return events
	}
	t.AppliedKind, t.AppliedDelivery = o.Kind, o.Delivery
	e := events[0]
	e.WorkerID, e.MessageID = o.WorkerID, o.MessageID
	e.tell(ran)
	return events
}

func (t *Task) claim(o *Outcome, env Env, ran Times) *Event {
	e := t.move(StateRunning, EventClaimed, env, ActorWorker)
	t.WorkerID = o.WorkerID
	t.ClaimedAt, t.StartedAt, t.EndedAt = env.Now, env.Now, time.Time{}
	if !ran.StartedAt.IsZero() {
		t.StartedAt = ran.StartedAt
	}
	t.DueAt, t.UnknownSince = time.Time{}, time.Time{}
	e.WorkerID, e.MessageID = o.WorkerID, o.MessageID
	e.tell(ran.began())
	return e
}

func (t *Task) succeed(o *Outcome, env Env, ran Times) *Event {
	t.Result = o.Result
	e := t.move(StateSucceeded, EventSucceeded, env, ActorWorker)
	if !ran.FinishedAt.IsZero() {
		t.FinishedAt = ran.FinishedAt
	}
	return e
}

// fail schedules the next attempt or gives the task up.
func (t *Task) fail(o *Outcome, env Env, actor string) *Event {
	code := o.Code
	if code == "" {
		code = CodeExecutionFailed
	}
	t.Code, t.Reason = code, o.Error
	if o.Retryable && t.Attempt < 1+t.MaxRetries {
		t.Attempt++
		delay, d := o.Delay, RetryData{DelaySource: DelayFromRetryAfter}
		if delay < 0 {
			jitter := t.Policy.Jitter(env.Seed, t.ID, t.RetryCount())
			delay = t.Policy.Backoff(t.RetryCount()) + jitter
			policy := t.Policy
			d = RetryData{DelaySource: DelayFromPolicy, JitterMS: jitter.Milliseconds(), Policy: &policy}
		}
		e := t.retry(o, env, actor, delay, d)
		e.Code, e.Reason = code, o.Error
		return e
	}
	if o.Retryable {
		t.Code = CodeRetryExhausted
		t.Reason = Text(fmt.Sprintf("%s: %s", code, o.Error))
	}
	return t.giveUp(env, actor)
}

func (t *Task) retry(o *Outcome, env Env, actor string, delay time.Duration, d RetryData) *Event {
	t.Delivery++
	t.NextRetryAt = env.Now.Add(delay)
	t.DueAt = t.NextRetryAt
	e := t.move(StateRetrying, EventRetryScheduled, env, actor)
	e.BackoffDelay = delay
	e.Data = data(d)
	e.Reason = o.Error
	return e
}

// giveUp starts the dead-letter sub-flow; Code and Reason are set already.
func (t *Task) giveUp(env Env, actor string) *Event {
	t.DLQID = DLQID(t.ID)
	t.DueAt = time.Time{}
	e := t.move(StateDLQPending, EventDLQ, env, actor)
	e.Code, e.Reason = t.Code, t.Reason
	e.Data = data(DLQData{Step: StateDLQPending, DLQID: t.DLQID.String()})
	return e
}

// Delays of a task that was handed back because no handler knew its type: it
// doubles with each delivery.
const (
	minUnknownDelay = time.Second
	maxUnknownDelay = time.Minute
)

// maxReleaseDelay bounds the delay that a worker asks for when it hands a task
// back.
const maxReleaseDelay = time.Minute

// release hands the task back: it restarts at once, after the delay that the
// worker asks for, or after a growing one if its type was unknown to the worker.
// A type that stays unknown for too long makes a dead letter.
func (t *Task) release(o *Outcome, env Env) []*Event {
	t.AppliedKind, t.AppliedDelivery = o.Kind, o.Delivery
	t.DueAt = env.Now.Add(min(max(o.Delay, 0), maxReleaseDelay))
	unknown := o.Code == CodeUnknownType
	if unknown {
		t.DueAt = env.Now.Add(min(minUnknownDelay<<min(t.Delivery-1, 6), maxUnknownDelay))
		if t.UnknownSince.IsZero() {
			t.UnknownSince = env.Now
		}
	}
	t.Delivery++
	e := t.move(StateInterrupted, EventInterrupted, env, ActorWorker)
	e.Code, e.Reason = o.Code, o.Error
	if e.Code == CodeWorkerLost { // Fold counts interruptions by this code, and this is none
		e.Code = ""
	}
	e.WorkerID, e.MessageID = o.WorkerID, o.MessageID
	events := []*Event{e}
	if known := env.Now.Sub(t.UnknownSince); unknown && env.MaxUnknown > 0 && known >= env.MaxUnknown {
		t.Code = CodeUnknownType
		t.Reason = Text(fmt.Sprintf("no worker has known the type for %s; last: %s", known.Round(time.Millisecond), o.Error))
		dead := t.giveUp(env, ActorWorker)
		dead.WorkerID, dead.MessageID = o.WorkerID, o.MessageID
		events = append(events, dead)
	}
	return events
}

func (t *Task) reject(o *Outcome, env Env, why string) ([]*Event, Verdict) {
	if o.Delivery <= t.RejectedDelivery {
		return nil, Rejected
	}
	t.RejectedDelivery = o.Delivery
	e := t.event(t.State, EventTransitionRejected, env, ActorWorker)
	e.Code, e.Reason = CodeInvalidTransition, why
	e.WorkerID, e.MessageID = o.WorkerID, o.MessageID
	e.Data = data(RejectedData{Kind: o.Kind, Delivery: o.Delivery})
	return []*Event{e}, Rejected
}

// Dispatch prepares a due task for its stream: it stops waiting in Postgres,
// and becomes queued if it was pending or interrupted. It returns no event
// where the state stays. ok is false if a task in this state can't be
// dispatched.
func (t *Task) Dispatch(env Env) (events []*Event, ok bool) {
	switch t.State {
	case StatePending, StateInterrupted:
		events = []*Event{t.move(StateQueued, EventQueued, env, ActorDispatcher)}
	case StateQueued, StateRetrying:
	default:
		return nil, false
	}
	t.DueAt, t.UpdatedAt = time.Time{}, env.Now
	return events, true
}

// Redispatch voids the current delivery of a task whose stream entry was lost
// and makes it due now. A running one is interrupted, which counts against
// nobody: Redis lost the entry, and its worker may be well. ok is false in states
// where no entry is expected.
func (t *Task) Redispatch(env Env, reason string) (events []*Event, ok bool) {
	var e *Event
	switch t.State {
	case StateQueued, StateRetrying:
		t.Delivery++
		e = t.move(t.State, EventRedispatched, env, ActorReconciler)
	case StateRunning:
		t.Delivery++
		e = t.move(StateInterrupted, EventInterrupted, env, ActorReconciler)
		e.WorkerID = t.WorkerID
	default:
		return nil, false
	}
	t.DueAt = env.Now
	e.Reason = reason
	return []*Event{e}, true
}

// Lost ends the execution of a worker that was lost: the task is interrupted
// and due now, or after Spread if that happened before, or given up after too many interruptions. reclaim, if not nil,
// is recorded as task.reclaimed before. ok is false in states in which no
// worker can hold the task.
func (t *Task) Lost(env Env, actor, reason string, reclaim *ReclaimData) (events []*Event, ok bool) {
	if t.State != StateQueued && t.State != StateRetrying && t.State != StateRunning {
		return nil, false
	}
	if reclaim != nil {
		e := t.event(t.State, EventReclaimed, env, actor)
		e.WorkerID, e.MessageID = reclaim.OriginalConsumer, reclaim.MessageID
		e.Reason, e.Data = reason, data(reclaim)
		events = append(events, e)
	}
	t.Delivery++
	t.Interruptions++
	t.DueAt = env.Now.Add(Spread(env.Seed, t.ID, t.Interruptions))
	e := t.move(StateInterrupted, EventInterrupted, env, actor)
	e.Code, e.Reason = CodeWorkerLost, reason
	if reclaim != nil {
		e.WorkerID, e.MessageID = reclaim.OriginalConsumer, reclaim.MessageID
	}
	events = append(events, e)
	if t.Interruptions > env.MaxInterruptions {
		t.Code = CodeWorkerLost
		t.Reason = fmt.Sprintf("interrupted %d times, at most %d are allowed; last: %s", t.Interruptions, env.MaxInterruptions, reason)
		events = append(events, t.giveUp(env, actor))
	}
	return events, true
}
