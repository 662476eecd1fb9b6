package verify

import (
	"bytes"
	"context"
	"math"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

func pgIDs(ids []protocol.ID) []pgid.ID { return pgid.Slice(ids) }

func compareIDs(a, b protocol.ID) int { return bytes.Compare(a[:], b[:]) }

// maxID is not below any id.
var maxID = protocol.ID(bytes.Repeat([]byte{0xff}, 16))

type event = dbsqlc.VerifyEventsBetweenRow

// position is a place in the event log in order of task and seq.
type position struct {
	id  protocol.ID
	seq int32
}

// source chooses the tasks of each page, and reads their events.
type source interface {
	// next returns the ids of the next page in ascending order; more is false
	// with the last page.
	next(ctx context.Context, q *dbsqlc.Queries) (ids []protocol.ID, more bool, err error)
	// begin is the position before the first event of the page.
	begin() position
	// events returns the page's events after a position, at most pageEvents.
	events(ctx context.Context, q *dbsqlc.Queries, after position) ([]*event, error)
}

// byID walks through all tasks, and through all events: those between the tasks
// too, which belong to none.
type byID struct{ from, to protocol.ID }

func (s *byID) next(ctx context.Context, q *dbsqlc.Queries) ([]protocol.ID, bool, error) {
	s.from = s.to
	rows, err := q.VerifyIDs(ctx, pgid.ID(s.from), pageTasks)
	if err != nil {
		return nil, false, err
	}
	ids := make([]protocol.ID, len(rows))
	for i, id := range rows {
		ids[i] = protocol.ID(id)
	}
	more := len(ids) == pageTasks
	if s.to = maxID; more {
		s.to = ids[len(ids)-1]
	}
	return ids, more, nil
}

func (s *byID) begin() position {
	if s.from.IsZero() {
		return position{}
	}
	return position{s.from, math.MaxInt32}
}

func (s *byID) events(ctx context.Context, q *dbsqlc.Queries, after position) ([]*event, error) {
	return q.VerifyEventsBetween(ctx, dbsqlc.VerifyEventsBetweenParams{
		AfterID: pgid.ID(after.id), AfterSeq: after.seq, LastID: pgid.ID(s.to), MaxRows: pageEvents,
	})
}

// chosen reads the events of the tasks of a page that need not be neighbours.
type chosen struct{ ids []protocol.ID }

func (s *chosen) begin() position { return position{} }

func (s *chosen) events(ctx context.Context, q *dbsqlc.Queries, after position) ([]*event, error) {
	i, _ := slices.BinarySearchFunc(s.ids, after.id, compareIDs) // those before are done
	s.ids = s.ids[i:]
	rows, err := q.VerifyEventsOf(ctx, dbsqlc.VerifyEventsOfParams{
		Ids: pgIDs(s.ids), AfterID: pgid.ID(after.id), AfterSeq: after.seq, MaxRows: pageEvents,
	})
	out := make([]*event, len(rows))
	for i, row := range rows {
		out[i] = (*event)(row)
	}
	return out, err
}

// listed walks through given tasks.
type listed struct {
	chosen
	left []protocol.ID
}

func newListed(ids []protocol.ID) *listed {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, compareIDs)
	return &listed{left: slices.Compact(ids)}
}

func (s *listed) next(context.Context, *dbsqlc.Queries) ([]protocol.ID, bool, error) {
	n := min(len(s.left), pageTasks)
	s.ids, s.left = s.left[:n], s.left[n:]
	return s.ids, len(s.left) > 0, nil
}

// created walks through the tasks that were created in a range of time.
type created struct {
	chosen
	at    time.Time
	id    protocol.ID
	until time.Time
}

// endOfTime is after every task's creation.
var endOfTime = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func newCreated(since, until time.Time) *created {
	if until.IsZero() {
		until = endOfTime
	}
	return &created{at: since, until: until}
}

func (s *created) next(ctx context.Context, q *dbsqlc.Queries) ([]protocol.ID, bool, error) {
	rows, err := q.VerifyIDsCreated(ctx, dbsqlc.VerifyIDsCreatedParams{
		AfterAt: s.at, AfterID: pgid.ID(s.id), Until: s.until, MaxRows: pageTasks,
	})
	if err != nil {
		return nil, false, err
	}
	ids := make([]protocol.ID, len(rows))
	for i, row := range rows {
		ids[i], s.at, s.id = protocol.ID(row.ID), row.CreatedAt, protocol.ID(row.ID)
	}
	slices.SortFunc(ids, compareIDs)
	s.ids = ids
	return ids, len(ids) == pageTasks, nil
}

// eventOf is a row of the event log as package protocol knows it.
func eventOf(e *event) *protocol.Event {
	out := &protocol.Event{
		TaskID: protocol.ID(e.TaskID), Seq: int(e.Seq), Type: protocol.EventType(e.Type), From: protocol.State(store.Deref(e.PreviousStatus)),
		To: protocol.State(e.Status), Attempt: int(e.Attempt), Delivery: e.Delivery, NextRetryAt: e.NextRetryAt.Time,
		Code: protocol.Code(store.Deref(e.ErrorCode)), Reason: store.Deref(e.Reason), BackoffDelay: -1, Actor: e.Actor, WorkerID: store.Deref(e.WorkerID),
		MessageID: store.Deref(e.MessageID), TraceID: e.TraceID, OccurredAt: e.OccurredAt, Data: []byte(e.Data),
	}
	if e.BackoffDelayMs != nil {
		ms := min(max(*e.BackoffDelayMs, -1), math.MaxInt64/int64(time.Millisecond)) // what a duration can hold
		out.BackoffDelay = time.Duration(ms) * time.Millisecond
	}
	return out
}
