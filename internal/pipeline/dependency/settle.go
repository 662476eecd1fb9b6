package dependency

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

const (
	// notes is how many ended tasks one transaction takes, edges how many of their
	// dependencies it counts.
	notes = 100
	edges = 1000
	// page is how many waiting tasks one look of the sweep reads.
	page = 100
)

// Settle works off all notes that nobody else is at, and returns how many
// dependencies it counted. Tasks that are cancelled on the way leave notes of
// their own, which it works off, too.
func (s *Stage) Settle(ctx context.Context) (total int, err error) {
	return s.settle(ctx, func() error { return nil })
}

// settle calls each after every transaction, also after the one that found
// nothing more.
func (s *Stage) settle(ctx context.Context, each func() error) (total int, err error) {
	for {
		n, more, err := s.settleSome(ctx)
		total += n
		if err == nil {
			err = each()
		}
		if err != nil || !more {
			return total, err
		}
	}
}

// told is what one transaction did.
type told struct {
	counted   int
	cancelled []protocol.ID
	due       time.Time
}

// settleSome takes some notes and counts some of their edges in one transaction,
// and forgets those that have no edges left in another. more tells whether there
// is anything left to do.
func (s *Stage) settleSome(ctx context.Context) (counted int, more bool, err error) {
	var ended []pgid.ID
	var d told
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) (err error) {
		if ended, err = q.LockSettlements(ctx, notes); err != nil || len(ended) == 0 {
			return err
		}
		d, err = s.tell(ctx, q, ended)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("tell dependants: %w", err)
	}
	if len(ended) == 0 {
		return 0, false, s.measure(ctx)
	}
	crashpoint.Here("dependency.committed")
	s.counted.Add(float64(d.counted))
	if len(d.cancelled) > 0 {
		s.o.Ended(d.cancelled)
	}
	if !d.due.IsZero() {
		s.o.Wake(d.due)
	}
	forgotten, err := s.forget(ctx, ended)
	// There may be more edges of the same, or more notes. Of what others hold
	// nothing can be done now.
	return d.counted, d.counted > 0 || forgotten > 0 && len(ended) == notes, err
}

// tell counts the ends of tasks in some of their dependants. The dependants are
// locked first, in order of their ids; nobody else counts these ends meanwhile,
// because their notes are locked.
func (s *Stage) tell(ctx context.Context, q *dbsqlc.Queries, ended []pgid.ID) (d told, err error) {
	open, err := q.OpenEdges(ctx, ended, edges)
	if err != nil || len(open) == 0 {
		return d, err
	}
	taskIDs, upstreams := make([]pgid.ID, len(open)), make([]pgid.ID, len(open))
	dependants := make([]protocol.ID, 0, len(open))
	seen := make(map[pgid.ID]bool, len(open))
	for i, e := range open {
		taskIDs[i], upstreams[i] = e.TaskID, e.UpstreamID
		if !seen[e.TaskID] {
			seen[e.TaskID] = true
			dependants = append(dependants, protocol.ID(e.TaskID))
		}
	}
	how, err := ends(ctx, q, upstreams)
	if err != nil {
		return d, err
	}
	// Locks, and lets the decision be made after the edges are marked.
	if _, err := q.LockTasks(ctx, pgid.Slice(dependants)); err != nil {
		return d, fmt.Errorf("lock %d dependants: %w", len(dependants), err)
	}
	marked, err := q.SettleEdges(ctx, taskIDs, upstreams)
	if err != nil {
		return d, fmt.Errorf("mark %d dependencies: %w", len(open), err)
	}
	byTask := make(map[protocol.ID][]protocol.Ended, len(dependants))
	for _, e := range marked {
		h := how[e.UpstreamID]
		h.Name = e.Name
		byTask[protocol.ID(e.TaskID)] = append(byTask[protocol.ID(e.TaskID)], h)
	}
	err = s.o.Store.DecideTx(ctx, q, dependants, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
		d = told{counted: len(marked)}
		for id, t := range tasks {
			if len(byTask[id]) == 0 {
				continue
			}
			before := t.State
			events = append(events, t.Settle(protocol.Env{Now: now}, byTask[id])...)
			changed = append(changed, t)
			switch {
			case t.State == protocol.StateCancelled && before != t.State:
				d.cancelled = append(d.cancelled, id)
			case !t.DueAt.IsZero() && (d.due.IsZero() || t.DueAt.Before(d.due)):
				d.due = t.DueAt
			}
		}
		return changed, events
	})
	crashpoint.Here("dependency.counted")
	return d, err
}

// ends reads how tasks ended. One that is gone is in the map with its id only.
func ends(ctx context.Context, q *dbsqlc.Queries, ids []pgid.ID) (map[pgid.ID]protocol.Ended, error) {
	out := make(map[pgid.ID]protocol.Ended, len(ids))
	var distinct []pgid.ID
	for _, id := range ids {
		if _, ok := out[id]; !ok {
			out[id] = protocol.Ended{TaskID: protocol.ID(id).String()}
			distinct = append(distinct, id)
		}
	}
	rows, err := q.EndedTasks(ctx, distinct)
	if err != nil {
		return nil, fmt.Errorf("read how %d tasks ended: %w", len(distinct), err)
	}
	for _, r := range rows {
		e := protocol.Ended{TaskID: store.TaskID(protocol.ID(r.ID), store.Deref(r.Name)), State: protocol.State(r.State)}
		if e.Failed() {
			e.Code, e.Reason = protocol.Code(store.Deref(r.LastErrorCode)), store.Deref(r.LastErrorReason)
		}
		out[r.ID] = e
	}
	return out, nil
}

// forget removes the notes of tasks whose dependants have all been told. The
// tasks are locked, so that nothing that depends on them is being stored; those
// that somebody else has locked keep their note for the next look.
func (s *Stage) forget(ctx context.Context, ended []pgid.ID) (n int64, err error) {
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		free, err := q.TryLockUpstreams(ctx, ended)
		if err != nil {
			return err
		}
		there, err := q.EndedTasks(ctx, ended)
		if err != nil {
			return err
		}
		gone := make(map[pgid.ID]bool, len(ended))
		for _, id := range ended {
			gone[id] = true
		}
		for _, r := range there {
			delete(gone, r.ID)
		}
		for id := range gone { // nothing can depend on it any more
			free = append(free, id)
		}
		n, err = q.DeleteSettlements(ctx, free)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget tasks whose dependants were told: %w", err)
	}
	return n, nil
}

func (s *Stage) measure(ctx context.Context) error {
	n, err := s.o.Store.CountSettlements(ctx)
	if err != nil {
		return fmt.Errorf("count tasks whose dependants wait: %w", err)
	}
	s.waiting.Set(float64(n.Waiting))
	return nil
}

// Sweep looks at every task that waits for others, notes the ends that it finds
// without a note, and returns how many. There are none unless somebody changed
// the tables by hand.
func (s *Stage) Sweep(ctx context.Context) (found int, err error) {
	var after pgid.ID
	for {
		rows, err := s.o.Store.LostSettlements(ctx, after, page)
		if err != nil {
			return found, fmt.Errorf("look for lost ends of dependencies: %w", err)
		}
		if len(rows) == 0 {
			break
		}
		after = rows[len(rows)-1].TaskID
		seen := map[pgid.ID]bool{}
		var ids []pgid.ID
		for _, r := range rows {
			if r.UpstreamID != (pgid.ID{}) && !seen[r.UpstreamID] {
				seen[r.UpstreamID] = true
				ids = append(ids, r.UpstreamID)
			}
		}
		if len(ids) == 0 {
			continue
		}
		if err := s.o.Store.InsertSettlements(ctx, ids); err != nil {
			return found, fmt.Errorf("note %d lost ends of dependencies: %w", len(ids), err)
		}
		found += len(ids)
	}
	if found > 0 {
		s.swept.Add(float64(found))
		s.o.Log.Warn("ends of dependencies were not noted; noted now", "tasks", found)
		s.Kick()
	}
	return found, nil
}
