package enqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/metrics"
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
	t, err := s.store(context.WithoutCancel(ctx), items, &graph{names: g, first: order[0]})
	if fault, ok := errors.AsType[*itemError](err); ok {
		return nil, inGraph(fault.at, fault.err)
	}
	if err != nil {
		return nil, refusal(err)
	}
	results := make([]Result, len(t.out))
	for i, r := range t.out {
		results[i] = r.Value
	}
	return results, nil
}

// graph is what is known of a call that is stored all or not at all.
type graph struct {
	*names
	first int // an item that depends on no other
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
