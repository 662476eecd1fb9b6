package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func TestTimeoutCancelsTheHandler(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.raw(worker.Options{}, func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), task.ErrTimeout) {
			return nil, task.Permanent(context.Cause(ctx))
		}
		return nil, ctx.Err()
	})
	none := 0
	id := b.enqueue(task.Request{Timeout: 40 * time.Millisecond, MaxRetries: &none})
	got := b.wait(id)
	if got.LastErrorCode.GetValue() != "TASK_RETRY_EXHAUSTED" || !strings.HasPrefix(got.LastErrorReason.GetValue(), "TASK_TIMEOUT: start-to-close timeout: ") {
		t.Errorf("got %s %q, want an exhausted TASK_TIMEOUT", got.LastErrorCode.GetValue(), got.LastErrorReason.GetValue())
	}
}

// impatient starts a worker that gives up handlers soon after their timeout.
func (b *bundle) impatient(o worker.Options, grace time.Duration, h task.Handler) *testkit.Worker {
	b.t.Helper()
	return b.worker(o, func(w *worker.Worker) {
		worker.SetTimeoutGrace(w, grace)
		w.HandleRaw("t", h)
	})
}

// The task of a handler that does not notice its timeout is given up a while
// later; the handler keeps its slot, and what it returns is dropped.
func TestHandlerThatIgnoresItsTimeout(t *testing.T) {
	t.Parallel()
	b := setup(t)
	release := make(chan struct{})
	var calls atomic.Int32
	w := b.impatient(worker.Options{Concurrency: 2}, 60*time.Millisecond, func(context.Context, *task.Raw) (json.RawMessage, error) {
		if calls.Add(1) == 1 {
			<-release
		}
		return json.RawMessage(`"late"`), nil
	})
	id := b.enqueue(task.Request{Timeout: 20 * time.Millisecond})
	retried := b.wait(id)
	if retried.State != "succeeded" || retried.Attempt != 2 {
		t.Errorf("got %s in attempt %d, want a second attempt to succeed in the other slot", retried.State, retried.Attempt)
	}
	es := b.wantEvents(id, "task.created", "task.claimed", "task.retry_scheduled", "task.claimed", "task.succeeded")
	const reason = "start-to-close timeout: the handler did not return within 60ms of its cancellation after 20ms"
	if e := find(es, protocol.EventRetryScheduled); e.ErrorCode != "TASK_TIMEOUT" || e.Reason != reason || e.Actor != protocol.ActorWorker {
		t.Errorf("retry event %v, want TASK_TIMEOUT of a handler that did not return", e)
	}
	// Its end is reported, so the entry is acknowledged, and nothing renews its lease.
	b.wantAcknowledged()
	if n := w.Stuck(); n != 1 {
		t.Errorf("%d stuck handlers, want 1", n)
	}
	close(release)
	testkit.Eventually(t, "the handler is stuck no more", func() (bool, string) { return w.Stuck() == 0, fmt.Sprint(w.Stuck()) })
	w.Stop(t)
	b.wantEvents(id, "task.created", "task.claimed", "task.retry_scheduled", "task.claimed", "task.succeeded")
}

// wantAcknowledged waits until no entry is pending.
func (b *bundle) wantAcknowledged() {
	b.t.Helper()
	testkit.Eventually(b.t, "everything is acknowledged", func() (bool, string) {
		ps := b.pending("default")
		return len(ps) == 0, fmt.Sprint(ps)
	})
}

// Stuck handlers keep their slots: their tasks' retries wait for a free one
// rather than running beside them.
func TestStuckHandlersKeepTheirSlots(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const slots = 3
	var g gauge
	release := make(chan struct{})
	w := b.impatient(worker.Options{Concurrency: slots}, 50*time.Millisecond, func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
		g.enter()
		defer g.leave()
		if r.Attempt == 1 && string(r.Payload) == `"stuck"` {
			<-release
		}
		return nil, nil
	})
	var ids []string
	for range slots {
		ids = append(ids, b.enqueue(task.Request{Timeout: 20 * time.Millisecond, Payload: json.RawMessage(`"stuck"`)}))
	}
	for _, id := range ids {
		b.waitEvent(id, protocol.EventRetryScheduled)
	}
	if n := w.Stuck(); n != slots {
		t.Errorf("%d stuck handlers, want %d", n, slots)
	}
	if err := w.Check(); w.Ready() || err == nil || err.Error() != "every slot is held by a handler that ignores its cancellation" {
		t.Errorf("Check: %v, want that nothing can run", err)
	}
	ids = append(ids, b.enqueue(task.Request{Timeout: time.Minute}))
	c := b.Streams(t)
	testkit.Eventually(t, "retries and the new task wait in the stream", func() (bool, string) {
		i, err := c.Info(t.Context(), protocol.StreamTask, protocol.GroupWorkers)
		return err == nil && i.Undelivered == slots+1, fmt.Sprintf("%+v, %v", i, err)
	})
	if n := g.total.Load(); n != slots {
		t.Errorf("%d handlers were started while all %d slots are occupied", n, slots)
	}
	close(release)
	for _, id := range ids {
		if got := b.wait(id); got.State != "succeeded" {
			t.Errorf("%s: %s", id, got.State)
		}
	}
	if n := g.most.Load(); n > slots {
		t.Errorf("%d handlers ran at once, want at most %d", n, slots)
	}
	testkit.Eventually(t, "no handler is stuck", func() (bool, string) { return w.Stuck() == 0 && w.Ready(), fmt.Sprint(w.Stuck(), w.Check()) })
	testkit.VerifyLog(t, b.Stores)
}

// A handler that succeeds late, but before it was given up, has succeeded.
func TestSuccessWithinTheGrace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.impatient(worker.Options{}, time.Minute, func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		<-ctx.Done()
		return json.RawMessage(`"just"`), nil
	})
	id := b.enqueue(task.Request{Timeout: 30 * time.Millisecond})
	if got := b.wait(id); got.State != "succeeded" || got.Attempt != 1 || string(got.Result) != `"just"` {
		t.Errorf("got %v, want success in the first attempt", got)
	}
}

// A handler that never returns does not keep a worker from stopping.
func TestShutdownWithAStuckHandler(t *testing.T) {
	t.Parallel()
	b := setup(t)
	started, release := make(chan struct{}, 1), make(chan struct{})
	w := b.impatient(worker.Options{Concurrency: 1, ShutdownGrace: -1}, 30*time.Millisecond, func(context.Context, *task.Raw) (json.RawMessage, error) {
		started <- struct{}{}
		<-release
		return nil, nil
	})
	defer close(release)
	none := 0
	id := b.enqueue(task.Request{Timeout: 20 * time.Millisecond, MaxRetries: &none})
	receive(t, "the handler starts", started)
	if got := b.wait(id); got.State != "failed" || got.LastErrorCode.GetValue() != "TASK_RETRY_EXHAUSTED" {
		t.Errorf("got %v, want it given up", got)
	}
	began := time.Now()
	w.Stop(t)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the worker took %s to stop without a grace period", took)
	}
	if got := b.consumers("default"); slices.Contains(got, w.ID()) {
		t.Errorf("consumers %v: the worker has not left", got)
	}
	b.wantEvents(id, "task.created", "task.claimed", "task.dlq", "task.dlq", "task.failed")
	b.wantAcknowledged()
}

func TestClaimIsReportedAloneOnlyForLongTasks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	release := make(chan struct{})
	w := b.worker(worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("long", func(context.Context, *task.Raw) (json.RawMessage, error) { <-release; return nil, nil })
		w.HandleRaw("short", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	long, short := b.enqueue(task.Request{Type: "long"}), b.enqueue(task.Request{Type: "short"})
	if got := b.waitState(long, protocol.StateRunning); got.WorkerId != w.ID() || got.StartedAt == nil {
		t.Errorf("while it runs: %v, want worker %s and a start", got, w.ID())
	}
	b.wantEvents(long, "task.created", "task.claimed")
	b.wait(short)
	close(release)
	b.wait(long)
	claimed := find(b.wantEvents(long, "task.created", "task.claimed", "task.succeeded"), protocol.EventClaimed)
	ended := find(b.events(long), protocol.EventSucceeded)
	if !claimed.OccurredAt.AsTime().Before(ended.OccurredAt.AsTime()) {
		t.Errorf("claim of the long task at %s, end at %s: want it before", claimed.OccurredAt.AsTime(), ended.OccurredAt.AsTime())
	}
	es := b.wantEvents(short, "task.created", "task.claimed", "task.succeeded")
	if c, e := es[1].OccurredAt.AsTime(), es[2].OccurredAt.AsTime(); !c.Equal(e) {
		t.Errorf("claim of the short task at %s, end at %s: want one transaction", c, e)
	}
	if n := b.redis.XLen(t.Context(), protocol.StreamResult).Val(); n > 3 {
		t.Errorf("stream:result got %d entries, want one for the short task and two for the long one", n)
	}
}
