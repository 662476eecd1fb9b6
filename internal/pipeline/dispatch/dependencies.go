package dispatch

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// teller completes the entries of tasks that depend on others.
type teller func(ctx context.Context, q *dbsqlc.Queries, entries []*protocol.TaskEntry) error

// unreadError: how the dependencies of tasks ended could not be read.
type unreadError struct{ err error }

func (e *unreadError) Error() string {
	return fmt.Sprintf("tell tasks of their dependencies: %v", e.err)
}
func (e *unreadError) Unwrap() error { return e.err }

// dispatch takes due tasks and sends them. It returns how many it took.
func (d *Dispatcher) dispatch(ctx context.Context, queue string, limit int, afterID string) (int, error) {
	n, err := d.dispatchDue(ctx, queue, limit, afterID, addDependencies)
	if unread, ok := errors.AsType[*unreadError](err); ok && ctx.Err() == nil {
		d.log.Warn("what tasks depend on could not be read; their handlers have to ask for it", "queue", queue, "error", unread.err)
		return d.dispatchDue(ctx, queue, limit, afterID, omitDependencies)
	}
	return n, err
}

// dependants are the entries of tasks that depend on others.
func dependants(due []*store.Due, entries []*protocol.TaskEntry) (out []*protocol.TaskEntry) {
	depend := map[protocol.ID]bool{}
	for _, t := range due {
		if t.OnDependencyFailure != "" {
			depend[t.ID] = true
		}
	}
	for _, e := range entries {
		if depend[e.ID] {
			out = append(out, e)
		}
	}
	return out
}

// addDependencies tells the handlers how what their tasks depend on ended. The
// error is an *unreadError.
func addDependencies(ctx context.Context, q *dbsqlc.Queries, entries []*protocol.TaskEntry) error {
	if len(entries) == 0 {
		return nil
	}
	ids := make([]protocol.ID, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	told, err := store.InlineDependencies(ctx, q, ids)
	if err != nil {
		return &unreadError{err}
	}
	for _, e := range entries {
		e.Dependencies = told[e.ID]
	}
	return nil
}

// omitDependencies has the handlers ask an orchestrator, so that results that
// cannot be read hold up nothing else.
func omitDependencies(_ context.Context, _ *dbsqlc.Queries, entries []*protocol.TaskEntry) error {
	for _, e := range entries {
		e.Dependencies = []byte(`{"complete":false,"tasks":[]}`)
	}
	return nil
}
