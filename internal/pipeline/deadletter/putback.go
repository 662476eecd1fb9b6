package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// missing is a dead letter whose entry is not in stream:dlq.
type missing struct {
	dlqID protocol.ID
	// entryID is where it was; empty: never known.
	entryID string
}

// EachMissing calls fn for each dead letter that has been written and has not
// expired, and whose entry is not in stream:dlq. entryID is where it was; empty:
// never known.
func (s *Stage) EachMissing(ctx context.Context, fn func(dlqID protocol.ID, entryID string)) error {
	return s.pages(ctx, func(page []missing) error {
		for _, m := range page {
			fn(m.dlqID, m.entryID)
		}
		return nil
	})
}

func (s *Stage) pages(ctx context.Context, fn func([]missing) error) error {
	var after pgid.ID
	for {
		rows, err := s.o.Store.DeadWithEntry(ctx, after, batch)
		if err != nil {
			return fmt.Errorf("read dead letters: %w", err)
		}
		gone, err := s.missing(ctx, rows)
		if err == nil && len(gone) > 0 {
			err = fn(gone)
		}
		if err != nil || len(rows) < batch {
			return err
		}
		after = rows[len(rows)-1].DlqID
	}
}

func (s *Stage) missing(ctx context.Context, rows []*dbsqlc.DeadWithEntryRow) (out []missing, err error) {
	var ids []string
	var named []*dbsqlc.DeadWithEntryRow
	for _, d := range rows {
		if d.EntryID == "" {
			out = append(out, missing{dlqID: protocol.ID(d.DlqID)})
			continue
		}
		ids, named = append(ids, d.EntryID), append(named, d)
	}
	i := 0
	err = s.o.Redis.FetchEach(ctx, protocol.StreamDLQ, ids, func(e streams.Entry) {
		d := named[i]
		i++
		id := protocol.ID(d.DlqID)
		// Ids of entries may come again after Redis lost everything. One that a
		// stranger wrote has no id of ours in it.
		if e.Values == nil || !d.ForeignEntry && e.Values[protocol.FieldDLQID] != id.String() {
			out = append(out, missing{id, d.EntryID})
		}
	})
	return out, err
}

// PutBack writes dead letters into stream:dlq again whose entry is not there,
// and returns how many. The rows stay locked meanwhile, so that of several
// orchestrators each writes others; after a crash in between one is written
// twice, with the same dlq_id.
func (s *Stage) PutBack(ctx context.Context) (n int, err error) {
	err = s.pages(ctx, func(page []missing) error {
		for part := range slices.Chunk(page, putBackBatch) {
			k, err := s.putBack(ctx, part)
			n += k
			if err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
}

// putBackBatch is how many dead letters, with their payloads, one transaction
// puts back.
const putBackBatch = 10

func (s *Stage) putBack(ctx context.Context, gone []missing) (n int, err error) {
	ids, old := make([]pgid.ID, len(gone)), make([]string, len(gone))
	for i, m := range gone {
		ids[i], old[i] = pgid.ID(m.dlqID), m.entryID
	}
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		rows, err := q.LockDeadWithEntry(ctx, ids, old)
		if n = len(rows); err != nil || n == 0 {
			return err
		}
		values, dlq := make([][]any, n), make([]pgid.ID, n)
		for i, r := range rows {
			l, err := letterOf(r)
			if err != nil {
				return err
			}
			values[i], dlq[i] = l.Values(), r.DlqID
		}
		entries, err := s.append(ctx, values)
		if err != nil {
			return err
		}
		if err := q.SetDeadEntries(ctx, dlq, entries); err != nil {
			return err
		}
		return q.CountLoss(ctx, dbsqlc.CountLossParams{DeadLetters: int64(n)})
	})
	if err != nil {
		return 0, fmt.Errorf("put %d dead letters back into %s: %w", len(gone), protocol.StreamDLQ, err)
	}
	return n, nil
}

// letterOf is the dead letter as it was written first.
func letterOf(r *dbsqlc.LockDeadWithEntryRow) (*protocol.DeadLetter, error) {
	l := &protocol.DeadLetter{
		DLQID: protocol.ID(r.DlqID), Type: store.Deref(r.Type), Payload: r.Payload, Code: protocol.Code(r.ErrorCode), Error: r.Error,
		RetryCount: int(r.RetryCount), FailedAt: r.FailedAt, Stream: store.Deref(r.Stream), MessageID: store.Deref(r.MessageID),
	}
	if r.TaskID != nil {
		l.ID = protocol.ID(*r.TaskID)
		l.TaskID, l.Tenant = store.TaskID(l.ID, store.Deref(r.Name)), r.Tenant
	}
	if len(r.Raw) > 0 {
		if err := json.Unmarshal(r.Raw, &l.Raw); err != nil {
			return nil, fmt.Errorf("dead letter %s: stored fields of the entry: %w", l.DLQID, err)
		}
	}
	return l, nil
}
