package alert_test

import (
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// Each step sets how many tasks there are by state; both replicas look at once.
func TestRetryingShare(t *testing.T) {
	t.Parallel()
	rs := replicas(t)
	type m = map[protocol.State]int
	for _, s := range []struct {
		when   string
		tasks  m
		alerts string
	}{
		{"nothing", m{}, ""},
		{"too few, all of them retrying", m{"retrying": 4}, ""},
		{"half", m{"retrying": 6, "running": 3, "queued": 3}, ""},
		{"above half; tasks that wait for their time do not count", m{"retrying": 6, "running": 2, "queued": 1, "interrupted": 1, "pending": 50, "waiting_approval": 50}, "retrying_share =1!"},
		{"still", m{"retrying": 60, "running": 1}, "retrying_share =1!"},
		{"hardly below", m{"retrying": 9, "running": 10, "dlq_pending": 1}, "retrying_share =1!"},
		{"hardly above again", m{"retrying": 11, "running": 9}, "retrying_share =1!"},
		{"80 % of the threshold", m{"retrying": 8, "running": 12}, "retrying_share =1"},
		{"between, but not firing", m{"retrying": 9, "running": 10}, "retrying_share =1"},
		{"above once more", m{"retrying": 30}, "retrying_share =2!"},
		{"hardly fewer than the minimum", m{"retrying": 4}, "retrying_share =2!"},
		{"much fewer", m{"retrying": 3}, "retrying_share =2"},
	} {
		live(t, rs[0], s.tasks)
		evaluate(t, rs)
		want(t, rs[0], s.when, s.alerts)
	}
	e := raised(t, rs[0], protocol.AlertRetryingShare, "", 1)
	if e.Data != `{"kind":"retrying_share","severity":"P2","tenant":"","value":60,"threshold":50,"window_ms":0}` ||
		!strings.HasPrefix(e.Reason, "60.0 % of the tasks under way are retrying (6 of 10), more than alerts.retrying_percent = 50: ") {
		t.Errorf("%+v", e)
	}
	testkit.VerifyQuiet(t, rs[0].Stores)
}

func TestDLQGrowth(t *testing.T) {
	t.Parallel()
	rs := replicas(t)
	r := rs[0]
	step := func(when, alerts string) {
		t.Helper()
		evaluate(t, rs)
		want(t, r, when, alerts)
	}
	die(t, r, "many", 5)
	die(t, r, "old", 50)
	sql(t, r, "UPDATE dlq_items SET failed_at = now() - interval '2 hours' WHERE tenant = 'old'")
	sql(t, r, `INSERT INTO dlq_items (dlq_id, tenant, error_code, error, retry_count, failed_at, stream, message_id)
		SELECT gen_random_uuid(), 'default', 'TASK_INPUT_INVALID', 'no task', 0, now(), 'stream:task', 'm' FROM generate_series(1, 50)`)
	step("as many as are allowed, old ones, and entries that are no task", "")
	die(t, r, "many", 1)
	step("one more", "dlq_growth many=1!")
	die(t, r, "many", 100)
	die(t, r, "other", 6)
	step("another tenant", "dlq_growth many=1!, dlq_growth other=1!")
	sql(t, r, "UPDATE dlq_items SET failed_at = failed_at - interval '2 hours' WHERE tenant = 'many'")
	die(t, r, "many", 5)
	step("the window has passed, and the threshold is met again", "dlq_growth many=1!, dlq_growth other=1!")
	sql(t, r, "UPDATE dlq_items SET failed_at = failed_at - interval '1 hour' WHERE dlq_id = (SELECT min(dlq_id::text)::uuid FROM dlq_items WHERE tenant = 'many' AND failed_at > now() - interval '1 hour')")
	step("80 % of the threshold", "dlq_growth many=1, dlq_growth other=1!")
	die(t, r, "many", 2)
	step("again", "dlq_growth many=2!, dlq_growth other=1!")
	sql(t, r, "UPDATE dlq_items SET failed_at = failed_at - interval '1 hour'")
	step("none left in the window", "dlq_growth many=2, dlq_growth other=1")

	e := raised(t, r, protocol.AlertDLQGrowth, "many", 1)
	if e.Data != `{"kind":"dlq_growth","severity":"P2","tenant":"many","value":6,"threshold":5,"window_ms":3600000}` ||
		!strings.HasPrefix(e.Reason, "tenant many got 6 new dead letters within 1h0m0s, more than alerts.dlq_growth = 5: ") {
		t.Errorf("%+v", e)
	}
	testkit.VerifyQuiet(t, r.Stores)
}

// One of all evaluates, when it is due.
func TestOneEvaluates(t *testing.T) {
	t.Parallel()
	rs := replicas(t)
	evaluate(t, rs)
	live(t, rs[0], map[protocol.State]int{"retrying": 10})
	evaluated := func() string {
		t.Helper()
		var at string
		if err := rs[0].DB.QueryRow(t.Context(), "SELECT evaluated_at::text FROM alert_round").Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	look := func(when string, again bool) {
		t.Helper()
		before := evaluated()
		for _, r := range rs {
			if wait, err := r.Alerts.Look(t.Context()); err != nil || wait <= 0 {
				t.Errorf("%s: %s, %v", when, wait, err)
			}
		}
		if got := evaluated() != before; got != again {
			t.Errorf("%s: evaluated: %t, want %t", when, got, again)
		}
	}
	look("just evaluated", false)
	sql(t, rs[0], "UPDATE alert_round SET evaluated_at = now() - interval '59 minutes'")
	look("the interval is not over", false)
	want(t, rs[0], "before", "")
	sql(t, rs[0], "UPDATE alert_round SET evaluated_at = now() - interval '61 minutes', claimed_until = now() + interval '1 minute'")
	look("another replica is at it", false)
	sql(t, rs[0], "UPDATE alert_round SET claimed_until = now(), took_ms = 40000")
	look("the last one took long: a hundred times as much is not over", false)
	sql(t, rs[0], "UPDATE alert_round SET took_ms = 10")
	look("due", true)
	want(t, rs[0], "after", "retrying_share =1!")
}

// What can't be stored is raised later: by the next evaluation, which comes
// after an interval and not at once.
func TestStoreRefuses(t *testing.T) {
	t.Parallel()
	rs := replicas(t)
	live(t, rs[0], map[protocol.State]int{"retrying": 10})
	sql(t, rs[0], "REVOKE INSERT ON event_log FROM penstock_app")
	if wait, err := rs[0].Alerts.Look(t.Context()); err == nil || !strings.Contains(err.Error(), "raise alert retrying_share") || wait <= 0 {
		t.Errorf("look: %s, %v", wait, err)
	}
	want(t, rs[0], "an alert without its event", "")
	sql(t, rs[0], "GRANT INSERT ON event_log TO penstock_app")
	if _, err := rs[1].Alerts.Look(t.Context()); err != nil {
		t.Error(err)
	}
	want(t, rs[0], "right after a failed evaluation", "")
	evaluate(t, rs)
	want(t, rs[0], "later", "retrying_share =1!")
}
