// Package dispatch is the only way an entry gets into a task stream: a
// transaction that takes tasks out of Postgres' waiting and writes an outbox
// row, then the XADD, then the outbox row's removal.
package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// window bounds what each task stream holds unacknowledged. It measures the
// stream and counts what this process added since; other replicas' additions
// show at the next measurement.
type window struct {
	redis *streams.Client
	size  int
	// lost is called when a task stream had to be made anew, back when a stream
	// takes entries again after trouble.
	lost func(queue string)
	back func()

	mu    sync.Mutex
	lanes map[string]*lane
}

type lane struct {
	used time.Time // guarded by the window's lock

	mu     sync.Mutex // held while measuring
	held   int        // undelivered + pending when measured
	added  int        // by this process since
	lastID string
	at     time.Time
	// err is set while Redis is in trouble; then it is asked in the background,
	// not before down, so that nobody waits for a Redis that does not answer.
	err     error
	down    time.Time
	refused bool // Redis answers, but takes no entries
	probing bool
}

const (
	// measureEvery bounds a measurement's age.
	measureEvery = 50 * time.Millisecond
	// manyLanes and idleLane: when and which queues are forgotten. Their
	// streams have long been trimmed by then.
	manyLanes = 256
	idleLane  = 10 * time.Minute
	// downPause is how long a failure stands.
	downPause = 300 * time.Millisecond
)

func newWindow(redis *streams.Client, size int, lost func(string), back func()) *window {
	return &window{redis: redis, size: size, lost: lost, back: back, lanes: map[string]*lane{}}
}

func (w *window) lane(queue string) *lane {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lanes[queue]
	if l == nil {
		w.evict()
		l = &lane{}
		w.lanes[queue] = l
	}
	l.used = time.Now()
	return l
}

// evict forgets queues that have not been used for a while, if there are many:
// queue names are the callers' choice. The lock is held.
func (w *window) evict() {
	if len(w.lanes) < manyLanes {
		return
	}
	for q, l := range w.lanes {
		if time.Since(l.used) > idleLane {
			delete(w.lanes, q)
		}
	}
}

// queues lists the queues seen so far.
func (w *window) queues() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]string, 0, len(w.lanes))
	for q := range w.lanes {
		out = append(out, q)
	}
	return out
}

// room returns how many entries the queue's stream may still take, and an
// entry id from before anything that is added now. The stream and its group
// exist when it returns no error.
func (w *window) room(ctx context.Context, queue string) (n int, afterID string, err error) {
	l := w.lane(queue)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.err != nil {
		if !l.probing && !now.Before(l.down) {
			l.probing = true
			go w.probe(queue, l, l.refused)
		}
		return 0, "", l.err
	}
	if l.at.IsZero() || now.Sub(l.at) > measureEvery || l.added > max(w.size/10, 1) {
		info, err := w.measure(ctx, queue)
		if err != nil {
			l.err, l.down = err, time.Now().Add(downPause)
			return 0, "", err
		}
		l.set(info)
	}
	return max(w.size-l.held-l.added, 0), l.lastID, nil
}

func (l *lane) set(i streams.GroupInfo) {
	l.held, l.added, l.lastID, l.at = int(i.Undelivered+i.Pending), 0, i.LastID, time.Now()
}

// probe measures a stream that was in trouble. What Redis refused may be
// refused again (it is out of memory, or read-only), and each attempt with a
// task would cost it a delivery: so the attempt is made with nothing.
func (w *window) probe(queue string, l *lane, refused bool) {
	ctx := context.Background() // the client's own timeouts bound it
	info, err := w.measure(ctx, queue)
	if err == nil && refused {
		err = w.redis.CanAdd(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probing = false
	if err != nil {
		l.err, l.down = err, time.Now().Add(downPause)
		return
	}
	l.err, l.refused = nil, false
	l.set(info)
	w.back()
}

func (w *window) measure(ctx context.Context, queue string) (streams.GroupInfo, error) {
	stream := protocol.TaskStream(queue)
	info, err := w.redis.Info(ctx, stream, protocol.GroupWorkers)
	if !errors.Is(err, streams.ErrNoGroup) {
		return info, err
	}
	made, err := w.redis.CreateTaskGroup(ctx, stream, protocol.GroupWorkers)
	if err != nil {
		return info, err
	}
	if made && w.lost != nil {
		w.lost(queue)
	}
	return w.redis.Info(ctx, stream, protocol.GroupWorkers)
}

// note records an XADD of this process.
func (w *window) note(queue string, n int, err error) {
	l := w.lane(queue)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.added += n
	if err == nil {
		return
	}
	l.at = time.Time{} // measure again, and make the stream if it is gone
	if !errors.Is(err, streams.ErrNoStream) {
		l.err, l.down, l.refused = err, time.Now().Add(downPause), !streams.Ambiguous(err)
	}
}
