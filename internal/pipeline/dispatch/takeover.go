package dispatch

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

func (d *Dispatcher) touch(ctx context.Context, host string) error {
	return d.store.TouchInstance(ctx, dbsqlc.TouchInstanceParams{ID: d.instance, Host: host, Pid: int32(os.Getpid())})
}

// runTakeover shows that this instance is alive and takes over the open
// dispatches of those that are not.
func (d *Dispatcher) runTakeover(ctx context.Context, host string) error {
	tick := time.NewTicker(max(d.ttl/5, 50*time.Millisecond))
	defer tick.Stop()
	alive := sync.OnceFunc(func() { close(d.alive) })
	// After Postgres was away, or at the start of all replicas together, nobody's
	// sign of life is fresh: wait until those that live have had time to write
	// theirs, or a healthy one's dispatch would be taken from it.
	hold, last := time.Now().Add(d.ttl), time.Now()
	beat := d.pulse.Watch("sign of life", d.ttl+quiet, quiet)
	for {
		err := d.touch(ctx, host)
		if err != nil || time.Since(last) > d.ttl/2 { // Postgres, or this process, stalled
			hold = time.Now().Add(d.ttl)
		}
		last = time.Now()
		if err != nil {
			beat.Fail("cannot be written")
			if ctx.Err() == nil {
				d.log.Warn("sign of life not written", "error", err)
			}
		} else {
			beat.Mark()
			alive()
			if time.Now().Before(hold) {
				// wait
			} else if err := d.takeOver(ctx); err != nil && ctx.Err() == nil {
				d.log.Warn("open dispatches of dead orchestrators not taken over; trying again", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (d *Dispatcher) takeOver(ctx context.Context) error {
	var absent []protocol.ID
	rows := 0
	err := d.store.Tx(ctx, func(q *dbsqlc.Queries) error {
		orphans, err := q.LockOrphanedOutbox(ctx, d.ttl.Milliseconds(), d.instance)
		if err != nil {
			return fmt.Errorf("read outbox: %w", err)
		}
		absent, rows = nil, len(orphans)
		ids := make([]int64, 0, len(orphans))
		for _, o := range orphans {
			missing, err := d.absent(ctx, o)
			if err != nil {
				return err
			}
			absent = append(absent, missing...)
			ids = append(ids, o.ID)
		}
		if len(ids) == 0 {
			return nil
		}
		return q.DeleteOutbox(ctx, ids)
	})
	if err != nil || rows == 0 {
		return err
	}
	d.metrics.takenOver.Add(float64(rows))
	d.log.Info("took over open dispatches of a dead orchestrator", "batches", rows, "absent_entries", len(absent))
	d.mu.Lock()
	d.suspects = append(d.suspects, absent...)
	d.mu.Unlock()
	d.reconcileSuspects(ctx)
	return nil
}
