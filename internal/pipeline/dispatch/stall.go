package dispatch

import (
	"sync/atomic"
	"time"
)

// stalledPause is the longest pause while a full window does not change.
const stalledPause = 160 * time.Millisecond

// stalls are queues whose window is full. While nothing leaves their streams, as when
// no worker runs, they are looked at less and less often. Only the loop of due tasks
// uses it, but for moved.
type stalls struct {
	queues map[string]stall
	freed  atomic.Bool
	long   atomic.Bool // some pause is longer than the shortest
}

// stall is the room that was found last, and the pause after it.
type stall struct {
	room  int
	pause time.Duration
}

// pause returns when to look at a queue again that has no more room than this.
func (s *stalls) pause(queue string, room int) time.Duration {
	if s.queues == nil {
		s.queues = map[string]stall{}
	}
	last, ok := s.queues[queue]
	next := stall{room, blockedPause}
	if ok && last.room == room {
		next.pause = min(2*last.pause, stalledPause)
		s.long.Store(true)
	}
	s.queues[queue] = next
	return next.pause
}

// over tells that a queue had room.
func (s *stalls) over(queue string) { delete(s.queues, queue) }

// begin begins a look at the queues.
func (s *stalls) begin(due int) {
	if s.freed.Swap(false) || len(s.queues) > due { // more than have due tasks
		clear(s.queues)
		s.long.Store(false)
	}
}

// moved tells that entries have left some stream; it returns whether a look at the
// queues is worth while now.
func (s *stalls) moved() bool {
	if !s.long.Swap(false) {
		return false
	}
	s.freed.Store(true)
	return true
}

// Moved tells that workers have finished tasks, so that there may be room again.
func (d *Dispatcher) Moved() {
	if d.stalls.moved() {
		signal(d.wake)
	}
}
