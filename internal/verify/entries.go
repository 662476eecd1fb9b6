package verify

import (
	"context"
	"fmt"
	"regexp"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// entry is a dead letter that must be in stream:dlq.
type entry struct {
	dlqID protocol.ID
	id    string // of the stream entry; empty if the record names none
	task  subject
	// foreign: it was found in stream:dlq and has no dlq_id, or one of its own.
	foreign bool
	found   string // what was found instead
}

// streamID is the form of an entry's id.
var streamID = regexp.MustCompile(`^[0-9]{1,20}-[0-9]{1,20}$`)

// checkEntries looks for the entries in stream:dlq. One that seems to be
// missing is looked up again: its dead letter may have expired, or been written
// anew, since it was read.
func (r *run) checkEntries(ctx context.Context, entries []entry) error {
	for _, pause := range append(pauses[:2:2], 0) {
		var err error
		if entries, err = r.missingEntries(ctx, entries); err != nil || len(entries) == 0 {
			return err
		}
		if entries, err = r.rereadEntries(ctx, entries); err != nil || len(entries) == 0 {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	for _, e := range entries {
		d := Difference{Check: CheckStreamDLQ, Field: "entry " + text(e.id), Expected: "dead letter " + e.dlqID.String(), Found: e.found}
		if e.task.id.IsZero() {
			d.Object = "dead letter " + e.dlqID.String()
		} else {
			d = e.task.of(d)
		}
		r.report(d)
	}
	return nil
}

// missingEntries returns the entries that are not there, or are another dead
// letter's, and says so in found.
func (r *run) missingEntries(ctx context.Context, entries []entry) (missing []entry, err error) {
	var ids []string
	var named []entry
	for _, e := range entries {
		if streamID.MatchString(e.id) {
			ids, named = append(ids, e.id), append(named, e)
			continue
		}
		e.found = "no id of a stream entry"
		missing = append(missing, e)
	}
	i := 0
	err = r.Redis.FetchEach(ctx, protocol.StreamDLQ, ids, func(x streams.Entry) {
		e := named[i]
		i++
		switch got := fmt.Sprint(x.Values[protocol.FieldDLQID]); {
		case x.Values == nil:
			e.found = none
		case got != e.dlqID.String() && !e.foreign:
			e.found = "dead letter " + text(got)
		default:
			return
		}
		missing = append(missing, e)
	})
	return missing, err
}

// rereadEntries returns those of the entries that must still be there, under
// the ids that the record names now.
func (r *run) rereadEntries(ctx context.Context, entries []entry) (out []entry, err error) {
	ids := make([]pgid.ID, len(entries))
	for i, e := range entries {
		ids[i] = pgid.ID(e.dlqID)
	}
	rows, err := r.Store.VerifyEntries(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	now := make(map[protocol.ID]*dbsqlc.VerifyEntriesRow, len(rows))
	for _, row := range rows {
		now[protocol.ID(row.DlqID)] = row
	}
	for _, e := range entries {
		if row := now[e.dlqID]; row != nil && row.Status != statusExpired && !row.ErasedAt.Valid {
			e.id = store.Deref(row.EntryID)
			out = append(out, e)
		}
	}
	return out, nil
}
