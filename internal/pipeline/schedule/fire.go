package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Bounds of one transaction.
const (
	maxSchedules = 100     // schedules that are locked
	maxTasks     = 500     // tasks of all of them …
	maxBytes     = 8 << 20 // … and the size of their templates
	maxTurn      = 100     // tasks of one schedule
)

// Fire fires what is due once, and returns how many schedules it dealt with. more
// tells that there may be more of them. What another replica is firing is left to
// it. It is Turn of a Round of its own.
func (s *Stage) Fire(ctx context.Context) (n int, more bool, err error) {
	return s.Turn(ctx, &Round{})
}

// Round is how a replica catches up: turn by turn, until nothing is due.
type Round struct {
	// began is Postgres' clock when it first saw something that is due.
	began time.Time
}

// lane is a part of the schedules that are due: by when their next fire was,
// counted from now.
type lane struct{ from, until time.Duration }

// ever is further back than any fire time that is stored.
const ever = -100 * 365 * 24 * time.Hour

// Turn fires some of the schedules that are in time, and then some of those that
// missed a fire: the catch-up of these, which can be long, holds up nobody else.
// Each is one transaction that holds the rows of the schedules.
func (s *Stage) Turn(ctx context.Context, round *Round) (n int, more bool, err error) {
	for _, l := range []lane{{-s.o.MissedGrace, ahead}, {ever, -s.o.MissedGrace}} {
		k, again, err := s.fire(ctx, round, l)
		if err != nil {
			return n, true, err
		}
		n, more = n+k, more || again && k > 0
	}
	return n, more, nil
}

// fire fires some schedules of a lane in one transaction.
func (s *Stage) fire(ctx context.Context, round *Round, l lane) (n int, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, fireLimit)
	defer cancel()
	var b *batch
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		b = &batch{}
		rows, err := q.LockDueSchedules(ctx, dbsqlc.LockDueSchedulesParams{FromMs: l.from.Milliseconds(), UntilMs: l.until.Milliseconds(), MaxRows: maxSchedules})
		if err != nil || len(rows) == 0 {
			if err != nil {
				err = fmt.Errorf("lock due schedules: %w", err)
			}
			return err
		}
		if b.seen = round.began; b.seen.IsZero() {
			b.seen = rows[0].Now
		}
		live, err := s.live(ctx, q, rows)
		if err != nil {
			return err
		}
		for _, r := range rows {
			b.now = r.Now
			if b.full() {
				b.more = true
				break
			}
			s.take(b, &r.Schedule, live[r.Schedule.ID])
		}
		b.more = b.more || len(rows) == maxSchedules
		err = s.save(ctx, q, b)
		crashpoint.Here("schedule.fired")
		return err
	})
	if err != nil {
		return 0, false, err
	}
	if len(b.advance.Ids) == 0 {
		return 0, false, nil
	}
	crashpoint.Here("schedule.committed")
	round.began = b.seen
	s.told(b)
	return len(b.advance.Ids), b.more, nil
}

// batch is what one transaction does.
type batch struct {
	now     time.Time
	seen    time.Time // when the round began
	tasks   []*Task
	bytes   int
	fires   dbsqlc.InsertFiresParams
	advance dbsqlc.AdvanceSchedulesParams
	more    bool
	wake    time.Time // the earliest due time of a task
}

func (b *batch) full() bool { return len(b.tasks) >= maxTasks || b.bytes >= maxBytes }

// live finds the schedules that have a task that has not ended, among those that
// ask.
func (s *Stage) live(ctx context.Context, q *dbsqlc.Queries, rows []*dbsqlc.LockDueSchedulesRow) (map[pgid.ID]bool, error) {
	var ask []pgid.ID
	for _, r := range rows {
		if r.Schedule.Overlap == OverlapSkip {
			ask = append(ask, r.Schedule.ID)
		}
	}
	return liveOf(ctx, q, ask)
}

func liveOf(ctx context.Context, q *dbsqlc.Queries, ask []pgid.ID) (map[pgid.ID]bool, error) {
	live := map[pgid.ID]bool{}
	if len(ask) == 0 {
		return live, nil
	}
	ids, err := q.LiveOfSchedules(ctx, ask)
	if err != nil {
		return nil, fmt.Errorf("look for live tasks of %d schedules: %w", len(ask), err)
	}
	for _, id := range ids {
		live[id] = true
	}
	return live, nil
}

// take plans one schedule's turn.
func (s *Stage) take(b *batch, r *dbsqlc.Schedule, live bool) {
	d, err := DefinitionOf(r)
	t := turn{
		next: r.NextFireAt.Time, now: b.now, seen: later(b.seen, r.UpdatedAt), grace: s.o.MissedGrace, missed: r.Missed, missedMax: int(r.MissedMax),
		skipsOver: r.Overlap == OverlapSkip, live: live, limit: max(1, min(maxTurn, maxBytes/2/(len(r.Task)+1024))),
	}
	if err == nil {
		t.rule, err = d.rule(r.Anchor)
	}
	if err != nil { // nothing that was checked becomes wrong, unless a time zone is abolished
		s.o.Log.Error("a schedule can't be read and fires no more; update it", "schedule", r.Name, "tenant", r.Tenant, "error", err)
		b.record(r, fire{t.next, t.next, KindDue, ResultFailed}, protocol.ID{}, err.Error())
		b.moveOn(r, time.Time{}, t.next)
		return
	}
	p := t.plan()
	last := time.Time{}
	for _, f := range p.fires {
		last = f.until
		if f.result != ResultFired {
			b.record(r, f, protocol.ID{}, "")
			continue
		}
		job := d.task(r.Tenant, f.at)
		if err := s.o.Enqueue.Check(job); err != nil { // the configuration changed
			s.o.Log.Warn("the task of a schedule is refused; update the schedule", "schedule", r.Name, "tenant", r.Tenant, "error", err)
			f.result = ResultFailed
			b.record(r, f, protocol.ID{}, err.Error())
			continue
		}
		id := protocol.ID(uuid.Must(uuid.NewV7()))
		job.ID, job.RequestedBy, job.Schedule, job.ChangedBy = id.String(), r.CreatedBy, protocol.ID(r.ID), r.ChangedBy
		b.tasks, b.bytes = append(b.tasks, job), b.bytes+len(r.Task)
		if b.wake.IsZero() || f.at.Before(b.wake) {
			b.wake = f.at
		}
		b.record(r, f, id, "")
	}
	b.moveOn(r, p.next, last)
	b.more = b.more || !p.next.IsZero() && !p.next.After(b.now)
}

// later: what a schedule that was paused missed does not count as seen.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (b *batch) record(r *dbsqlc.Schedule, f fire, task protocol.ID, failure string) {
	b.fires.ScheduleIds = append(b.fires.ScheduleIds, r.ID)
	b.fires.FireAts = append(b.fires.FireAts, f.at)
	b.fires.Untils = append(b.fires.Untils, f.until)
	b.fires.Kinds = append(b.fires.Kinds, f.kind)
	b.fires.Results = append(b.fires.Results, f.result)
	b.fires.TaskIds = append(b.fires.TaskIds, pgid.ID(task))
	b.fires.Errors = append(b.fires.Errors, protocol.Text(failure))
}

func (b *batch) moveOn(r *dbsqlc.Schedule, next, last time.Time) {
	b.advance.Ids = append(b.advance.Ids, r.ID)
	b.advance.NextFireAts = append(b.advance.NextFireAts, next)
	b.advance.LastFireAts = append(b.advance.LastFireAts, last)
}

// save stores tasks, fires and the next fire times.
func (s *Stage) save(ctx context.Context, q *dbsqlc.Queries, b *batch) error {
	if err := s.o.Enqueue.CreateTx(ctx, q, b.tasks); err != nil {
		return fmt.Errorf("store %d tasks of schedules: %w", len(b.tasks), err)
	}
	if err := q.InsertFires(ctx, b.fires); err != nil {
		return fmt.Errorf("record %d fires: %w", len(b.fires.FireAts), err)
	}
	if err := q.AdvanceSchedules(ctx, b.advance); err != nil {
		return fmt.Errorf("move %d schedules on: %w", len(b.advance.Ids), err)
	}
	return nil
}

// told counts what was committed and wakes the dispatcher.
func (s *Stage) told(b *batch) {
	for i, result := range b.fires.Results {
		s.fires.WithLabelValues(b.fires.Kinds[i], result).Inc()
		if result == ResultFired && b.fires.Kinds[i] == KindDue {
			s.lateness.Observe(max(b.now.Sub(b.fires.FireAts[i]), 0).Seconds())
		}
	}
	if !b.wake.IsZero() {
		s.o.Wake(b.wake)
	}
}

// manualAt is the time of a fire by hand: Postgres' clock, but never one that a
// rule can have, which is whole milliseconds.
func manualAt(now time.Time) time.Time {
	at := now.Truncate(time.Microsecond)
	if at.Nanosecond()%int(time.Millisecond) == 0 {
		at = at.Add(time.Microsecond)
	}
	return at
}

// Trigger makes a task of a schedule now, for principal ("": anonymous), whether
// or not it is paused; its fire times are not touched. taskID, if given, is the
// task's: a repeat of the call returns the first one's fire. The overlap policy
// applies: then the fire has no task.
func (s *Stage) Trigger(ctx context.Context, tenant, name, taskID, principal string) (f *dbsqlc.ScheduleFire, task string, err error) {
	row, err := s.Find(ctx, tenant, name)
	if err != nil {
		return nil, "", err
	}
	var b *batch
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		b = &batch{}
		r, err := q.LockSchedule(ctx, row.ID)
		if err != nil {
			return notFound(err, name)
		}
		b.now = r.Now
		if f, err = fireOf(ctx, q, &r.Schedule, taskID); err != nil || f != nil {
			return err
		}
		if f, err = s.trigger(ctx, q, b, &r.Schedule, taskID, principal); err != nil {
			return err
		}
		return s.save(ctx, q, b)
	})
	if err != nil {
		return nil, "", err
	}
	if len(b.fires.FireAts) > 0 {
		s.told(b)
	}
	if f.TaskID != nil {
		task = taskID
		if task == "" {
			task = protocol.ID(*f.TaskID).String()
		}
	}
	return f, task, nil
}

// fireOf finds the fire that a call with the same id made, or nil. A UUIDv7 is
// looked up as a name and as it is: which of the two it was stored as depends on
// how old it was then.
func fireOf(ctx context.Context, q *dbsqlc.Queries, r *dbsqlc.Schedule, taskID string) (*dbsqlc.ScheduleFire, error) {
	if taskID == "" {
		return nil, nil
	}
	ids := []protocol.ID{protocol.NameID(r.Tenant, taskID)}
	if id, err := protocol.ParseID(taskID); err == nil && id.Version() == 7 {
		ids = append(ids, id)
	}
	for _, id := range ids {
		known, err := q.FireOfTask(ctx, r.ID, pgid.ID(id))
		if err != nil {
			return nil, fmt.Errorf("look for the fire of task %s: %w", id, err)
		}
		if len(known) > 0 {
			return known[0], nil
		}
	}
	return nil, nil
}

func (s *Stage) trigger(ctx context.Context, q *dbsqlc.Queries, b *batch, r *dbsqlc.Schedule, taskID, principal string) (*dbsqlc.ScheduleFire, error) {
	d, err := DefinitionOf(r)
	if err != nil {
		return nil, err
	}
	at := manualAt(b.now)
	f := fire{at, at, KindManual, ResultFired}
	out := &dbsqlc.ScheduleFire{ScheduleID: r.ID, FireAt: at, Until: at, Kind: f.kind, FiredAt: b.now}
	if r.Overlap == OverlapSkip {
		live, err := liveOf(ctx, q, []pgid.ID{r.ID})
		if err != nil {
			return nil, err
		}
		if live[r.ID] {
			f.result = ResultSkippedOverlap
			out.Result = f.result
			b.record(r, f, protocol.ID{}, "")
			return out, nil
		}
	}
	job := d.task(r.Tenant, at)
	if taskID == "" {
		taskID = uuid.Must(uuid.NewV7()).String()
	}
	id, _ := protocol.ResolveTaskID(r.Tenant, taskID, b.now)
	job.ID, job.RequestedBy, job.Schedule, job.ChangedBy = taskID, r.CreatedBy, protocol.ID(r.ID), with(r, principal)
	b.tasks, b.wake = append(b.tasks, job), b.now
	b.record(r, f, id, "")
	out.Result, out.TaskID = f.result, (*pgid.ID)(&id)
	return out, nil
}

// with are those who changed a schedule, and a principal who triggers it.
func with(r *dbsqlc.Schedule, principal string) []string {
	if principal == "" {
		principal = protocol.Anonymous
	}
	for _, p := range append([]string{r.CreatedBy}, r.ChangedBy...) {
		if p == principal {
			return r.ChangedBy
		}
	}
	return append(append([]string(nil), r.ChangedBy...), principal)
}
