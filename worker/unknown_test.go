package worker_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// No worker knows a type for too long: the task is handed back after growing
// delays, and ends as a dead letter. Once a worker knows the type, its requeue
// runs.
func TestATypeThatStaysUnknown(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *config.Orchestrator) { c.Recovery.UnknownTypeTimeout = 2500 * time.Millisecond })
	nothing := func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil }
	old := b.worker(worker.Options{Concurrency: 2}, func(w *worker.Worker) { w.HandleRaw("other", nothing) })
	id := b.enqueue(task.Request{Type: "new"})
	for range 3 {
		b.wait(b.enqueue(task.Request{Type: "other"})) // meanwhile others run
	}
	got := b.wait(id)
	if got.State != "failed" || got.LastErrorCode.GetValue() != "TASK_UNKNOWN_TYPE" || got.RetryCount != 0 || got.Interruptions != 0 ||
		!strings.Contains(got.LastErrorReason.GetValue(), "no worker has known the type for") {
		t.Errorf("%v, want a dead letter with TASK_UNKNOWN_TYPE", got)
	}
	// Handed back at 0 s, 1 s and 3 s; the third is after the time.
	es := b.wantEvents(id, "task.created", "task.interrupted", "task.queued", "task.interrupted", "task.queued", "task.interrupted", "task.dlq", "task.dlq", "task.failed")
	for i, least := range map[int]time.Duration{2: time.Second, 4: 2 * time.Second} {
		if i >= len(es) {
			continue
		}
		if d := es[i].OccurredAt.AsTime().Sub(es[i-1].OccurredAt.AsTime()); es[i-1].ErrorCode != string(protocol.CodeUnknownType) || d < least-50*time.Millisecond {
			t.Errorf("dispatched again %s after %v, want at least %s", d, es[i-1], least)
		}
	}
	testkit.VerifyLog(t, b.Stores)
	old.Stop(t)
	b.worker(worker.Options{}, func(w *worker.Worker) { w.HandleRaw("new", nothing) })
	res, err := b.client.DeadLetters().RequeueDeadLetters(t.Context(), connect.NewRequest(&penstockv1.RequeueDeadLettersRequest{
		DlqIds: []string{got.DlqId}, Reason: "a worker knows it now",
	}))
	if err != nil || len(res.Msg.Results) != 1 || res.Msg.Results[0].Error != nil {
		t.Fatalf("requeue: %v, %v", res, err)
	}
	if again := b.wait(res.Msg.Results[0].TaskId); again.State != "succeeded" {
		t.Errorf("the requeue: %v", again)
	}
	testkit.VerifyLog(t, b.Stores)
}
