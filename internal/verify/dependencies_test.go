package verify_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/pipeline/cancel"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
)

// A count that is not that of the edges, and an end that nobody was told of.
func TestTamperedDependencies(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	up := func() protocol.ID {
		return r.Enqueue(t, &enqueue.Request{Type: "t", Payload: []byte(`{}`), ScheduleType: "delay", DelayMS: 3_600_000})[0]
	}
	names, want := map[string]string{}, []string{}
	below := func(name string, tamper string, up protocol.ID, expect string) {
		t.Helper()
		res, err := r.Enqueuer.Enqueue(t.Context(), &enqueue.Request{
			TaskID: uuid.Must(uuid.NewV7()).String(), Type: "t", Payload: []byte(`{}`), DependsOn: []enqueue.Dependency{{TaskID: up.String()}},
		})
		if err != nil {
			t.Fatal(err)
		}
		names[protocol.ID(res.Task().ID).String()] = name
		if tamper != "" {
			if tag, err := r.DB.Exec(t.Context(), tamper, res.Task().ID); err != nil || tag.RowsAffected() != 1 {
				t.Fatalf("%s: %v rows, %v", tamper, tag.RowsAffected(), err)
			}
		}
		want = append(want, expect)
	}
	ended, noted := up(), up()
	below("healthy", "", up(), "")
	below("noted", "", noted, "")
	below("untold", "", ended, "dependencies untold")
	below("miscounted", "UPDATE tasks SET open_dependencies = 2 WHERE id = $1", up(), "dependencies miscounted")
	below("edgeless", "DELETE FROM task_dependencies WHERE task_id = $1", up(), "dependencies edgeless")
	below("marked", "UPDATE task_dependencies SET settled = true WHERE task_id = $1", up(), "dependencies marked")
	for _, id := range []protocol.ID{ended, noted} {
		if _, err := r.Cancel.Cancel(t.Context(), id, cancel.Reason{Principal: "ada"}); err != nil {
			t.Fatal(err)
		}
	}
	if tag, err := r.DB.Exec(t.Context(), "DELETE FROM dependency_settlements WHERE upstream_id = $1", pgid.ID(ended)); err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("%v rows, %v", tag.RowsAffected(), err)
	}
	_, found := run(t, s, verify.Options{})
	if got := brief(found, names); got != join(want) {
		t.Errorf("got  %s\nwant %s", got, join(want))
	}
	for _, d := range found {
		if d.Check != verify.CheckDependencies {
			t.Errorf("%s  %s", d.Check, d)
		}
	}
}
