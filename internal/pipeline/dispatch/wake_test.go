package dispatch

import (
	"testing"
	"time"
)

// While the dispatcher looks at the due times, a task may become due that it
// does not see: a Wake for any moment makes it look again.
func TestWakeDuringALook(t *testing.T) {
	t.Parallel()
	d := New(Options{})
	woken := func() bool {
		select {
		case <-d.wake:
			return true
		default:
			return false
		}
	}
	d.sleepUntil(lookAgain)
	d.Wake(time.Now().Add(5 * time.Millisecond))
	if !woken() {
		t.Error("a Wake during a look is forgotten")
	}
	d.sleepUntil(time.Now().Add(time.Hour))
	d.Wake(time.Now().Add(2 * time.Hour))
	if woken() {
		t.Error("a Wake for later than the next look anyway wakes the dispatcher")
	}
	d.Wake(time.Now().Add(time.Minute))
	if !woken() {
		t.Error("a Wake for a moment before the next look is not heard")
	}
}
