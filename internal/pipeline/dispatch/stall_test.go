package dispatch

import (
	"testing"
	"time"
)

// A window that stays full is looked at less and less often; as soon as it changes,
// or somebody tells that tasks have been finished, as often as before.
func TestStalledQueues(t *testing.T) {
	t.Parallel()
	d := New(Options{})
	pauses := func(want ...time.Duration) {
		t.Helper()
		for i, w := range want {
			d.stalls.begin(1)
			if got := d.stalls.pause("q", 3); got != w*time.Millisecond {
				t.Errorf("pause %d is %s, want %d ms", i, got, w)
			}
		}
	}
	pauses(10, 20, 40, 80, 160, 160)
	if d.stalls.pause("q", 4) != blockedPause {
		t.Error("a window that changes is looked at rarely")
	}
	pauses(10, 20, 40)
	d.Moved()
	select {
	case <-d.wake:
	default:
		t.Error("tasks were finished, and the dispatcher sleeps on")
	}
	d.Moved() // the next ones before it has looked
	select {
	case <-d.wake:
		t.Error("the dispatcher is woken although it has been told")
	default:
	}
	pauses(10, 20)
	d.stalls.over("q")
	pauses(10)
	d.stalls.begin(0) // nothing is due any more
	if len(d.stalls.queues) != 0 {
		t.Error("queues are remembered that have nothing due")
	}
}
