package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// expire removes the content of settled dead letters whose time is over, if the
// operator configured a retention, and what erased ones have in Redis.
func (s *Stage) expire(ctx context.Context) error {
	for s.o.Keep > 0 && ctx.Err() == nil {
		n, err := s.expireChunk(ctx)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		s.settled.WithLabelValues("expired").Add(float64(n))
		s.o.Log.Info("content of settled dead letters removed (retention.dead_letters)", "dead_letters", n)
	}
	return s.ForgetEntries(ctx)
}

func (s *Stage) expireChunk(ctx context.Context) (n int, err error) {
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		rows, err := q.LockExpiredDead(ctx, s.o.Keep.Milliseconds())
		if n = len(rows); err != nil || n == 0 {
			return err
		}
		settled := make(map[protocol.ID]*dbsqlc.LockExpiredDeadRow, n)
		var tasks []protocol.ID
		var ids []pgid.ID
		for _, r := range rows {
			ids = append(ids, r.DlqID)
			if r.TaskID != nil {
				tasks = append(tasks, protocol.ID(*r.TaskID))
				settled[protocol.ID(*r.TaskID)] = r
				continue
			}
			data, err := json.Marshal(s.expiredData(r))
			if err != nil {
				return err
			}
			err = q.InsertEntryEvents(ctx, dbsqlc.InsertEntryEventsParams{
				DlqIds: []pgid.ID{r.DlqID}, Datas: []string{string(data)}, Type: string(protocol.EventDLQExpired), Actor: protocol.ActorRetention,
			})
			if err != nil {
				return fmt.Errorf("record expiry: %w", err)
			}
		}
		err = s.o.Store.DecideTx(ctx, q, tasks, func(now time.Time, locked map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
			for id, t := range locked {
				events = append(events, t.Note(protocol.EventDLQExpired, protocol.Env{Now: now}, protocol.ActorRetention, "", s.expiredData(settled[id])))
				changed = append(changed, t)
			}
			return changed, events
		})
		if err != nil {
			return err
		}
		return q.ExpireDead(ctx, ids)
	})
	return n, err
}

// ForgetEntries removes the entries of expired and erased dead letters from stream:dlq.
// They are acknowledged, and a crash between the steps repeats them.
func (s *Stage) ForgetEntries(ctx context.Context) error {
	for ctx.Err() == nil {
		rows, err := s.o.Store.ExpiredDeadEntries(ctx)
		if err != nil || len(rows) == 0 {
			return err
		}
		entries := make([]string, len(rows))
		ids := make([]pgid.ID, len(rows))
		for i, r := range rows {
			entries[i], ids[i] = r.EntryID, r.DlqID
		}
		if err := s.o.Redis.Drop(ctx, protocol.StreamDLQ, entries); err != nil {
			return err
		}
		if err := s.o.Store.ForgetDeadEntries(ctx, ids); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stage) expiredData(r *dbsqlc.LockExpiredDeadRow) protocol.ExpiredData {
	return protocol.ExpiredData{DLQID: protocol.ID(r.DlqID).String(), SettledMS: r.SettledAt.Time.UnixMilli(), KeptMS: s.o.Keep.Milliseconds()}
}
