package cancel_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/pipeline/cancel"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

const grace = 300 * time.Millisecond

var why = cancel.Reason{Principal: "ada", Text: "no longer wanted"}

// calm has nothing but cancellation and expiry end a wait.
func calm(s testkit.Stores) config.Orchestrator {
	cfg := s.Config()
	cfg.Recovery.ExpiryGrace = grace
	cfg.Recovery.VisibilityTimeout = time.Hour
	cfg.Recovery.ReconcileInterval = time.Hour
	cfg.Retention.TrimGrace = 0
	cfg.Retention.Tombstones = time.Second
	return cfg
}

// rig runs the dispatcher and what applies outcomes; not the loops of Cancel.
func rig(t *testing.T) *testkit.Rig {
	t.Helper()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, calm(s))
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	r.Start(t, r.DeadLetter.Run)
	r.Start(t, r.DeadLetter.RunIngest)
	return r
}

func requests(n int, edit func(*enqueue.Request)) []*enqueue.Request {
	rs := testkit.Requests(n, "t")
	for _, r := range rs {
		edit(r)
	}
	return rs
}

func later(r *enqueue.Request) { r.ScheduleType, r.DelayMS = "delay", time.Hour.Milliseconds() }

func mustCancel(t *testing.T, r *testkit.Rig, id protocol.ID) {
	t.Helper()
	if already, err := r.Cancel.Cancel(t.Context(), id, why); err != nil || already {
		t.Fatalf("cancel: already %t, %v", already, err)
	}
}

func events(t *testing.T, r *testkit.Rig, id protocol.ID, want string) {
	t.Helper()
	if got := testkit.EventTypes(t, r.Stores, id); got != want {
		t.Errorf("task %s: events %q, want %q", id, got, want)
	}
}

// tombstones returns how many there are in Postgres and in Redis.
func tombstones(t *testing.T, r *testkit.Rig) (rows, members int) {
	t.Helper()
	n, err := r.Client.CountTombstones(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r.Count(t, "SELECT count(*) FROM tombstones"), int(n)
}

func wantTombstones(t *testing.T, r *testkit.Rig, rows, members int) {
	t.Helper()
	if n, m := tombstones(t, r); n != rows || m != members {
		t.Errorf("%d tombstones in Postgres and %d in Redis, want %d and %d", n, m, rows, members)
	}
}

// tombstoned reports whether Redis holds one of the delivery.
func tombstoned(t *testing.T, r *testkit.Rig, id protocol.ID, delivery int64) bool {
	t.Helper()
	found, err := r.Streams(t).Tombstoned(t.Context(), []protocol.Pair{{ID: id, Delivery: delivery}})
	if err != nil {
		t.Fatal(err)
	}
	return found[0]
}

func settled(t *testing.T, r *testkit.Rig) {
	t.Helper()
	testkit.Eventually(t, "all outcomes are applied", func() (bool, string) {
		i, err := r.Client.Info(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators)
		return err == nil && i.Undelivered+i.Pending == 0, fmt.Sprintf("%+v, %v", i, err)
	})
}

// age makes tombstones old enough to be removed.
func age(t *testing.T, r *testkit.Rig) {
	t.Helper()
	if _, err := r.DB.Exec(t.Context(), "UPDATE tombstones SET created_at = created_at - interval '1 hour'"); err != nil {
		t.Fatal(err)
	}
}

// sent waits until no dispatch is open.
func sent(t *testing.T, r *testkit.Rig) {
	t.Helper()
	testkit.Eventually(t, "the outbox is empty", func() (bool, string) {
		return r.Count(t, "SELECT count(*) FROM dispatch_outbox") == 0, ""
	})
}

func remove(t *testing.T, r *testkit.Rig, want int) {
	t.Helper()
	if n, err := r.Cancel.Remove(t.Context()); err != nil || n != want {
		t.Errorf("%d tombstones removed, %v, want %d", n, err, want)
	}
}

func tell(t *testing.T, r *testkit.Rig) {
	t.Helper()
	if err := r.Cancel.Tell(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func succeed(h testkit.Held) *protocol.Outcome {
	o := h.Outcome(protocol.OutcomeSucceeded)
	o.Result = []byte("1")
	return o
}

func skipped(h testkit.Held) *protocol.Outcome {
	o := h.Outcome(protocol.OutcomeSkipped)
	o.StartedAt = time.Time{}
	return o
}
