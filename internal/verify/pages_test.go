package verify_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
)

// More tasks and events than fit into a page are verified as few are, however
// they are chosen; what differs at the edges of a page is found.
func TestPages(t *testing.T) {
	t.Parallel()
	const tasks = 2500
	s := testkit.NewStores(t)
	db := s.SQL(t)
	if _, err := db.Exec(t.Context(), manyTasks, tasks); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), longLog, 5000); err != nil {
		t.Fatal(err)
	}
	rows, err := db.Query(t.Context(), "SELECT id FROM tasks ORDER BY id DESC")
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[pgid.ID])
	if err != nil {
		t.Fatal(err)
	}
	ids := pgid.IDs(all)
	modes := map[string]verify.Options{
		"all": {}, "by creation": {Since: time.Now().Add(-time.Hour)}, "listed": {IDs: append(ids, ids[:7]...)},
	}
	st := s.Store(t)
	check := func(differences int64) {
		t.Helper()
		for name, o := range modes {
			seen := map[string]bool{}
			o.Store, o.Report = st, func(d verify.Difference) { seen[d.ID] = true }
			sum, err := verify.Run(t.Context(), o)
			if err != nil || sum.Tasks != tasks || sum.Retries != tasks/20 || sum.Differences != differences || len(seen) != int(differences) {
				t.Errorf("%s: %+v, error %v; want %d differences, one a task", name, sum, err, differences)
			}
		}
	}
	check(0)
	for _, i := range []int{0, 1, 499, 500, 501, 999, 1000, 1001, 1499, 1500, 1501, 1999, 2000, 2001, 2498, 2499} {
		if _, err := db.Exec(t.Context(), "UPDATE tasks SET trace_id = 'y' WHERE id = $1", all[i]); err != nil {
			t.Fatal(err)
		}
	}
	check(16)
	// Neighbours of tasks that belong to none.
	before, after := protocol.ID(all[999]), protocol.ID(all[1000])
	before[8], after[8] = 0xff, 0
	for _, id := range []protocol.ID{before, after, {}, {15: 1}} {
		if _, err := db.Exec(t.Context(), `INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
			VALUES ($1, 1, 'task.created', 'queued', 1, 1, 'api', 'x', now())`, pgid.ID(id)); err != nil {
			t.Fatal(err)
		}
	}
	orphans := 0
	_, err = verify.Run(t.Context(), verify.Options{Store: st, Report: func(d verify.Difference) {
		if d.Check == verify.CheckOrphan {
			orphans++
		}
	}})
	if err != nil || orphans != 4 {
		t.Errorf("%d orphans found, want 4; error %v", orphans, err)
	}
}
