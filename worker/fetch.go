package worker

import (
	"context"
	"time"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

const (
	minPause = 100 * time.Millisecond
	maxPause = 2 * time.Second
)

// fetch reads one queue's stream until ctx ends. It reads as many entries as
// there are free slots, so that no entry waits in this process while another
// worker is idle.
func (w *Worker) fetch(ctx context.Context, queue string) {
	stream := protocol.TaskStream(queue)
	from := streams.History // what a lost reply may have left
	pause := minPause
	quiet, idle := false, false
	lost := false // a read failed, and the history has not been read since
	beat, offered := w.watchFetch(queue), w.takers[queue]
	for {
		beat.Rest()
		n := w.acquire(ctx, idle)
		if n == 0 {
			if lost {
				w.returnLost(ctx, queue, stream)
			}
			return
		}
		beat.Alive()
		offered.reading.Store(true) // before the look: whoever hears of an offer now wakes this read
		if from == streams.Fresh && offered.wanted() {
			offered.reading.Store(false)
			if err := w.startOffered(ctx, queue, stream, n); err != nil {
				w.o.Log.Warn("what other workers offered could not be taken over; what this one got of it is read again", "queue", queue, "error", err)
				from = streams.History
			}
			continue
		}
		asked, seen := time.Now(), w.seen()
		es, tombstones, err := w.redis.ReadTasks(context.WithoutCancel(ctx), stream, protocol.GroupWorkers, w.id, from, n)
		offered.reading.Store(false)
		if err != nil {
			w.giveBack(n)
			lost = true
			why := w.unfetched(ctx, queue, beat, err)
			if !quiet && ctx.Err() == nil {
				if why == noTaskYet {
					w.o.Log.Info("the queue has had no task yet; waiting for its first", "queue", queue)
				} else {
					w.o.Log.Warn("cannot fetch; trying again", "queue", queue, "error", err, "reason", why)
				}
				quiet = true
			}
			from = streams.History
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, maxPause)
			continue
		}
		if quiet {
			w.o.Log.Info("fetching again", "queue", queue)
		}
		pause, quiet = minPause, false
		history := from != streams.Fresh
		switch {
		case history && len(es) == 0:
			from = streams.Fresh
		case history:
			from = es[len(es)-1].ID
		}
		idle, lost = len(es) == 0, lost && from != streams.Fresh
		es, err = w.mine(ctx, stream, es, asked, history)
		var dead []bool
		if err == nil {
			dead, err = w.tombstoned(ctx, es, tombstones)
		}
		if err != nil {
			w.o.Log.Warn("entries are left for later: their owner, or whether they were cancelled, is not known", "queue", queue, "error", err)
			es, from = nil, streams.History
			beat.Fail("cannot tell which of its entries to run")
		} else {
			beat.Mark()
		}
		w.giveBack(n - len(es))
		w.startAll(ctx, queue, stream, es, seen, dead)
	}
}

// returnLost hands back what reads whose reply was lost have left with this
// worker, which is stopping: the tasks would have to wait for the visibility
// timeout. It does what it can at once: slots that are taken are not waited for.
func (w *Worker) returnLost(ctx context.Context, queue, stream string) {
	n := 0
	for n < w.o.Concurrency && w.tryAcquire() {
		n++
	}
	if n == 0 {
		return
	}
	work := context.WithoutCancel(ctx)
	es, err := w.redis.Read(work, stream, protocol.GroupWorkers, w.id, streams.History, n)
	if err == nil {
		es, err = w.mine(ctx, stream, es, time.Now(), true)
	}
	if streams.LostGroup(err) {
		err = nil // and with it whatever the reply held
	}
	if err != nil {
		w.o.Log.Warn("what a lost reply may have left is reclaimed after the visibility timeout", "queue", queue, "error", err)
		es = nil
	}
	w.giveBack(n - len(es))
	w.startAll(ctx, queue, stream, es, streams.Content{}, make([]bool, len(es)))
}

// startAll starts entries but those whose task was cancelled.
func (w *Worker) startAll(ctx context.Context, queue, stream string, es []streams.Entry, seen streams.Content, dead []bool) {
	if w.enter() {
		defer w.done.Done()
	}
	for i, e := range es {
		if dead[i] {
			w.skip(stream, e)
		} else {
			w.start(ctx, queue, stream, e, seen)
		}
	}
}

// acquire takes at least one free slot and at most this reader's share of
// them, each with a place among the unsettled: nothing is fetched whose outcome
// would have no room. A reader that found nothing takes only one, so that a
// quiet queue does not hold slots that another needs. It returns 0 when ctx
// ends.
func (w *Worker) acquire(ctx context.Context, idle bool) int {
	if ctx.Err() != nil || !w.acquireSlot(ctx) {
		return 0
	}
	select {
	case <-ctx.Done():
		w.release(1)
		return 0
	case w.unsettled <- struct{}{}:
	}
	share := max(w.o.Concurrency/len(w.o.Queues), 1)
	if idle && len(w.o.Queues) > 1 {
		share = 1
	}
	n := 1
	for n < share && w.tryAcquire() {
		n++
	}
	return n
}

// acquireSlot takes a slot while the gate is open; false when ctx ends.
func (w *Worker) acquireSlot(ctx context.Context) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.slots:
		}
		shut := w.gate.shut()
		if shut == nil {
			return true
		}
		w.release(1) // it is a suspect's turn
		select {
		case <-ctx.Done():
			return false
		case <-shut:
		}
	}
}

func (w *Worker) tryAcquire() bool {
	select {
	case w.unsettled <- struct{}{}:
	default:
		return false
	}
	select {
	case <-w.slots:
		return true
	default:
		<-w.unsettled
		return false
	}
}

// giveBack undoes acquire.
func (w *Worker) giveBack(n int) {
	w.release(n)
	for range n {
		<-w.unsettled
	}
}

func (w *Worker) release(n int) {
	for range n {
		w.slots <- struct{}{}
	}
}

// mine leaves out entries that this process has in flight already, and, where
// time may have passed since they were delivered, those that another consumer
// owns by now. After an error the entries stay pending, to be found in the
// history.
func (w *Worker) mine(ctx context.Context, stream string, es []streams.Entry, asked time.Time, history bool) ([]streams.Entry, error) {
	if !history && time.Since(asked) < w.o.VisibilityTimeout/3 {
		return es, nil
	}
	var out []streams.Entry
	var ids []string
	w.mu.Lock()
	for _, e := range es {
		if w.running[stream+" "+e.ID] == nil {
			out, ids = append(out, e), append(ids, e.ID)
		}
	}
	w.mu.Unlock()
	if len(out) == 0 {
		return nil, nil
	}
	owned, err := w.redis.Owned(context.WithoutCancel(ctx), stream, protocol.GroupWorkers, w.id, ids)
	if err == nil && history {
		var held []string
		for i, o := range owned {
			if o == streams.Held {
				held = append(held, ids[i])
			}
		}
		_, err = w.redis.Renew(context.WithoutCancel(ctx), stream, protocol.GroupWorkers, w.id, held)
	}
	if err != nil {
		return nil, err
	}
	kept := out[:0]
	for i, e := range out {
		if owned[i] == streams.Held {
			kept = append(kept, e)
		}
	}
	return kept, nil
}
