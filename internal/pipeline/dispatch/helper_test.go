package dispatch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// tally counts executions.
type tally struct {
	mu    sync.Mutex
	order []task.Info
	at    []time.Time
}

func (y *tally) handler(_ context.Context, r *task.Raw) (json.RawMessage, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.order, y.at = append(y.order, r.Info), append(y.at, time.Now())
	return nil, nil
}

func (y *tally) len() int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return len(y.order)
}

// wait waits until n executions have happened and returns them.
func (y *tally) wait(t *testing.T, n int, limit time.Duration) []task.Info {
	t.Helper()
	end := time.Now().Add(limit)
	testkit.Eventually(t, fmt.Sprintf("%d executions", n), func() (bool, string) {
		got := y.len()
		if got < n && time.Now().After(end) {
			t.Fatalf("%d of %d executions within %s", got, n, limit)
		}
		return got >= n, fmt.Sprintf("%d of %d", got, n)
	})
	y.mu.Lock()
	defer y.mu.Unlock()
	return slices.Clone(y.order)
}

// once checks that each task ran exactly once, in its first delivery.
func (y *tally) once(t *testing.T, n int) {
	t.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	runs := map[string]int{}
	for _, i := range y.order {
		runs[i.ID]++
	}
	for id, k := range runs {
		if k != 1 {
			t.Errorf("task %s ran %d times", id, k)
		}
	}
	if len(runs) != n {
		t.Errorf("%d tasks ran, want %d", len(runs), n)
	}
}

func startWorker(t *testing.T, s testkit.Stores, y *tally, o worker.Options) *testkit.Worker {
	t.Helper()
	if o.Concurrency == 0 {
		o.Concurrency = 50
	}
	return s.StartWorker(t, o, func(w *worker.Worker) { w.HandleRaw("t", y.handler) })
}

// pairs counts the entries of each (task, delivery) in a stream.
func pairs(t *testing.T, r *testkit.Rig, stream string) map[protocol.Pair]int {
	t.Helper()
	ms, err := r.Raw.XRange(t.Context(), stream, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	out := map[protocol.Pair]int{}
	for _, m := range ms {
		p, ok := protocol.PairOf(m.Values)
		if !ok {
			t.Errorf("entry %s is no task", m.ID)
		}
		out[p]++
	}
	return out
}

func noneTwice(t *testing.T, r *testkit.Rig, stream string) {
	t.Helper()
	for p, n := range pairs(t, r, stream) {
		if n > 1 {
			t.Errorf("task %s, delivery %d is in the stream %d times", p.ID, p.Delivery, n)
		}
	}
}

// noTrim keeps acknowledged entries, so that a test sees all that were added.
const noTrim = time.Hour
