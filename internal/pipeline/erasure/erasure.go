// Package erasure removes the content of tasks for good, on request: payload,
// result, progress and error texts, wherever they are kept. That a task was there,
// when it ran and how it ended stays on record, as does who asked for the erasure.
package erasure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Options are the settings of a Stage.
type Options struct {
	Store *store.Store
	// Forget removes what erased dead letters have in Redis, and Drop entries of a
	// queue's stream. They are called after each erasure; what can't be removed then
	// is removed later, by trimming.
	Forget  func(ctx context.Context) error
	Drop    func(ctx context.Context, queue string, entries []string) error
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Stage erases. It is safe for concurrent use.
type Stage struct {
	o      Options
	erased prometheus.Counter
}

// New makes a Stage.
func New(o Options) *Stage {
	s := &Stage{o: o, erased: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "penstock_tasks_erased_total", Help: "Tasks whose content was erased on request.",
	})}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.erased)
	}
	return s
}

// maxReason bounds the reason, in bytes.
const maxReason = 1000

// Erase removes the content of a task that has ended. already is true if it was
// removed before; requeued are the tasks that came out of its dead letter, which
// have copies of their own. The error is TASK_INPUT_INVALID (the reason),
// TASK_NOT_FOUND, or TASK_INVALID_TRANSITION if the task has not ended, or if one
// that has not ended was promised its result.
func (s *Stage) Erase(ctx context.Context, id protocol.ID, principal, reason string) (already bool, requeued []protocol.ID, err error) {
	if err := checkReason(reason); err != nil {
		return false, nil, err
	}
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		already, err = s.erase(ctx, q, id, principal, reason)
		if err != nil {
			return err
		}
		rows, err := q.RequeuedTasks(ctx, (*pgid.ID)(&id))
		requeued = nil
		for _, r := range rows {
			requeued = append(requeued, protocol.ID(r))
		}
		return err
	})
	if err != nil {
		return false, nil, err
	}
	if !already {
		s.erased.Inc()
	}
	if err := s.forget(ctx, id); err != nil {
		s.o.Log.Warn("what an erased task has in Redis is still there; it is removed when it is erased again, or by trimming", "task_id", id, "error", err)
	}
	return already, requeued, nil
}

// forget removes what Redis has of a task that was erased.
func (s *Stage) forget(ctx context.Context, id protocol.ID) error {
	err := s.o.Forget(ctx)
	entries, rerr := s.o.Store.EntriesOfTask(ctx, pgid.ID(id))
	queue, qerr := s.o.Store.TaskQueue(ctx, pgid.ID(id))
	if err := errors.Join(err, rerr, qerr); err != nil || len(entries) == 0 {
		return err
	}
	return s.o.Drop(ctx, queue, entries)
}

func (s *Stage) erase(ctx context.Context, q *dbsqlc.Queries, id protocol.ID, principal, reason string) (already bool, err error) {
	tasks, now, err := s.o.Store.Lock(ctx, q, []protocol.ID{id})
	if err != nil {
		return false, err
	}
	t := tasks[id]
	if t == nil {
		return false, protocol.Errorf(protocol.CodeNotFound, "task_id", "there is no task %s", id)
	}
	if err := erasable(t); err != nil {
		return false, err
	}
	row, err := q.ErasedTask(ctx, pgid.ID(id))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, protocol.Errorf(protocol.CodeNotFound, "task_id", "there is no task %s", id)
	case err != nil:
		return false, fmt.Errorf("read task %s: %w", id, err)
	case row.Erased:
		return true, nil
	case !protocol.ID(row.Dependant).IsZero():
		return false, conflict("task %s depends on the result of task %s: cancel it, or wait until it has ended", protocol.ID(row.Dependant), t.TaskID())
	}
	event := t.Note(protocol.EventErased, protocol.Env{Now: now}, protocol.ActorUser(principal), reason, nil)
	event.Data = nil
	if err := s.o.Store.Save(ctx, q, []*store.Locked{t}, []*protocol.Event{event}); err != nil {
		return false, err
	}
	done, err := q.EraseTask(ctx, pgid.ID(id))
	if err != nil {
		return false, fmt.Errorf("erase task %s: %w", id, err)
	}
	if !done { // its row is locked: cannot be
		return false, fmt.Errorf("erase task %s: it is not there to be erased", id)
	}
	return false, nil
}

func erasable(t *store.Locked) error {
	switch t.State {
	case protocol.StateSucceeded, protocol.StateFailed, protocol.StateCancelled:
		return nil
	case protocol.StateDLQPending, protocol.StateDLQRecorded:
		return conflict("the dead letter of task %s is being written: try again in a moment", t.TaskID())
	}
	return conflict("task %s is %s and needs its payload: cancel it, or wait until it has ended", t.TaskID(), t.State)
}

func conflict(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidTransition, "task_id", format, args...)
}

func checkReason(reason string) error {
	switch {
	case strings.TrimSpace(reason) == "":
		return protocol.Errorf(protocol.CodeInputInvalid, "reason", "is required: say why, without what is to be erased")
	case len(reason) > maxReason:
		return protocol.Errorf(protocol.CodeInputInvalid, "reason", "has %d bytes, at most %d are allowed", len(reason), maxReason)
	case protocol.Text(reason) != reason:
		return protocol.Errorf(protocol.CodeInputInvalid, "reason", "contains characters that can't be stored")
	}
	return nil
}
