package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
)

const (
	// batch is how many tasks or keys are removed in one transaction.
	batch = 500
	// dropTries is how often a day's partitions are tried in one round. Each try
	// makes the pipeline wait for 0.2 s at most.
	dropTries = 3
)

// inUse is what Postgres says when a lock could not be had in time, and our
// functions when another transaction is at it.
const inUse = "55P03"

// timedOut is what it says when a statement took longer than statement_timeout.
const timedOut = "57014"

// errBusy ends a round: somebody else is removing tasks.
var errBusy = errors.New("another orchestrator is removing tasks")

// ExpireKeys removes idempotency keys whose task finished long enough ago.
func (j *Janitor) ExpireKeys(ctx context.Context) error {
	keep := j.o.Keys
	if keep <= 0 {
		keep = j.o.Tasks
	}
	if keep <= 0 {
		return nil
	}
	arg := dbsqlc.ExpireKeysParams{KeepMs: keep.Milliseconds(), MaxRows: batch}
	total := int64(0)
	for {
		start := time.Now()
		rows, err := j.o.Store.ExpireKeys(ctx, arg)
		if err != nil {
			return fmt.Errorf("remove idempotency keys: %w", err)
		}
		if len(rows) == 0 {
			break
		}
		last := rows[0]
		arg.AfterAt, arg.AfterScope, arg.AfterKey = last.CreatedAt, last.Scope, last.Key
		total += int64(last.Removed)
		j.count("idempotency_keys", int64(last.Removed))
		if err := rest(ctx, start); err != nil {
			return err
		}
	}
	if total > 0 {
		j.o.Log.Info("idempotency keys of long finished tasks removed (retention.idempotency_keys)", "keys", total)
	}
	return nil
}

// rest leaves the database as much time as the work since start has taken.
func rest(ctx context.Context, start time.Time) error {
	return sleep(ctx, min(time.Since(start), time.Second))
}

// RemoveTasks removes finished tasks whose time is over, with their events:
// whole days where nothing in them must be kept, else row by row.
func (j *Janitor) RemoveTasks(ctx context.Context) error {
	if j.o.Tasks <= 0 {
		return nil
	}
	days, err := j.o.Store.OldDays(ctx, j.o.Tasks.Milliseconds())
	if err != nil {
		return fmt.Errorf("list partitions: %w", err)
	}
	var errs error
	note := func(what string, err error) {
		switch {
		case errors.Is(err, errBusy):
			j.o.Log.Debug("retention: left for the next round", "tasks_of", what, "error", err)
		case err != nil:
			errs = errors.Join(errs, fmt.Errorf("remove tasks of %s: %w", what, err))
		}
	}
	for _, day := range days {
		note(day, j.removeDay(ctx, day))
	}
	note("callers' names", j.removeNamed(ctx))
	note("days without a partition", j.removeOther(ctx))
	return errs
}

// removeDay drops a day's partitions, or removes what it may of their rows.
func (j *Janitor) removeDay(ctx context.Context, day string) error {
	for range dropTries {
		n, err := j.o.Store.DropDay(ctx, day, j.o.Tasks.Milliseconds())
		switch {
		case err == nil && n >= 0:
			j.count("days", 1)
			j.count("tasks", n)
			j.o.Log.Info("a day's finished tasks removed (retention.tasks)", "day", day, "tasks", n)
			return nil
		case err == nil:
			return j.removeRowsOf(ctx, day)
		case store.HasCode(err, timedOut):
			// There is too much of it for one statement. What is removed row by row stays
			// removed, so that there is less each time.
			j.o.Log.Warn("retention: a day is too large to be dropped at once; its tasks are removed one by one first", "day", day, "error", err)
			return j.removeRowsOf(ctx, day)
		case !store.HasCode(err, inUse):
			return err
		}
		j.postponed.Inc()
		if err := sleep(ctx, jitter(time.Second)); err != nil {
			return err
		}
	}
	return errBusy
}

func (j *Janitor) removeRowsOf(ctx context.Context, day string) error {
	arg := dbsqlc.FinishedOfDayParams{Day: day, KeepMs: j.o.Tasks.Milliseconds(), MaxRows: batch}
	total := int64(0)
	defer func() { j.told(day, total) }()
	for {
		start := time.Now()
		ids, err := j.o.Store.FinishedOfDay(ctx, arg)
		if err != nil || len(ids) == 0 {
			return err
		}
		arg.AfterID = ids[len(ids)-1]
		n, err := j.remove(ctx, ids)
		if total += n; err != nil {
			return err
		}
		if err := rest(ctx, start); err != nil {
			return err
		}
	}
}

// remove removes those of the tasks that may be removed.
func (j *Janitor) remove(ctx context.Context, ids []pgid.ID) (int64, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	n, err := j.o.Store.RemoveTasks(ctx, ids, j.o.Tasks.Milliseconds())
	if store.HasCode(err, inUse) {
		j.postponed.Inc()
		return 0, errBusy
	}
	j.count("tasks", int64(n))
	return int64(n), err
}

func (j *Janitor) told(what string, n int64) {
	if n > 0 {
		j.o.Log.Info("finished tasks removed one by one (retention.tasks)", "tasks_of", what, "tasks", n)
	}
}

// loose walks through finished tasks, oldest first, and removes those that ok
// allows.
func (j *Janitor) loose(ctx context.Context, what string, next func(arg dbsqlc.FinishedOtherParams) ([]*dbsqlc.FinishedOtherRow, error), ok func(*dbsqlc.FinishedOtherRow) (bool, error)) error {
	arg := dbsqlc.FinishedOtherParams{KeepMs: j.o.Tasks.Milliseconds(), MaxRows: batch}
	total := int64(0)
	defer func() { j.told(what, total) }()
	for {
		start := time.Now()
		rows, err := next(arg)
		if err != nil || len(rows) == 0 {
			return err
		}
		var ids []pgid.ID
		for _, r := range rows {
			arg.AfterAt, arg.AfterID = r.UpdatedAt, r.ID
			may, err := ok(r)
			if err != nil {
				return err
			}
			if may {
				ids = append(ids, r.ID)
			}
		}
		n, err := j.remove(ctx, ids)
		if total += n; err != nil {
			return err
		}
		if err := rest(ctx, start); err != nil {
			return err
		}
	}
}

func (j *Janitor) removeOther(ctx context.Context) error {
	return j.loose(ctx, "days without a partition", func(arg dbsqlc.FinishedOtherParams) ([]*dbsqlc.FinishedOtherRow, error) {
		return j.o.Store.FinishedOther(ctx, arg)
	}, func(*dbsqlc.FinishedOtherRow) (bool, error) { return true, nil })
}

// removeNamed removes tasks that their callers named. Such an id can be used
// again once its task is gone, under the same deliveries: so nothing of the
// first one may be left in Redis.
func (j *Janitor) removeNamed(ctx context.Context) error {
	quiet := map[string]time.Time{}
	return j.loose(ctx, "callers' names", func(arg dbsqlc.FinishedOtherParams) ([]*dbsqlc.FinishedOtherRow, error) {
		rows, err := j.o.Store.FinishedNamed(ctx, dbsqlc.FinishedNamedParams(arg))
		out := make([]*dbsqlc.FinishedOtherRow, len(rows))
		for i, r := range rows {
			out[i] = (*dbsqlc.FinishedOtherRow)(r)
		}
		return out, err
	}, func(r *dbsqlc.FinishedOtherRow) (bool, error) {
		before, known := quiet[r.Queue]
		if !known {
			var err error
			if before, err = j.quietBefore(ctx, r.Queue); err != nil {
				return false, err
			}
			quiet[r.Queue] = before
		}
		return r.UpdatedAt.Before(before), nil
	})
}
