package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
)

const (
	// batch is how many tasks or keys are removed in one transaction.
	batch = 500
	// checkBatch is how many tasks of a partition are looked at in one transaction.
	checkBatch = 20000
	// dropTries is how often a partition is tried in one round. Each try makes the
	// pipeline wait for 0.2 s at most.
	dropTries = 3
)

// inUse is what Postgres says when a lock could not be had in time, and our
// functions when another transaction is at it.
const inUse = "55P03"

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
// whole partitions where nothing in them must be kept, else row by row.
func (j *Janitor) RemoveTasks(ctx context.Context) error {
	if j.o.Tasks <= 0 {
		return nil
	}
	parts, err := j.o.Store.OldPartitions(ctx, j.o.Tasks.Milliseconds())
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
	for _, p := range parts {
		part := days{p.FirstDay, p.NextDay}
		note(part.String(), j.removeDays(ctx, part))
	}
	note("callers' names", j.removeNamed(ctx))
	note("days without a partition", j.removeOther(ctx))
	return errs
}

// days are those of a partition: from first on, before next.
type days struct{ first, next pgtype.Date }

func (d days) String() string {
	return d.first.Time.Format(time.DateOnly) + " to " + d.next.Time.AddDate(0, 0, -1).Format(time.DateOnly)
}

// removeDays drops a partition, or removes what it may of its rows.
func (j *Janitor) removeDays(ctx context.Context, d days) error {
	kept, err := j.check(ctx, d)
	if err != nil {
		return err
	}
	if kept {
		return j.removeRowsOf(ctx, d)
	}
	for range dropTries {
		n, err := j.o.Store.DropDays(ctx, d.first, d.next)
		switch {
		case err == nil && n >= 0:
			j.count("partitions", 1)
			j.count("tasks", n)
			j.o.Log.Info("a partition of finished tasks removed (retention.tasks)", "days", d, "tasks", n)
			return nil
		case err == nil:
			return j.removeRowsOf(ctx, d)
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

// check has the database look at a partition's tasks, so many at a time, and tells
// whether one must be kept.
func (j *Janitor) check(ctx context.Context, d days) (kept bool, err error) {
	for {
		start := time.Now()
		more, err := j.o.Store.CheckDays(ctx, dbsqlc.CheckDaysParams{FirstDay: d.first, NextDay: d.next, KeepMs: j.o.Tasks.Milliseconds(), MaxRows: checkBatch})
		switch {
		case store.HasCode(err, inUse):
			j.postponed.Inc()
			return false, errBusy
		case err != nil || more <= 0:
			return more < 0, err
		}
		if err := rest(ctx, start); err != nil {
			return false, err
		}
	}
}

func (j *Janitor) removeRowsOf(ctx context.Context, d days) error {
	arg := dbsqlc.FinishedOfDaysParams{FirstDay: d.first, NextDay: d.next, KeepMs: j.o.Tasks.Milliseconds(), MaxRows: batch}
	total := int64(0)
	defer func() { j.told(d.String(), total) }()
	for {
		start := time.Now()
		ids, err := j.o.Store.FinishedOfDays(ctx, arg)
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
