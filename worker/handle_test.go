package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

type pair struct{ A, B int }

var sum = task.Define[pair]("sum")

func TestTypedAndRawHandlersStoreTheirResults(t *testing.T) {
	t.Parallel()
	b := setup(t)
	infos := make(chan task.Info, 1)
	w := b.worker(worker.Options{}, func(w *worker.Worker) {
		worker.Handle(w, sum, func(_ context.Context, j *task.Job[pair]) error {
			infos <- j.Info
			return j.SetResult(j.Args.A + j.Args.B)
		})
		w.HandleRaw("raw", func(_ context.Context, r *task.Raw) (json.RawMessage, error) { return r.Payload, nil })
		w.HandleRaw("none", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	e, err := sum.Enqueue(t.Context(), b.client, pair{2, 3}, task.ID("two and three"), task.Key("k"), task.Tenant("acme"),
		task.TraceID("trace"), task.Timeout(time.Minute), task.MaxRetries(7))
	if err != nil {
		t.Fatal(err)
	}
	raw, none := b.enqueue(task.Request{Type: "raw", Payload: json.RawMessage(`{"x": [1]}`)}), b.enqueue(task.Request{Type: "none"})

	i := receive(t, "the typed handler", infos)
	if i.TaskID != "two and three" || i.IdempotencyKey != "k" || i.Tenant != "acme" || i.TraceID != "trace" || i.Timeout != time.Minute ||
		i.MaxRetries != 7 || i.Attempt != 1 || i.Delivery != 1 || i.Queue != "default" || i.Type != "sum" || i.MessageID == "" || i.EnqueuedAt.IsZero() {
		t.Errorf("the handler saw %+v", i)
	}
	got, err := b.client.Wait(t.Context(), "acme", e.TaskID)
	if err != nil || got.State != "succeeded" || string(got.Result) != "5" || got.WorkerId != w.ID() {
		t.Errorf("typed: %v, %v; want succeeded with 5 by %s", got, err, w.ID())
	}
	if got := b.wait(raw); got.State != "succeeded" || strings.ReplaceAll(string(got.Result), " ", "") != `{"x":[1]}` {
		t.Errorf("raw: %v", got)
	}
	if got := b.wait(none); got.State != "succeeded" || string(got.Result) != "null" {
		t.Errorf("none: %v", got)
	}
}

func TestFailuresAreReportedAsWhatTheyAre(t *testing.T) {
	t.Parallel()
	b := setup(t)
	boom := errors.New("boom")
	set := func(w *worker.Worker) {
		worker.Handle(w, sum, func(context.Context, *task.Job[pair]) error { return nil })
		for typ, err := range map[string]error{
			"error": boom, "permanent": task.Permanent(boom), "invalid": task.InvalidInput(boom),
		} {
			w.HandleRaw(typ, func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, err })
		}
		w.HandleRaw("panic", func(context.Context, *task.Raw) (json.RawMessage, error) { panic("kaboom") })
		w.HandleRaw("exit", func(context.Context, *task.Raw) (json.RawMessage, error) { runtime.Goexit(); return nil, nil })
		w.HandleRaw("garbage", func(context.Context, *task.Raw) (json.RawMessage, error) { return json.RawMessage("\"\xff"), nil })
		w.HandleRaw("fine", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	}
	b.worker(worker.Options{Concurrency: 1}, set)
	tests := []struct {
		typ, payload, code, reason string
		retries                    int32
	}{
		{"error", "1", "TASK_RETRY_EXHAUSTED", "TASK_EXECUTION_FAILED: boom", 1},
		{"permanent", "1", "TASK_EXECUTION_FAILED", "boom", 0},
		{"invalid", "1", "TASK_INPUT_INVALID", "boom", 0},
		{"sum", `"text"`, "TASK_INPUT_INVALID", "payload does not decode into worker_test.pair", 0},
		{"panic", "1", "TASK_RETRY_EXHAUSTED", "panic: kaboom", 1},
		{"exit", "1", "TASK_RETRY_EXHAUSTED", "ended its goroutine", 1},
		{"garbage", "1", "TASK_EXECUTION_FAILED", "not JSON", 0},
	}
	one := 1
	for _, tt := range tests {
		id := b.enqueue(task.Request{Type: tt.typ, Payload: json.RawMessage(tt.payload), MaxRetries: &one})
		got := b.wait(id)
		if got.State != "failed" || got.LastErrorCode.GetValue() != tt.code || !strings.Contains(got.LastErrorReason.GetValue(), tt.reason) ||
			got.RetryCount != tt.retries || got.DlqId == "" {
			t.Errorf("%s: %s %s %q after %d retries, dlq_id %q; want failed %s %q after %d", tt.typ, got.State, got.LastErrorCode.GetValue(),
				got.LastErrorReason.GetValue(), got.RetryCount, got.DlqId, tt.code, tt.reason, tt.retries)
		}
		if tt.typ == "panic" && !strings.Contains(got.LastErrorReason.GetValue(), "handle_test.go") {
			t.Errorf("the stack does not name this file: %s", got.LastErrorReason.GetValue())
		}
	}
	// The one slot of the worker is free again after all this.
	if got := b.wait(b.enqueue(task.Request{Type: "fine"})); got.State != "succeeded" {
		t.Errorf("after the failures a task is %s", got.State)
	}
}

func TestRetryAfterSpendsARetryAndSnoozeDoesNot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := func(err error) task.Handler {
		var ran atomic.Bool
		return func(context.Context, *task.Raw) (json.RawMessage, error) {
			if ran.CompareAndSwap(false, true) {
				return nil, err
			}
			return nil, nil
		}
	}
	b.worker(worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("after", first(task.RetryAfter(30*time.Millisecond, errors.New("busy"))))
		w.HandleRaw("snooze", first(task.Snooze(20*time.Millisecond)))
	})
	for typ, want := range map[string]struct {
		attempt int32
		delay   int64
		source  string
		code    string
	}{
		"after":  {2, 30, protocol.DelayFromRetryAfter, "TASK_EXECUTION_FAILED"},
		"snooze": {1, 20, protocol.DelayFromSnooze, ""},
	} {
		id := b.enqueue(task.Request{Type: typ})
		if got := b.wait(id); got.State != "succeeded" || got.Attempt != want.attempt || got.Delivery != 2 {
			t.Errorf("%s: %s in attempt %d, delivery %d; want succeeded in attempt %d, delivery 2", typ, got.State, got.Attempt, got.Delivery, want.attempt)
		}
		es := b.wantEvents(id, "task.created", "task.claimed", "task.retry_scheduled", "task.claimed", "task.succeeded")
		e := find(es, protocol.EventRetryScheduled)
		var d protocol.RetryData
		if err := json.Unmarshal(e.Data, &d); err != nil || d.DelaySource != want.source || e.BackoffDelayMs.GetValue() != want.delay || e.ErrorCode != want.code {
			t.Errorf("%s: retry event %v (%v), want %d ms from %s with code %q", typ, e, err, want.delay, want.source, want.code)
		}
	}
}

func TestUnknownTypeIsHandedBackAndRunsElsewhere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.worker(worker.Options{Name: "old"}, func(w *worker.Worker) {
		w.HandleRaw("other", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	id := b.enqueue(task.Request{Type: "new"})
	got := b.waitState(id, protocol.StateInterrupted)
	if got.Delivery != 2 || got.Interruptions != 0 || got.Attempt != 1 {
		t.Errorf("after the hand-back: %v, want delivery 2, attempt 1 and no interruption", got)
	}
	e := find(b.events(id), protocol.EventInterrupted)
	if e.ErrorCode != "TASK_UNKNOWN_TYPE" || e.WorkerId != old.ID() {
		t.Errorf("interrupted by %s with %q, want TASK_UNKNOWN_TYPE by %s", e.WorkerId, e.ErrorCode, old.ID())
	}
	old.Stop(t)
	b.worker(worker.Options{Name: "new"}, func(w *worker.Worker) {
		w.HandleRaw("new", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	if got := b.wait(id); got.State != "succeeded" || got.RetryCount != 0 || got.Interruptions != 0 {
		t.Errorf("run by a worker that knows the type: %v", got)
	}
}
