package e2e

import (
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// The orchestrator dies between the row and the tombstone. The cancellation
// stands: the running handler is told once an orchestrator is back, and what it
// reports changes nothing.
func TestKillBetweenCancelAndTombstone(t *testing.T) {
	t.Parallel()
	c := newCrashed(t, "cancel.committed", 30*time.Second)
	id := c.injected(c.Client, `{"work_ms":600000}`, task.MaxRetries(0))
	c.worker(injectConfig)
	c.eventually("the task runs", "SELECT count(*) = 1 FROM tasks WHERE state = 'running'")
	cancelled := make(chan error, 1)
	go func() {
		_, err := c.Client.CancelTask(t.Context(), "", id, "no longer wanted")
		cancelled <- err
	}()
	c.dies()
	if n := c.count("SELECT count(*) FROM tombstones WHERE NOT told"); n != 1 || c.count("SELECT count(*) FROM tasks WHERE state = 'cancelled'") != 1 {
		t.Fatalf("%d tombstones that nobody was told of, want 1", n)
	}
	if n, err := c.Redis(t).Exists(t.Context(), protocol.KeyTombstones).Result(); n != 0 || err != nil {
		t.Fatalf("Redis holds tombstones, %v", err)
	}
	c.restart()
	if err := <-cancelled; err != nil { // the client asked again: it was cancelled before
		t.Errorf("cancel: %v", err)
	}
	testkit.Eventually(t, "the handler has ended and its entry is acknowledged", func() (bool, string) {
		p, err := c.Redis(t).XPending(t.Context(), protocol.StreamTask, protocol.GroupWorkers).Result()
		return err == nil && p.Count == 0, ""
	})
	if got := c.count("SELECT count(*) FROM event_log WHERE type = 'task.cancelled'"); got != 1 {
		t.Errorf("%d events task.cancelled, want 1", got)
	}
	testkit.VerifyLog(t, c.Stores)
}
