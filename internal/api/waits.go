package api

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Waits tells callers when tasks become terminal: at once for outcomes that
// this process applies, and by one shared look at Postgres a poll interval for
// those that other replicas apply.
type Waits struct {
	store *store.Store
	poll  time.Duration
	log   *slog.Logger

	mu      sync.Mutex
	waiting map[protocol.ID]map[chan struct{}]bool
}

// NewWaits makes a Waits; poll is how late a terminal state that another
// replica applied may be noticed.
func NewWaits(s *store.Store, poll time.Duration, log *slog.Logger) *Waits {
	return &Waits{store: s, poll: poll, log: log, waiting: map[protocol.ID]map[chan struct{}]bool{}}
}

// Wait returns when the task may be terminal or ctx ends.
func (w *Waits) Wait(ctx context.Context, id protocol.ID) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	if w.waiting[id] == nil {
		w.waiting[id] = map[chan struct{}]bool{}
	}
	w.waiting[id][c] = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.waiting[id], c)
		if len(w.waiting[id]) == 0 {
			delete(w.waiting, id)
		}
	}()
	// The task may have ended between the caller's look and the registration;
	// the next poll finds it.
	select {
	case <-c:
	case <-ctx.Done():
	}
}

// Done tells that tasks became terminal.
func (w *Waits) Done(ids []protocol.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		return
	}
	for _, id := range ids {
		for c := range w.waiting[id] {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
}

// maxLook is how many tasks one look asks for.
const maxLook = 5000

// Run polls until ctx ends.
func (w *Waits) Run(ctx context.Context) error {
	tick := time.NewTicker(w.poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		w.mu.Lock()
		ids := make([]protocol.ID, 0, min(len(w.waiting), maxLook))
		for id := range w.waiting {
			if len(ids) == maxLook {
				break // map order is random: the others get their turn
			}
			ids = append(ids, id)
		}
		w.mu.Unlock()
		if len(ids) == 0 {
			continue
		}
		rows, err := w.store.TerminalAmong(ctx, pgid.Slice(ids))
		if err != nil {
			if ctx.Err() == nil {
				w.log.Warn("states of awaited tasks not read; trying again", "error", err)
			}
			continue
		}
		done := make([]protocol.ID, len(rows))
		for i, id := range rows {
			done[i] = protocol.ID(id)
		}
		w.Done(done)
	}
}
