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
	// lost is called when a task stream had to be made anew.
	lost func(queue string)

	mu    sync.Mutex
	lanes map[string]*lane
}

type lane struct {
	mu     sync.Mutex // held while measuring
	held   int        // undelivered + pending when measured
	added  int        // by this process since
	lastID string
	at     time.Time
	down   time.Time // do not ask Redis again before this
	err    error
}

const (
	// measureEvery bounds a measurement's age.
	measureEvery = 50 * time.Millisecond
	// downPause is how long a failed measurement stands, so that an
	// unreachable Redis does not slow every enqueue down.
	downPause = 300 * time.Millisecond
)

func newWindow(redis *streams.Client, size int, lost func(string)) *window {
	return &window{redis: redis, size: size, lost: lost, lanes: map[string]*lane{}}
}

func (w *window) lane(queue string) *lane {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lanes[queue]
	if l == nil {
		l = &lane{}
		w.lanes[queue] = l
	}
	return l
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
	if now.Before(l.down) {
		return 0, "", l.err
	}
	if l.at.IsZero() || now.Sub(l.at) > measureEvery || l.added > max(w.size/10, 1) {
		if err := w.measure(ctx, queue, l); err != nil {
			l.err, l.down, l.at = err, now.Add(downPause), time.Time{}
			return 0, "", err
		}
		l.at = now
	}
	return max(w.size-l.held-l.added, 0), l.lastID, nil
}

func (w *window) measure(ctx context.Context, queue string, l *lane) error {
	stream := protocol.TaskStream(queue)
	info, err := w.redis.Info(ctx, stream, protocol.GroupWorkers)
	if errors.Is(err, streams.ErrNoGroup) {
		made, err2 := w.redis.CreateTaskGroup(ctx, stream, protocol.GroupWorkers)
		if err2 != nil {
			return err2
		}
		if made && w.lost != nil {
			w.lost(queue)
		}
		info, err = w.redis.Info(ctx, stream, protocol.GroupWorkers)
	}
	if err != nil {
		return err
	}
	l.held, l.added, l.lastID = int(info.Undelivered+info.Pending), 0, info.LastID
	return nil
}

// note records an XADD of this process.
func (w *window) note(queue string, n int, err error) {
	l := w.lane(queue)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.added += n
	if err != nil {
		l.at = time.Time{} // measure again, and make the stream if it is gone
		if streams.Ambiguous(err) {
			l.err, l.down = err, time.Now().Add(downPause)
		}
	}
}
