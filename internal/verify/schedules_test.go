package verify_test

import (
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/pipeline/schedule"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/internal/verify"
)

// Fires and their tasks agree, and what breaks that is found.
func TestFiresAndTheirTasks(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	stage := schedule.New(schedule.Options{
		Store: r.Store, Enqueue: app.ScheduleTasks(r.Enqueuer), MissedGrace: time.Minute, KeepFires: time.Hour, Wake: r.Dispatch.Wake, Log: testkit.Log(t),
	})
	if _, _, err := stage.Create(t.Context(), "", "s", schedule.Definition{EveryMS: 600_000, Task: schedule.Template{Type: "t"}}, false, "ada"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		if _, _, err := stage.Trigger(t.Context(), "", "s", id, "ada"); err != nil {
			t.Fatal(err)
		}
	}
	exec := func(sql string) {
		t.Helper()
		if tag, err := r.DB.Exec(t.Context(), sql); err != nil || tag.RowsAffected() == 0 {
			t.Fatalf("%s: %v, %v", sql, tag, err)
		}
	}
	clean(t, s, verify.Options{})
	for _, c := range []struct{ name, do, undo, field string }{
		{"no schedule", "UPDATE tasks SET schedule_id = NULL WHERE name = 'a'", "UPDATE tasks SET schedule_id = (SELECT id FROM schedules) WHERE name = 'a'", "schedule of task"},
		{"another schedule", "UPDATE tasks SET schedule_id = gen_random_uuid() WHERE name = 'a'", "UPDATE tasks SET schedule_id = (SELECT id FROM schedules) WHERE name = 'a'", "schedule of task"},
		{"another time", "UPDATE tasks SET scheduled_at = scheduled_at + interval '1 second' WHERE name = 'a'", "UPDATE tasks SET scheduled_at = scheduled_at - interval '1 second' WHERE name = 'a'", "time of task"},
		{"no task", "UPDATE schedule_fires f SET task_id = gen_random_uuid() FROM tasks t WHERE f.task_id = t.id AND t.name = 'a'",
			"UPDATE schedule_fires f SET task_id = (SELECT id FROM tasks WHERE name = 'a') WHERE f.task_id <> (SELECT id FROM tasks WHERE name = 'b')", "task"},
		{"one task for two fires", "INSERT INTO schedule_fires SELECT schedule_id, fire_at - interval '1 hour', until, kind, result, task_id FROM schedule_fires LIMIT 1",
			"DELETE FROM schedule_fires WHERE fire_at < now() - interval '30 minutes'", "fires of task"},
	} {
		exec(c.do)
		_, found := run(t, s, verify.Options{})
		seen := false
		for _, d := range found {
			if d.Check != verify.CheckSchedule {
				t.Errorf("%s: %s %s", c.name, d.Check, d)
			}
			seen = seen || len(d.Field) >= len(c.field) && d.Field[:len(c.field)] == c.field
		}
		if !seen {
			t.Errorf("%s: found %v, want a difference in %s", c.name, found, c.field)
		}
		exec(c.undo)
		clean(t, s, verify.Options{})
	}
	// Retention may have removed what is old, and a task may be given another time.
	exec("UPDATE schedule_fires SET task_id = gen_random_uuid(), fired_at = now() - interval '3 days' WHERE task_id = (SELECT id FROM tasks WHERE name = 'a')")
	exec("UPDATE tasks SET scheduled_at = scheduled_at + interval '1 hour', asked_schedule = '{}' WHERE name = 'b'")
	clean(t, s, verify.Options{})
}
