package schedule_test

import (
	"context"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/pipeline/retention"
	"github.com/penstock-dev/penstock/internal/pipeline/schedule"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// Retention removes the tasks of a schedule and leaves the schedule and the
// record of its fires, however old they are.
func TestRetentionLeavesSchedules(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	r.create(t, "s", definition(600))
	f, _, err := r.stage.Trigger(t.Context(), "", "s", "by-hand", "bob")
	if err != nil {
		t.Fatal(err)
	}
	id := protocol.ID(*f.TaskID)
	h := r.Fetch(t, "w", 1)[0]
	r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
	r.Ack(t, h)
	r.WaitState(t, protocol.StateSucceeded, id)
	r.exec(t, `UPDATE tasks SET created_at = created_at - interval '90 days', updated_at = updated_at - interval '90 days',
		started_at = started_at - interval '90 days', finished_at = finished_at - interval '90 days'`)
	r.exec(t, "UPDATE event_log SET occurred_at = occurred_at - interval '90 days'")
	r.exec(t, "UPDATE schedules SET created_at = created_at - interval '90 days', updated_at = updated_at - interval '90 days'")
	r.exec(t, "UPDATE schedule_fires SET fired_at = fired_at - interval '90 days'")
	janitor := retention.New(retention.Options{
		Store: r.Store, Redis: r.Client, Trim: time.Hour, Tasks: 72 * time.Hour, Queues: func(context.Context) ([]string, error) { return []string{"default"}, nil }, Log: testkit.Log(t),
	})
	if err := janitor.RemoveTasks(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := r.Count(t, "SELECT count(*) FROM tasks"); n != 0 {
		t.Fatalf("%d tasks are left, want none", n)
	}
	fires, _, err := r.stage.Fires(t.Context(), "", "s", time.Now().Add(time.Hour), 10)
	if err != nil || len(fires) != 1 || protocol.ID(*fires[0].TaskID) != id {
		t.Errorf("fires %v, %v", fires, err)
	}
	testkit.VerifyEvents(t, r.Stores)
	r.late(t, "s", 0)
	r.fire(t)
	if n := r.Count(t, "SELECT count(*) FROM tasks WHERE schedule_id IS NOT NULL"); n != 1 {
		t.Errorf("%d tasks of the next fire time, want 1", n)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// A schedule that fires no more goes on when it is updated; one that is over can
// be changed, and stays over.
func TestUpdateMendsTheNextFire(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	d := definition(10)
	r.create(t, "s", d)
	r.late(t, "s", 1)
	r.exec(t, "UPDATE schedules SET timezone = 'Europe/Atlantis'")
	r.fire(t)
	r.exec(t, "UPDATE schedules SET timezone = 'UTC'") // the zone is known again
	row, err := r.stage.Update(t.Context(), "", "s", d, 0, "bob")
	if err != nil || !row.NextFireAt.Valid || row.NextFireAt.Time.Before(time.Now().Add(-time.Second)) {
		t.Errorf("next fire %v, %v", row, err)
	}
	r.exec(t, `UPDATE schedules SET task = '{"type": 1}'`)
	r.late(t, "s", 0)
	r.fire(t)
	if row, err = r.stage.Update(t.Context(), "", "s", d, 0, "bob"); err != nil || !row.NextFireAt.Valid {
		t.Errorf("a task that could not be read: %v, %v", row, err)
	}
	over := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	d.EndAt = over
	if _, err = r.stage.Update(t.Context(), "", "s", d, 0, "bob"); err != nil {
		t.Fatal(err)
	}
	r.exec(t, "UPDATE schedules SET next_fire_at = NULL, end_at = date_trunc('second', now() - interval '1 hour')")
	if row, err = r.stage.Find(t.Context(), "", "s"); err != nil {
		t.Fatal(err)
	}
	d.EndAt, d.Task.Payload = row.EndAt.Time, []byte(`{"n":3}`)
	if row, err = r.stage.Update(t.Context(), "", "s", d, 0, "bob"); err != nil || row.NextFireAt.Valid {
		t.Errorf("one that is over: %v, %v", row, err)
	}
	d.EveryMS = 20_000
	if _, err = r.stage.Update(t.Context(), "", "s", d, 0, "bob"); field(err) != "spec.end_at" {
		t.Errorf("other times of one that is over: %v", err)
	}
}

// What would only come after year 9999 is refused, with the field that says so.
func TestNoFireTimeBeforeTheEndOfTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	d := schedule.Definition{Cron: "0 0 1 1 *", StartAt: time.Date(9999, 1, 2, 0, 0, 0, 0, time.UTC), Task: schedule.Template{Type: "t"}}
	if _, _, err := r.stage.Create(t.Context(), "", "s", d, false, "ada"); field(err) != "spec.start_at" {
		t.Errorf("create: %v", err)
	}
	d = schedule.Definition{EveryMS: 1000, StartAt: time.Date(9999, 12, 31, 23, 59, 58, 0, time.UTC), Task: schedule.Template{Type: "t"}}
	if _, _, err := r.stage.Create(t.Context(), "", "s", d, false, "ada"); err != nil {
		t.Fatal(err)
	}
	times, err := r.stage.Next(t.Context(), "", "s", time.Time{}, 10)
	if err != nil || len(times) != 2 {
		t.Errorf("%v, %v; want two times", times, err)
	}
}

// field is that of a fault of the input, "" else.
func field(err error) string {
	if e, ok := err.(*protocol.Error); ok && e.Code == protocol.CodeInputInvalid { //nolint:errorlint // as the stage returns it
		return e.Field
	}
	return ""
}
