package protocol

// RestoredJump is how far above every delivery that a restored database knows
// the deliveries of its live tasks continue: further than those that it has
// forgotten can have come. They continue at the clock in milliseconds if that is
// more: one backup may be restored twice.
const RestoredJump = 1_000_000

// Restored voids whatever became of the task in a future that its record does
// not know any more, because the record was restored from before: it goes on
// under a delivery of at least floor, so that no entry, claim or outcome of that
// future can be taken for one of this. One that was dispatched is due at once. An
// execution that the record shows as running is interrupted, which counts against
// nobody. What waits, for a time, other tasks, or a person's decision, goes on
// waiting, but not under the delivery that it has: its time may have been moved
// forward, what it waits for may have come, and then that delivery was executed.
// A pending task that is due stays pending: the guard has not been asked about it,
// and is when it is dispatched. ok is false, and nothing changes, if the task is
// past the floor already, or given up or terminal, when no execution of it counts.
func (t *Task) Restored(env Env, floor int64, reason string) (events []*Event, ok bool) {
	if t.Delivery >= floor || !t.State.Cancellable() {
		return nil, false
	}
	if t.State == StateRunning {
		t.Delivery++
		t.DueAt = env.Now
		e := t.move(StateInterrupted, EventInterrupted, env, ActorReconciler)
		e.Reason, e.WorkerID = reason, t.WorkerID
		events = append(events, e)
	}
	if t.State == StateInterrupted {
		due := t.DueAt
		queued, _ := t.Dispatch(env)
		t.DueAt = due
		events = append(events, queued...)
	}
	if t.Dispatched() {
		t.DueAt = env.Now
	}
	t.Delivery = max(floor, t.Delivery+1)
	e := t.event(t.State, EventRedispatched, env, ActorReconciler)
	e.Reason = reason
	return append(events, e), true
}
