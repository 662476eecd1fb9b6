package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
)

// RemoveEffects removes side effects whose time is over and that no task can use
// any more; which those are the database decides (migration 0013).
func (j *Janitor) RemoveEffects(ctx context.Context) error {
	keep := j.o.Effects
	if keep <= 0 {
		keep = j.o.Tasks
	}
	if keep <= 0 {
		return nil
	}
	arg := dbsqlc.RemoveEffectsParams{KeepMs: keep.Milliseconds(), MaxRows: batch}
	total := int64(0)
	defer func() {
		if total > 0 {
			j.o.Log.Info("side effects of long finished tasks removed (retention.effects)", "effects", total)
		}
	}()
	for {
		start := time.Now()
		rows, err := j.o.Store.RemoveEffects(ctx, arg)
		if store.HasCode(err, inUse) {
			j.postponed.Inc()
			return nil
		}
		if err != nil {
			return fmt.Errorf("remove side effects: %w", err)
		}
		if len(rows) == 0 {
			return nil
		}
		last := rows[0]
		arg.AfterAt, arg.AfterScope, arg.AfterKey, arg.AfterName = last.LastAt, last.LastScope, last.LastKey, last.LastName
		total += int64(last.Removed)
		j.count("effects", int64(last.Removed))
		if err := rest(ctx, start); err != nil {
			return err
		}
	}
}
