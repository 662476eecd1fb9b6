package protocol

import "time"

// TypeKnown makes a task due at once that waits because no worker knew its type,
// and reports whether it did. It is no event: how long a task waits until it is
// dispatched again is not part of its history.
func (t *Task) TypeKnown(now time.Time) bool {
	if t.State != StateInterrupted || t.UnknownSince.IsZero() || !t.DueAt.After(now) {
		return false
	}
	t.DueAt = now
	return true
}
