package schedule_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/pipeline/schedule"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/testkit"
)

func TestMain(m *testing.M) { devtest.Main(m) }

const (
	grace = time.Minute
	keep  = time.Hour
)

// rig is a deployment without loops, and the stage of one orchestrator.
type rig struct {
	*testkit.Rig
	stage *schedule.Stage
}

func newRig(t *testing.T, s testkit.Stores) *rig {
	t.Helper()
	cfg := s.Config()
	r := &rig{Rig: testkit.NewRig(t, s, cfg)}
	r.stage = newStage(t, r.Rig)
	return r
}

func newStage(t *testing.T, r *testkit.Rig) *schedule.Stage {
	t.Helper()
	return schedule.New(schedule.Options{
		Store: r.Store, Enqueue: app.ScheduleTasks(r.Enqueuer), MissedGrace: grace, KeepFires: keep, Wake: r.Dispatch.Wake, Log: testkit.Log(t),
	})
}

// definition fires every n seconds.
func definition(n int64, change ...func(*schedule.Definition)) schedule.Definition {
	d := schedule.Definition{EveryMS: n * 1000, Task: schedule.Template{Type: "t", Payload: json.RawMessage(`{"n":1}`)}}
	for _, f := range change {
		f(&d)
	}
	return d
}

func (r *rig) create(t *testing.T, name string, d schedule.Definition) *dbsqlc.Schedule {
	t.Helper()
	row, hit, err := r.stage.Create(t.Context(), "", name, d, false, "ada")
	if err != nil || hit {
		t.Fatalf("create %s: hit %t, %v", name, hit, err)
	}
	return row
}

// late puts the clock of a schedule back: its next fire was due so many of its
// intervals ago.
func (r *rig) late(t *testing.T, name string, intervals int) {
	t.Helper()
	r.exec(t, "UPDATE schedules SET anchor = anchor - $2 * every_ms * interval '1 millisecond', next_fire_at = next_fire_at - $2 * every_ms * interval '1 millisecond' WHERE name = $1", name, intervals+1)
}

func (r *rig) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := r.DB.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// fire fires until nothing is due.
func (r *rig) fire(t *testing.T) {
	t.Helper()
	for {
		n, more, err := r.stage.Fire(t.Context())
		if err != nil {
			t.Fatalf("fire: %v", err)
		}
		if n == 0 || !more {
			return
		}
	}
}

// want checks how many fires there are of each kind and result.
func (r *rig) want(t *testing.T, name string, want map[string]int) {
	t.Helper()
	rows, err := r.DB.Query(t.Context(), "SELECT f.kind || ' ' || f.result, count(*) FROM schedule_fires f JOIN schedules s ON s.id = f.schedule_id WHERE s.name = $1 GROUP BY 1", name)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	got := map[string]int{}
	for rows.Next() {
		var what string
		var n int
		if err := rows.Scan(&what, &n); err != nil {
			t.Fatal(err)
		}
		got[what] = n
	}
	for _, what := range keys(got, want) {
		if got[what] != want[what] {
			t.Errorf("schedule %s: %d %s, want %d (all: %v)", name, got[what], what, want[what], got)
		}
	}
	if n := r.Count(t, "SELECT count(*) FROM schedule_fires f LEFT JOIN tasks t ON t.id = f.task_id WHERE (f.task_id IS NOT NULL) <> (t.id IS NOT NULL) OR t.scheduled_at <> f.fire_at OR t.schedule_id <> f.schedule_id"); n != 0 {
		t.Errorf("%d fires do not agree with their task", n)
	}
}

func keys(maps ...map[string]int) (all []string) {
	for _, m := range maps {
		for k := range m {
			all = append(all, k)
		}
	}
	return all
}
