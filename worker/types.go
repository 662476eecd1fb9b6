package worker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

const (
	// typesInterval is how often a worker says what it knows, and looks for offers
	// that it did not hear of; typesTTL is how long its word counts.
	typesInterval = 3 * time.Second
	typesTTL      = 10 * time.Second
	// maxKinds bounds what a worker says: the first of its types in alphabetical
	// order, each in each of its queues.
	maxKinds = 10_000
)

// taker is what a worker knows of the offers of others, for one queue.
type taker struct {
	reading atomic.Bool // a read of the stream waits, or is about to

	mu    sync.Mutex
	types map[string]bool // of which there may be offers
}

// want notes that there may be offers of a type.
func (t *taker) want(typ string) {
	t.mu.Lock()
	t.types[typ] = true
	t.mu.Unlock()
}

func (t *taker) wanted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.types) > 0
}

// next removes and returns a type of which there may be offers.
func (t *taker) next() (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for typ := range t.types {
		delete(t.types, typ)
		return typ, true
	}
	return "", false
}

// kinds lists what this worker knows.
func (w *Worker) kinds() (out []streams.Kind) {
	for _, typ := range slices.Sorted(maps.Keys(w.handlers)) {
		for _, q := range w.o.Queues {
			if len(out) == maxKinds {
				w.o.Log.Warn("this worker knows more types than it can tell others; tasks of the last ones that others fetch come later", "told", len(out))
				return out
			}
			out = append(out, streams.Kind{Queue: q, Type: typ})
		}
	}
	return out
}

// keepTypes tells the other workers what this one knows, until ctx ends, and
// listens to what they offer.
func (w *Worker) keepTypes(ctx context.Context) {
	kinds := w.kinds()
	if len(kinds) == 0 {
		return
	}
	var listening sync.WaitGroup
	defer listening.Wait()
	listening.Go(func() {
		if err := w.redis.OnOffers(ctx, w.heard); err != nil && ctx.Err() == nil {
			w.o.Log.Warn("offers of other workers are only looked for every few seconds: their channel can't be listened to", "every", typesInterval, "error", err)
		}
	})
	tick := time.NewTicker(typesInterval)
	defer tick.Stop()
	failing := false
	for {
		err := lifecycle.Detach(ctx, func() error { return w.tell(ctx, kinds) })
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			w.o.Log.Warn("other workers do not learn which types this one knows; tasks of these types that they fetch come later", "error", err)
			failing = true
		case err == nil:
			failing = false
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (w *Worker) tell(ctx context.Context, kinds []streams.Kind) error {
	if err := w.redis.Know(ctx, kinds, typesTTL); err != nil {
		return err
	}
	some, err := w.redis.AnyOffers(ctx, kinds)
	if err != nil || !some {
		return err
	}
	for _, k := range kinds {
		w.takers[k.Queue].want(k.Type)
	}
	w.wake(w.o.Queues...)
	return nil
}

// heard is called with each kind of which anybody offers entries.
func (w *Worker) heard(k streams.Kind) {
	t := w.takers[k.Queue]
	if t == nil || w.handlers[k.Type] == nil {
		return
	}
	t.want(k.Type)
	w.wake(k.Queue)
}

// wake has reads of these queues end that wait while there are offers to take. A
// user without the right to CLIENT UNBLOCK has them end by themselves, within
// streams.Block.
func (w *Worker) wake(queues ...string) {
	waits := func() bool {
		return slices.ContainsFunc(queues, func(q string) bool { return w.takers[q].reading.Load() && w.takers[q].wanted() })
	}
	if !waits() || !w.waking.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer w.waking.Store(false)
		// Again, for a read that is on its way to Redis.
		for pause := time.Millisecond; pause < streams.Block && waits(); pause *= 3 {
			w.redis.Unblock(context.Background())
			time.Sleep(pause)
		}
	}()
}

// takeOffers takes over at most n entries of a queue that others offer. A slot is
// held for each. doubt are the ids of entries that must be left alone.
func (w *Worker) takeOffers(ctx context.Context, queue string, n int) (es []streams.Entry, doubt []string, err error) {
	t := w.takers[queue]
	for len(es) < n {
		typ, ok := t.next()
		if !ok {
			break
		}
		offers, more, err := w.redis.Take(ctx, streams.Kind{Queue: queue, Type: typ}, n-len(es))
		if err != nil {
			return es, nil, err
		}
		if more {
			t.want(typ)
		}
		if len(offers) == 0 {
			continue
		}
		got, doubt, err := w.redis.TakeOver(ctx, protocol.TaskStream(queue), protocol.GroupWorkers, w.id, offers, w.o.VisibilityTimeout)
		es = append(es, got...)
		if err != nil {
			return es, doubt, err
		}
	}
	return es, nil, nil
}

// startOffered takes over what others offer of a queue and starts it; n slots are
// held, and given back. After an error the history is to be read.
func (w *Worker) startOffered(ctx context.Context, queue, stream string, n int) error {
	work, seen := context.WithoutCancel(ctx), w.seen()
	es, doubt, failed := w.takeOffers(work, queue, n)
	for _, id := range doubt { // until it is reclaimed: else it would be started from the history
		x := &execution{key: stream + " " + id, stream: stream, entryID: id, worker: w.id, cancel: func(error) {}, abandoned: true}
		w.add(x)
		w.release(1)
	}
	n -= len(doubt)
	dead, err := w.tombstoned(ctx, es, len(es) > 0)
	if err != nil {
		w.giveBack(n)
		return err
	}
	w.giveBack(n - len(es))
	w.startAll(ctx, queue, stream, es, seen, dead)
	return failed
}
