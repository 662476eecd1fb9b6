package reconcile

import (
	"time"

	"github.com/penstock-dev/penstock/protocol"
)

// absence is that of a running task.
type absence struct {
	since time.Time
	// loss: Redis lost something at that time.
	loss bool
}

// absentFor notes that a running task is missing. over: it has been for at least
// d. loss: about when it went, or since, Redis lost something, so that its worker
// may have done nothing wrong.
func (r *Reconciler) absentFor(p protocol.Pair, d time.Duration) (over, loss bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.absent[p]
	if !ok {
		a.since = time.Now()
		time.AfterFunc(d+time.Millisecond, r.Kick)
	}
	// A claim that was under way during the rebuild may be applied after it.
	if !r.lossSeen.IsZero() && time.Since(r.lossSeen) < d+lookInterval {
		a.loss = true
	}
	r.absent[p] = a
	return time.Since(a.since) >= d, a.loss
}

func (r *Reconciler) found(cands []candidate, present map[protocol.Pair]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range cands {
		if present[c.Pair] {
			delete(r.absent, c.Pair)
		}
	}
}

// forget drops what is remembered of tasks that are no candidates any more.
func (r *Reconciler) forget(cands []candidate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.absent) == 0 {
		return
	}
	live := make(map[protocol.Pair]bool, len(cands))
	for _, c := range cands {
		live[c.Pair] = true
	}
	for p := range r.absent {
		if !live[p] {
			delete(r.absent, p)
		}
	}
}
