package enqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// intake is one transaction that stores tasks: the only way in. Keys are taken
// before ids, ids in order, and what others depend on is locked last, in order of
// its ids, so that concurrent ones never wait for each other in a circle.
type intake struct {
	s        *Stage
	items    []*item
	g        *graph // nil: each item for itself
	lanes    map[string]*lane
	done     []int64
	revision int64 // of the guard's rules by which the items were judged
	// look: tasks that are in the way are looked for before anything is stored, not
	// only after they were met.
	look bool

	h       *hits
	targets map[protocol.ID]*dbsqlc.DependencyTargetsRow // existing tasks that items depend on
	alone   map[protocol.ID]bool                         // existing tasks that a graph begins with, and that are in none yet
	created map[protocol.ID]*dbsqlc.InsertTasksRow
	out     []batch.Result[Result]
}

// chunkTasks is how many tasks one statement stores.
const chunkTasks = 1000

// errEnded: a task that has ended has the id of one that was to be stored. Nothing
// was; the next try is to look for such tasks first.
var errEnded = errors.New("another task with the same id has ended")

// tied reports whether the items are about other tasks.
func (t *intake) tied() bool {
	return t.g != nil || slices.ContainsFunc(t.items, func(it *item) bool { return len(it.deps) > 0 })
}

// single reports whether all there is to do is one statement, which is its own
// transaction; but for reading, after it, what was in the way.
func (t *intake) single() bool {
	return !t.look && !t.tied() && len(t.items) <= chunkTasks && !slices.ContainsFunc(t.items, func(it *item) bool {
		return it.key != "" || !it.stale.IsZero() || it.guarded
	})
}

// run does all of it. Of a graph the error may be an *itemError.
func (t *intake) run(ctx context.Context, q *dbsqlc.Queries) error {
	t.h = newHits()
	t.created = make(map[protocol.ID]*dbsqlc.InsertTasksRow, len(t.items))
	t.out = make([]batch.Result[Result], len(t.items))
	// Items with a stale id take no key: it would belong to no task.
	if err := t.h.findStale(ctx, q, t.items); err != nil {
		return err
	}
	if err := t.s.takeKeys(ctx, q, t.items, t.h); err != nil {
		return err
	}
	tied := t.tied()
	if t.look || tied {
		if err := t.readExisting(ctx, q, func(it *item) bool { return it.chosen || t.h.lost[it] }); err != nil {
			return err
		}
	}
	if tied {
		if err := t.resolve(ctx, q); err != nil {
			return err
		}
	}
	if err := t.insert(ctx, q); err != nil {
		return err
	}
	met := func(it *item) bool { return t.created[it.id] == nil && t.existing(it) == nil }
	if len(t.created) < len(t.items) {
		if err := t.readExisting(ctx, q, met); err != nil {
			return err
		}
	}
	if err := t.answer(); err != nil {
		return err
	}
	if err := t.giveBackKeys(ctx, q); err != nil {
		return err
	}
	if err := t.s.ask(ctx, q, t.items, t.created); err != nil || !tied {
		return err
	}
	return t.depend(ctx, q)
}

// answer sets what each item's caller is told.
func (t *intake) answer() error {
	for i, it := range t.items {
		switch {
		case t.out[i].Err != nil:
		case t.stored(it):
			t.out[i].Value = Result{it: it, stored: t.created[it.id]}
		default:
			t.out[i] = t.h.result(it)
			if err := t.fault(i, t.out[i].Err); err != nil {
				return err
			}
		}
	}
	return nil
}

// stored reports whether the item has become a task.
func (t *intake) stored(it *item) bool { return t.created[it.id] != nil && !t.h.lost[it] }

// fault notes what is wrong with an item; of a graph it ends everything.
func (t *intake) fault(i int, err error) error {
	if err == nil {
		return nil
	}
	if t.g != nil {
		return &itemError{i, err}
	}
	t.out[i].Err = err
	return nil
}

// readExisting reads the tasks that some items run into.
func (t *intake) readExisting(ctx context.Context, q *dbsqlc.Queries, which func(*item) bool) error {
	var ids []pgid.ID
	var scopes, keys []string
	for _, it := range t.items {
		switch {
		case t.h.stale(it) || !which(it):
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

// existing is the task that an item runs into, as far as is known; nil: it is new.
func (t *intake) existing(it *item) *dbsqlc.Task {
	switch {
	case t.h.stale(it):
		return t.h.byID[it.stale]
	case t.h.lost[it]:
		return t.h.byKey[scopedKey{it.scope, it.key}]
	}
	return t.h.byID[it.id]
}

// insert stores the new items in order of their ids, in statements of bounded
// size.
func (t *intake) insert(ctx context.Context, q *dbsqlc.Queries) error {
	items := make([]*item, 0, len(t.items))
	for i, it := range t.items {
		if t.out[i].Err == nil && !t.h.lost[it] && t.existing(it) == nil {
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
		rows, err := q.InsertTasks(ctx, arg)
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "23505" && strings.HasPrefix(e.TableName, "event_log") {
			return errEnded
		}
		if err != nil {
			return fmt.Errorf("store %d tasks: %w", n, err)
		}
		if len(rows) == 0 {
			if err := changedRules(ctx, q, t.revision); err != nil {
				return err
			}
		}
		for _, r := range rows {
			t.created[protocol.ID(r.ID)] = r
		}
		items = items[n:]
	}
	return nil
}

// giveBackKeys gives back keys whose item was not stored after all; also where the
// task in the way has that key: then it has expired, and does not hold again because
// somebody asked.
func (t *intake) giveBackKeys(ctx context.Context, q *dbsqlc.Queries) error {
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
func (t *intake) depend(ctx context.Context, q *dbsqlc.Queries) error {
	var edges dbsqlc.InsertDependenciesParams
	var roots []pgid.ID
	begun := map[protocol.ID]bool{}
	for i, it := range t.items {
		if !t.stored(it) || t.out[i].Err != nil {
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
