package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/pipeline/cancel"
	"github.com/penstock-dev/penstock/internal/pipeline/schedule"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// Three orchestrators race for the same schedules and are cut off in the middle
// of their work again and again: every fire time has one fire and one task.
func TestOneFirePerDueTime(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	rigs := []*rig{newRig(t, s), newRig(t, s), newRig(t, s)}
	const schedules, each = 8, 30
	for i := range schedules {
		name := fmt.Sprintf("s-%d", i)
		rigs[0].create(t, name, definition(1))
		rigs[0].late(t, name, each)
	}
	done := func() bool {
		return rigs[0].Count(t, "SELECT count(*) FROM schedules WHERE next_fire_at <= now()") == 0
	}
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, r := range rigs {
		wg.Go(func() {
			for longest := 20 * time.Millisecond; ctx.Err() == nil; longest += 10 * time.Millisecond {
				// It is killed within milliseconds, wherever it is; on a slow machine
				// it lives longer after a while.
				life, kill := context.WithTimeout(ctx, rand.N(longest))
				for life.Err() == nil {
					if _, _, err := r.stage.Fire(life); err != nil && life.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("fire: %v", err)
						kill()
						return
					}
				}
				kill()
			}
		})
	}
	testkit.Eventually(t, "all have fired", func() (bool, string) {
		return done() && rigs[0].Count(t, "SELECT count(*) FROM schedule_fires") >= schedules*each,
			fmt.Sprint(rigs[0].Count(t, "SELECT count(*) FROM schedule_fires"), " fires")
	})
	stop()
	wg.Wait()
	r := rigs[0]
	if n := r.Count(t, "SELECT count(*) FROM schedule_fires WHERE kind <> 'due' OR result <> 'fired'"); n != 0 {
		t.Errorf("%d fires were not due and fired", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM (SELECT fire_at - lag(fire_at) OVER (PARTITION BY schedule_id ORDER BY fire_at) AS step FROM schedule_fires) x WHERE step <> interval '1 second'"); n != 0 {
		t.Errorf("%d gaps between fires", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM schedules s WHERE next_fire_at <> (SELECT max(fire_at) FROM schedule_fires f WHERE f.schedule_id = s.id) + interval '1 second' OR last_fire_at <> next_fire_at - interval '1 second'"); n != 0 {
		t.Errorf("%d schedules do not follow their last fire", n)
	}
	fires, tasks := r.Count(t, "SELECT count(*) FROM schedule_fires"), r.Count(t, "SELECT count(*) FROM tasks")
	if fires != tasks {
		t.Errorf("%d fires, %d tasks", fires, tasks)
	}
	r.want(t, "none", nil)
	testkit.VerifyEvents(t, s)
}

func TestMissedFires(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	// Ten fire times, ten minutes apart, the last of them two minutes ago.
	policy := func(missed string, most int32) func(*schedule.Definition) {
		return func(d *schedule.Definition) { d.Missed, d.MissedMax = missed, most }
	}
	for name, d := range map[string]schedule.Definition{
		"skip": definition(600, policy("skip", 0)), "once": definition(600, policy("run_once", 0)),
		"all": definition(600, policy("run_all", 0)), "some": definition(600, policy("run_all", 3)),
	} {
		r.create(t, name, d)
		r.late(t, name, 9)
	}
	r.exec(t, "UPDATE schedules SET anchor = anchor - interval '2 minutes', next_fire_at = next_fire_at - interval '2 minutes'")
	r.fire(t)
	r.want(t, "skip", map[string]int{"missed skipped_missed": 1})
	r.want(t, "once", map[string]int{"missed skipped_missed": 1, "missed fired": 1})
	r.want(t, "all", map[string]int{"missed fired": 10})
	r.want(t, "some", map[string]int{"missed skipped_missed": 1, "missed fired": 3})
	if n := r.Count(t, "SELECT count(*) FROM schedules WHERE next_fire_at <= now() OR next_fire_at > now() + interval '10 minutes'"); n != 0 {
		t.Errorf("%d schedules did not catch up", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM schedule_fires WHERE result = 'skipped_missed' AND until - fire_at NOT IN (interval '90 minutes', interval '80 minutes', interval '60 minutes')"); n != 0 {
		t.Errorf("%d of the skipped stretches have another length", n)
	}
	// Nothing is left to do.
	if n, _, err := r.stage.Fire(t.Context()); n != 0 || err != nil {
		t.Errorf("another look fired %d, %v", n, err)
	}
	testkit.VerifyEvents(t, r.Stores)
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	row := r.create(t, "s", definition(10, func(d *schedule.Definition) { d.Overlap = "skip" }))
	r.late(t, "s", 3)
	r.fire(t)
	r.want(t, "s", map[string]int{"due fired": 1, "due skipped_overlap": 3})
	// A fire by hand is stopped, too, and recorded.
	f, task, err := r.stage.Trigger(t.Context(), "", "s", "", "bob")
	if err != nil || task != "" || f.Result != "skipped_overlap" || f.Kind != "manual" {
		t.Errorf("trigger: %+v, %q, %v", f, task, err)
	}
	var text string
	if err := r.DB.QueryRow(t.Context(), "SELECT id::text FROM tasks WHERE schedule_id = $1", protocol.ID(row.ID).String()).Scan(&text); err != nil {
		t.Fatal(err)
	}
	id, err := protocol.ParseID(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Cancel.Cancel(t.Context(), id, cancel.Reason{Text: "over"}); err != nil {
		t.Fatal(err)
	}
	r.late(t, "s", 0)
	if _, task, err = r.stage.Trigger(t.Context(), "", "s", "", "bob"); err != nil || task == "" {
		t.Errorf("trigger after the task ended: %q, %v", task, err)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	r.create(t, "s", definition(600))
	for _, paused := range []bool{true, true} {
		if row, err := r.stage.Pause(t.Context(), "", "s", paused, "ada"); err != nil || !row.Paused || row.Revision != 2 {
			t.Fatalf("pause: %+v, %v", row, err)
		}
	}
	r.late(t, "s", 5)
	r.fire(t)
	r.want(t, "s", nil)
	f, task, err := r.stage.Trigger(t.Context(), "", "s", "", "bob")
	if err != nil || f.Kind != "manual" || task == "" {
		t.Fatalf("trigger: %+v, %v", f, err)
	}
	if row, err := r.stage.Pause(t.Context(), "", "s", false, "ada"); err != nil || row.Paused {
		t.Fatalf("resume: %+v, %v", row, err)
	}
	r.exec(t, "UPDATE schedules SET anchor = anchor - interval '2 minutes', next_fire_at = next_fire_at - interval '2 minutes'")
	r.fire(t)
	r.want(t, "s", map[string]int{"manual fired": 1, "missed skipped_missed": 1, "missed fired": 1})
	if n := r.Count(t, "SELECT count(*) FROM tasks WHERE requested_by = 'ada' AND rescheduled_by = '{bob}'"); n != 1 {
		t.Errorf("%d tasks name who triggered them, want 1", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM tasks WHERE requested_by = 'ada' AND rescheduled_by = '{}' AND state = 'pending'"); n != 1 {
		t.Errorf("%d tasks of fire times, want 1", n)
	}
}

// A trigger whose answer was lost can be repeated.
func TestTriggerIsRepeatable(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	r.create(t, "s", definition(600))
	r.create(t, "other", definition(600))
	first, task, err := r.stage.Trigger(t.Context(), "", "s", "by-hand", "bob")
	if err != nil || task != "by-hand" {
		t.Fatalf("%q, %v", task, err)
	}
	again, task, err := r.stage.Trigger(t.Context(), "", "s", "by-hand", "bob")
	if err != nil || task != "by-hand" || !again.FireAt.Equal(first.FireAt) {
		t.Errorf("again: %+v, %q, %v", again, task, err)
	}
	if _, _, err := r.stage.Trigger(t.Context(), "", "other", "by-hand", "bob"); protocol.CodeOf(err) != protocol.CodeDuplicate {
		t.Errorf("another schedule's task with that id: %v", err)
	}
	r.want(t, "s", map[string]int{"manual fired": 1})
	r.want(t, "other", nil)
	fires, names, err := r.stage.Fires(t.Context(), "", "s", time.Now().Add(time.Hour), 10)
	if err != nil || len(fires) != 1 || names[*fires[0].TaskID] != "by-hand" {
		t.Errorf("fires %+v, names %v, %v", fires, names, err)
	}
}

// The tasks of a schedule that is deleted are done all the same.
func TestDeleteLeavesTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	r.create(t, "s", definition(10))
	r.late(t, "s", 2)
	r.fire(t)
	held := r.Fetch(t, "w", 3)
	if err := r.stage.Delete(t.Context(), "", "s"); err != nil {
		t.Fatal(err)
	}
	if err := r.stage.Delete(t.Context(), "", "s"); protocol.CodeOf(err) != protocol.CodeNotFound {
		t.Errorf("deleted twice: %v", err)
	}
	for _, h := range held {
		o := h.Outcome(protocol.OutcomeSucceeded)
		o.Result = []byte("1")
		r.Report(t, o)
		r.Ack(t, h)
		r.WaitState(t, protocol.StateSucceeded, h.ID)
	}
	if n := r.Count(t, "SELECT count(*) FROM schedule_fires"); n != 0 {
		t.Errorf("%d fires are left", n)
	}
	testkit.VerifyQuiet(t, r.Stores)
}

// A template that the configuration does not allow any more stops nothing else.
func TestRefusedTask(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	for _, name := range []string{"bad", "unreadable", "good"} {
		r.create(t, name, definition(10))
		r.late(t, name, 1)
	}
	r.exec(t, `UPDATE schedules SET task = '{"type": "no type at all"}' WHERE name = 'bad'`)
	r.exec(t, `UPDATE schedules SET timezone = 'Europe/Atlantis' WHERE name = 'unreadable'`)
	r.fire(t)
	r.want(t, "bad", map[string]int{"due failed": 2})
	r.want(t, "unreadable", map[string]int{"due failed": 1})
	r.want(t, "good", map[string]int{"due fired": 2})
	if n := r.Count(t, "SELECT count(*) FROM schedule_fires WHERE result = 'failed' AND error IS NULL"); n != 0 {
		t.Errorf("%d fires do not tell why", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM schedules WHERE next_fire_at IS NULL"); n != 1 {
		t.Errorf("%d schedules fire no more, want the unreadable one", n)
	}
}

// Records of fires go, those of schedules that fire stay.
func TestOldFiresAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	r.create(t, "s", definition(10))
	r.late(t, "s", 3)
	r.fire(t)
	r.exec(t, "UPDATE schedule_fires SET fired_at = fired_at - interval '2 hours' WHERE fire_at <= (SELECT min(fire_at) + interval '10 seconds' FROM schedule_fires)")
	r.Start(t, r.stage.Run)
	testkit.Eventually(t, "old records are gone", func() (bool, string) {
		n := r.Count(t, "SELECT count(*) FROM schedule_fires WHERE fired_at < now() - interval '1 hour'")
		return n == 0, fmt.Sprint(n)
	})
	if n := r.Count(t, "SELECT count(*) FROM schedule_fires"); n < 2 {
		t.Errorf("%d records are left, want at least 2", n)
	}
}
