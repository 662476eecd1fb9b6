package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// attempts runs a program whose first attempt goes on for ever.
const attempts = "concurrency: 1\nhandlers:\n  once: {kind: exec, command: [sh, -c, 'if [ \"$PENSTOCK_TASK_ATTEMPT\" = 1 ]; then sleep 1000; fi; echo \"$PENSTOCK_TASK_ATTEMPT\"']}\n"

// A worker that stands still, long before its lease is over: its task is
// retried elsewhere once timeout and grace are past, and ends once. What the
// worker says when it goes on is refused.
func TestWorkerThatStandsStill(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 10 * time.Minute}
	addr := freeAddr(t)
	s.orchestrator(addr, "PENSTOCK_RECOVERY_TIMEOUT_GRACE=1s", "PENSTOCK_RETRY_BASE=10ms")
	waitReady(t, addr)
	c := testkit.Client(t, "http://"+addr)
	stopped := s.worker(attempts)
	e, err := c.EnqueueTask(t.Context(), &task.Request{Type: "once", Payload: json.RawMessage("1"), Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the task runs", func() (bool, string) {
		got, err := c.Get(t.Context(), "", e.TaskID)
		return err == nil && got.State == "running", fmt.Sprint(got, err)
	})
	signal := func(sig syscall.Signal) {
		t.Helper()
		if err := stopped.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	healthy := s.worker(attempts)
	got, err := c.Wait(t.Context(), "", e.TaskID)
	if err != nil || got.State != "succeeded" || got.Attempt != 2 || got.Delivery != 2 || string(got.Result) != "2" || got.WorkerId != healthy.workerID(t) {
		t.Errorf("%v, %v; want the second attempt to succeed in the other worker", got, err)
	}
	es := history(t, c, e.TaskID, "task.created", "task.claimed", "task.retry_scheduled", "task.claimed", "task.succeeded")
	retry := es[2]
	if retry.Actor != protocol.ActorTimeout || retry.ErrorCode != "TASK_TIMEOUT" || retry.WorkerId != stopped.workerID(t) ||
		!strings.Contains(retry.Reason, "the worker did not answer within 1s after the timeout of 1s") {
		t.Errorf("the retry: %v", retry)
	}
	if after := retry.OccurredAt.AsTime().Sub(es[1].OccurredAt.AsTime()); after < 2*time.Second || after > 10*time.Second {
		t.Errorf("timed out %s after the claim, want about 2s", after)
	}
	signal(syscall.SIGCONT)
	es = history(t, c, e.TaskID, "task.created", "task.claimed", "task.retry_scheduled", "task.claimed", "task.succeeded", "task.transition_rejected")
	var d protocol.RejectedData
	if err := json.Unmarshal(es[5].Data, &d); err != nil || d.Delivery != 1 || d.Kind != protocol.OutcomeFailed || es[5].WorkerId != stopped.workerID(t) {
		t.Errorf("refused: %v", es[5])
	}
	for _, w := range []*process{stopped, healthy} {
		w.stop(t, syscall.SIGTERM)
	}
	testkit.VerifyLog(t, s.Stores)
}

// history waits until the task has exactly these events.
func history(t *testing.T, c *client.Client, id string, want ...string) (es []*penstockv1.Event) {
	t.Helper()
	testkit.Eventually(t, "events "+strings.Join(want, ", "), func() (bool, string) {
		res, err := c.RPC().ListEvents(t.Context(), connect.NewRequest(&penstockv1.ListEventsRequest{TaskId: id}))
		if err != nil {
			return false, err.Error()
		}
		es = res.Msg.Events
		types := make([]string, len(es))
		for i, e := range es {
			types[i] = e.Type
		}
		return slices.Equal(types, want), fmt.Sprint(types)
	})
	return es
}
