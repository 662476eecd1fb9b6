package result_test

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// The same outcomes again and again, in one batch and in later ones.
func TestRepeatedOutcomes(t *testing.T) {
	t.Parallel()
	r := rig(t)
	hs := fetched(t, r, 3)
	ok, retry, claim := succeeded(hs[0]), failed(hs[1], true), hs[2].Outcome(protocol.OutcomeClaimed)
	r.Report(t, ok, retry, claim, ok, retry, claim)
	r.Start(t, r.Results.Run)
	applied(t, r)
	r.Report(t, ok, retry, claim, ok)
	applied(t, r)
	events(t, r, hs[0].ID, "task.created", "task.claimed", "task.succeeded")
	events(t, r, hs[1].ID, "task.created", "task.claimed", "task.retry_scheduled")
	events(t, r, hs[2].ID, "task.created", "task.claimed")
	r.Report(t, succeeded(hs[2]))
	r.Ack(t, hs...)
	again := r.Fetch(t, "w", 1)[0]
	// The first failure once more, now that the next delivery is out.
	r.Report(t, retry, succeeded(again), retry, retry)
	applied(t, r)
	r.Ack(t, again)
	if row := r.Row(t, hs[1].ID); row.State != protocol.StateSucceeded || row.Attempt != 2 || row.Delivery != 2 {
		t.Errorf("%+v", row)
	}
	testkit.VerifyLog(t, r.Stores)
}

// An outcome that brings its claim with it, then the claim alone.
func TestClaimAfterItsOutcome(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Start(t, r.Results.Run)
	hs := fetched(t, r, 4)
	for i, o := range []*protocol.Outcome{succeeded(hs[0]), failed(hs[1], false), hs[2].Outcome(protocol.OutcomeReleased), hs[3].Outcome(protocol.OutcomeSnoozed)} {
		r.Report(t, o, hs[i].Outcome(protocol.OutcomeClaimed))
	}
	applied(t, r)
	if n := r.Count(t, "SELECT count(*) FROM event_log WHERE type = 'task.transition_rejected'"); n != 0 {
		t.Errorf("%d claims that came late were recorded as rejected: they are no alarm", n)
	}
	r.Ack(t, hs...)
	testkit.VerifyEvents(t, r.Stores)
}

// Outcomes of deliveries that are not the current one, and illegal ones, change
// nothing and are recorded once a (task, delivery).
func TestWrongDeliveryIsRejected(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Start(t, r.Results.Run)
	h := fetched(t, r, 1)[0]
	future := succeeded(h)
	future.Delivery = 7
	r.Report(t, future, future, failed(h, true))
	applied(t, r)
	if row := r.Row(t, h.ID); row.State != protocol.StateRetrying || row.Delivery != 2 {
		t.Errorf("%+v, want retrying at delivery 2", row)
	}
	again := r.Fetch(t, "w2", 1)[0]
	r.Ack(t, h, again)
	old := succeeded(h) // of the first delivery, which failed
	r.Report(t, old, old)
	applied(t, r)
	r.Report(t, succeeded(again))
	applied(t, r)
	r.Report(t, failed(again, true), failed(again, false), old)
	applied(t, r)
	if row := r.Row(t, h.ID); row.State != protocol.StateSucceeded || row.Attempt != 2 {
		t.Errorf("%+v, want succeeded", row)
	}
	rejected := r.Count(t, "SELECT count(*) FROM event_log WHERE type = 'task.transition_rejected'")
	pairs := r.Count(t, "SELECT count(DISTINCT data->>'outcome_delivery') FROM event_log WHERE type = 'task.transition_rejected'")
	if rejected != pairs || rejected == 0 {
		t.Errorf("%d rejections recorded, of %d deliveries; want one each", rejected, pairs)
	}
	testkit.VerifyLog(t, r.Stores)
}

// An outcome for a task that does not exist, among others.
func TestUnknownTask(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Start(t, r.Results.Run)
	h := fetched(t, r, 1)[0]
	stranger := succeeded(h)
	stranger.ID[15] ^= 1
	r.Report(t, stranger, succeeded(h), stranger)
	applied(t, r)
	r.Ack(t, h)
	r.WaitState(t, protocol.StateSucceeded, h.ID)
	testkit.VerifyLog(t, r.Stores)
}

// Two orchestrators get the outcomes of the same executions at once, each
// several times and in any order; every task has one terminal event.
func TestTwoOrchestratorsApplyTheSameOutcomes(t *testing.T) {
	t.Parallel()
	r := rig(t)
	const n = 300
	hs := fetched(t, r, n)
	var all []*protocol.Outcome
	for i, h := range hs {
		o := succeeded(h)
		if i%3 == 0 {
			o = failed(h, false)
		}
		claim := h.Outcome(protocol.OutcomeClaimed)
		all = append(all, claim, o, o, o, claim)
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	cfg := r.Config()
	cfg.Result.MaxBatch = 40
	var wg sync.WaitGroup
	for range 3 {
		o := testkit.NewRig(t, r.Stores, cfg)
		o.Start(t, o.Results.Run)
		o.Start(t, o.DeadLetter.Run)
		wg.Go(func() {
			for chunk := all; len(chunk) > 0; chunk = chunk[min(len(chunk), 100):] {
				o.Report(t, chunk[:min(len(chunk), 100)]...)
			}
		})
	}
	wg.Wait()
	r.Start(t, r.DeadLetter.RunIngest)
	applied(t, r)
	r.Ack(t, hs...)
	testkit.Eventually(t, "all tasks are terminal", func() (bool, string) {
		return r.Count(t, "SELECT count(*) FROM tasks WHERE state NOT IN ('succeeded', 'failed')") == 0, ""
	})
	if got := r.Count(t, "SELECT count(*) FROM event_log WHERE type IN ('task.succeeded', 'task.failed', 'task.cancelled')"); got != n {
		t.Errorf("%d terminal events of %d tasks", got, n)
	}
	if got := r.Count(t, "SELECT count(*) FROM dlq_items"); got != n/3 {
		t.Errorf("%d dead letters, want %d", got, n/3)
	}
	testkit.VerifyLog(t, r.Stores)
}

// Outcomes in the hands of an orchestrator that died are taken over after
// TakeOver, and applied once even though it had committed some of them.
func TestStrandedOutcomesAreTakenOver(t *testing.T) {
	t.Parallel()
	r := rig(t)
	hs := fetched(t, r, 20)
	for _, h := range hs {
		r.Report(t, succeeded(h))
	}
	es, err := r.Client.ReadNow(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators, "dead-0", 15)
	if err != nil || len(es) != 15 {
		t.Fatalf("%d outcomes, %v", len(es), err)
	}
	if err := r.Raw.XDel(t.Context(), protocol.StreamResult, es[2].ID).Err(); err != nil { // a ghost
		t.Fatal(err)
	}
	r.Start(t, r.Results.Run)
	r.Ack(t, hs...)
	var want []protocol.ID
	for i, h := range hs {
		if i != 2 {
			want = append(want, h.ID)
		}
	}
	r.WaitState(t, protocol.StateSucceeded, want...)
	applied(t, r)
	testkit.VerifyEvents(t, r.Stores)
}

// stream:result loses its group, or is lost altogether.
func TestResultGroupLost(t *testing.T) {
	t.Parallel()
	for name, destroy := range map[string]bool{"group": true, "stream": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig(t)
			r.Start(t, r.Results.Run)
			hs := fetched(t, r, 30)
			for _, h := range hs[:10] {
				r.Report(t, succeeded(h))
			}
			r.WaitState(t, protocol.StateSucceeded, ids(hs[:10])...)
			if destroy {
				if err := r.Raw.XGroupDestroy(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators).Err(); err != nil {
					t.Fatal(err)
				}
			} else if err := r.Raw.Del(t.Context(), protocol.StreamResult).Err(); err != nil {
				t.Fatal(err)
			}
			for _, h := range hs[10:] {
				r.Report(t, succeeded(h))
			}
			r.WaitState(t, protocol.StateSucceeded, ids(hs)...)
			applied(t, r)
			r.Ack(t, hs...)
			testkit.VerifyLog(t, r.Stores)
			if n := r.Count(t, "SELECT count(*) FROM event_log WHERE type = 'task.transition_rejected'"); n != 0 {
				t.Errorf("%d rejections: a replay from the beginning is no alarm", n)
			}
		})
	}
}

func ids(hs []testkit.Held) []protocol.ID {
	out := make([]protocol.ID, len(hs))
	for i, h := range hs {
		out[i] = h.ID
	}
	return out
}

// A consumer that stops leaves nothing in its own hands and no name behind.
func TestCleanStop(t *testing.T) {
	t.Parallel()
	r := rig(t)
	stop := r.Start(t, r.Results.Run)
	hs := fetched(t, r, 5)
	for _, h := range hs {
		r.Report(t, succeeded(h))
	}
	applied(t, r)
	stop()
	i, err := r.Client.Info(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators)
	if err != nil || i.Consumers != 0 || i.Pending != 0 {
		t.Errorf("after a clean stop: %+v, %v", i, err)
	}
}
