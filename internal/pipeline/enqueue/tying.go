package enqueue

import (
	"context"
	"fmt"
	"slices"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// tying is one transaction that stores tasks together with what they depend on.
// Keys are taken before ids, ids in order, and upstreams are locked last, in order
// of their ids, so that concurrent ones never wait for each other in a circle.
type tying struct {
	s        *Stage
	items    []*item
	g        *graph // nil: each item for itself
	lanes    map[string]*lane
	done     []int64
	revision int64 // of the guard's rules by which the items were judged

	h       *hits
	targets map[protocol.ID]*dbsqlc.DependencyTargetsRow // existing tasks that items depend on
	alone   map[protocol.ID]bool                         // existing tasks that a graph begins with, and that are in none yet
	created map[protocol.ID]*dbsqlc.InsertTasksRow
	out     []batch.Result[Result]
}

// run does all of it. Of a graph the error may be an *itemError.
func (t *tying) run(ctx context.Context, q *dbsqlc.Queries) error {
	t.h = newHits()
	t.created = map[protocol.ID]*dbsqlc.InsertTasksRow{}
	t.out = make([]batch.Result[Result], len(t.items))
	if err := t.findExisting(ctx, q); err != nil {
		return err
	}
	if err := t.resolve(ctx, q); err != nil {
		return err
	}
	if err := t.insert(ctx, q); err != nil {
		return err
	}
	for i, it := range t.items {
		switch row := t.created[it.id]; {
		case t.out[i].Err != nil:
		case row != nil && !t.h.lost[it]:
			t.out[i].Value = Result{Task: it.row(row)}
		default:
			t.out[i] = t.h.result(it)
			if err := t.fault(i, t.out[i].Err); err != nil {
				return err
			}
		}
	}
	if err := t.giveBackKeys(ctx, q); err != nil {
		return err
	}
	if err := t.s.ask(ctx, q, t.items, t.created); err != nil {
		return err
	}
	return t.depend(ctx, q)
}

// fault notes what is wrong with an item; of a graph it ends everything.
func (t *tying) fault(i int, err error) error {
	if err == nil {
		return nil
	}
	if t.g != nil {
		return &itemError{i, err}
	}
	t.out[i].Err = err
	return nil
}

// findExisting takes the keys, and reads the tasks that the items run into.
func (t *tying) findExisting(ctx context.Context, q *dbsqlc.Queries) error {
	if err := t.h.findStale(ctx, q, t.items); err != nil {
		return err
	}
	if err := t.s.takeKeys(ctx, q, t.items, t.h); err != nil {
		return err
	}
	var ids []pgid.ID
	var scopes, keys []string
	for _, it := range t.items {
		switch {
		case t.h.stale(it):
		case t.h.lost[it]:
			scopes, keys = append(scopes, it.scope), append(keys, it.key)
		default:
			ids = append(ids, pgid.ID(it.id))
		}
	}
	if len(keys) > 0 {
		rows, err := q.TasksByKey(ctx, scopes, keys)
		if err != nil {
			return fmt.Errorf("read the tasks of %d idempotency keys: %w", len(keys), err)
		}
		for _, r := range rows {
			t.h.byKey[scopedKey{r.KeyScope, r.KeyKey}] = &r.Task
		}
	}
	return t.readByID(ctx, q, ids)
}

func (t *tying) readByID(ctx context.Context, q *dbsqlc.Queries, ids []pgid.ID) error {
	if len(ids) == 0 {
		return nil
	}
	rows, err := q.TasksByID(ctx, ids)
	if err != nil {
		return fmt.Errorf("read %d existing tasks: %w", len(ids), err)
	}
	for _, r := range rows {
		t.h.byID[protocol.ID(r.ID)] = r
	}
	return nil
}

// existing is the task that an item runs into, or nil if it is new.
func (t *tying) existing(it *item) *dbsqlc.Task {
	switch {
	case t.h.stale(it):
		return t.h.byID[it.stale]
	case t.h.lost[it]:
		return t.h.byKey[scopedKey{it.scope, it.key}]
	}
	return t.h.byID[it.id]
}

// isNew reports whether the item is to be stored.
func (t *tying) isNew(i int) bool {
	it := t.items[i]
	return t.out[i].Err == nil && !t.h.lost[it] && t.existing(it) == nil
}

// insert stores the new items in order of their ids, in statements of bounded
// size.
func (t *tying) insert(ctx context.Context, q *dbsqlc.Queries) error {
	var items []*item
	for i, it := range t.items {
		if t.isNew(i) {
			items = append(items, it)
		}
	}
	slices.SortFunc(items, func(a, b *item) int { return slices.Compare(a.id[:], b.id[:]) })
	done := t.done
	for len(items) > 0 {
		n, size := 1, len(items[0].payload)
		for n < len(items) && n < chunkTasks && size+len(items[n].payload) <= maxFlushBytes {
			size += len(items[n].payload)
			n++
		}
		arg := t.s.params(items[:n], t.lanes, done)
		arg.GuardRevision, done = t.revision, nil
		rows, err := insertTasks(ctx, q, arg)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			if err := changedRules(ctx, q, t.revision); err != nil {
				return err
			}
		}
		var others []pgid.ID // stored by somebody else just now
		for _, r := range rows {
			t.created[protocol.ID(r.ID)] = r
		}
		for _, it := range items[:n] {
			if t.created[it.id] == nil {
				others = append(others, pgid.ID(it.id))
			}
		}
		if err := t.readByID(ctx, q, others); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// chunkTasks is how many tasks one statement stores.
const chunkTasks = 1000

// giveBackKeys gives back keys whose item was not stored after all.
func (t *tying) giveBackKeys(ctx context.Context, q *dbsqlc.Queries) error {
	var scopes, keys []string
	for _, it := range t.items {
		if it.key != "" && !t.h.lost[it] && t.created[it.id] == nil {
			scopes, keys = append(scopes, it.scope), append(keys, it.key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	if err := q.DropKeys(ctx, scopes, keys); err != nil {
		return fmt.Errorf("give back %d idempotency keys: %w", len(keys), err)
	}
	return nil
}

// depend stores the edges of the tasks that are new, and puts tasks that were
// there before into the graphs that begin with them.
func (t *tying) depend(ctx context.Context, q *dbsqlc.Queries) error {
	var edges dbsqlc.InsertDependenciesParams
	var roots []pgid.ID
	begun := map[protocol.ID]bool{}
	for i, it := range t.items {
		if t.created[it.id] == nil || t.h.lost[it] || t.out[i].Err != nil {
			continue
		}
		if t.alone[it.graph] && !begun[it.graph] {
			begun[it.graph] = true
			roots = append(roots, pgid.ID(it.graph))
		}
		for n, up := range it.upstreams {
			edges.TaskIds, edges.UpstreamIds = append(edges.TaskIds, pgid.ID(it.id)), append(edges.UpstreamIds, pgid.ID(up))
			edges.Positions, edges.Names = append(edges.Positions, int32(n)), append(edges.Names, it.upstreamNames[n])
		}
	}
	return t.s.o.Store.Depend(ctx, q, edges, roots)
}
