package protocol

// RestoredJump is how far above every delivery that a restored database knows
// the deliveries of its live tasks continue: further than those that it has
// forgotten can have come.
const RestoredJump = 1_000_000

// Restored voids whatever became of the task in a future that its record does
// not know any more, because the record was restored from before: it is
// dispatched anew under a delivery of at least floor, so that no entry, claim or
// outcome of that future can be taken for one of this. An execution that the
// record shows as running is interrupted, which counts against nobody; what
// waits for a later time goes on waiting. A pending task that is due stays so: the
// guard has not been asked about it, and is when it is dispatched. ok is false, and nothing changes, if
// the task is past the floor already, or in a state in which no execution of it
// counts: terminal, given up, waiting for approval, or pending and not yet due,
// when no future can have dispatched it.
func (t *Task) Restored(env Env, floor int64, reason string) (events []*Event, ok bool) {
	if t.Delivery >= floor {
		return nil, false
	}
	switch t.State {
	case StateQueued, StateRetrying:
	case StateRunning:
		t.Delivery++
		t.DueAt = env.Now
		e := t.move(StateInterrupted, EventInterrupted, env, ActorReconciler)
		e.Reason, e.WorkerID = reason, t.WorkerID
		events = append(events, e)
	case StateInterrupted:
	case StatePending:
		if t.DueAt.IsZero() || t.DueAt.After(env.Now) {
			return nil, false
		}
	default:
		return nil, false
	}
	if t.State == StateInterrupted {
		due := t.DueAt
		queued, _ := t.Dispatch(env)
		t.DueAt = due
		events = append(events, queued...)
	}
	t.Delivery = max(floor, t.Delivery+1)
	if t.DueAt.IsZero() {
		t.DueAt = env.Now
	}
	e := t.event(t.State, EventRedispatched, env, ActorReconciler)
	e.Reason = reason
	return append(events, e), true
}
