package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// Locked is a task whose row this transaction holds.
type Locked struct {
	protocol.Task
	Queue string
	Type  string
	Name  string // the caller's own id; empty if there is none
	Key   string // the caller's idempotency key; empty if there is none
	// ReadyAt is when it had become due when it was last dispatched; zero if that
	// was when it was created.
	ReadyAt time.Time
	ended   bool // before this transaction
	sent    bool // see Sent
}

// Sent notes that the task was dispatched without an event: nothing else about it
// changed, and it was waiting since ReadyAt.
func (l *Locked) Sent() { l.sent = true }

// ReadySince returns since when the task's present execution could have started.
func (l *Locked) ReadySince() time.Time {
	if l.ReadyAt.IsZero() {
		return l.CreatedAt
	}
	return l.ReadyAt
}

// TaskID is the id that callers know the task by.
func (l *Locked) TaskID() string { return TaskID(l.ID, l.Name) }

// TaskID is the id that callers know a task by: its name, else its UUID.
func TaskID(id protocol.ID, name string) string {
	if name != "" {
		return name
	}
	return id.String()
}

// eventKey is the idempotency_key column of an event: empty (null) where the
// key is the task's UUID.
func (l *Locked) eventKey() string {
	if l.Key != "" {
		return l.Key
	}
	return l.Name
}

// Decide locks the tasks, lets fn decide, and stores what fn returns, in one
// transaction. Tasks that do not exist are missing from the map. fn returns
// the tasks it changed and the events of their moves; it may be called again
// if the transaction is retried, so it must not have effects of its own.
func (s *Store) Decide(ctx context.Context, ids []protocol.ID, fn func(now time.Time, tasks map[protocol.ID]*Locked) ([]*Locked, []*protocol.Event)) error {
	return s.Tx(ctx, func(q *dbsqlc.Queries) error {
		return s.DecideTx(ctx, q, ids, fn)
	})
}

// DecideTx is Decide inside a transaction of the caller's.
func (s *Store) DecideTx(ctx context.Context, q *dbsqlc.Queries, ids []protocol.ID, fn func(now time.Time, tasks map[protocol.ID]*Locked) ([]*Locked, []*protocol.Event)) error {
	tasks, now, err := s.Lock(ctx, q, ids)
	if err != nil {
		return err
	}
	changed, events := fn(now, tasks)
	return s.Save(ctx, q, changed, events)
}

// Deref returns *p, or the zero value if p is nil.
func Deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// Timestamptz is t as a nullable column; the zero time is null.
func Timestamptz(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}
