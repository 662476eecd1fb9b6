package enqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/metrics"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// maxGraphs bounds how many graphs are stored at a time.
const maxGraphs = 2

// EnqueueGraph stores tasks that refer to each other, all or none, in one
// transaction: at most MaxGraphTasks. Results are in the order of the requests. The
// error, a *protocol.Error, names the field of the first fault, such as
// tasks[3].depends_on[0].name; or it is batch.ErrClosed, ctx's or Postgres'.
func (s *Stage) EnqueueGraph(ctx context.Context, rs []*Request) ([]Result, error) {
	if len(rs) < 1 || len(rs) > MaxGraphTasks {
		return nil, bad("tasks", "has %d items, want 1 to %d in a graph", len(rs), MaxGraphTasks)
	}
	items := make([]*item, len(rs))
	now := time.Now()
	for i, r := range rs {
		var err error
		if items[i], err = validate(r, &s.o.Limits, now); err == nil {
			err = s.refuseAnonymous(ctx, items[i])
		}
		if err != nil {
			s.tasks.Enqueued(r.Queue, r.Type, metrics.Invalid)
			return nil, inGraph(i, err)
		}
	}
	g, fault := graphNames(items)
	var order []int
	if fault == nil {
		order, fault = g.sorted(items)
	}
	if fault != nil {
		s.tasks.Enqueued(rs[fault.at].Queue, rs[fault.at].Type, metrics.Invalid)
		return nil, inGraph(fault.at, fault.err)
	}
	if err := s.graphs.enter(ctx); err != nil {
		return nil, err
	}
	defer s.graphs.leave()
	// Once begun it is finished: the caller could not tell what became of it.
	out, err := s.storeTied(context.WithoutCancel(ctx), items, &graph{names: g, first: order[0]})
	if fault, ok := errors.AsType[*itemError](err); ok {
		return nil, inGraph(fault.at, fault.err)
	}
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(out))
	for i, r := range out {
		results[i] = r.Value
	}
	return results, nil
}

// graph is what is known of a call that is stored all or not at all.
type graph struct {
	*names
	first int // an item that depends on no other
}

// flushTied stores items with dependencies, each for itself. Those that repeat an
// id or key of an earlier one, or depend on it, wait for a further round.
func (s *Stage) flushTied(ctx context.Context, items []*item) []batch.Result[Result] {
	k := &known{ids: map[protocol.ID]bool{}, keys: map[scopedKey]bool{}}
	out := make([]batch.Result[Result], len(items))
	rest := make([]int, len(items))
	for i := range items {
		rest[i] = i
	}
	for len(rest) > 0 {
		now, later := k.splitTied(items, rest)
		part := make([]*item, len(now))
		for i, at := range now {
			part[i] = items[at]
		}
		for i, r := range s.flushTiedDistinct(ctx, part) {
			out[now[i]] = r
			if it := part[i]; r.Err == nil {
				k.ids[it.id], k.keys[scopedKey{it.scope, it.key}] = true, true
			}
		}
		rest = later
	}
	return out
}

// splitTied is split for items with dependencies.
func (k *known) splitTied(items []*item, rest []int) (now, later []int) {
	ids, keys := make(map[protocol.ID]bool, len(rest)), map[scopedKey]bool{}
	for _, i := range rest {
		it := items[i]
		key := scopedKey{it.scope, it.key}
		wait := ids[it.id] && !k.ids[it.id] || it.key != "" && keys[key] && !k.keys[key]
		for _, d := range it.deps {
			wait = wait || ids[d.id] && !k.ids[d.id] && d.id != it.id || ids[d.byName] && !k.ids[d.byName] && d.byName != it.id
		}
		if wait {
			later = append(later, i)
		} else {
			now = append(now, i)
		}
		ids[it.id] = true
		if it.key != "" {
			keys[key] = true
		}
	}
	return now, later
}

// flushTiedDistinct stores items of which none needs another. What Postgres
// refuses as data is tried one by one.
func (s *Stage) flushTiedDistinct(ctx context.Context, items []*item) []batch.Result[Result] {
	out, err := s.storeTied(ctx, items, nil)
	if err == nil {
		return out
	}
	out = make([]batch.Result[Result], len(items))
	if refusedData(err) && len(items) > 1 {
		for i, it := range items {
			out[i] = s.flushTiedDistinct(ctx, []*item{it})[0]
		}
		return out
	}
	s.countFailed(items)
	if protocol.CodeOf(err) == "" {
		s.o.Log.Warn("a batch was not stored; its callers are told", "tasks", len(items), "error", err)
	}
	for i := range out {
		out[i].Err = err
	}
	return out
}

// refusedData reports whether Postgres will never take the data.
func refusedData(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && strings.HasPrefix(e.Code, "22")
}

// tiedTries is how often a transaction is repeated because a task that a new one
// depends on was removed in the middle of it.
const tiedTries = 3

// storeTied stores items in one transaction. Of a graph the first fault is the
// error, an *itemError; else each item has its own result.
func (s *Stage) storeTied(ctx context.Context, items []*item, g *graph) ([]batch.Result[Result], error) {
	s.batches.Observe(float64(len(items)))
	lanes := s.tiedLanes(ctx, items)
	began, end := s.o.Dispatcher.Begin()
	defer end()
	done := s.o.Dispatcher.TakeDone()
	var t *tying
	store := func() error {
		return s.judged(ctx, items, func(revision int64) error {
			t = &tying{s: s, items: items, g: g, lanes: lanes, done: done, revision: revision}
			return s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error { return t.run(ctx, q) })
		})
	}
	err := store()
	for try := 1; try < tiedTries && missing(err); try++ {
		err = store()
	}
	if err != nil {
		s.o.Dispatcher.GiveBack(done)
		if missing(err) {
			err = ErrGone
		}
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && refusedData(err) && (g != nil || len(items) == 1) {
			err = bad("", "Postgres refused it: %s", e.Message)
		}
		return nil, err
	}
	crashpoint.Here("enqueue.graph_committed")
	s.afterTied(ctx, t, began)
	return t.out, nil
}

func missing(err error) bool {
	_, ok := errors.AsType[*store.MissingError](err)
	return ok
}

// tiedLanes are the lanes of the items that may go straight to their stream; the
// others wait in Postgres in any case.
func (s *Stage) tiedLanes(ctx context.Context, items []*item) map[string]*lane {
	var direct []*item
	for _, it := range items {
		if len(it.deps) == 0 {
			direct = append(direct, it)
		}
	}
	lanes := s.lanes(ctx, direct)
	for _, it := range items {
		if lanes[it.queue] == nil {
			lanes[it.queue] = &lane{}
		}
	}
	return lanes
}

// afterTied puts what was committed into its streams.
func (s *Stage) afterTied(ctx context.Context, t *tying, began time.Time) {
	var wake time.Time
	type part struct {
		outbox int64
		queue  string
	}
	var parts []part
	entries := map[part][]*protocol.TaskEntry{}
	for _, it := range t.items {
		row := t.created[it.id]
		switch {
		case row == nil:
		case row.Direct:
			p := part{row.OutboxID, it.queue}
			if entries[p] == nil {
				parts = append(parts, p)
				s.o.Dispatcher.Expect(p.outbox)
			}
			entries[p] = append(entries[p], it.entry(row))
		case len(it.upstreams) == 0 && (wake.IsZero() || row.DueAt.Before(wake)):
			wake = row.DueAt
		}
	}
	for _, p := range parts {
		s.o.Dispatcher.Send(ctx, began, p.outbox, p.queue, entries[p])
	}
	if !wake.IsZero() {
		s.o.Dispatcher.Wake(wake)
	}
	s.count(t.items, t.out)
}

// slots bounds how many calls do something at a time, and lets a Stage wait for
// those under way when it closes.
type slots struct {
	free   chan struct{}
	closed chan struct{}
}

func newSlots(n int) *slots { return &slots{make(chan struct{}, n), make(chan struct{})} }

func (s *slots) enter(ctx context.Context) error {
	select {
	case <-s.closed:
		return batch.ErrClosed
	default:
	}
	select {
	case s.free <- struct{}{}:
		return nil
	case <-s.closed:
		return batch.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slots) leave() { <-s.free }

// close refuses new calls and waits for those under way. It is called once.
func (s *slots) close(ctx context.Context) error {
	close(s.closed)
	for range cap(s.free) {
		select {
		case s.free <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("graphs are still being stored: %w", ctx.Err())
		}
	}
	return nil
}
