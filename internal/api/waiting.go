package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/tenancy"
	"github.com/penstock-dev/penstock/protocol"
)

// maxWaitText bounds what a sentence takes over from handlers and rules.
const maxWaitText = 200

// waitsFor says what a task waits for or what happens to it next, in a sentence.
// Empty if it runs or has ended.
func (s *Service) waitsFor(ctx context.Context, t *dbsqlc.Task, now time.Time) (text string, err error) {
	switch protocol.State(t.State) {
	case protocol.StatePending:
		if t.OpenDependencies > 0 {
			text = fmt.Sprintf("%d of the tasks that it depends on to end", t.OpenDependencies)
		} else {
			text = s.dispatch(ctx, t, "its time, ", now)
		}
	case protocol.StateWaitingApproval:
		text, err = s.approvals(ctx, t)
	case protocol.StateQueued:
		text, err = s.fetching(ctx, t, now)
	case protocol.StateRetrying:
		if t.DueAt.Valid {
			text = s.dispatch(ctx, t, fmt.Sprintf("attempt %d of %d after %s, ", t.Attempt, t.MaxRetries+1, cmp.Or(store.Deref(t.LastErrorCode), "a snooze")), now)
		} else {
			text, err = s.fetching(ctx, t, now)
		}
	case protocol.StateInterrupted:
		text, err = s.interruption(ctx, t, now)
	case protocol.StateDLQPending:
		return "its dead letter to be written to " + protocol.StreamDLQ + "; then it is failed", nil
	case protocol.StateDLQRecorded:
		return "its last event; then it is failed", nil
	default:
		return "", nil
	}
	if err == nil && t.ExpiresAt.Valid {
		text += "; cancelled with TASK_EXPIRED if it has not started by " + at(t.ExpiresAt)
	}
	return text, err
}

// at is how a sentence writes a time.
func at(t pgtype.Timestamptz) string { return t.Time.UTC().Format("2006-01-02T15:04:05.000Z") }

// dispatch says when a task that waits in Postgres leaves for its stream.
func (s *Service) dispatch(ctx context.Context, t *dbsqlc.Task, what string, now time.Time) string {
	switch {
	case t.Queue == protocol.QueueInternal:
		return "calls of the internal run interface: its queue is never dispatched"
	case !t.DueAt.Valid:
		return "its dispatch"
	case t.DueAt.Time.After(now):
		return what + at(t.DueAt)
	}
	return fmt.Sprintf("room in %s since %s%s", protocol.TaskStream(t.Queue), at(t.DueAt), s.backlog(ctx, t.Queue))
}

// backlog says what is in a queue's stream: nothing to callers that are bound to
// tenants, as others' tasks are in it.
func (s *Service) backlog(ctx context.Context, queue string) string {
	if tenancy.Bound(ctx) {
		return ""
	}
	info, err := s.redis.Info(ctx, protocol.TaskStream(queue), protocol.GroupWorkers)
	switch {
	case errors.Is(err, streams.ErrNoGroup):
		return "; the stream has no group"
	case err != nil:
		return "; Redis does not answer"
	}
	return fmt.Sprintf("; of its entries %d are not fetched and %d are held by workers", info.Undelivered, info.Pending)
}

// fetching says who has to fetch a queued task.
func (s *Service) fetching(ctx context.Context, t *dbsqlc.Task, now time.Time) (string, error) {
	if t.DueAt.Valid || t.Queue == protocol.QueueInternal {
		return s.dispatch(ctx, t, "its time, ", now), nil
	}
	if tenancy.Bound(ctx) { // workers are those of every tenant, too
		return fmt.Sprintf("a worker of queue %s to fetch it", t.Queue), nil
	}
	workers, err := s.workersFor(ctx, t)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("a worker of queue %s to fetch it: %s%s", t.Queue, workers, s.backlog(ctx, t.Queue)), nil
}

// workersFor says which workers could run a task. It is the place for whatever
// else is known of them.
func (s *Service) workersFor(ctx context.Context, t *dbsqlc.Task) (string, error) {
	n, err := s.store.CountWorkersOf(ctx, t.Queue)
	switch {
	case err != nil:
		return "", err
	case n == 0:
		return "none reports to an orchestrator", nil
	case n == 1:
		return "1 is alive", nil
	}
	return fmt.Sprintf("%d are alive", n), nil
}

// interruption says why a task was interrupted, and when it is dispatched again.
func (s *Service) interruption(ctx context.Context, t *dbsqlc.Task, now time.Time) (string, error) {
	e, err := s.store.LastInterruption(ctx, t.ID)
	if errors.Is(err, pgx.ErrNoRows) { // retention removed the task just now
		return s.dispatch(ctx, t, "its dispatch, ", now), nil
	}
	if err != nil {
		return "", err
	}
	how := "handed it back"
	if store.Deref(e.ErrorCode) == string(protocol.CodeWorkerLost) {
		how = "was lost"
	}
	text := fmt.Sprintf("its next dispatch: worker %s %s at %s", cmp.Or(clipTo(store.Deref(e.WorkerID), 64), "(unknown)"), how, e.OccurredAt.UTC().Format("2006-01-02T15:04:05.000Z"))
	if why := clipTo(store.Deref(e.Reason), maxWaitText); why != "" {
		text += " (" + why + ")"
	}
	return text + "; waits for " + s.dispatch(ctx, t, "", now), nil
}

// approvals says whose decision a task waits for.
func (s *Service) approvals(ctx context.Context, t *dbsqlc.Task) (string, error) {
	rows, err := s.store.ListApprovalsOfTask(ctx, dbsqlc.ListApprovalsOfTaskParams{BeforeAt: farFuture, TaskID: t.ID, Status: "pending", MaxLook: maxPage, MaxRows: 3})
	if err != nil {
		return "", err
	}
	var asked []string
	for _, r := range rows {
		if r.Admitted {
			asked = append(asked, fmt.Sprintf("%s %s (%d of %d approvals, rejected at %s without a decision)", r.Kind, clipTo(r.Name, 64), len(r.ApprovedBy), r.Required, r.ExpiresAt.UTC().Format("2006-01-02T15:04:05.000Z")))
		}
	}
	if len(asked) == 0 {
		return "people to decide", nil
	}
	return "people to decide about " + strings.Join(asked, ", "), nil
}

// clipTo shortens a text, and keeps it on its line.
func clipTo(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}
