package alert_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// replicas are two orchestrators' stages on the same stores: above 50 % and at
// least 5 retrying tasks, above 5 dead letters of a tenant, 4 refused outcomes
// in a row, within an hour. They evaluate when a test says so.
func replicas(t *testing.T) [2]*testkit.Rig {
	t.Helper()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Alerts.Interval, cfg.Alerts.Window = time.Hour, time.Hour
	cfg.Alerts.RetryingPercent, cfg.Alerts.RetryingMinimum, cfg.Alerts.DLQGrowth, cfg.Alerts.InvalidInARow = 50, 5, 5, 4
	return [2]*testkit.Rig{testkit.NewRig(t, s, cfg), testkit.NewRig(t, s, cfg)}
}

// evaluate has both replicas look at once, at a time when that is due.
func evaluate(t *testing.T, rs [2]*testkit.Rig) {
	t.Helper()
	sql(t, rs[0], "UPDATE alert_round SET claimed_until = now(), evaluated_at = NULL")
	var wg sync.WaitGroup
	for _, r := range rs {
		wg.Go(func() {
			if _, err := r.Alerts.Look(t.Context()); err != nil {
				t.Errorf("look: %v", err)
			}
		})
	}
	wg.Wait()
}

func sql(t *testing.T, r *testkit.Rig, text string, args ...any) {
	t.Helper()
	if _, err := r.DB.Exec(t.Context(), text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// live makes the tasks be these, by state.
func live(t *testing.T, r *testkit.Rig, states map[protocol.State]int) {
	t.Helper()
	sql(t, r, "DELETE FROM tasks")
	for state, n := range states {
		sql(t, r, `INSERT INTO tasks (id, tenant, queue, type, state, next_retry_at, max_retries, schedule_type, timeout_ms, idempotency_scope, given, trace_id, payload)
			SELECT gen_random_uuid(), 't', 'q', 'x', $1::text, CASE $1::text WHEN 'retrying' THEN now() END, 3, 'now', 1, 't', 0, 'tr', '1' FROM generate_series(1, $2)`, state, n)
	}
}

// die gives a tenant n new dead letters of tasks.
func die(t *testing.T, r *testkit.Rig, tenant string, n int) {
	t.Helper()
	sql(t, r, `INSERT INTO dlq_items (dlq_id, task_id, tenant, error_code, error, retry_count, failed_at)
		SELECT gen_random_uuid(), gen_random_uuid(), $1, 'TASK_RETRY_EXHAUSTED', 'e', 3, now() FROM generate_series(1, $2)`, tenant, n)
}

// state tells which alerts there are: "kind tenant=seq", with ! if it fires.
func state(t *testing.T, r *testkit.Rig) string {
	t.Helper()
	rows, err := r.DB.Query(t.Context(), "SELECT kind || ' ' || tenant || '=' || seq || CASE WHEN firing THEN '!' ELSE '' END FROM alerts ORDER BY kind, tenant")
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, ", ")
}

// want checks the alerts that there are, and that each was an event as often as
// it says.
func want(t *testing.T, r *testkit.Rig, when, alerts string) {
	t.Helper()
	if got := state(t, r); got != alerts {
		t.Errorf("%s: alerts %q, want %q", when, got, alerts)
	}
	if n := r.Count(t, `SELECT count(*) FROM alerts a WHERE seq <> (SELECT count(*) FROM event_log e WHERE e.task_id = a.id)
		OR seq <> (SELECT max(e.seq) FROM event_log e WHERE e.task_id = a.id)`); n != 0 {
		t.Errorf("%s: %d alerts have other events than their seq says", when, n)
	}
}

// event is an alert.raised as it was stored.
type event struct{ Type, Status, Previous, Actor, Trace, Reason, Data string }

func raised(t *testing.T, r *testkit.Rig, kind protocol.AlertKind, tenant string, seq int) (e event) {
	t.Helper()
	err := r.DB.QueryRow(t.Context(), `SELECT type, status, COALESCE(previous_status, 'null'), actor, trace_id, reason, data::text FROM event_log
		WHERE task_id = $1 AND seq = $2 AND attempt = 1 AND delivery = 0`, pgid.ID(protocol.AlertID(kind, tenant)), seq).Scan(
		&e.Type, &e.Status, &e.Previous, &e.Actor, &e.Trace, &e.Reason, &e.Data)
	if err != nil {
		t.Fatalf("event %d of %s of %q: %v", seq, kind, tenant, err)
	}
	if id := protocol.AlertID(kind, tenant); e.Type != "alert.raised" || e.Status != "" || e.Previous != "null" || e.Actor != "alerts" || e.Trace != "alert-"+id.String() {
		t.Errorf("event of %s of %q: %+v", kind, tenant, e)
	}
	return e
}

// settled waits until every outcome is applied or refused.
func settled(t *testing.T, r *testkit.Rig) {
	t.Helper()
	testkit.Eventually(t, "all outcomes are judged", func() (bool, string) {
		i, err := r.Client.Info(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators)
		return err == nil && i.Undelivered+i.Pending == 0, fmt.Sprintf("%+v, %v", i, err)
	})
}
