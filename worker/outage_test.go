package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// ownRedis is a bundle whose Redis the test may stop and starve.
func ownRedis(t *testing.T, durable bool, edit ...func(*config.Orchestrator)) (*bundle, *devstack.Stack) {
	t.Helper()
	s := devtest.Stack(t, devstack.Options{Redis: true, Durable: durable})
	return setupOn(t, testkit.Stores{PostgresURL: testkit.Database(t), RedisURL: s.RedisURL}, edit...), s
}

// Redis goes away while tasks run, and comes back with its data: outcomes have
// waited, nothing was acknowledged before, nothing runs twice.
func TestOutcomesWaitForRedis(t *testing.T) {
	t.Parallel()
	b, stack := ownRedis(t, true)
	const n = 40
	started, release := make(chan struct{}, n), make(chan struct{})
	var calls, finished atomic.Int32
	b.raw(worker.Options{Concurrency: n}, func(context.Context, *task.Raw) (json.RawMessage, error) {
		calls.Add(1)
		started <- struct{}{}
		<-release
		finished.Add(1)
		return nil, nil
	})
	ids := b.enqueueMany(n, "")
	for range n {
		receive(t, "the handlers start", started)
	}
	if err := stack.StopRedis(false); err != nil {
		t.Fatal(err)
	}
	close(release)
	testkit.Eventually(t, "all handlers have returned", func() (bool, string) {
		return finished.Load() == n, fmt.Sprint(finished.Load())
	})
	if err := stack.StartRedis(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if got := b.wait(id); got.State != "succeeded" || got.Delivery != 1 || got.Interruptions != 0 {
			t.Errorf("%v, want succeeded in the first delivery", got)
		}
	}
	if calls.Load() != n {
		t.Errorf("%d executions of %d tasks", calls.Load(), n)
	}
	testkit.VerifyLog(t, b.Stores)
	if got := b.wait(b.enqueue(task.Request{})); got.State != "succeeded" {
		t.Errorf("a task after the outage is %s", got.State)
	}
}

// Redis comes back empty while a task runs: the task runs on, its claim is
// reported, and its outcome counts.
func TestRedisComesBackEmptyWhileATaskRuns(t *testing.T) {
	t.Parallel()
	b, stack := ownRedis(t, false, visibility(3*time.Second))
	release := make(chan struct{})
	var calls atomic.Int32
	b.raw(worker.Options{}, func(context.Context, *task.Raw) (json.RawMessage, error) {
		calls.Add(1)
		<-release
		return json.RawMessage(`"kept"`), nil
	})
	id := b.enqueue(task.Request{})
	b.waitState(id, protocol.StateRunning)
	if err := stack.StopRedis(true); err != nil {
		t.Fatal(err)
	}
	if err := stack.StartRedis(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the worker's claim is repeated and applied", func() (bool, string) {
		es, err := b.redis.XRange(t.Context(), protocol.StreamResult, "-", "+").Result()
		return err == nil && len(es) > 0, fmt.Sprint(len(es), err)
	})
	close(release)
	if got := b.wait(id); string(got.Result) != `"kept"` || got.Delivery != 1 || calls.Load() != 1 {
		t.Errorf("%v after %d executions, want the result of the only one", got, calls.Load())
	}
}

// Redis stands still for longer than the visibility timeout, with all its
// connections open, and goes on: the leases that nobody could renew meanwhile are
// left to their workers.
func TestRedisStandsStill(t *testing.T) {
	t.Parallel()
	const visible, n = 2 * time.Second, 20
	b, stack := ownRedis(t, false, visibility(visible))
	var calls atomic.Int32
	started, release := make(chan struct{}, 2*n), make(chan struct{})
	b.raw(worker.Options{Concurrency: n}, func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		calls.Add(1)
		started <- struct{}{}
		select {
		case <-release:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	ids := b.enqueueMany(n, "")
	for range n {
		receive(t, "the handlers start", started)
	}
	for _, id := range ids {
		b.waitState(id, protocol.StateRunning)
	}
	redis, err := os.FindProcess(stack.RedisPID())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := redis.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		stopped := time.Now()
		testkit.Eventually(t, "Redis stands still for long", func() (bool, string) { return time.Since(stopped) > visible*5/4, "" })
		if err := redis.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		from := time.Now()
		testkit.Eventually(t, "the leases are renewed", func() (bool, string) {
			ps := b.pending("default")
			for _, p := range ps {
				if time.Since(from) < p.Idle {
					return false, fmt.Sprint(ps)
				}
			}
			return true, ""
		})
	}
	close(release)
	for _, id := range ids {
		if got := b.wait(id); got.State != "succeeded" || got.Delivery != 1 {
			t.Errorf("%s: %s, delivery %d, want succeeded in the first", id, got.State, got.Delivery)
		}
	}
	if calls.Load() != n {
		t.Errorf("%d executions of %d tasks", calls.Load(), n)
	}
}

// Without memory Redis refuses XADD but takes XACK: nothing may be
// acknowledged then. How many outcomes may wait is bounded, so that the worker
// stops fetching; when there is memory again everything is delivered.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	const unsettled = 2000 // besides one a slot
	const concurrency, n = 100, unsettled + 400
	b, _ := ownRedis(t, false, visibility(2*time.Minute))
	var calls atomic.Int32
	gate := make(chan struct{})
	start := func() *testkit.Worker {
		return b.raw(worker.Options{Concurrency: concurrency}, func(context.Context, *task.Raw) (json.RawMessage, error) {
			calls.Add(1)
			<-gate
			return nil, nil
		})
	}
	ids := b.enqueueMany(n, "")
	testkit.Eventually(t, "all tasks are in the stream", func() (bool, string) {
		n1 := b.redis.XLen(t.Context(), protocol.StreamTask).Val()
		return n1 == n, fmt.Sprint(n1)
	})
	w := start()
	testkit.Eventually(t, "all slots are taken", func() (bool, string) {
		return calls.Load() == concurrency, fmt.Sprint(calls.Load())
	})
	if err := b.redis.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	before := b.redis.XLen(t.Context(), protocol.StreamResult).Val()
	close(gate)
	bound := int32(unsettled + concurrency)
	testkit.Eventually(t, "the worker runs on until its bound", func() (bool, string) {
		return calls.Load() >= bound, fmt.Sprint(calls.Load())
	})
	// The worker looks for work in vain several times a second; if it could
	// fetch more it would have by the time Redis counts all it holds.
	testkit.Eventually(t, "what ran is still pending", func() (bool, string) {
		held := len(b.pending("default"))
		return held == int(bound), fmt.Sprint(held)
	})
	if got := calls.Load(); got != bound {
		t.Errorf("%d executions while nothing could be reported, want %d", got, bound)
	}
	if now := b.redis.XLen(t.Context(), protocol.StreamResult).Val(); now != before {
		t.Errorf("stream:result grew from %d to %d without memory", before, now)
	}
	if err := b.redis.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if got := b.wait(id); got.State != "succeeded" || got.Delivery != 1 {
			t.Fatalf("%v, want succeeded in the first delivery", got)
		}
	}
	if calls.Load() != n {
		t.Errorf("%d executions of %d tasks", calls.Load(), n)
	}
	w.Stop(t)
	testkit.VerifyLog(t, b.Stores)
}

// A worker that can't report its outcomes says so when it stops, and leaves
// its entries to be reclaimed.
func TestStopWithoutMemory(t *testing.T) {
	t.Parallel()
	b, _ := ownRedis(t, false, visibility(4*time.Second))
	var calls atomic.Int32
	gate := make(chan struct{})
	w, err := worker.New(worker.Options{
		RedisURL: b.RedisURL, VisibilityTimeout: b.cfg.Recovery.VisibilityTimeout, IgnoreSignals: true, Log: testkit.Log(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.HandleRaw("t", func(context.Context, *task.Raw) (json.RawMessage, error) {
		calls.Add(1)
		<-gate
		return nil, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	ids := b.enqueueMany(10, "")
	testkit.Eventually(t, "all run", func() (bool, string) { return calls.Load() == 10, fmt.Sprint(calls.Load()) })
	if err := b.redis.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	close(gate)
	stop()
	if err := receive(t, "the worker gives up", done); err == nil {
		t.Error("the worker says that it stopped cleanly with 10 outcomes in hand")
	}
	if got := len(b.pending("default")); got != 10 {
		t.Errorf("%d entries are pending, want all 10", got)
	}
	if err := b.redis.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	b.raw(worker.Options{}, func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	for _, id := range ids {
		if got := b.wait(id); got.State != "succeeded" || got.Interruptions > 1 {
			t.Errorf("%v, want succeeded after one interruption", got)
		}
	}
	testkit.VerifyLog(t, b.Stores)
}
