package reconcile_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/pipeline/reconcile"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// Dispatch makes a group anew before the loss of everything is noticed. It is
// part of that loss: the first round rebuilds.
func TestFlushUnderTrafficIsRebuiltAtOnce(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := all(t, s)
	history(t, r)
	round(t, r)
	complete(t, r)
	ids := r.Enqueue(t, testkit.Requests(5, "t")...)
	if err := r.Raw.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "dispatch makes the group", func() (bool, string) {
		_, _, err := r.Dispatch.Room(t.Context(), protocol.DefaultQueue)
		return err == nil && r.Raw.Exists(t.Context(), protocol.StreamTask).Val() == 1, fmt.Sprint(err)
	})
	round(t, r)
	if got := told(t, r); len(got) != 2 || got[1] != "rebuilt epoch_missing 5+0+2" {
		t.Errorf("told %q", got)
	}
	startWorker(t, s)
	r.WaitState(t, protocol.StateSucceeded, ids...)
	once(t, r, 1)
}

// The group of a queue that was new is not taken for lost when, later, a single
// entry is.
func TestNewQueueIsNoLoss(t *testing.T) {
	t.Parallel()
	r := all(t, testkit.NewStores(t))
	round(t, r)
	complete(t, r)
	r.Reconcile.GroupMade(protocol.DefaultQueue)
	round(t, r)
	r.Enqueue(t, testkit.Requests(1, "t")...)
	r.Ack(t, r.Fetch(t, "w", 1)...) // by a stranger
	dispatchClosed(t, r)
	round(t, r)
	if h := r.Fetch(t, "w", 1)[0]; h.Delivery != 2 {
		t.Errorf("the task comes as delivery %d", h.Delivery)
	}
	if got := told(t, r); len(got) != 0 {
		t.Errorf("told %q", got)
	}
}

// What ran while a pass looked is not missing, though its outcome is not applied
// and its entry is gone: a new queue that is busy at once has lost nothing.
func TestNewQueueThatIsBusyIsNoLoss(t *testing.T) {
	t.Parallel()
	r := all(t, testkit.NewStores(t))
	round(t, r)
	complete(t, r)
	ids := r.Enqueue(t, testkit.Requests(20, "t")...)
	dispatchClosed(t, r)
	r.Reconcile.GroupMade(protocol.DefaultQueue)
	var armed atomic.Bool
	armed.Store(true)
	reconcile.After(r.Reconcile, func(string) {
		if armed.CompareAndSwap(true, false) {
			hs := r.Fetch(t, "w", 20)
			outs := make([]*protocol.Outcome, len(hs))
			for i, h := range hs {
				outs[i] = h.Outcome(protocol.OutcomeSucceeded)
			}
			r.Report(t, outs...)
			r.Ack(t, hs...)
		}
	})
	round(t, r)
	if armed.Load() {
		t.Fatal("the pass did not look")
	}
	if got := told(t, r); len(got) != 0 {
		t.Errorf("told %q", got)
	}
	r.WaitState(t, protocol.StateSucceeded, ids...)
}

// Redis loses everything once more in mid-rebuild. Workers have the whole time
// to claim again what they run.
func TestSecondLossGivesWorkersTheirTime(t *testing.T) {
	t.Parallel()
	r := all(t, testkit.NewStores(t))
	round(t, r)
	complete(t, r)
	id := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	h := r.Fetch(t, "w", 1)[0]
	var armed atomic.Bool
	claim := make(chan *protocol.Outcome, 1)
	reconcile.After(r.Reconcile, func(string) {
		if armed.CompareAndSwap(true, false) {
			if err := r.Raw.FlushDB(context.WithoutCancel(t.Context())).Err(); err != nil {
				t.Error(err)
			}
			time.AfterFunc(visibility/6, func() { claim <- h.Outcome(protocol.OutcomeClaimed) })
		}
	})
	if err := r.Raw.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	armed.Store(true)
	if err := r.Reconcile.Round(context.WithoutCancel(t.Context())); err == nil {
		t.Fatal("a rebuild that met another loss says that it is done")
	}
	again := make(chan error, 1)
	go func() { again <- r.Reconcile.Round(context.WithoutCancel(t.Context())) }()
	r.Report(t, <-claim)
	if err := <-again; err != nil {
		t.Fatal(err)
	}
	r.WaitState(t, protocol.StateRunning, id)
	r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
	r.WaitState(t, protocol.StateSucceeded, id)
	events(t, r, id, "task.created", "task.claimed", "task.succeeded")
	round(t, r)
	complete(t, r)
	once(t, r, 1)
}

// After Postgres went back nothing is dispatched until deliveries are raised,
// and they are not before what stream:result holds is applied.
func TestRestoredHoldsDispatch(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, short(s))
	r.StartDispatch(t)
	select {
	case <-r.Reconcile.Ready():
		t.Fatal("ready before the first look")
	default:
	}
	stop := r.Start(t, r.Results.Run)
	round(t, r)
	complete(t, r)
	<-r.Reconcile.Ready()
	stop()
	first := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	h := r.Fetch(t, "w", 1)[0]
	r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
	r.Ack(t, h)
	sql(t, r, "UPDATE redis_epoch SET generation = 0, confirmed = 0")
	done := make(chan error, 1)
	go func() { done <- r.Reconcile.Round(context.WithoutCancel(t.Context())) }()
	testkit.Eventually(t, "dispatch is held", func() (bool, string) { return r.Reconcile.Held(), "" })
	if _, _, err := r.Dispatch.Room(t.Context(), protocol.DefaultQueue); err == nil {
		t.Error("entries may go straight to their stream")
	}
	second := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	if row := r.Row(t, second); !row.Due {
		t.Errorf("dispatched while held: %+v", row)
	}
	r.Start(t, r.Results.Run)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if r.Reconcile.Held() {
		t.Error("dispatch is still held")
	}
	r.WaitState(t, protocol.StateSucceeded, first)
	if h := r.Fetch(t, "w", 1)[0]; h.ID != second {
		t.Errorf("dispatched %s, want %s", h.ID, second)
	}
}

// dispatchClosed waits until no batch is on its way to its stream: a task of one
// is not missed.
func dispatchClosed(t *testing.T, r *testkit.Rig) {
	t.Helper()
	testkit.Eventually(t, "their dispatch is closed", func() (bool, string) {
		var n int
		err := r.DB.QueryRow(t.Context(), "SELECT count(*) FROM dispatch_outbox").Scan(&n)
		return err == nil && n == 0, fmt.Sprint(n, err)
	})
}
