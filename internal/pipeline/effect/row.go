package effect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// lock takes the row of an effect; pgx.ErrNoRows if there is none. now is
// Postgres' clock.
func lock(ctx context.Context, q *dbsqlc.Queries, id ID) (e *protocol.Effect, now time.Time, err error) {
	r, err := q.LockEffect(ctx, dbsqlc.LockEffectParams(id))
	if err != nil {
		if !errors.Is(err, pgx.ErrNoRows) {
			err = fmt.Errorf("lock effect %s: %w", id.Name, err)
		}
		return nil, now, err
	}
	e = &protocol.Effect{
		State: protocol.EffectState(r.State), Token: protocol.ID(r.Token),
		Holder: protocol.EffectHolder{TaskID: protocol.ID(r.TaskID), Delivery: r.Delivery, WorkerID: r.WorkerID},
		Users:  pgid.IDs(r.Users), Runs: int(r.Runs), ReservedAt: r.ReservedAt, DoneAt: r.DoneAt.Time, Result: r.Result,
		ResultNote: store.Deref(r.ResultNote), Resolution: protocol.EffectResolution(store.Deref(r.Resolution)),
		ResolvedBy: store.Deref(r.ResolvedBy), ResolvedOn: store.Deref(r.ResolutionReason), ResolvedAt: r.ResolvedAt.Time,
		Conflicts: int(r.Conflicts),
	}
	if err := json.Unmarshal(r.History, &e.History); err != nil {
		return nil, now, fmt.Errorf("stored history of effect %s: %w", id.Name, err)
	}
	return e, r.Now, nil
}

func save(ctx context.Context, q *dbsqlc.Queries, id ID, e *protocol.Effect) error {
	history := []byte("[]")
	if len(e.History) > 0 {
		var err error
		if history, err = json.Marshal(e.History); err != nil {
			return fmt.Errorf("history of effect %s: %w", id.Name, err)
		}
	}
	err := q.SaveEffect(ctx, dbsqlc.SaveEffectParams{
		State: string(e.State), Token: pgid.ID(e.Token), TaskID: pgid.ID(e.Holder.TaskID), Delivery: e.Holder.Delivery, WorkerID: e.Holder.WorkerID,
		Users: pgid.Slice(e.Users), Runs: int32(e.Runs), ReservedAt: e.ReservedAt, DoneAt: store.Timestamptz(e.DoneAt), Result: string(e.Result),
		ResultNote: e.ResultNote, Resolution: string(e.Resolution), ResolvedBy: e.ResolvedBy, ResolutionReason: e.ResolvedOn,
		ResolvedAt: store.Timestamptz(e.ResolvedAt), Conflicts: int32(e.Conflicts), History: string(history),
		Scope: id.Scope, Key: id.Key, Name: id.Name,
	})
	if err != nil {
		return fmt.Errorf("store effect %s: %w", id.Name, err)
	}
	return nil
}
