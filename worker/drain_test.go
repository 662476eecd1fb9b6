package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func TestDrainFinishesWhatRunsAndLeavesTheGroup(t *testing.T) {
	t.Parallel()
	b := setup(t)
	started, release := make(chan struct{}, 1), make(chan struct{})
	w := b.raw(worker.Options{Concurrency: 1}, func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		started <- struct{}{}
		select {
		case <-release:
			return json.RawMessage(`"finished"`), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	id := b.enqueue(task.Request{})
	receive(t, "the handler starts", started)
	if got := b.consumers("default"); !slices.Contains(got, w.ID()) {
		t.Fatalf("consumers %v, want %s", got, w.ID())
	}
	stopped := make(chan struct{})
	go func() { w.Stop(t); close(stopped) }()
	testkit.Eventually(t, "the worker stops fetching", func() (bool, string) { return !w.Ready(), "ready" })
	later := b.enqueue(task.Request{})
	close(release)
	receive(t, "the worker stops", stopped)
	if got := b.wait(id); string(got.Result) != `"finished"` {
		t.Errorf("the task that ran: %v", got)
	}
	if got := must(b.client.Get(t.Context(), "", later)); got.State != "queued" || got.Delivery != 1 {
		t.Errorf("a task enqueued during the drain: %v, want it untouched in the stream", got)
	}
	if got := b.consumers("default"); slices.Contains(got, w.ID()) {
		t.Errorf("consumers %v: the worker has not left", got)
	}
	if ps := b.pending("default"); len(ps) != 0 {
		t.Errorf("pending: %v", ps)
	}
}

func TestDrainHandsBackWhatDoesNotFinish(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(time.Minute))
	started, causes, release := make(chan string, 4), make(chan error, 1), make(chan struct{})
	var calls atomic.Int32
	handler := func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
		if r.Delivery > 1 {
			return json.RawMessage(`"elsewhere"`), nil
		}
		calls.Add(1)
		started <- r.TaskID
		if string(r.Payload) == "0" { // listens to its context
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		}
		<-release // does not
		return nil, nil
	}
	w := b.raw(worker.Options{Concurrency: 2, ShutdownGrace: 50 * time.Millisecond}, handler)
	defer close(release)
	ids := b.enqueueMany(2, "")
	receive(t, "the handlers start", started)
	receive(t, "the handlers start", started)
	for _, id := range ids {
		b.waitState(id, protocol.StateRunning)
	}
	other := b.raw(worker.Options{}, handler) // takes over long before the visibility timeout
	w.Stop(t)
	if cause := receive(t, "the context ends", causes); !errors.Is(cause, task.ErrShutdown) {
		t.Errorf("the context ended with %v, want ErrShutdown", cause)
	}
	for i, id := range ids {
		got := b.wait(id)
		if string(got.Result) != `"elsewhere"` || got.WorkerId != other.ID() || got.RetryCount != 0 || got.Interruptions != 0 || got.Delivery != 2 {
			t.Errorf("task %d: %v, want it run once more, elsewhere, without a retry or an interruption", i, got)
		}
		b.wantEvents(id, "task.created", "task.claimed", "task.interrupted", "task.queued", "task.claimed", "task.succeeded")
	}
	if got := b.consumers("default"); slices.Contains(got, w.ID()) {
		t.Errorf("consumers %v: the worker has not left", got)
	}
}

// Not parallel: it sends signals to this process.
func TestASecondSignalEndsTheGrace(t *testing.T) {
	keep := make(chan os.Signal, 4) // whatever happens, the signals must not end the test process
	signal.Notify(keep, syscall.SIGTERM)
	defer signal.Stop(keep)
	b := setup(t)
	w, err := worker.New(worker.Options{RedisURL: b.RedisURL, ShutdownGrace: time.Hour, Log: testkit.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{}, 1)
	w.HandleRaw("t", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		started <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	done := make(chan error, 1)
	go func() { done <- w.Run(context.Background()) }()
	id := b.enqueue(task.Request{})
	receive(t, "the handler starts", started)
	kill := func() {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		receive(t, "the signal", keep)
	}
	kill()
	testkit.Eventually(t, "the worker stops fetching", func() (bool, string) { return !w.Ready(), "ready" })
	select {
	case err := <-done:
		t.Fatalf("the worker ended within its grace period: %v", err)
	default:
	}
	kill()
	if err := receive(t, "the worker ends", done); !errors.Is(err, worker.ErrSecondSignal) || !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v, want ErrSecondSignal", err)
	}
	got := must(b.client.Get(t.Context(), "", id))
	if got.Interruptions != 0 || got.RetryCount != 0 {
		t.Errorf("handed back: %v, want nothing spent", got)
	}
	b.waitEvent(id, protocol.EventInterrupted)
}

// Garbage that still waits for Redis when the grace is over is no task to hand
// back.
func TestDrainWithGarbageInHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	started, release := make(chan struct{}, 1), make(chan struct{})
	defer close(release)
	w := b.raw(worker.Options{ShutdownGrace: -1}, func(context.Context, *task.Raw) (json.RawMessage, error) {
		started <- struct{}{}
		<-release // whatever happens to its context
		return nil, nil
	})
	id := b.enqueue(task.Request{})
	receive(t, "the handler starts", started)
	// A stream:dlq of the wrong type keeps the dead letter waiting.
	if err := b.redis.Set(t.Context(), protocol.StreamDLQ, "in the way", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := b.redis.XAdd(t.Context(), addGarbage()).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the garbage is fetched", func() (bool, string) {
		n := len(b.pending("default"))
		return n == 2, fmt.Sprint(n)
	})
	stopped := make(chan struct{})
	go func() { w.Stop(t); close(stopped) }()
	b.waitEvent(id, protocol.EventInterrupted) // the task is handed back, the garbage still waits
	if err := b.redis.Del(t.Context(), protocol.StreamDLQ).Err(); err != nil {
		t.Fatal(err)
	}
	receive(t, "the worker stops", stopped)
	if ps := b.pending("default"); len(ps) != 0 {
		t.Errorf("pending: %v", ps)
	}
}

// A read was carried out and its reply got lost; the worker is stopped before it
// has looked again. What it was given is handed back all the same.
func TestDrainHandsBackWhatALostReplyLeft(t *testing.T) {
	t.Parallel()
	b := setup(t)
	proxy := chaosproxy.Redis(t, b.RedisURL)
	behind := b.Stores
	behind.RedisURL = proxy.URL
	w := behind.StartWorker(t, worker.Options{VisibilityTimeout: time.Minute}, func(w *worker.Worker) {
		w.HandleRaw("t", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	testkit.Eventually(t, "the worker is ready", func() (bool, string) { return w.Ready(), "" })
	proxy.Down(true)
	testkit.Eventually(t, "its reads fail", func() (bool, string) { return !w.Ready(), "ready" })
	id := b.enqueue(task.Request{})
	testkit.Eventually(t, "the entry is given to it", func() (bool, string) {
		res, err := b.redis.XReadGroup(t.Context(), &redis.XReadGroupArgs{
			Group: protocol.GroupWorkers, Consumer: w.ID(), Streams: []string{protocol.StreamTask, ">"}, Count: 1, Block: -1,
		}).Result()
		return len(res) == 1, fmt.Sprint(err)
	})
	proxy.Down(false)
	w.Stop(t) // it may have looked in between, and run the task
	if ps := b.pending("default"); len(ps) != 0 {
		t.Errorf("pending: %v", ps)
	}
	if got := b.consumers("default"); slices.Contains(got, w.ID()) {
		t.Errorf("consumers %v: the worker has not left", got)
	}
	b.raw(worker.Options{}, func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	if got := b.wait(id); got.State != "succeeded" || got.Interruptions != 0 || got.Attempt != 1 {
		t.Errorf("%v, want it to succeed at once", got)
	}
}
