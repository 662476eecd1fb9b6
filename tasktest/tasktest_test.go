package tasktest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/tasktest"
)

type args struct{ N int }

var double = task.Define[args]("double")

func returning(err error) func(context.Context, *task.Job[args]) error {
	return func(context.Context, *task.Job[args]) error { return err }
}

func TestRunClassifiesWhatTheHandlerReturns(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	tests := []struct {
		name      string
		err       error
		opts      []tasktest.Option
		kind      tasktest.Kind
		state     string
		code      string
		retryable bool
		delay     time.Duration
	}{
		{"nil", nil, nil, tasktest.Succeeded, "succeeded", "", false, -1},
		{"error", boom, nil, tasktest.Failed, "retrying", "TASK_EXECUTION_FAILED", true, -1},
		{"last attempt", boom, []tasktest.Option{tasktest.MaxRetries(1), tasktest.Attempt(2)}, tasktest.Failed, "dlq_pending", "TASK_EXECUTION_FAILED", true, -1},
		{"permanent", task.Permanent(boom), nil, tasktest.Failed, "dlq_pending", "TASK_EXECUTION_FAILED", false, -1},
		{"invalid input", task.InvalidInput(boom), nil, tasktest.Failed, "dlq_pending", "TASK_INPUT_INVALID", false, -1},
		{"retry after", task.RetryAfter(7*time.Second, boom), nil, tasktest.Failed, "retrying", "TASK_EXECUTION_FAILED", true, 7 * time.Second},
		{"retry after too long", task.RetryAfter(1<<62, boom), nil, tasktest.Failed, "retrying", "TASK_EXECUTION_FAILED", true, 365 * 24 * time.Hour},
		{"snooze", task.Snooze(3 * time.Second), nil, tasktest.Snoozed, "retrying", "", false, 3 * time.Second},
		{"shutdown", boom, []tasktest.Option{tasktest.Cancelled(task.ErrShutdown)}, tasktest.Released, "interrupted", "", false, -1},
		{"lease lost", boom, []tasktest.Option{tasktest.Cancelled(task.ErrLeaseLost)}, tasktest.Released, "interrupted", "", false, -1},
		{"timeout", boom, []tasktest.Option{tasktest.Cancelled(task.ErrTimeout)}, tasktest.Failed, "retrying", "TASK_TIMEOUT", true, -1},
		{"success in spite of a shutdown", nil, []tasktest.Option{tasktest.Cancelled(task.ErrShutdown)}, tasktest.Succeeded, "succeeded", "", false, -1},
		{"permanent in spite of a shutdown", task.Permanent(boom), []tasktest.Option{tasktest.Cancelled(task.ErrShutdown)}, tasktest.Failed, "dlq_pending", "TASK_EXECUTION_FAILED", false, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out := tasktest.Run(t, double, returning(tt.err), args{1}, tt.opts...)
			if out.Kind != tt.kind || out.State != tt.state || out.Code != tt.code || out.Retryable != tt.retryable || out.Delay != tt.delay {
				t.Errorf("got %+v, want %s %s %s retryable=%v delay=%s", out, tt.kind, tt.state, tt.code, tt.retryable, tt.delay)
			}
			if !errors.Is(out.Err, tt.err) {
				t.Errorf("Err is %v, want %v", out.Err, tt.err)
			}
		})
	}
}

func TestRunShowsTheHandlerItsExecution(t *testing.T) {
	t.Parallel()
	var got task.Info
	var n int
	out := tasktest.Run(t, double, func(_ context.Context, j *task.Job[args]) error {
		got, n = j.Info, j.Args.N
		return j.SetResult(2 * j.Args.N)
	}, args{21}, tasktest.TaskID("order-1"), tasktest.Attempt(2), tasktest.Delivery(5), tasktest.MaxRetries(4),
		tasktest.IdempotencyKey("k"), tasktest.Tenant("acme"), tasktest.Queue("slow"), tasktest.TraceID("tr"), tasktest.Timeout(time.Second))
	if n != 21 || got.TaskID != "order-1" || got.Attempt != 2 || got.RetryCount != 1 || got.Delivery != 5 || got.MaxRetries != 4 ||
		got.IdempotencyKey != "k" || got.Tenant != "acme" || got.Queue != "slow" || got.TraceID != "tr" || got.Timeout != time.Second ||
		got.Type != "double" || got.ExecutionKey() != "order-1:1" {
		t.Errorf("the handler saw %+v and %d", got, n)
	}
	var v int
	if err := out.Decode(&v); err != nil || v != 42 {
		t.Errorf("result %s: %d, %v; want 42", out.Result, v, err)
	}
	if plain := tasktest.Run(t, double, returning(nil), args{}); string(plain.Result) != "null" {
		t.Errorf("a handler without a result has %q, want null", plain.Result)
	}
}

func TestPanicIsARetryableFailureWithItsStack(t *testing.T) {
	t.Parallel()
	out := tasktest.Run(t, double, func(context.Context, *task.Job[args]) error { panic("kaboom") }, args{})
	if out.Kind != tasktest.Failed || !out.Retryable || out.State != "retrying" || !strings.HasPrefix(out.Message, "panic: kaboom") {
		t.Errorf("got %s", out)
	}
	if !strings.Contains(out.Stack, "tasktest_test.go") {
		t.Errorf("the stack does not name this file:\n%s", out.Stack)
	}
	if out.Decode(new(int)) == nil {
		t.Error("Decode of a failure returned no error")
	}
}

func TestTimeoutIsFakeTimeInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out := tasktest.Run(t, double, func(ctx context.Context, _ *task.Job[args]) error {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), task.ErrTimeout) || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Errorf("context ended with %v, cause %v", ctx.Err(), context.Cause(ctx))
			}
			return ctx.Err()
		}, args{}, tasktest.Timeout(10*time.Hour))
		if out.Code != "TASK_TIMEOUT" || !out.Retryable {
			t.Errorf("got %s, want a retryable TASK_TIMEOUT", out)
		}
	})
}

func TestProgressAndHeartbeatTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out := tasktest.Run(t, double, func(ctx context.Context, _ *task.Job[args]) error {
			for n := range 3 {
				<-time.After(50 * time.Second) // fake time
				if err := task.RecordProgress(ctx, n); err != nil {
					return err
				}
			}
			if err := task.RecordProgress(ctx, strings.Repeat("x", 5000)); !task.IsInvalidInput(err) {
				t.Errorf("a report of 5 kB: %v", err)
			}
			if err := task.RecordProgress(ctx, make(chan int)); !task.IsInvalidInput(err) {
				t.Errorf("a report that has no JSON form: %v", err)
			}
			<-time.After(50 * time.Second)
			if err := task.Heartbeat(ctx); err != nil {
				return err
			}
			<-ctx.Done()
			if err := task.RecordProgress(ctx, "late"); !errors.Is(err, task.ErrHeartbeatTimeout) || !errors.Is(context.Cause(ctx), task.ErrHeartbeatTimeout) {
				t.Errorf("a late report: %v, cause %v", err, context.Cause(ctx))
			}
			return ctx.Err()
		}, args{}, tasktest.Timeout(time.Hour), tasktest.HeartbeatTimeout(time.Minute))
		if out.Code != "TASK_TIMEOUT" || !out.Retryable || !strings.HasPrefix(out.Message, "heartbeat timeout: no progress for 1m0s: ") {
			t.Errorf("got %s, want a retryable TASK_TIMEOUT", out)
		}
		if got := fmt.Sprintf("%s", out.Progress); got != "[0 1 2]" {
			t.Errorf("progress %s", got)
		}
	})
	if err := errors.Join(task.RecordProgress(t.Context(), 1), task.Heartbeat(t.Context())); err != nil {
		t.Errorf("outside of a worker: %v", err)
	}
}

func TestCancelledWhen(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{task.ErrLeaseLost, task.ErrShutdown} {
		lost := make(chan struct{})
		out := tasktest.Run(t, double, func(ctx context.Context, _ *task.Job[args]) error {
			if ctx.Err() != nil {
				t.Error("context ended before the channel was closed")
			}
			close(lost)
			<-ctx.Done()
			return context.Cause(ctx)
		}, args{}, tasktest.CancelledWhen(lost, cause))
		if out.Kind != tasktest.Released || !errors.Is(out.Err, cause) {
			t.Errorf("%v: got %s", cause, out)
		}
	}
	out := tasktest.Run(t, double, func(ctx context.Context, _ *task.Job[args]) error { return ctx.Err() }, args{}, tasktest.Cancelled(task.ErrTimeout))
	if !errors.Is(out.Err, context.DeadlineExceeded) {
		t.Errorf("a context that timed out says %v", out.Err)
	}
}

func TestRunRawPayloadsAndResultsThatCannotBe(t *testing.T) {
	t.Parallel()
	typed := task.Typed(returning(nil))
	for _, payload := range []string{`"text"`, `{"N":"one"}`, `{`, ``} {
		out := tasktest.RunRaw(t, "double", typed, json.RawMessage(payload))
		if out.Kind != tasktest.Failed || out.Code != "TASK_INPUT_INVALID" || out.Retryable {
			t.Errorf("payload %q: got %s, want a permanent TASK_INPUT_INVALID", payload, out)
		}
	}
	for name, result := range map[string]string{
		"no JSON": "{", "two values": "1 2", "no UTF-8": "\"\xff\"", "NUL": `"a\u0000"`, "too deep": strings.Repeat("[", 1001) + strings.Repeat("]", 1001),
		"too large": `"` + strings.Repeat("x", 8<<20) + `"`,
	} {
		out := tasktest.RunRaw(t, "raw", func(context.Context, *task.Raw) (json.RawMessage, error) { return json.RawMessage(result), nil }, nil)
		if out.Kind != tasktest.Failed || out.Retryable || out.Err == nil || len(out.Result) != 0 {
			t.Errorf("result with %s: got %s, want a permanent failure", name, out)
		}
	}
	for _, result := range []string{`"\\u0000"`, `{"a":[1,"]"]}`, strings.Repeat("[", 1000) + strings.Repeat("]", 1000), `"` + strings.Repeat("x", 8<<20-2) + `"`} {
		out := tasktest.RunRaw(t, "raw", func(context.Context, *task.Raw) (json.RawMessage, error) { return json.RawMessage(result), nil }, nil)
		if out.Kind != tasktest.Succeeded || string(out.Result) != result {
			t.Errorf("result %.40s…: got %.200s, want a success", result, out)
		}
	}
}
