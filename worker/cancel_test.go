package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/handlers"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func (b *bundle) cancel(id string) *client.Task {
	b.t.Helper()
	t, err := b.client.CancelTask(b.t.Context(), "", id, "no longer wanted")
	if err != nil {
		b.t.Fatalf("cancel %s: %v", id, err)
	}
	if t.State != "cancelled" || t.LastErrorCode.GetValue() != "TASK_CANCELLED" {
		b.t.Errorf("after cancel: %v", t)
	}
	return t
}

// acknowledged waits until nothing is pending in the default queue's stream.
func (b *bundle) acknowledged() {
	b.t.Helper()
	testkit.Eventually(b.t, "all entries are acknowledged", func() (bool, string) { return len(b.pending("")) == 0, "" })
}

// A running handler is told within a second, and what it returns changes
// nothing.
func TestRunningTaskIsCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	began, told := make(chan struct{}), make(chan error, 1)
	b.raw(worker.Options{}, func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		close(began)
		<-ctx.Done()
		told <- context.Cause(ctx)
		return json.RawMessage("1"), nil
	})
	id := b.enqueue(task.Request{})
	receive(t, "the handler runs", began)
	b.waitState(id, protocol.StateRunning)
	b.cancel(id)
	if cause := receive(t, "the handler is told", told); !errors.Is(cause, task.ErrCancelled) {
		t.Errorf("cause %v", cause)
	}
	b.acknowledged()
	b.wantEvents(id, "task.created", "task.claimed", "task.cancelled")
	if got := b.wait(id); got.State != "cancelled" || len(got.Result) > 0 {
		t.Errorf("%v", got)
	}
	b.cancel(id) // again: the same
	testkit.VerifyLog(t, b.Stores)
}

// Entries that are fetched after their tombstone never start; their neighbours
// do.
func TestCancelledEntryNeverStarts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.enqueueMany(40, "")
	for i, id := range ids {
		if i%2 == 0 {
			b.cancel(id)
		}
	}
	var ran atomic.Int32
	b.raw(worker.Options{Concurrency: 4}, func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
		if n, _ := strconv.Atoi(string(r.Payload)); n%2 == 0 {
			t.Errorf("cancelled task %d was started", n)
		}
		ran.Add(1)
		return nil, nil
	})
	for i, id := range ids {
		if got := b.wait(id); i%2 == 1 && got.State != "succeeded" {
			t.Errorf("neighbour %d is %s", i, got.State)
		}
	}
	b.acknowledged()
	if ran.Load() != 20 {
		t.Errorf("%d handlers ran, want 20", ran.Load())
	}
	b.wantEvents(ids[0], "task.created", "task.cancelled")
	testkit.VerifyLog(t, b.Stores)
}

// The tombstone is there before the entry: set between the commit of the
// dispatch and its XADD.
func TestTombstoneBeforeItsEntry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := protocol.NameID("default", "early")
	pair := protocol.Pair{ID: id, Delivery: 1}
	if err := b.Streams(t).AddTombstones(t.Context(), []protocol.Pair{pair}); err != nil {
		t.Fatal(err)
	}
	ran := make(chan struct{}, 2)
	b.raw(worker.Options{}, func(context.Context, *task.Raw) (json.RawMessage, error) {
		ran <- struct{}{}
		return nil, nil
	})
	e := &protocol.TaskEntry{ID: id, TaskID: "early", Type: "t", Payload: []byte("{}"), Attempt: 1, Delivery: 1, Timeout: time.Minute}
	for _, a := range b.Streams(t).Append(t.Context(), protocol.StreamTask, [][]any{e.Values()}) {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	if got := b.wait(b.enqueue(task.Request{})); got.State != "succeeded" { // behind it
		t.Errorf("%v", got)
	}
	b.acknowledged()
	if len(ran) != 1 {
		t.Errorf("%d handlers ran, want that of the other task", len(ran))
	}
}

// A handler that ignores the cancellation keeps its slot and is reported stuck;
// what it returns in the end is dropped.
func TestHandlerIgnoresCancellation(t *testing.T) {
	t.Parallel()
	b := setup(t)
	began, end := make(chan struct{}), make(chan struct{})
	w := b.worker(worker.Options{Concurrency: 1}, func(w *worker.Worker) {
		worker.SetTimeoutGrace(w, 100*time.Millisecond)
		w.HandleRaw("t", func(context.Context, *task.Raw) (json.RawMessage, error) {
			close(began)
			<-end
			return json.RawMessage("1"), nil
		})
	})
	id := b.enqueue(task.Request{})
	receive(t, "the handler runs", began)
	b.waitState(id, protocol.StateRunning)
	b.cancel(id)
	testkit.Eventually(t, "the handler is stuck", func() (bool, string) { return w.Stuck() == 1, "" })
	b.acknowledged()
	close(end)
	testkit.Eventually(t, "the slot is free", func() (bool, string) { return w.Stuck() == 0, "" })
	b.wantEvents(id, "task.created", "task.claimed", "task.cancelled")
	testkit.VerifyLog(t, b.Stores)
}

// While Redis is away nothing is cancelled, and what was is told afterwards.
func TestRedisOutageCancelsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	proxy := chaosproxy.Redis(t, b.RedisURL)
	began, told := make(chan string, 2), make(chan error, 2)
	behind := b.Stores
	behind.RedisURL = proxy.URL
	behind.StartWorker(t, worker.Options{VisibilityTimeout: b.cfg.Recovery.VisibilityTimeout}, func(w *worker.Worker) {
		w.HandleRaw("t", func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
			began <- r.TaskID
			<-ctx.Done()
			told <- context.Cause(ctx)
			return nil, ctx.Err()
		})
	})
	id := b.enqueue(task.Request{})
	receive(t, "the handler runs", began)
	b.waitState(id, protocol.StateRunning)
	proxy.Down(true)
	b.cancel(id)
	select {
	case cause := <-told:
		t.Errorf("the handler was cancelled without Redis: %v", cause)
	case <-time.After(1200 * time.Millisecond): // more than two looks
	}
	proxy.Down(false)
	if cause := receive(t, "the handler is told", told); !errors.Is(cause, task.ErrCancelled) {
		t.Errorf("cause %v", cause)
	}
	b.acknowledged()
	testkit.VerifyLog(t, b.Stores)
}

// The program of an exec handler is killed with all its children.
func TestCancelKillsTheProcessGroup(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	script := `trap '' TERM; (trap '' TERM; sleep 600 & echo $! >> ` + pids + `; wait) & echo $$ $! >> ` + pids + `; wait; sleep 600`
	hs, err := handlers.All(map[string]config.Handler{"t": {Kind: "exec", Command: []string{"sh", "-c", script}}}, config.HTTPClient{}, testkit.Log(t))
	if err != nil {
		t.Fatal(err)
	}
	b.worker(worker.Options{}, func(w *worker.Worker) { w.HandleRaw("t", hs["t"]) })
	id := b.enqueue(task.Request{})
	var all []string
	testkit.Eventually(t, "program, child and grandchild run", func() (bool, string) {
		text, _ := os.ReadFile(pids)
		all = strings.Fields(string(text))
		return len(all) == 3, string(text)
	})
	b.waitState(id, protocol.StateRunning)
	b.cancel(id)
	b.acknowledged()
	testkit.Eventually(t, "all of them are gone", func() (bool, string) {
		for _, s := range all {
			pid, err := strconv.Atoi(s)
			if err != nil {
				return false, s
			}
			if state, _ := os.ReadFile("/proc/" + s + "/stat"); syscall.Kill(pid, 0) == nil && !strings.Contains(string(state), ") Z ") {
				return false, "process " + s + " lives"
			}
		}
		return true, ""
	})
	b.wantEvents(id, "task.created", "task.claimed", "task.cancelled")
	testkit.VerifyLog(t, b.Stores)
}
