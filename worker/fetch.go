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
	for {
		n := w.acquire(ctx, idle)
		if n == 0 {
			return
		}
		asked := time.Now()
		es, err := w.redis.Read(context.WithoutCancel(ctx), stream, protocol.GroupWorkers, w.id, from, n)
		if err != nil {
			w.giveBack(n)
			if ctx.Err() != nil {
				return
			}
			if !quiet {
				w.o.Log.Warn("cannot fetch; trying again", "queue", queue, "error", err, "group_missing", streams.LostGroup(err))
				quiet = true
			}
			w.ready.Store(streams.LostGroup(err)) // waiting for the orchestrator to make the group is fine
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
		w.ready.Store(true)
		history := from != streams.Fresh
		switch {
		case history && len(es) == 0:
			from = streams.Fresh
		case history:
			from = es[len(es)-1].ID
		}
		idle = len(es) == 0
		es, err = w.mine(ctx, stream, es, asked, history)
		if err != nil {
			w.o.Log.Warn("ownership not known; entries are left for later", "queue", queue, "error", err)
			from = streams.History
		}
		w.giveBack(n - len(es))
		for _, e := range es {
			w.start(ctx, queue, stream, e)
		}
	}
}

// acquire takes at least one free slot and at most this reader's share of
// them, each with a place among the unsettled: nothing is fetched whose outcome
// would have no room. A reader that found nothing takes only one, so that a
// quiet queue does not hold slots that another needs. It returns 0 when ctx
// ends.
func (w *Worker) acquire(ctx context.Context, idle bool) int {
	if ctx.Err() != nil {
		return 0
	}
	select {
	case <-ctx.Done():
		return 0
	case <-w.slots:
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
		err = w.redis.Renew(context.WithoutCancel(ctx), stream, protocol.GroupWorkers, w.id, held)
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
