package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/protocol"
)

// ahead is how long before their time tasks are taken out of Postgres' waiting:
// about what that takes, so that when they are due only the XADD is left. They
// never get into their stream early; nor is anything dispatched in the log
// before its time.
const ahead = 4 * time.Millisecond

// held is a committed batch that waits for the time at which the last of its
// tasks is due.
type held struct {
	at       time.Time
	began    time.Time // see Send
	outboxID int64
	queue    string
	entries  []*protocol.TaskEntry
}

// hold keeps a batch until sendHeld. Batches of several queues wait together,
// so that the waits of a round do not add up. Only the loop of due tasks comes
// here.
func (d *Dispatcher) hold(h held) {
	d.Expect(h.outboxID)
	d.held = append(d.held, h)
}

// sendHeld sends the batches whose time has come; with wait, it waits for the
// others.
func (d *Dispatcher) sendHeld(ctx context.Context, wait bool) {
	if len(d.held) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, batchLimit)
	defer cancel()
	slices.SortFunc(d.held, func(a, b held) int { return a.at.Compare(b.at) })
	sent := 0
	for _, h := range d.held {
		if !wait && time.Until(h.at) > 0 {
			break
		}
		waitUntil(h.at) // less than ahead
		d.Send(ctx, h.began, h.outboxID, h.queue, h.entries)
		sent++
	}
	d.held = slices.Delete(d.held, 0, sent)
}
