package dispatch_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// TestRulesOverLongListsHoldUpNothing: tasks of 200 KB that a rule goes through,
// in one queue with another. Those that are too much work wait for people.
func TestRulesOverLongListsHoldUpNothing(t *testing.T) {
	t.Parallel()
	payload := []byte(`{"to":[` + strings.TrimSuffix(strings.Repeat(`{"a":1},`, 25_000), ",") + `]}`)
	for name, c := range map[string]struct {
		n          int
		expression string
		becomes    protocol.State
	}{
		"ordinary": {40, `task.type == "mail" && task.payload.to.exists(x, x.a > 5)`, protocol.StateQueued},
		"too much": {10, `task.type == "mail" && task.payload.to.exists(x, task.payload.to.exists(y, x.a + y.a > 5))`, protocol.StateWaitingApproval},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testkit.NewStores(t)
			r := testkit.NewRig(t, s, s.Config())
			mails, other := testkit.Requests(c.n, "mail"), testkit.Requests(1, "other")
			for i, q := range append(other, mails...) {
				q.ScheduleType, q.DelayMS, q.RequestedBy = "delay", int64(c.n-i+1), "mallory"
				if q.Type == "mail" {
					q.Payload = payload
				}
			}
			r.Enqueue(t, mails...)
			if _, _, err := r.Approval.SaveRule(t.Context(), guard.Rule{Name: "to", Expression: c.expression, Enabled: true}, nil, "root"); err != nil {
				t.Fatal(err)
			}
			r.StartDispatch(t)
			r.WaitState(t, protocol.StateQueued, r.Enqueue(t, other...)...)
			testkit.Eventually(t, fmt.Sprintf("%d tasks %s", c.n, c.becomes), func() (bool, string) {
				got := r.Count(t, "SELECT count(*) FROM tasks WHERE type = 'mail' AND state = $1", c.becomes)
				return got == c.n, fmt.Sprint(got)
			})
		})
	}
}
