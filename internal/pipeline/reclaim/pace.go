package reclaim

import (
	"context"
	"errors"
	"sync"
	"time"
)

// minStill is the shortest gap that counts: shorter ones are common where
// processors are busy.
const minStill = 500 * time.Millisecond

// errStill says that Redis stood still: nothing may be taken for idle.
var errStill = errors.New("the clock of Redis jumped: it stood still, or this process did")

// pace notices that Redis stood still, with open connections and without an
// error, or that its clock jumped. No lease could be renewed meanwhile, and all of
// them look as if their workers were lost. It is safe for concurrent use.
type pace struct {
	mu   sync.Mutex
	last time.Time     // Redis' time at the last look
	gap  time.Duration // the longest time between two looks if all is well
	hold time.Time     // no reclaiming before this
	held time.Time     // since when there was none, if hold is not over
}

// look takes a reading of Redis' clock. With a jump nothing is reclaimed for a
// time.
func (p *pace) look(redis time.Time, hold time.Duration) (jumped time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := redis.Sub(p.last); !p.last.IsZero() && p.gap > 0 && d > p.gap {
		jumped = d
		p.holdFor(hold)
	}
	p.last = redis
	return jumped
}

// holdFor has nothing reclaimed for a time from now on; p is locked.
func (p *pace) holdFor(d time.Duration) {
	now := time.Now()
	if now.After(p.hold) {
		p.held = now
	}
	if until := now.Add(d); until.After(p.hold) {
		p.hold = until
	}
}

// wait is for how long nothing may be reclaimed, and for how long nothing was
// already; left is not positive: it may.
func (p *pace) wait() (left, since time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Until(p.hold), time.Since(p.held)
}

// holdFor has nothing reclaimed for a time from now on.
func (r *Reclaimer) holdFor(d time.Duration) {
	r.pace.mu.Lock()
	defer r.pace.mu.Unlock()
	r.pace.holdFor(d)
}

// still returns an error if nothing may be reclaimed now.
func (r *Reclaimer) still(ctx context.Context) error {
	now, err := r.o.Redis.Now(ctx)
	if err != nil {
		return err
	}
	if jumped := r.pace.look(now, r.o.VisibilityTimeout); jumped > 0 {
		r.o.Log.Warn("reclaiming waits for a visibility timeout: Redis' clock went on further than it should have between two looks, so that it, or this process, stood still",
			"by", jumped, "between_looks", r.pace.gap)
	}
	if left, _ := r.pace.wait(); left > 0 {
		return errStill
	}
	return nil
}

// watch looks at Redis' clock until ctx ends, however long a scan takes or the
// pause between two.
func (r *Reclaimer) watch(ctx context.Context) {
	tick := time.NewTicker(interval(r.o.VisibilityTimeout))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = r.still(ctx) // who reclaims looks, too
		}
	}
}
