package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/inject"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// An abandoned entry stays pending, although its worker lives. The worker does
// not run it again either when it reads its own history after an outage, but
// takes it, like any worker, once it has been reclaimed.
func TestAnAbandonedEntryIsLeftToBeReclaimed(t *testing.T) {
	t.Parallel()
	b, stack := ownRedis(t, true, visibility(3*time.Second))
	plan := inject.Plan{Mode: inject.ProcessRestartInterrupt, Times: 1, Restart: func() {}}
	var mu sync.Mutex
	var deliveries []int64
	w := b.raw(worker.Options{}, func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
		mu.Lock()
		deliveries = append(deliveries, r.Delivery)
		mu.Unlock()
		return inject.Wrap(plan, func(context.Context, *task.Raw) (json.RawMessage, error) { return json.RawMessage(`1`), nil })(ctx, r)
	})
	id := b.enqueue(task.Request{})
	testkit.Eventually(t, "the task was abandoned", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return len(deliveries) == 1, ""
	})
	if err := stack.StopRedis(false); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the worker notices the outage", func() (bool, string) { return !w.Ready(), "" })
	if err := stack.StartRedis(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the worker fetches again", func() (bool, string) { return w.Ready(), "" })
	if ps := b.pending("default"); len(ps) != 1 || ps[0].Consumer != w.ID() {
		t.Errorf("pending: %v, want the entry with its worker", ps)
	}
	got := b.wait(id)
	if got.State != "succeeded" || got.Delivery != 2 || got.Interruptions != 1 || got.RetryCount != 0 {
		t.Errorf("got %v", got)
	}
	b.wantEvents(id, "task.created", "task.reclaimed", "task.interrupted", "task.queued", "task.claimed", "task.succeeded")
	if e := find(b.events(id), protocol.EventReclaimed); e.WorkerId != w.ID() {
		t.Errorf("reclaimed from %s, want %s", e.WorkerId, w.ID())
	}
	mu.Lock()
	if !slices.Equal(deliveries, []int64{1, 2}) {
		t.Errorf("deliveries %v were run", deliveries)
	}
	mu.Unlock()
	testkit.Eventually(t, "the worker forgets the entry", func() (bool, string) { return w.InFlight() == 0, fmt.Sprint(w.InFlight()) })
	testkit.VerifyLog(t, b.Stores)
}
