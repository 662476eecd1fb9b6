package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// reclaimFast has lost entries found at once, and leaves those of living
// workers plenty of time.
func reclaimFast(c *config.Orchestrator) {
	c.Recovery.VisibilityTimeout = 8 * time.Second
	c.Recovery.ReclaimInterval = 20 * time.Millisecond
}

// suspects makes tasks suspects by losing two workers with them. They must be
// all that is in their queue, and no other worker may run.
func (b *bundle) suspects(queue string, ids ...string) map[string]bool {
	b.t.Helper()
	stream := protocol.TaskStream(queue)
	for range protocol.SoloAfter {
		// None is lost before all are delivered: it would come again meanwhile.
		idle := []any{"XCLAIM", stream, protocol.GroupWorkers, "dead", 0}
		options := len(idle)
		testkit.Eventually(b.t, "all are delivered", func() (bool, string) {
			res, err := b.redis.XReadGroup(b.t.Context(), &redis.XReadGroupArgs{
				Group: protocol.GroupWorkers, Consumer: "dead", Streams: []string{stream, ">"}, Count: 100, Block: time.Second,
			}).Result()
			if err != nil {
				return false, err.Error()
			}
			for _, m := range res[0].Messages {
				if m.Values[protocol.FieldSolo] != nil {
					b.t.Fatalf("solo after fewer than %d interruptions: %v", protocol.SoloAfter, m.Values)
				}
				idle = append(idle, m.ID)
			}
			return len(idle)-options == len(ids), fmt.Sprint(len(idle) - options)
		})
		if err := b.redis.Do(b.t.Context(), append(idle, "IDLE", time.Hour.Milliseconds(), "JUSTID")...).Err(); err != nil {
			b.t.Fatal(err)
		}
	}
	out := map[string]bool{}
	for _, id := range ids {
		out[id] = true
	}
	return out
}

// Suspects of several queues among other tasks, at every concurrency: whenever
// one runs, nothing else does, and all of them do in the end.
func TestSuspectsRunAlone(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 2, 3, 10} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			b := setup(t, reclaimFast)
			queues := []string{"default", "second"}[:min(slots, 2)]
			suspect := b.suspects("default", b.enqueueMany(6, "")...)
			if slots > 1 {
				maps.Copy(suspect, b.suspects("second", b.enqueueMany(4, "second")...))
			}
			var mu sync.Mutex
			running, alone, beside := 0, 0, 0
			b.raw(worker.Options{Concurrency: slots, Queues: queues}, func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
				mu.Lock()
				running++
				most := running
				mu.Unlock()
				<-time.After(20 * time.Millisecond)
				mu.Lock()
				most = max(most, running)
				running--
				if beside = max(beside, most); suspect[r.TaskID] {
					if alone++; most > 1 {
						t.Errorf("%d others ran beside a suspect", most-1)
					}
				}
				mu.Unlock()
				return nil, nil
			})
			var ids []string
			for range 15 {
				ids = append(ids, b.enqueueMany(4, queues[len(queues)-1])...)
			}
			for id := range suspect {
				ids = append(ids, id)
			}
			for _, id := range ids {
				if got := b.wait(id); got.State != "succeeded" || suspect[id] != (got.Interruptions == 2) {
					t.Errorf("suspect %v: %v", suspect[id], got)
				}
			}
			if alone != len(suspect) || slots > 3 && beside < 2 {
				t.Errorf("%d suspects ran, want %d; at most %d of all ran at once", alone, len(suspect), beside)
			}
			testkit.VerifyLog(t, b.Stores)
		})
	}
}

// A worker with a long task: the suspect is handed back, again and again; what
// else there is runs on; and once the long task is done the suspect runs.
func TestASuspectDoesNotStallABusyWorker(t *testing.T) {
	t.Parallel()
	b := setup(t, reclaimFast)
	suspect := b.enqueue(task.Request{})
	b.suspects("default", suspect)
	release, long := make(chan struct{}), make(chan struct{})
	var running, ran atomic.Int32
	b.worker(worker.Options{Concurrency: 4}, func(w *worker.Worker) {
		worker.SetSoloWait(w, 50*time.Millisecond)
		w.HandleRaw("long", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
			running.Add(1)
			defer running.Add(-1)
			close(long)
			<-release
			return nil, nil
		})
		w.HandleRaw("t", func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
			if r.TaskID == suspect && running.Load() > 0 {
				t.Error("the suspect ran beside a long task")
			}
			ran.Add(1)
			return nil, nil
		})
		// The worker has the long task before it sees the suspect again.
		b.enqueue(task.Request{Type: "long"})
	})
	receive(t, "the long task runs", long)
	handedBack := func() (n int) {
		for _, e := range b.events(suspect) {
			if e.Type == string(protocol.EventInterrupted) && strings.Contains(e.Reason, "run alone") {
				n++
			}
		}
		return n
	}
	testkit.Eventually(t, "the suspect is handed back twice", func() (bool, string) { n := handedBack(); return n >= 2, fmt.Sprint(n) })
	before := ran.Load()
	for _, id := range b.enqueueMany(10, "") {
		b.wait(id)
	}
	if got := ran.Load() - before; got != 10 {
		t.Errorf("%d tasks ran beside the long one, want 10", got)
	}
	close(release)
	got := b.wait(suspect)
	if got.State != "succeeded" || got.Interruptions != protocol.SoloAfter || got.RetryCount != 0 {
		t.Errorf("%v, want it run without a further interruption or a retry", got)
	}
	testkit.VerifyLog(t, b.Stores)
}

// A worker that stops hands a waiting suspect back at once, while what runs has
// its grace.
func TestDrainWithAWaitingSuspect(t *testing.T) {
	t.Parallel()
	b := setup(t, reclaimFast)
	suspect := b.enqueue(task.Request{})
	b.suspects("default", suspect)
	release, long := make(chan struct{}), make(chan struct{})
	handlers := func(w *worker.Worker) {
		w.HandleRaw("long", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
			close(long)
			<-release
			return nil, nil
		})
		w.HandleRaw("t", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	}
	id := b.enqueue(task.Request{Type: "long"})
	w := b.worker(worker.Options{Concurrency: 4, ShutdownGrace: time.Minute}, func(w *worker.Worker) {
		worker.SetSoloWait(w, time.Hour)
		handlers(w)
	})
	receive(t, "the long task runs", long)
	testkit.Eventually(t, "the suspect waits in the worker", func() (bool, string) {
		n := w.InFlight()
		return n == 2, fmt.Sprint(n, " in hand")
	})
	stopped := make(chan struct{})
	go func() { w.Stop(t); close(stopped) }()
	b.worker(worker.Options{}, handlers) // takes it
	if got := b.wait(suspect); got.State != "succeeded" || got.Interruptions != protocol.SoloAfter {
		t.Errorf("%v", got)
	}
	close(release)
	receive(t, "the worker stops", stopped)
	if got := b.wait(id); got.Delivery != 1 {
		t.Errorf("what ran: %v, want it finished", got)
	}
	testkit.VerifyLog(t, b.Stores)
}

// A suspect that ignores its timeout does not keep its worker from running
// others; while it is stuck no other suspect runs there.
func TestAStuckSuspect(t *testing.T) {
	t.Parallel()
	b := setup(t, reclaimFast)
	retries := 0
	request := task.Request{Timeout: time.Second, MaxRetries: &retries}
	suspect := b.suspects("default", b.enqueue(request), b.enqueue(request))
	release, stuck := make(chan struct{}), make(chan string, 2)
	var once sync.Once
	w := b.worker(worker.Options{Concurrency: 2}, func(w *worker.Worker) {
		worker.SetTimeoutGrace(w, 50*time.Millisecond)
		w.HandleRaw("t", func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
			if suspect[r.TaskID] {
				once.Do(func() {
					stuck <- r.TaskID
					<-release
				})
			}
			return nil, nil
		})
	})
	first := receive(t, "a suspect starts", stuck)
	delete(suspect, first)
	if got := b.wait(first); got.State != "failed" || w.Stuck() != 1 {
		t.Errorf("%v, %d stuck", got, w.Stuck())
	}
	b.wait(b.enqueue(task.Request{})) // beside it
	for second := range suspect {
		before := len(b.events(second))
		testkit.Eventually(t, "the other suspect is handed back", func() (bool, string) {
			es := b.events(second)
			return len(es) > before && es[len(es)-1].Type == string(protocol.EventInterrupted), fmt.Sprint(types(es))
		})
		close(release)
		if got := b.wait(second); got.State != "succeeded" || got.Interruptions != protocol.SoloAfter {
			t.Errorf("%v", got)
		}
	}
	testkit.VerifyLog(t, b.Stores)
}
