package enqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/metrics"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Check validates a request as Enqueue does, without storing anything. The error
// is an *protocol.Error with code TASK_INPUT_INVALID that names the field.
func (s *Stage) Check(r *Request) error {
	_, err := validate(r, &s.o.Limits, time.Now())
	return err
}

// createTries is how often CreateTx reads the guard's revision.
const createTries = 5

// CreateTx stores requests in a transaction of the caller's. They have no
// idempotency key and go through Postgres: they are pending, due at their time or
// at once, so that whoever dispatches them asks the guard. Their tenants' names are nobody else's idempotency scopes from
// then on. After the commit the caller wakes the dispatcher. Errors:
// TASK_INPUT_INVALID of the first request that is wrong, TASK_DUPLICATE if an
// id is taken; or Postgres'. The transaction must be rolled back then.
func (s *Stage) CreateTx(ctx context.Context, q *dbsqlc.Queries, rs []*Request) error {
	items := make([]*item, len(rs))
	lanes := map[string]*lane{}
	now := time.Now()
	for i, r := range rs {
		if r.IdempotencyKey != "" || r.ScheduleID.IsZero() {
			return fmt.Errorf("enqueue: CreateTx is for requests of schedules, without a key")
		}
		it, err := validate(r, &s.o.Limits, now)
		if err != nil {
			return err
		}
		items[i], lanes[it.queue] = it, &lane{}
	}
	if len(items) == 0 {
		return nil
	}
	t := &intake{s: s, items: items, lanes: lanes, look: true}
	if err := t.runUnjudged(ctx, q); err != nil {
		return err
	}
	changed := map[string]*changedBy{}
	for i, it := range items {
		if t.h.foreign[it] {
			return t.out[i].Err
		}
		if !t.stored(it) {
			return taskTaken(it)
		}
		noteChanged(changed, rs[i].ChangedBy, it.id)
	}
	for _, c := range changed {
		if err := q.TasksChangedBy(ctx, c.who, c.ids); err != nil {
			return fmt.Errorf("note who changed %d tasks: %w", len(c.ids), err)
		}
	}
	s.o.Store.AfterCommit(q, func() {
		for _, it := range items {
			s.tasks.Enqueued(it.queue, it.typ, metrics.Created)
		}
	})
	return nil
}

func taskTaken(it *item) error {
	return protocol.Errorf(protocol.CodeDuplicate, "task_id", "another task has the id %s: use another one", it.taskID())
}

// changedBy are tasks that the same people had a hand in.
type changedBy struct {
	who []string
	ids []pgid.ID
}

func noteChanged(all map[string]*changedBy, who []string, id protocol.ID) {
	if len(who) == 0 {
		return
	}
	key := fmt.Sprintf("%q", who)
	if all[key] == nil {
		all[key] = &changedBy{who: who}
	}
	all[key].ids = append(all[key].ids, pgid.ID(id))
}

// runUnjudged stores tasks that the guard has not seen: they are pending, so it will.
func (t *intake) runUnjudged(ctx context.Context, q *dbsqlc.Queries) (err error) {
	for range createTries {
		if t.revision, err = q.GuardRevision(ctx); err != nil {
			return fmt.Errorf("read the revision of the guard's rules: %w", err)
		}
		if err = t.run(ctx, q); !errors.Is(err, ErrRulesChanged) {
			return err
		}
	}
	return err
}
