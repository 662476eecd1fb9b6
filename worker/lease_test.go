package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func TestALongTaskKeepsItsLease(t *testing.T) {
	t.Parallel()
	const visible = 600 * time.Millisecond
	b := setup(t, visibility(visible))
	var calls atomic.Int32
	b.raw(worker.Options{}, func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		calls.Add(1)
		select { // the work of the task: five visibility timeouts
		case <-time.After(5 * visible):
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	id := b.enqueue(task.Request{})
	if got := b.wait(id); got.State != "succeeded" || got.Delivery != 1 || calls.Load() != 1 {
		t.Errorf("%s, delivery %d, %d executions; want one execution", got.State, got.Delivery, calls.Load())
	}
	b.wantEvents(id, "task.created", "task.claimed", "task.succeeded")
}

// A connection that goes silent in the middle of a renewal costs no lease: the
// worker gives it up in time to renew on another.
func TestSilentConnectionCostsNoLease(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"hgetall", "xpending", "xclaim"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			const visible = 3 * time.Second
			b := setup(t, visibility(visible))
			proxy := chaosproxy.Redis(t, b.RedisURL)
			var calls atomic.Int32
			silent := make(chan struct{})
			behind := b.Stores
			behind.RedisURL = proxy.URL
			behind.StartWorker(t, worker.Options{VisibilityTimeout: visible}, func(w *worker.Worker) {
				w.HandleRaw("t", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
					calls.Add(1)
					<-silent
					select { // the work of the task: long enough for a lease that was not renewed to be taken
					case <-time.After(2 * visible):
						return nil, nil
					case <-ctx.Done():
						return nil, context.Cause(ctx)
					}
				})
			})
			id := b.enqueue(task.Request{})
			b.waitState(id, protocol.StateRunning)
			<-proxy.Lose(chaosproxy.Rule{Match: chaosproxy.Has(command), Silent: true})
			close(silent)
			if got := b.wait(id); got.State != "succeeded" || got.Delivery != 1 || calls.Load() != 1 {
				t.Errorf("%s, delivery %d, %d executions; want one execution", got.State, got.Delivery, calls.Load())
			}
			b.wantEvents(id, "task.created", "task.claimed", "task.succeeded")
		})
	}
}

func TestLostLeaseCancelsTheHandlerAndItsOutcomeIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(900*time.Millisecond))
	causes, second := make(chan error, 1), make(chan struct{})
	var calls atomic.Int32
	loser := b.raw(worker.Options{Name: "loser"}, func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
		if calls.Add(1) > 1 {
			defer close(second)
			return json.RawMessage(`"second"`), nil
		}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		<-second // the outcome comes after the task was taken over and finished
		return json.RawMessage(`"first"`), nil
	})
	id := b.enqueue(task.Request{})
	b.waitState(id, protocol.StateRunning)
	ps := b.pending("default")
	if len(ps) != 1 || ps[0].Consumer != loser.ID() {
		t.Fatalf("pending: %v, want one entry of %s", ps, loser.ID())
	}
	if cause := b.steal(ps[0], causes); !errors.Is(cause, task.ErrLeaseLost) {
		t.Errorf("the context ended with %v, want ErrLeaseLost", cause)
	}
	if got := b.wait(id); string(got.Result) != `"second"` || got.Delivery != 2 || got.RetryCount != 0 {
		t.Errorf("got %v, want the second execution's result under delivery 2", got)
	}
	var d protocol.RejectedData
	if err := json.Unmarshal(b.waitEvent(id, protocol.EventTransitionRejected).Data, &d); err != nil || d.Kind != protocol.OutcomeSucceeded || d.Delivery != 1 {
		t.Errorf("refused: %+v (%v), want the success of delivery 1", d, err)
	}
	reclaimed := find(b.events(id), protocol.EventReclaimed)
	if reclaimed.WorkerId != "thief" {
		t.Errorf("reclaimed from %q, want the thief", reclaimed.WorkerId)
	}
}

// An entry that was stolen is still pending with the thief after the loser's
// outcome is in: the loser does not acknowledge what it does not own.
func TestTheLoserOfALeaseDoesNotAcknowledge(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(3*time.Second))
	causes, stolen := make(chan error, 1), make(chan struct{})
	b.raw(worker.Options{}, func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		<-stolen
		return nil, context.Cause(ctx)
	})
	id := b.enqueue(task.Request{})
	b.waitState(id, protocol.StateRunning)
	entry := b.pending("default")[0]
	b.steal(entry, causes)
	b.claimAs("thief", entry.ID) // idle for no time, so not to be reclaimed yet
	close(stolen)
	// Cancelled only because of the lease: no retry, no interruption is spent.
	b.waitEvent(id, protocol.EventInterrupted)
	got := must(b.client.Get(t.Context(), "", id))
	if got.RetryCount != 0 || got.Interruptions != 0 {
		t.Errorf("%d retries and %d interruptions were spent, want none", got.RetryCount, got.Interruptions)
	}
	kept := func(p redis.XPendingExt) bool { return p.ID == entry.ID && p.Consumer == "thief" }
	if now := b.pending("default"); !slices.ContainsFunc(now, kept) {
		t.Errorf("pending: %v, want %s with the thief", now, entry.ID)
	}
}

// If Redis loses the group while a task runs, the claim is reported so that
// nobody dispatches it again, and the outcome counts.
func TestGroupDestroyedWhileATaskRuns(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(3*time.Second))
	started, release := make(chan struct{}, 2), make(chan struct{})
	var calls atomic.Int32
	b.raw(worker.Options{}, func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		calls.Add(1)
		started <- struct{}{}
		select {
		case <-release:
			return json.RawMessage(`"kept"`), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	id := b.enqueue(task.Request{})
	receive(t, "the handler starts", started)
	b.waitState(id, protocol.StateRunning)
	if err := b.redis.XGroupDestroy(t.Context(), protocol.StreamTask, protocol.GroupWorkers).Err(); err != nil {
		t.Fatal(err)
	}
	// Other work goes on once the group has been made anew.
	other := b.enqueue(task.Request{Type: "t"})
	receive(t, "the group is made anew and another task starts", started)
	close(release)
	if got := b.wait(id); string(got.Result) != `"kept"` || got.Delivery != 1 {
		t.Errorf("got %v, want the result of the only execution", got)
	}
	b.wantEvents(id, "task.created", "task.claimed", "task.succeeded")
	if got := b.wait(other); got.State != "succeeded" {
		t.Errorf("the other task is %s", got.State)
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("%d executions of two tasks", n)
	}
	testkit.VerifyLog(t, b.Stores)
}

// A claim that Redis lost is reported again as soon as the worker notices that
// its entry is gone.
func TestClaimIsReportedAgainAfterRedisLostIt(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(1500*time.Millisecond))
	release := make(chan struct{})
	defer close(release)
	b.raw(worker.Options{}, func(context.Context, *task.Raw) (json.RawMessage, error) { <-release; return nil, nil })
	id := b.enqueue(task.Request{})
	b.waitState(id, protocol.StateRunning)
	b.orch.Stop(t) // nobody reads stream:result now
	if err := b.redis.Del(t.Context(), protocol.StreamTask, protocol.StreamResult).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the claim is in stream:result again", func() (bool, string) {
		es, err := b.redis.XRange(t.Context(), protocol.StreamResult, "-", "+").Result()
		if err != nil || len(es) == 0 {
			return false, "nothing"
		}
		o, err := protocol.DecodeOutcome(es[0].Values)
		return err == nil && o.Kind == protocol.OutcomeClaimed && o.ID.String() == id, es[0].ID
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
