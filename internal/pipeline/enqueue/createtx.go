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

// errNotStored: the rules of the guard changed while tasks were being stored.
var errNotStored = errors.New("the guard's rules changed meanwhile; try again")

// createTries is how often CreateTx reads the guard's revision.
const createTries = 5

// CreateTx stores requests in a transaction of the caller's and returns their
// tasks in order. They have no idempotency key and go through Postgres: they
// are pending, due at their time or at once, so that whoever dispatches them
// asks the guard. Their tenants' names are nobody else's idempotency scopes from
// then on. After the commit the caller wakes the dispatcher. Errors:
// TASK_INPUT_INVALID of the first request that is wrong, TASK_DUPLICATE if an
// id is taken; or Postgres'. The transaction must be rolled back then.
func (s *Stage) CreateTx(ctx context.Context, q *dbsqlc.Queries, rs []*Request) ([]*dbsqlc.Task, error) {
	items := make([]*item, len(rs))
	lanes := map[string]*lane{}
	now := time.Now()
	for i, r := range rs {
		if r.IdempotencyKey != "" || r.ScheduleID.IsZero() {
			return nil, fmt.Errorf("enqueue: CreateTx is for requests of schedules, without a key")
		}
		it, err := validate(r, &s.o.Limits, now)
		if err != nil {
			return nil, err
		}
		items[i], lanes[it.queue] = it, &lane{}
	}
	if len(items) == 0 {
		return nil, nil
	}
	old := newHits()
	if err := old.findStale(ctx, q, items); err != nil {
		return nil, err
	}
	if err := s.tenants.note(ctx, q, items); err != nil {
		return nil, err
	}
	taken, err := ended(ctx, q, items)
	if err != nil {
		return nil, err
	}
	for it := range taken {
		return nil, taskTaken(it)
	}
	created, err := s.insertUnjudged(ctx, q, s.params(items, lanes, nil))
	if err != nil {
		return nil, err
	}
	out := make([]*dbsqlc.Task, len(items))
	changed := map[string]*changedBy{}
	for i, it := range items {
		row := created[it.id]
		if row == nil || old.lost[it] {
			return nil, taskTaken(it)
		}
		out[i] = it.row(row)
		noteChanged(changed, rs[i].ChangedBy, it.id)
	}
	for _, c := range changed {
		if err := q.TasksChangedBy(ctx, c.who, c.ids); err != nil {
			return nil, fmt.Errorf("note who changed %d tasks: %w", len(c.ids), err)
		}
	}
	s.o.Store.AfterCommit(q, func() {
		for _, it := range items {
			s.tasks.Enqueued(it.queue, it.typ, metrics.Created)
		}
	})
	return out, nil
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

// insertUnjudged stores tasks that the guard has not seen: they are pending, so
// it will.
func (s *Stage) insertUnjudged(ctx context.Context, q *dbsqlc.Queries, arg dbsqlc.InsertTasksParams) (map[protocol.ID]*dbsqlc.InsertTasksRow, error) {
	for range createTries {
		revision, err := q.GuardRevision(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the revision of the guard's rules: %w", err)
		}
		arg.GuardRevision = revision
		rows, err := insertTasks(ctx, q, arg)
		if err != nil {
			return nil, err
		}
		if len(rows) == 0 {
			continue
		}
		created := make(map[protocol.ID]*dbsqlc.InsertTasksRow, len(rows))
		for _, r := range rows {
			created[protocol.ID(r.ID)] = r
		}
		return created, nil
	}
	existing, err := q.TasksByID(ctx, arg.Ids)
	if err != nil {
		return nil, fmt.Errorf("read %d existing tasks: %w", len(arg.Ids), err)
	}
	if len(existing) > 0 { // all ids are taken: the caller says so
		return nil, nil
	}
	return nil, errNotStored
}
