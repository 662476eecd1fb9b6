package reconcile

import (
	"context"
	"time"

	"github.com/penstock-dev/penstock/internal/streams"
)

// lookInterval is how often Redis is asked whether it is still the same.
const lookInterval = time.Second

// agreed remembers what the last round saw.
func (r *Reconciler) agreed(a agreement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = a.redis
	if a.lost() != "" {
		r.lossSeen = time.Now()
	}
	r.held = a.row.Floor != nil && !r.raised.Equal(a.row.LostAt.Time)
	if !r.looked {
		r.looked = true
		close(r.ready)
	}
}

// Ready is closed once the two stores have been compared for the first time.
func (r *Reconciler) Ready() <-chan struct{} { return r.ready }

// Held reports whether nothing may be dispatched, because Postgres went back and
// live tasks do not have their raised deliveries yet.
func (r *Reconciler) Held() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// release ends what Held reports, for what was lost at a time.
func (r *Reconciler) release(lostAt time.Time) {
	r.mu.Lock()
	r.held, r.raised = false, lostAt
	r.mu.Unlock()
	r.o.Wake(time.Now())
}

func (r *Reconciler) lastSeen() streams.Epoch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// changed reports whether Redis is not what was seen last, or Postgres went back.
// A store that does not answer tells nothing.
func (r *Reconciler) changed(ctx context.Context, last streams.Epoch) bool {
	e, err := r.o.Redis.Epoch(ctx)
	if err != nil {
		return false
	}
	if e.ID != last.ID || e.Server != last.Server || e.Generation < last.Generation {
		return true
	}
	row, err := r.o.Store.GetEpoch(ctx) // after Redis: then it can't know less, unless it went back
	if err != nil {
		return false
	}
	cluster, _ := r.o.Store.ServerIdentity(ctx)
	kind, _ := view{row: row, redis: e, cluster: cluster}.find()
	return kind == PostgresRestored
}
