package reconcile_test

import (
	"testing"

	"github.com/penstock-dev/penstock/internal/pipeline/reconcile"
	"github.com/penstock-dev/penstock/protocol"
)

// A sweep removes entries that no task waits for, and nothing that a worker
// fetches and finishes while it reads.
func TestSweepLeavesWhatWorkersFetch(t *testing.T) {
	t.Parallel()
	r := rig(t)
	moves, stale := dispatched(t, r), dispatched(t, r)
	add(t, r, moves, 1)
	add(t, r, stale, 7) // a delivery that its task does not have
	add(t, r, stale, 1)
	swept := 0
	reconcile.After(r.Reconcile, func(reading string) {
		if reading != "entries" {
			return
		}
		swept++
		h := r.Fetch(t, "w", 1)[0]
		r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
		r.Ack(t, h)
		r.WaitState(t, protocol.StateSucceeded, moves)
	})
	if err := r.Reconcile.Round(t.Context()); err != nil { // the first of a new system sweeps
		t.Fatal(err)
	}
	if swept != 1 {
		t.Fatalf("%d sweeps", swept)
	}
	ms, err := r.Raw.XRange(t.Context(), protocol.StreamTask, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	var got []protocol.Pair
	for _, m := range ms {
		p, _ := protocol.PairOf(m.Values)
		got = append(got, p)
	}
	if want := []protocol.Pair{{ID: moves, Delivery: 1}, {ID: stale, Delivery: 1}}; len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("the stream holds %v, want %v", got, want)
	}
}
