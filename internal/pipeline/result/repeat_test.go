package result_test

import (
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// An orchestrator applied outcomes and died before it acknowledged them. By the
// time that another one takes them over their task has been retried and is
// done: they are repeats, not refused. What was never applied still is.
func TestRepeatsAfterTheTaskWentOn(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Result.TakeOver = time.Hour
	r := testkit.NewRig(t, s, cfg)
	r.StartDispatch(t)
	h := fetched(t, r, 1)[0]
	stranger := succeeded(h) // of a worker that was thought lost
	stranger.WorkerID, stranger.MessageID = "stranger", "1-1"
	stranded := []*protocol.Outcome{h.Outcome(protocol.OutcomeClaimed), failed(h, true), stranger}
	r.Report(t, stranded...)
	es, err := r.Client.ReadNow(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators, "dead-0", 10)
	if err != nil || len(es) != 3 {
		t.Fatalf("%d outcomes, %v", len(es), err)
	}
	r.Report(t, stranded[:2]...) // what the dead one committed
	r.Start(t, r.Results.Run)
	again := r.Fetch(t, "w2", 1)[0]
	r.Report(t, succeeded(again))
	r.WaitState(t, protocol.StateSucceeded, h.ID)
	r.Ack(t, h, again)

	cfg.Result.TakeOver = 100 * time.Millisecond
	second := testkit.NewRig(t, s, cfg)
	second.Start(t, second.Results.Run)
	applied(t, r)
	events(t, r, h.ID, "task.created", "task.claimed", "task.retry_scheduled", "task.claimed", "task.succeeded", "task.transition_rejected")
	if n := r.Count(t, "SELECT count(*) FROM event_log WHERE type = 'task.transition_rejected' AND worker_id = 'stranger'"); n != 1 {
		t.Errorf("%d outcomes of the stranger were refused, want 1", n)
	}
	testkit.VerifyLog(t, s)
}
