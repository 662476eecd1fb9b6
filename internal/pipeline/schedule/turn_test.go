package schedule_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/pipeline/schedule"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A long catch-up of some schedules holds up nobody who is in time.
func TestCatchUpHoldsUpNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	const behind, each = 12, 250
	for i := range behind {
		name := fmt.Sprint("behind-", i)
		r.create(t, name, definition(600, func(d *schedule.Definition) { d.Missed, d.MissedMax = "run_all", 1000 }))
		r.late(t, name, each-1)
	}
	// The last of theirs was two minutes ago.
	r.exec(t, "UPDATE schedules SET anchor = anchor - interval '2 minutes', next_fire_at = next_fire_at - interval '2 minutes'")
	round, caughtUp := &schedule.Round{}, false
	for turn := range 5 {
		name := fmt.Sprint("in-time-", turn)
		r.create(t, name, definition(600))
		r.late(t, name, 0)
		n, more, err := r.stage.Turn(t.Context(), round)
		if err != nil || n < 2 {
			t.Fatalf("turn %d fired %d, %v", turn, n, err)
		}
		caughtUp = !more
		r.want(t, name, map[string]int{"due fired": 1})
	}
	if fires := r.Count(t, "SELECT count(*) FROM schedule_fires WHERE kind = 'missed'"); caughtUp || fires == behind*each {
		t.Fatalf("the others have caught up, with %d fires: that tells nothing", fires)
	}
	r.fire(t)
	for i := range behind {
		r.want(t, fmt.Sprint("behind-", i), map[string]int{"missed fired": each})
	}
	testkit.VerifyEvents(t, r.Stores)
}

// Who comes late to a schedule within a round doesn't call missed what came due
// since the round began, but does so with what was missed in a pause.
func TestMissedCountsFromWhereTheRoundBegan(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := newRig(t, s)
	quick := schedule.New(schedule.Options{
		Store: r.Store, Enqueue: refusing{}, MissedGrace: 50 * time.Millisecond, KeepFires: keep, Wake: r.Dispatch.Wake, Log: testkit.Log(t),
	})
	for _, name := range []string{"first", "busy", "paused"} {
		r.create(t, name, definition(1, func(d *schedule.Definition) { d.Missed = "skip" }))
	}
	r.exec(t, "UPDATE schedules SET paused = true WHERE name <> 'first'")
	r.late(t, "first", 0)
	round := &schedule.Round{}
	if n, _, err := quick.Turn(t.Context(), round); n != 1 || err != nil {
		t.Fatalf("the round began with %d schedules, %v", n, err)
	}
	r.exec(t, "UPDATE schedules SET paused = true WHERE name = 'first'")
	testkit.Eventually(t, "the round takes seconds", func() (bool, string) {
		return r.Count(t, "SELECT count(*) FROM schedules WHERE name = 'busy' AND next_fire_at < now() - interval '2 seconds'") == 1, ""
	})
	r.exec(t, "UPDATE schedules SET paused = false WHERE name = 'busy'")
	if _, err := quick.Pause(t.Context(), "", "paused", false, "ada"); err != nil {
		t.Fatal(err)
	}
	if n, _, err := quick.Turn(t.Context(), round); n != 2 || err != nil {
		t.Fatalf("fired %d schedules, %v", n, err)
	}
	if n := r.Count(t, "SELECT count(*) FROM schedule_fires f JOIN schedules s ON s.id = f.schedule_id WHERE s.name = 'busy' AND f.kind = 'missed'"); n != 0 {
		t.Errorf("%d fire times of this round count as missed", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM schedule_fires f JOIN schedules s ON s.id = f.schedule_id WHERE s.name = 'busy' AND f.result = 'failed'"); n < 3 {
		t.Errorf("%d fire times of this round were tried, want at least 3", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM schedule_fires f JOIN schedules s ON s.id = f.schedule_id WHERE s.name = 'paused' AND f.result = 'skipped_missed'"); n != 1 {
		t.Errorf("what was missed in the pause has %d records, want 1", n)
	}
}

// refusing refuses every task.
type refusing struct{ schedule.Enqueuer }

func (refusing) Check(*schedule.Task) error {
	return protocol.Errorf(protocol.CodeInputInvalid, "type", "is refused")
}

func (refusing) CreateTx(_ context.Context, _ *dbsqlc.Queries, ts []*schedule.Task) error {
	if len(ts) > 0 {
		return fmt.Errorf("%d tasks were not checked", len(ts))
	}
	return nil
}

// The loop shows signs of life as long as it catches up.
func TestLoopIsAliveInACatchUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	r.create(t, "s", definition(600, func(d *schedule.Definition) { d.Missed, d.MissedMax = "run_all", 1000 }))
	r.late(t, "s", 300)
	pulse := &lifecycle.Pulse{}
	stage := schedule.New(schedule.Options{
		Store: r.Store, Enqueue: app.ScheduleTasks(r.Enqueuer), MissedGrace: grace, KeepFires: keep, Wake: r.Dispatch.Wake, Pulse: pulse, Log: testkit.Log(t),
	})
	r.Start(t, stage.Run)
	testkit.Eventually(t, "it has caught up", func() (bool, string) {
		if err := pulse.Check(); err != nil {
			t.Fatal(err)
		}
		n := r.Count(t, "SELECT count(*) FROM schedule_fires WHERE result = 'fired'")
		return n >= 300, fmt.Sprint(n)
	})
}
