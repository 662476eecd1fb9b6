package protocol

import "slices"

// State is a task's state. Names are those of the contract, section 1.
type State string

// The states.
const (
	// StateNone is the state before a task exists.
	StateNone State = ""
	// StatePending: accepted; not yet due, or waiting for dependencies.
	StatePending State = "pending"
	// StateWaitingApproval: stopped by a guard until a person decides.
	StateWaitingApproval State = "waiting_approval"
	// StateQueued: due, waiting for a worker.
	StateQueued State = "queued"
	// StateRunning: a worker holds it.
	StateRunning State = "running"
	// StateRetrying: failed or snoozed; next_retry_at is set. It stays so,
	// even once dispatched, until a worker claims it.
	StateRetrying State = "retrying"
	// StateInterrupted: its worker was lost or handed it back.
	StateInterrupted State = "interrupted"
	// StateDLQPending: given up; the dead letter is not yet written.
	StateDLQPending State = "dlq_pending"
	// StateDLQRecorded: the dead letter is written.
	StateDLQRecorded State = "dlq_recorded"
	// StateSucceeded, StateFailed and StateCancelled are terminal.
	StateSucceeded State = "succeeded"
	StateFailed    State = "failed"
	StateCancelled State = "cancelled"
)

// States lists every state in the order of the contract.
func States() []State {
	return []State{
		StatePending, StateWaitingApproval, StateQueued, StateRunning, StateRetrying, StateInterrupted,
		StateDLQPending, StateDLQRecorded, StateSucceeded, StateFailed, StateCancelled,
	}
}

// Valid reports whether s is a state a task can have.
func (s State) Valid() bool { return slices.Contains(States(), s) }

// Terminal reports whether no transition leaves s.
func (s State) Terminal() bool {
	return s == StateSucceeded || s == StateFailed || s == StateCancelled
}

// Transition is one row of the table of legal moves.
type Transition struct {
	From, To State
	// Trigger says what causes it.
	Trigger string
}

// Transitions is the table of the contract, section 2. A pair that is not in
// it is refused with TASK_INVALID_TRANSITION.
func Transitions() []Transition { return slices.Clone(transitions) }

var transitions = []Transition{
	{StateNone, StatePending, "created: scheduled"},
	{StateNone, StateWaitingApproval, "created: guarded"},
	{StateNone, StateQueued, "created: due now"},
	{StatePending, StateQueued, "due"},
	{StatePending, StateWaitingApproval, "due: guarded"},
	{StateWaitingApproval, StatePending, "approved: not yet due"},
	{StateWaitingApproval, StateQueued, "approved: due"},
	{StateQueued, StateQueued, "stream entry lost: dispatched again"},
	{StateRetrying, StateRetrying, "stream entry lost: dispatched again"},
	{StateQueued, StateRunning, "claimed"},
	{StateRetrying, StateRunning, "claimed"},
	{StateRunning, StateSucceeded, "handler returned"},
	{StateRunning, StateRetrying, "retryable error or snooze"},
	{StateRunning, StateWaitingApproval, "handler asks for approval"},
	{StateRunning, StateDLQPending, "not retryable or retries exhausted"},
	{StateRetrying, StateDLQPending, "given up"},
	{StateInterrupted, StateDLQPending, "too many interruptions, or no worker knows the type"},
	{StateQueued, StateInterrupted, "worker lost or handed back"},
	{StateRetrying, StateInterrupted, "worker lost or handed back"},
	{StateRunning, StateInterrupted, "worker lost or handed back"},
	{StateInterrupted, StateQueued, "dispatched again"},
	{StateDLQPending, StateDLQRecorded, "dead letter written"},
	{StateDLQRecorded, StateFailed, "final"},
	{StatePending, StateCancelled, "cancelled"},
	{StateWaitingApproval, StateCancelled, "cancelled"},
	{StateQueued, StateCancelled, "cancelled"},
	{StateRunning, StateCancelled, "cancelled"},
	{StateRetrying, StateCancelled, "cancelled"},
	{StateInterrupted, StateCancelled, "cancelled"},
}

type pair struct{ from, to State }

var allowed = func() map[pair]bool {
	m := make(map[pair]bool, len(transitions))
	for _, t := range transitions {
		m[pair{t.From, t.To}] = true
	}
	return m
}()

// Allowed reports whether the table has a move from one state to the other.
func Allowed(from, to State) bool { return allowed[pair{from, to}] }
