package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// copied is how many events are worth a COPY, which takes half as long for each, and
// two round trips more.
const copied = 64

var eventColumns = []string{
	"task_id", "seq", "type", "previous_status", "status", "attempt", "delivery", "idempotency_key", "next_retry_at", "error_code",
	"reason", "backoff_delay_ms", "actor", "worker_id", "message_id", "trace_id", "data", "occurred_at",
}

// appendEvents appends to the log what decisions about tasks say.
func (s *Store) appendEvents(ctx context.Context, q, later *dbsqlc.Queries, events []*protocol.Event, byID map[protocol.ID]*Locked) error {
	if len(events) == 0 {
		return nil
	}
	t := s.of(q)
	if t == nil || len(events) < copied {
		return later.InsertEvents(ctx, eventParams(events, byID))
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	_, err := t.conn.CopyFrom(ctx, pgx.Identifier{"event_log"}, eventColumns, pgx.CopyFromSlice(len(events), func(i int) ([]any, error) {
		return eventRow(events[i], byID), nil
	}))
	return err
}

func eventRow(e *protocol.Event, byID map[protocol.ID]*Locked) []any {
	key := ""
	if l := byID[e.TaskID]; l != nil {
		key = l.eventKey()
	}
	row := []any{
		pgid.ID(e.TaskID), int32(e.Seq), string(e.Type), orNull(string(e.From)), string(e.To), int32(e.Attempt), e.Delivery, orNull(key), nil, orNull(string(e.Code)),
		orNull(e.Reason), nil, e.Actor, orNull(e.WorkerID), orNull(e.MessageID), e.TraceID, nil, e.OccurredAt,
	}
	if !e.NextRetryAt.IsZero() {
		row[8] = e.NextRetryAt
	}
	if e.BackoffDelay >= 0 {
		row[11] = e.BackoffDelay.Milliseconds()
	}
	if len(e.Data) > 0 {
		row[16] = []byte(e.Data)
	}
	return row
}

// orNull is s, or null if it is empty.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
