package enqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Reschedule asks for another time of a task.
type Reschedule struct {
	ID protocol.ID
	// ScheduleType, ScheduledAt and DelayMS are as in a Request, but the type is
	// required.
	ScheduleType string
	ScheduledAt  time.Time
	DelayMS      int64
	// Principal is who asks; "": anonymous. Reason is at most 1,024 bytes.
	Principal, Reason string
}

// maxReason bounds what goes into events.
const maxReason = 1024

// Reschedule gives a task that is not due yet another time; its state stays, and
// a time to start that counts from when it is due moves with it. The same time
// again changes nothing. Errors: TASK_INPUT_INVALID, also for a time at which the
// task would have expired; TASK_NOT_FOUND;
// TASK_INVALID_TRANSITION if the task is due, running or over; or Postgres'.
func (s *Stage) Reschedule(ctx context.Context, r Reschedule) error {
	to, err := s.scheduleOf(r)
	if err != nil {
		return err
	}
	if r.Principal == "" {
		r.Principal = protocol.Anonymous
	}
	var due time.Time
	var state protocol.State
	ok := false
	var late error
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		was, err := q.ScheduleOfTask(ctx, pgid.ID(r.ID))
		if errors.Is(err, pgx.ErrNoRows) {
			return protocol.Errorf(protocol.CodeNotFound, "task_id", "no task %s", r.ID)
		}
		if err != nil {
			return fmt.Errorf("read the schedule of task %s: %w", r.ID, err)
		}
		from := protocol.Schedule{Type: was.ScheduleType, At: was.ScheduledAt.Time, DelayMS: store.Deref(was.DelayMs)}
		var moved *store.Locked
		var now time.Time
		err = s.o.Store.DecideTx(ctx, q, []protocol.ID{r.ID}, func(at time.Time, tasks map[protocol.ID]*store.Locked) ([]*store.Locked, []*protocol.Event) {
			now = at
			t := tasks[r.ID]
			state = t.State
			env := protocol.Env{Now: at}
			if to.Type == scheduleAt && from.Type == to.Type && from.At.Equal(to.At) && t.Reschedulable(at) {
				ok = true
				return nil, nil
			}
			if late = expired(was, to, at); late != nil && t.Reschedulable(at) {
				return nil, nil
			}
			late = nil
			var ev []*protocol.Event
			if ev, ok = t.Reschedule(env, r.Principal, from, to, r.Reason); !ok {
				ev = t.Refuse(env, protocol.ActorUser(r.Principal), "reschedule")
			} else {
				moved, due = t, t.DueAt
			}
			if len(ev) == 0 {
				return nil, nil
			}
			return []*store.Locked{t}, ev
		})
		if err != nil || moved == nil {
			return err
		}
		arg := dbsqlc.RescheduleTaskParams{ID: pgid.ID(r.ID), ScheduleType: to.Type, ScheduledAt: store.Timestamptz(to.At), StartAt: moved.StartAt, Principal: r.Principal}
		if arg.StartAt.IsZero() {
			arg.StartAt = now
		}
		if to.Type == scheduleDelay {
			arg.DelayMs = &to.DelayMS
		}
		return q.RescheduleTask(ctx, arg)
	})
	switch {
	case err != nil:
		return err
	case late != nil:
		return late
	case !ok:
		return protocol.Errorf(protocol.CodeInvalidTransition, "task_id", "the task is %s: only one that waits for its time, for other tasks or for a decision, and is not due yet, can be rescheduled", state)
	}
	if !due.IsZero() {
		s.o.Dispatcher.Wake(due)
	}
	return nil
}

// expired refuses a time at or after the one at which the task expires, if that
// does not move with it: the task could never start.
func expired(was *dbsqlc.ScheduleOfTaskRow, to protocol.Schedule, now time.Time) error {
	start := to.Start(now)
	if was.ExpiryMoves || !was.ExpiresAt.Valid || start.IsZero() || start.Before(was.ExpiresAt.Time) {
		return nil
	}
	field := "scheduled_at"
	if to.Type == scheduleDelay {
		field = "delay_ms"
	}
	return bad(field, "has the task start at %s, but it expires at %s: give it an earlier time", start.UTC().Format(time.RFC3339Nano), was.ExpiresAt.Time.UTC().Format(time.RFC3339Nano))
}

// scheduleOf checks what is asked for.
func (s *Stage) scheduleOf(r Reschedule) (protocol.Schedule, error) {
	switch {
	case r.ScheduleType == "":
		return protocol.Schedule{}, bad("schedule_type", "is required: now, at or delay")
	case len(r.Reason) > maxReason:
		return protocol.Schedule{}, bad("reason", "has %d bytes, at most %d are allowed", len(r.Reason), maxReason)
	case protocol.Text(r.Reason) != r.Reason:
		return protocol.Schedule{}, bad("reason", "contains characters that can't be stored")
	}
	var it item
	if err := it.setSchedule(&Request{ScheduleType: r.ScheduleType, ScheduledAt: r.ScheduledAt, DelayMS: r.DelayMS}, &s.o.Limits, time.Now()); err != nil {
		return protocol.Schedule{}, err
	}
	return protocol.Schedule{Type: it.schedule, At: it.scheduledAt, DelayMS: it.delayMS}, nil
}

// asked is the schedule that a task's caller asked for.
func asked(t *dbsqlc.Task) protocol.Schedule {
	if s, ok := protocol.AskedSchedule(t.AskedSchedule); ok {
		return s
	}
	return protocol.Schedule{Type: t.ScheduleType, At: t.ScheduledAt.Time, DelayMS: store.Deref(t.DelayMs)}
}
