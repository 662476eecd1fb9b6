package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// injectConfig declares one handler that fails as its payload says.
const injectConfig = "handlers:\n  inject: {kind: inject}\n"

// injected enqueues a task of that handler.
func (s *system) injected(c *client.Client, payload string, opts ...task.Option) string {
	s.t.Helper()
	r := &task.Request{Type: "inject", Payload: json.RawMessage(payload)}
	for _, o := range opts {
		o(r)
	}
	e, err := c.EnqueueTask(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	return e.TaskID
}

// ends waits for the task's end and fails unless state and events are as
// wanted.
func (s *system) ends(c *client.Client, id, state, events string) *client.Task {
	s.t.Helper()
	got, err := c.Wait(s.t.Context(), "", id)
	if err != nil {
		s.t.Fatal(err)
	}
	uuid, _ := protocol.ResolveTaskID(protocol.DefaultTenant, id, time.Now())
	if log := testkit.EventTypes(s.t, s.Stores, uuid); got.State != state || log != events {
		s.t.Errorf("%s with events %s; want %s with %s", got.State, log, state, events)
	}
	return got
}

// A task kills its worker in mid-execution, by SIGKILL and once. What ran in
// that worker runs again in another after the visibility timeout, and no retry
// is spent.
func TestInjectedProcessRestart(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 2 * time.Second}
	addr := freeAddr(t)
	s.orchestrator(addr)
	waitReady(t, addr)
	c := testkit.Client(t, "http://"+addr)
	first := s.worker(injectConfig)
	neighbour := s.injected(c, `{"work_ms":3500}`)
	// The work is long enough for the claim to be on record before the kill.
	id := s.injected(c, `{"mode":"process_restart_interrupt","times":1,"work_ms":2000}`)
	first.wait(t)
	if status := first.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("the worker ended with %v, want SIGKILL", first.err)
	}
	if out := first.out.String(); !strings.Contains(out, "killing this process") || !strings.Contains(out, id) {
		t.Errorf("the worker's log does not say which task killed it:\n%s", out)
	}
	second := s.worker(injectConfig)
	for _, id := range []string{id, neighbour} {
		got := s.ends(c, id, "succeeded",
			"task.created task.claimed task.reclaimed task.interrupted task.queued task.claimed task.succeeded")
		var result struct{ Attempt int }
		if err := json.Unmarshal(got.Result, &result); err != nil || result.Attempt != 1 {
			t.Errorf("result %s, want that of attempt 1", got.Result)
		}
		if got.RetryCount != 0 || got.Interruptions != 1 || got.Delivery != 2 || got.WorkerId != second.workerID(t) {
			t.Errorf("got %v", got)
		}
	}
	var lost int
	if err := s.SQL(t).QueryRow(t.Context(), `SELECT count(*) FROM event_log WHERE type = 'task.interrupted' AND worker_id = $1
		AND error_code = 'TASK_WORKER_LOST'`, first.workerID(t)).Scan(&lost); err != nil || lost != 2 {
		t.Errorf("%d tasks were interrupted in the worker that died (%v), want 2", lost, err)
	}
	second.stop(t, syscall.SIGTERM)
	testkit.VerifyLog(t, s.Stores)
}

// The other modes, as a demonstration would use them.
func TestInjectedFailures(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 20 * time.Second}
	c := testkit.Client(t, testkit.StartOrchestrator(t, s.Config()).URL)
	s.worker(injectConfig)
	const retry = "task.retry_scheduled task.claimed "
	for _, tt := range []struct {
		payload, state, events, reason string
		retries                        int32
	}{
		{`{"mode":"transient_error","times":2,"text":"bank away"}`, "succeeded", "task.created task.claimed " + retry + retry + "task.succeeded", "", 2},
		{`{"mode":"transient_error","attempts":[1]}`, "succeeded", "task.created task.claimed " + retry + "task.succeeded", "", 1},
		{`{"mode":"timeout","times":1}`, "succeeded", "task.created task.claimed " + retry + "task.succeeded", "", 1},
		{`{"mode":"permanent_error","text":"no such card"}`, "failed", "task.created task.claimed task.dlq task.dlq task.failed", "no such card", 0},
		{`{"mode":"transient_error","text":"bank away"}`, "failed", "task.created task.claimed " + retry + retry + "task.dlq task.dlq task.failed", "TASK_EXECUTION_FAILED: bank away", 2},
		{`{"mode":"explode"}`, "failed", "task.created task.claimed task.dlq task.dlq task.failed", `inject: mode is "explode"`, 0},
	} {
		got := s.ends(c, s.injected(c, tt.payload, task.Timeout(500*time.Millisecond), task.MaxRetries(2)), tt.state, tt.events)
		if reason := got.LastErrorReason.GetValue(); got.RetryCount != tt.retries || tt.state == "failed" && !strings.HasPrefix(reason, tt.reason) {
			t.Errorf("%s: %s", tt.payload, fmt.Sprint(got))
		}
	}
	testkit.VerifyLog(t, s.Stores)
}
