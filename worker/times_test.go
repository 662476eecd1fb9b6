package worker_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// What is recorded of a run is what it took in the worker, whether its claim was
// reported alone or not.
func TestRunTimesAreThoseOfTheHandler(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var mu sync.Mutex
	took := map[string]time.Duration{}
	b.raw(worker.Options{}, func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
		var d time.Duration
		if err := json.Unmarshal(r.Payload, &d); err != nil {
			return nil, err
		}
		began := time.Now()
		time.Sleep(d)
		mu.Lock()
		defer mu.Unlock()
		took[r.TaskID] = time.Since(began)
		return nil, nil
	})
	for _, d := range []time.Duration{5 * time.Millisecond, 700 * time.Millisecond} {
		payload, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		id := b.enqueue(task.Request{Payload: payload})
		got := b.wait(id)
		all := time.Since(began)
		ran := got.FinishedAt.AsTime().Sub(got.StartedAt.AsTime())
		mu.Lock()
		least := took[id] - time.Millisecond // both ends are cut to milliseconds
		mu.Unlock()
		if ran < least || ran > all+time.Millisecond {
			t.Errorf("a handler that took %s is recorded with %s, all in all it was %s", least, ran, all)
		}
		if wait := got.StartedAt.AsTime().Sub(got.CreatedAt.AsTime()); wait < 0 || wait > all {
			t.Errorf("it waited %s of %s", wait, all)
		}
		events := b.wantEvents(id, "task.created", "task.claimed", "task.succeeded")
		var times protocol.Times
		if err := json.Unmarshal(find(events, protocol.EventSucceeded).Data, &times); err != nil {
			t.Fatal(err)
		}
		if !times.StartedAt.Equal(got.StartedAt.AsTime()) || !times.FinishedAt.Equal(got.FinishedAt.AsTime()) || times.ClockSkewMS != 0 {
			t.Errorf("task ran from %s to %s, its event has %+v", got.StartedAt.AsTime(), got.FinishedAt.AsTime(), times)
		}
	}
}
