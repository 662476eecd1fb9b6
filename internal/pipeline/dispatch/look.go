package dispatch

import (
	"context"
	"fmt"
	"time"
)

// Tasks that were dispatched leave dead entries at the front of the index of what is
// due, until Postgres vacuums: whoever looks for the first one passes them all. So a
// queue with a backlog is read on from where the last batch ended, and all queues are
// looked at less often where that takes long.

const (
	// lookShare is the part of the time, one of so many, that looks at all queues may
	// take, but for lookPause: what is due must not wait for longer to be seen.
	lookShare = 20
	lookPause = 200 * time.Millisecond
	// wholeEvery is how often at least a backlog is read from its beginning.
	wholeEvery = time.Second
)

// look is what the last look at the queues found. Only the loop of due tasks uses it.
type look struct {
	queues []due
	next   time.Time // when to look again
	took   time.Duration
}

// due is a queue and when its first task becomes due; zero: the next look tells.
type due struct {
	queue string
	at    time.Time
}

// lookAround returns the queues that have tasks waiting in Postgres, as far as is known,
// looks if it is time to, and says after how long to look again.
func (d *Dispatcher) lookAround(ctx context.Context) (queues []due, again time.Duration, err error) {
	began := time.Now()
	if wait := d.look.next.Sub(began); wait > 0 {
		return d.look.queues, wait, nil
	}
	rows, err := d.store.DueQueues(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("read due times: %w", err)
	}
	now := time.Now()
	// One that took long by chance, as the first on a connection, is not what looks cost.
	took := now.Sub(began)
	pause := min(lookShare*min(took, d.look.took), d.poll, lookPause)
	d.look = look{queues: make([]due, len(rows)), next: now.Add(pause), took: took}
	for i, r := range rows {
		d.look.queues[i] = due{r.Queue, now.Add(time.Duration(r.WaitMs * float64(time.Millisecond)))}
	}
	if len(d.backlogs) > len(rows) { // some queue has none any more
		clear(d.backlogs)
	}
	return d.look.queues, d.poll, nil
}

// backlog is where to read on in a queue.
type backlog struct {
	from  time.Time // nothing is due before it, but for what came since
	whole time.Time // when the queue was last read from its beginning
}

// from returns the due time from which to take tasks of a queue: from the beginning
// once in a while, since transactions may commit later than younger ones, and others
// may have given tasks back.
func (d *Dispatcher) from(queue string) time.Time {
	if b, ok := d.backlogs[queue]; ok && time.Since(b.whole) < min(d.poll, wholeEvery) {
		return b.from
	}
	return time.Time{}
}

// readOn notes that a batch was full, and ended with a task that was due at a time.
func (d *Dispatcher) readOn(queue string, from, last time.Time) {
	b := d.backlogs[queue]
	if b.from = last; from.IsZero() {
		b.whole = time.Now()
	}
	d.backlogs[queue] = b
}

// startOver has a queue be read from its beginning next.
func (d *Dispatcher) startOver(queue string) { delete(d.backlogs, queue) }
