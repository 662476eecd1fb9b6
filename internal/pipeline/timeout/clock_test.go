package timeout_test

import (
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// Whatever a worker's clock says: its task has its whole timeout from the moment
// at which Postgres heard of the claim.
func TestAWorkersClockMovesNoDeadline(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"hours behind": -3 * time.Hour, "hours ahead": 3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig(t)
			id := r.Enqueue(t, requests(1, 3)...)[0]
			// It has waited in its stream for longer than its timeout and the grace.
			if _, err := r.DB.Exec(t.Context(), "UPDATE tasks SET created_at = created_at - interval '1 hour', updated_at = updated_at - interval '1 hour', timeout_ms = 60000 WHERE id = $1", pgid.ID(id)); err != nil {
				t.Fatal(err)
			}
			h := r.Fetch(t, "w", 1)[0]
			o := h.Outcome(protocol.OutcomeClaimed)
			o.StartedAt = o.StartedAt.Add(off)
			r.Report(t, o)
			r.WaitState(t, protocol.StateRunning, id)
			if next := look(t, r); next <= 0 {
				t.Errorf("the time is over %s ago", -next)
			}
			if row := r.Row(t, id); row.State != protocol.StateRunning || row.Delivery != 1 {
				t.Errorf("%+v, want it running", row)
			}
			var waited, claimed time.Duration
			if err := r.DB.QueryRow(t.Context(), "SELECT started_at - created_at, claimed_at - created_at FROM tasks WHERE id = $1", pgid.ID(id)).Scan(&waited, &claimed); err != nil {
				t.Fatal(err)
			}
			if waited < 0 || waited > claimed || claimed < time.Hour {
				t.Errorf("started %s and claimed %s after it was created", waited, claimed)
			}
			testkit.VerifyEvents(t, r.Stores)
		})
	}
}
