package deadletter_test

import (
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// rig runs dispatch and what applies outcomes; the dead-letter stage is a
// test's own to step through.
func rig(t *testing.T) *testkit.Rig {
	t.Helper()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	return r
}

// givenUp makes n tasks that have failed for good, up to dlq_pending.
func givenUp(t *testing.T, r *testkit.Rig, n int) []protocol.ID {
	t.Helper()
	ids := r.Enqueue(t, testkit.Requests(n, "t")...)
	giveUp(t, r, ids)
	return ids
}

// giveUp fails tasks for good.
func giveUp(t *testing.T, r *testkit.Rig, ids []protocol.ID) {
	t.Helper()
	hs := r.Fetch(t, "w", len(ids))
	for _, h := range hs {
		o := h.Outcome(protocol.OutcomeFailed)
		o.Error = "the cause"
		r.Report(t, o)
	}
	r.Ack(t, hs...)
	r.WaitState(t, protocol.StateDLQPending, ids...)
}

func events(t *testing.T, r *testkit.Rig, id protocol.ID, want ...string) {
	t.Helper()
	if got := testkit.EventTypes(t, r.Stores, id); got != strings.Join(want, " ") {
		t.Errorf("task %s: events %q, want %q", id, got, strings.Join(want, " "))
	}
}

// letters reads stream:dlq as strings.
func letters(t *testing.T, r *testkit.Rig) []map[string]string {
	t.Helper()
	ms, err := r.Raw.XRange(t.Context(), protocol.StreamDLQ, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]map[string]string, len(ms))
	for i, m := range ms {
		out[i] = map[string]string{}
		for k, v := range m.Values {
			out[i][k] = v.(string)
		}
	}
	return out
}

func sweep(t *testing.T, r *testkit.Rig, want int) {
	t.Helper()
	if n, err := r.DeadLetter.Sweep(t.Context()); err != nil || n != want {
		t.Errorf("sweep: %d, %v; want %d", n, err, want)
	}
}
