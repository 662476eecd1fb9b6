package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/recur"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

func notFound(err error, name string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return protocol.Errorf(protocol.CodeNotFound, "schedule", "no schedule %q", clip(name))
	}
	return err
}

// Find reads a schedule of a tenant ("": default) by its name or id. The error
// is TASK_NOT_FOUND if there is none.
func (s *Stage) Find(ctx context.Context, tenant, name string) (*dbsqlc.Schedule, error) {
	tenant = cmp.Or(tenant, protocol.DefaultTenant)
	if id, err := protocol.ParseID(name); err == nil {
		r, err := s.o.Reads.ScheduleByID(ctx, pgid.ID(id))
		if err == nil && r.Tenant != tenant {
			err = pgx.ErrNoRows
		}
		if err != nil {
			return nil, notFound(err, name)
		}
		return r, nil
	}
	if !nameForm.MatchString(name) || !nameForm.MatchString(tenant) {
		return nil, notFound(pgx.ErrNoRows, name)
	}
	r, err := s.o.Reads.ScheduleByName(ctx, tenant, name)
	if err != nil {
		return nil, notFound(err, name)
	}
	return r, nil
}

// Create stores a schedule of a tenant ("": default). hit is true if there is one
// of that name with the same definition; with another one the error is
// TASK_DUPLICATE. TASK_INPUT_INVALID names the field that is wrong.
func (s *Stage) Create(ctx context.Context, tenant, name string, d Definition, paused bool, principal string) (r *dbsqlc.Schedule, hit bool, err error) {
	if err := checkName(name); err != nil {
		return nil, false, err
	}
	tenant = cmp.Or(tenant, protocol.DefaultTenant)
	now, err := s.o.Store.Clock(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("read the clock: %w", err)
	}
	anchor := now.Truncate(time.Millisecond)
	rule, err := s.check(tenant, &d, anchor)
	if err != nil {
		return nil, false, err
	}
	next, ok := rule.Next(now)
	if !ok {
		return nil, false, d.never()
	}
	task, err := d.Task.marshal()
	if err != nil {
		return nil, false, err
	}
	arg := dbsqlc.InsertScheduleParams{
		ID: pgid.ID(uuid.Must(uuid.NewV7())), Tenant: tenant, Name: name, Cron: optional(d.Cron), EveryMs: optional(d.EveryMS), Timezone: d.Timezone,
		Anchor: anchor, StartAt: store.Timestamptz(d.StartAt), EndAt: store.Timestamptz(d.EndAt), Task: task, Missed: d.Missed, MissedMax: d.MissedMax,
		Overlap: d.Overlap, Paused: paused, NextFireAt: store.Timestamptz(next), CreatedBy: cmp.Or(principal, protocol.Anonymous),
	}
	r, err = s.o.Store.InsertSchedule(ctx, arg)
	if errors.Is(err, pgx.ErrNoRows) {
		return s.existing(ctx, tenant, name, &d)
	}
	if err != nil {
		return nil, false, fmt.Errorf("store schedule %s: %w", name, err)
	}
	s.changed()
	return r, false, nil
}

// existing answers a Create that found the name taken.
func (s *Stage) existing(ctx context.Context, tenant, name string, d *Definition) (*dbsqlc.Schedule, bool, error) {
	r, err := s.o.Store.ScheduleByName(ctx, tenant, name)
	if err != nil {
		return nil, false, notFound(err, name)
	}
	was, err := DefinitionOf(r)
	if err != nil {
		return nil, false, err
	}
	if field := d.differs(was); field != "" {
		return nil, false, protocol.Errorf(protocol.CodeDuplicate, field, "differs from the schedule %s, which exists: update that, or choose another name", name)
	}
	return r, true, nil
}

func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// Update replaces a schedule's definition. If it fires at other times then, the
// next one is the first after now. revision is the one that the caller saw, 0
// for any; TASK_INVALID_TRANSITION if it is another one by now.
func (s *Stage) Update(ctx context.Context, tenant, name string, d Definition, revision int64, principal string) (*dbsqlc.Schedule, error) {
	row, err := s.Find(ctx, tenant, name)
	if err != nil {
		return nil, err
	}
	var out *dbsqlc.Schedule
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		locked, err := q.LockSchedule(ctx, row.ID)
		if err != nil {
			return notFound(err, name)
		}
		r := &locked.Schedule
		if revision != 0 && revision != r.Revision {
			return protocol.Errorf(protocol.CodeInvalidTransition, "revision", "schedule %s is at revision %d, not %d: somebody changed it meanwhile; look at it again", r.Name, r.Revision, revision)
		}
		arg, err := s.replacement(r, &d, locked.Now)
		if err != nil {
			return err
		}
		arg.Principal = cmp.Or(principal, protocol.Anonymous)
		out, err = q.ReplaceSchedule(ctx, arg)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.changed()
	return out, nil
}

func (s *Stage) replacement(r *dbsqlc.Schedule, d *Definition, now time.Time) (arg dbsqlc.ReplaceScheduleParams, err error) {
	was, err := DefinitionOf(r)
	if err != nil {
		was = &Definition{} // whatever replaces it fires at other times
	}
	anchor := r.Anchor
	if d.EveryMS != was.EveryMS {
		anchor = now.Truncate(time.Millisecond)
	}
	rule, err := s.check(r.Tenant, d, anchor)
	if err != nil {
		return arg, err
	}
	next := r.NextFireAt
	// One without a next fire is over, or could not be read until now.
	if same := d.sameTimes(was); !same || !next.Valid {
		after := now
		if r.LastFireAt.Time.After(after) { // it was fired a little ahead
			after = r.LastFireAt.Time
		}
		at, ok := rule.Next(after)
		if !ok && !same {
			return arg, d.never()
		}
		next = store.Timestamptz(at)
	}
	task, err := d.Task.marshal()
	return dbsqlc.ReplaceScheduleParams{
		ID: r.ID, Cron: optional(d.Cron), EveryMs: optional(d.EveryMS), Timezone: d.Timezone, Anchor: anchor, StartAt: store.Timestamptz(d.StartAt),
		EndAt: store.Timestamptz(d.EndAt), Task: task, Missed: d.Missed, MissedMax: d.MissedMax, Overlap: d.Overlap, NextFireAt: next,
	}, err
}

// Pause stops a schedule from firing, or lets it fire again: then principal ("":
// anonymous) had a hand in what it makes. To do so again changes nothing.
func (s *Stage) Pause(ctx context.Context, tenant, name string, paused bool, principal string) (*dbsqlc.Schedule, error) {
	row, err := s.Find(ctx, tenant, name)
	if err != nil {
		return nil, err
	}
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		locked, err := q.LockSchedule(ctx, row.ID)
		if err != nil {
			return notFound(err, name)
		}
		if row = &locked.Schedule; row.Paused == paused {
			return nil
		}
		row, err = q.PauseSchedule(ctx, dbsqlc.PauseScheduleParams{ID: row.ID, Paused: paused, Principal: cmp.Or(principal, protocol.Anonymous)})
		return err
	})
	if err != nil {
		return nil, err
	}
	s.changed()
	return row, nil
}

// Delete removes a schedule and the record of its fires. Its tasks stay.
func (s *Stage) Delete(ctx context.Context, tenant, name string) error {
	row, err := s.Find(ctx, tenant, name)
	if err != nil {
		return err
	}
	n, err := s.o.Store.DeleteSchedule(ctx, row.ID)
	if err == nil && n == 0 {
		err = notFound(pgx.ErrNoRows, name)
	}
	return err
}

// List returns a tenant's schedules ("": default) after a name, in order.
func (s *Stage) List(ctx context.Context, tenant, after string, limit int) ([]*dbsqlc.Schedule, error) {
	return s.o.Reads.ListSchedules(ctx, dbsqlc.ListSchedulesParams{Tenant: cmp.Or(tenant, protocol.DefaultTenant), AfterName: after, MaxRows: int32(limit)})
}

// Fires returns what became of the fire times of a schedule before a moment,
// newest first, and the names of tasks that have one.
func (s *Stage) Fires(ctx context.Context, tenant, name string, before time.Time, limit int) ([]*dbsqlc.ScheduleFire, map[pgid.ID]string, error) {
	row, err := s.Find(ctx, tenant, name)
	if err != nil {
		return nil, nil, err
	}
	fires, err := s.o.Reads.ListFires(ctx, dbsqlc.ListFiresParams{ScheduleID: row.ID, Before: before, MaxRows: int32(limit)})
	if err != nil {
		return nil, nil, fmt.Errorf("read the fires of schedule %s: %w", name, err)
	}
	var ids []pgid.ID
	for _, f := range fires {
		if f.TaskID != nil && protocol.ID(*f.TaskID).Named() {
			ids = append(ids, *f.TaskID)
		}
	}
	names := map[pgid.ID]string{}
	if len(ids) == 0 {
		return fires, names, nil
	}
	rows, err := s.o.Reads.TaskNames(ctx, ids)
	for _, r := range rows {
		names[r.ID] = store.Deref(r.Name)
	}
	return fires, names, err
}

// Next returns the next n fire times of a schedule after a moment; zero: now.
func (s *Stage) Next(ctx context.Context, tenant, name string, after time.Time, n int) ([]time.Time, error) {
	row, err := s.Find(ctx, tenant, name)
	if err != nil {
		return nil, err
	}
	d, err := DefinitionOf(row)
	if err != nil {
		return nil, err
	}
	rule, err := d.rule(row.Anchor)
	if err != nil {
		return nil, err
	}
	return s.times(ctx, rule, after, n)
}

// Preview returns the next n times of a rule that is not stored. The error is
// TASK_INPUT_INVALID if it is none.
func (s *Stage) Preview(ctx context.Context, spec recur.Spec, after time.Time, n int) ([]time.Time, error) {
	if spec.Anchor = after; after.IsZero() {
		now, err := s.o.Reads.Clock(ctx)
		if err != nil {
			return nil, err
		}
		spec.Anchor, after = now.Truncate(time.Millisecond), now
	}
	rule, err := recur.New(spec)
	if f := recur.AsFault(err); f != nil {
		return nil, bad(f.Field, "%s", f.Message)
	}
	return s.times(ctx, rule, after, n)
}

func (s *Stage) times(ctx context.Context, rule *recur.Rule, after time.Time, n int) (out []time.Time, err error) {
	if after.IsZero() {
		if after, err = s.o.Reads.Clock(ctx); err != nil {
			return nil, fmt.Errorf("read the clock: %w", err)
		}
	}
	for at, ok := rule.Next(after); ok && len(out) < n; at, ok = rule.Next(at) {
		out = append(out, at)
	}
	return out, nil
}
