package e2e

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A task that kills its worker each time it runs becomes a dead letter. Its
// neighbours are interrupted by its first two executions, and done all the same;
// from the third on it runs alone and nobody is.
func TestPoisonTask(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 3 * time.Second}
	addr := freeAddr(t)
	s.orchestrator(addr)
	waitReady(t, addr)
	c := testkit.Client(t, "http://"+addr)
	poison := s.injected(c, `{"mode":"process_restart_interrupt","work_ms":1000}`)
	var neighbours, later []string
	for range 3 {
		neighbours = append(neighbours, s.injected(c, `{"work_ms":2500}`))
	}
	const kills = 4 // max_interruptions is 3
	for n := range kills {
		w := s.worker(injectConfig)
		if n >= 2 { // company for the rest of the poison's life
			for range 5 {
				later = append(later, s.injected(c, `{"work_ms":300}`))
			}
		}
		w.wait(t)
		if status := w.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL {
			t.Fatalf("worker %d ended with %v, want SIGKILL", n+1, w.err)
		}
	}
	s.worker(injectConfig)
	got, err := c.Wait(t.Context(), "", poison)
	if err != nil || got.State != "failed" || got.LastErrorCode.GetValue() != string(protocol.CodeWorkerLost) || got.Interruptions != kills || got.RetryCount != 0 || got.DlqId == "" {
		t.Errorf("the poison task: %v, %v; want a dead letter after %d lost workers", got, err, kills)
	}
	for i, id := range slices.Concat(neighbours, later) {
		got, err := c.Wait(t.Context(), "", id)
		want := int32(0)
		if i < len(neighbours) {
			want = 2
		}
		if err != nil || got.State != "succeeded" || got.Interruptions != want || got.RetryCount != 0 {
			t.Errorf("neighbour %d: %v, %v; want it done after %d interruptions", i, got, err, want)
		}
	}
	var letters int
	if err := s.SQL(t).QueryRow(t.Context(), "SELECT count(*) FROM dlq_items").Scan(&letters); err != nil || letters != 1 {
		t.Errorf("%d dead letters (%v), want the poison task's only", letters, err)
	}
	testkit.VerifyLog(t, s.Stores)
}
