package protocol

import (
	"fmt"
	"slices"
)

// Folded is the state that a task's events imply.
type Folded struct {
	State         State
	Attempt       int
	Delivery      int64
	Interruptions int
	Seq           int
	// Terminals is the number of terminal events; never above 1.
	Terminals int
}

// FoldError names the event that cannot have happened.
type FoldError struct {
	TaskID ID
	Seq    int
	Reason string
}

func (e *FoldError) Error() string {
	return fmt.Sprintf("task %s, event %d: %s", e.TaskID, e.Seq, e.Reason)
}

// Fold replays a task's whole event log, in order of seq, and returns the
// state it implies, or a *FoldError for the first event that breaks an
// invariant of the contract: a gap in seq, a move outside the table or by an
// event of another type, a wrong previous state, attempt or delivery,
// next_retry_at outside retrying, a second terminal event, or failed without
// its dead letter.
func Fold(events []*Event) (Folded, error) {
	var f Folded
	for _, e := range events {
		if err := f.Add(e); err != nil {
			return f, err
		}
	}
	return f, nil
}

// Add replays one more event; see Fold.
func (f *Folded) Add(e *Event) error {
	bad := func(format string, args ...any) error {
		return &FoldError{TaskID: e.TaskID, Seq: e.Seq, Reason: fmt.Sprintf(format, args...)}
	}
	if e.Seq != f.Seq+1 {
		return bad("follows event %d", f.Seq)
	}
	if e.From != f.State {
		return bad("%s starts from %q, but the task is %q", e.Type, e.From, f.State)
	}
	if (e.To == StateRetrying) == e.NextRetryAt.IsZero() {
		return bad("next_retry_at must be set exactly in state retrying; state is %s", e.To)
	}
	if !fits(e) {
		return bad("%s can't make the move from %q to %q", e.Type, e.From, e.To)
	}
	if !e.Changes() {
		if e.Attempt != f.Attempt || e.Delivery != f.Delivery {
			return bad("%s changes no state but attempt or delivery", e.Type)
		}
		f.Seq = e.Seq
		return nil
	}
	if !raises(e) && !Allowed(e.From, e.To) {
		return bad("%s → %s is not in the transition table", e.From, e.To)
	}
	attempt, delivery := f.expected(e)
	if e.Attempt != attempt {
		return bad("attempt is %d, want %d", e.Attempt, attempt)
	}
	if e.Delivery != delivery && !(e.Type == EventRedispatched && e.Delivery > delivery) {
		return bad("delivery is %d, want %d", e.Delivery, delivery)
	}
	if e.Type == EventInterrupted && e.Code == CodeWorkerLost {
		f.Interruptions++
	}
	f.State, f.Attempt, f.Delivery, f.Seq = e.To, e.Attempt, e.Delivery, e.Seq
	if e.To.Terminal() {
		f.Terminals++
	}
	return nil
}

// destinations names the states that each type of event leads to; the other
// types change no state.
var destinations = map[EventType][]State{
	EventCreated:           {StatePending, StateWaitingApproval, StateQueued},
	EventQueued:            {StateQueued},
	EventRedispatched:      {StatePending, StateWaitingApproval, StateQueued, StateRetrying},
	EventClaimed:           {StateRunning},
	EventSucceeded:         {StateSucceeded},
	EventRetryScheduled:    {StateRetrying},
	EventInterrupted:       {StateInterrupted},
	EventDLQ:               {StateDLQPending, StateDLQRecorded},
	EventFailed:            {StateFailed},
	EventCancelled:         {StateCancelled},
	EventApprovalRequested: {StateWaitingApproval},
	EventApprovalApproved:  {StatePending, StateQueued},
	EventApprovalRejected:  {StateCancelled},
}

// fits reports whether an event of this type may go with this change of state,
// or with none: a task begins with task.created, a re-dispatch leaves the
// state, and an approval may stand beside the event that makes the move.
func fits(e *Event) bool {
	to, moves := destinations[e.Type]
	switch e.Type {
	case EventCreated:
		return e.From == StateNone && slices.Contains(to, e.To)
	case EventRedispatched:
		return e.From == e.To && slices.Contains(to, e.To)
	case EventApprovalRequested, EventApprovalApproved, EventApprovalRejected:
		moves = e.From != e.To
	}
	if e.From == StateNone {
		return false
	}
	return moves == (e.From != e.To) && (!moves || slices.Contains(to, e.To))
}

// raises reports whether the event raises the delivery of a task that is not
// dispatched (see Restored): no move, and the end of no execution.
func raises(e *Event) bool {
	return e.Type == EventRedispatched && (e.From == StatePending || e.From == StateWaitingApproval)
}

// expected returns attempt and delivery after a state change.
func (f *Folded) expected(e *Event) (attempt int, delivery int64) {
	attempt, delivery = f.Attempt, f.Delivery
	switch {
	case e.From == StateNone:
		return 1, 1
	case e.To == StateRetrying && e.Type == EventRetryScheduled:
		if e.Code != "" { // a failure; a snooze spends no attempt
			attempt++
		}
		delivery++
	case e.To == StateInterrupted, e.Type == EventRedispatched, e.To == StateCancelled,
		e.To == StateWaitingApproval && e.From == StateRunning:
		delivery++
	}
	return attempt, delivery
}
