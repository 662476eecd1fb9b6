package reclaim_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

const visibility = 600 * time.Millisecond

func short(s testkit.Stores) config.Orchestrator {
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout = visibility
	cfg.Recovery.ReconcileInterval = time.Hour
	return cfg
}

// onEach runs a test on the shared Redis and on one without XAUTOCLAIM.
func onEach(t *testing.T, test func(t *testing.T, s testkit.Stores)) {
	t.Helper()
	t.Run("XAUTOCLAIM", func(t *testing.T) {
		t.Parallel()
		test(t, testkit.NewStores(t))
	})
	t.Run("by hand", func(t *testing.T) {
		t.Parallel()
		test(t, testkit.Stores{PostgresURL: testkit.Database(t), RedisURL: testkit.StartRedis(t, testkit.NoXAutoClaim...)})
	})
}

// rig runs what dispatches and applies, and no reclaimer.
func rig(t *testing.T) *testkit.Rig {
	t.Helper()
	return rigOn(t, testkit.NewStores(t))
}

func rigOn(t *testing.T, s testkit.Stores) *testkit.Rig {
	t.Helper()
	return rigWith(t, s, visibility)
}

// rigWith is rigOn with another visibility timeout.
func rigWith(t *testing.T, s testkit.Stores, timeout time.Duration) *testkit.Rig {
	t.Helper()
	cfg := short(s)
	cfg.Recovery.VisibilityTimeout = timeout
	r := testkit.NewRig(t, s, cfg)
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	r.Start(t, r.DeadLetter.Run)
	r.Start(t, r.DeadLetter.RunIngest)
	return r
}

// age makes entries of the default queue idle for as long as given.
func age(t *testing.T, r *testkit.Rig, idle time.Duration, hs ...testkit.Held) {
	t.Helper()
	for _, h := range hs {
		if err := r.Raw.Do(t.Context(), "XCLAIM", protocol.StreamTask, protocol.GroupWorkers, h.Consumer, 0, h.MessageID,
			"IDLE", idle.Milliseconds(), "JUSTID").Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func succeed(h testkit.Held) *protocol.Outcome {
	o := h.Outcome(protocol.OutcomeSucceeded)
	o.Result = []byte("1")
	return o
}

// finish has a healthy worker do the next n executions.
func finish(t *testing.T, r *testkit.Rig, n int) []testkit.Held {
	t.Helper()
	hs := r.Fetch(t, "healthy", n)
	for _, h := range hs {
		r.Report(t, succeed(h))
	}
	r.Ack(t, hs...)
	return hs
}

func events(t *testing.T, r *testkit.Rig, id protocol.ID, want ...string) {
	t.Helper()
	if got := testkit.EventTypes(t, r.Stores, id); got != strings.Join(want, " ") {
		t.Errorf("task %s: events %q, want %q", id, got, strings.Join(want, " "))
	}
}

func pending(t *testing.T, r *testkit.Rig) int64 {
	t.Helper()
	i, err := r.Client.Info(t.Context(), protocol.StreamTask, protocol.GroupWorkers)
	if err != nil {
		t.Fatal(err)
	}
	return i.Pending
}

func settled(t *testing.T, r *testkit.Rig) {
	t.Helper()
	testkit.Eventually(t, "all outcomes are applied", func() (bool, string) {
		i, err := r.Client.Info(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators)
		return err == nil && i.Undelivered+i.Pending == 0, fmt.Sprintf("%+v, %v", i, err)
	})
}
