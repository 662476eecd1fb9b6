package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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

// The task of a handler that does not notice its timeout is given up a while
// later; the handler keeps its slot, and what it returns is dropped.
func TestHandlerThatIgnoresItsTimeout(t *testing.T) {
	t.Parallel()
	b := setup(t)
	release := make(chan struct{})
	var calls atomic.Int32
	w := b.raw(worker.Options{Concurrency: 2}, func(context.Context, *task.Raw) (json.RawMessage, error) {
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
	if e := find(es, protocol.EventRetryScheduled); e.ErrorCode != "TASK_TIMEOUT" || !strings.Contains(e.Reason, "did not return") {
		t.Errorf("retry event %v, want TASK_TIMEOUT of a handler that did not return", e)
	}
	close(release)
	w.Stop(t)
	b.wantEvents(id, "task.created", "task.claimed", "task.retry_scheduled", "task.claimed", "task.succeeded")
	if ps := b.pending("default"); len(ps) != 0 {
		t.Errorf("pending: %v", ps)
	}
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
