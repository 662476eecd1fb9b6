package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// events returns a task's events as the API shows them.
func (s *system) events(c *client.Client, id string) []*penstockv1.Event {
	s.t.Helper()
	res, err := c.RPC().ListEvents(s.t.Context(), connect.NewRequest(&penstockv1.ListEventsRequest{TaskId: id, PageSize: 1000}))
	if err != nil {
		s.t.Fatalf("events of %s: %v", id, err)
	}
	return res.Msg.Events
}

// TestAcceptanceTQP3 is the third acceptance of the task queue protocol: a
// worker is stopped and started again; what it had pending is reclaimed after
// the visibility timeout, and done.
func TestAcceptanceTQP3(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 3 * time.Second}
	addr := freeAddr(t)
	s.orchestrator(addr)
	waitReady(t, addr)
	c := testkit.Client(t, "http://"+addr)
	first := s.worker(injectConfig)
	var ids []string
	for range 3 {
		ids = append(ids, s.injected(c, `{"work_ms":4000}`))
	}
	for _, id := range ids {
		testkit.Eventually(t, "the task runs", func() (bool, string) {
			got, err := c.Get(t.Context(), "", id)
			return err == nil && got.State == "running", fmt.Sprint(got, err)
		})
	}
	first.kill()
	killed := time.Now()
	pending, err := s.Redis(t).XPending(t.Context(), protocol.StreamTask, protocol.GroupWorkers).Result()
	if err != nil || pending.Count != 3 || pending.Consumers[first.workerID(t)] != 3 {
		t.Errorf("pending after the kill: %v, %v", pending, err)
	}
	second := s.worker(injectConfig)
	for _, id := range ids {
		got := s.ends(c, id, "succeeded", "task.created task.claimed task.reclaimed task.interrupted task.queued task.claimed task.succeeded")
		if got.RetryCount != 0 || got.Interruptions != 1 || got.WorkerId != second.workerID(t) {
			t.Errorf("%v; want it done by the new worker, and no retry spent", got)
		}
		es := s.events(c, id)
		if len(es) < 3 {
			continue
		}
		var d protocol.ReclaimData
		if err := json.Unmarshal(es[2].Data, &d); err != nil || d.OriginalConsumer != first.workerID(t) || !strings.HasPrefix(d.NewConsumer, "orchestrator") ||
			d.MessageID == "" || d.MessageID != es[1].MessageId || d.IdleMS < s.visibility.Milliseconds() {
			t.Errorf("task.reclaimed says %+v (%v); want who held which entry, who took it, and that it was idle for %s", d, err, s.visibility)
		}
		// Its lease may have been renewed a moment before the kill.
		if waited := es[2].OccurredAt.AsTime().Sub(killed); waited > 3*s.visibility+10*time.Second {
			t.Errorf("reclaimed %s after the kill", waited)
		}
	}
	second.stop(t, syscall.SIGTERM)
	testkit.VerifyLog(t, s.Stores) // nothing is pending, and each task has one final event
}

// TestAcceptanceP3CInterruption is the recovery sequence of the runtime
// reliability baseline, section 4, with the fields of section 3: running; the
// process dies; a recovery loop finds the run and marks it as interrupted; the
// scheduler brings it back to running; the worker writes succeeded.
func TestAcceptanceP3CInterruption(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 3 * time.Second}
	addr := freeAddr(t)
	s.orchestrator(addr)
	waitReady(t, addr)
	c := testkit.Client(t, "http://"+addr)
	first := s.worker(injectConfig)
	id := s.injected(c, `{"mode":"process_restart_interrupt","times":1,"work_ms":1500}`)
	first.wait(t)
	s.worker(injectConfig)
	if got, err := c.Wait(t.Context(), "", id); err != nil || got.State != "succeeded" {
		t.Fatalf("%v, %v", got, err)
	}
	var states []protocol.State
	var steps []string
	run := fmt.Sprintf("%s:1", id) // an interruption is no new attempt: the run goes on
	for _, e := range s.events(c, id) {
		if e.PreviousStatus == e.Status { // no change of state
			continue
		}
		states = append(states, protocol.State(e.Status))
		steps = append(steps, fmt.Sprintf("%s %s", e.Actor, e.Status))
		if e.RunId != run || e.TaskId != id || e.Attempt != 1 || e.IdempotencyKey != id || e.NextRetryAt != nil || e.EventId == "" ||
			!strings.HasPrefix(e.TraceId, "trace-run-"+run+"-") {
			t.Errorf("fields of %v", e)
		}
		if wantCode := map[bool]string{true: string(protocol.CodeWorkerLost)}[e.Status == "interrupted"]; e.ErrorCode != wantCode {
			t.Errorf("%s has error code %q, want %q", e.Type, e.ErrorCode, wantCode)
		}
	}
	// What the baseline calls one step, to be scheduled again, is two here.
	if got := protocol.VocabularyP3C.Path(states); got != "queued -> running -> interrupted -> queued -> running -> succeeded" {
		t.Errorf("states %s", got)
	}
	if got := strings.Join(steps, ", "); got != "api queued, worker running, reclaimer interrupted, dispatcher queued, worker running, worker succeeded" {
		t.Errorf("who made which step: %s", got)
	}
	testkit.VerifyLog(t, s.Stores)
}
