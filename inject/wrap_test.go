package inject_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-dev/penstock/inject"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/tasktest"
)

type args struct{ N int }

var typ = task.Define[args]("t")

// work is a handler that counts its calls, if it has something to count with,
// and sets a result.
func work(calls *int) func(context.Context, *task.Job[args]) error {
	return func(_ context.Context, j *task.Job[args]) error {
		if calls != nil {
			*calls++
		}
		if j.Args.N < 0 {
			return errors.New("of its own")
		}
		return j.SetResult(2 * j.Args.N)
	}
}

func TestWhatAWorkerMakesOfEachMode(t *testing.T) {
	t.Parallel()
	restarts := 0
	for _, tt := range []struct {
		plan            inject.Plan
		kind            tasktest.Kind
		state, code, is string
		retryable       bool
	}{
		{inject.Plan{Mode: inject.TransientError}, tasktest.Failed, "retrying", "TASK_EXECUTION_FAILED", "injected transient error", true},
		{inject.Plan{Mode: inject.TransientError, Text: "bank away"}, tasktest.Failed, "retrying", "TASK_EXECUTION_FAILED", "bank away", true},
		{inject.Plan{Mode: inject.PermanentError}, tasktest.Failed, "dlq_pending", "TASK_EXECUTION_FAILED", "injected permanent error", false},
		{inject.Plan{Mode: inject.PermanentError, Text: "no such card"}, tasktest.Failed, "dlq_pending", "TASK_EXECUTION_FAILED", "no such card", false},
		{inject.Plan{Mode: inject.Timeout}, tasktest.Failed, "retrying", "TASK_TIMEOUT", "start-to-close timeout: injected timeout", true},
		{inject.Plan{Mode: inject.ProcessRestartInterrupt, Restart: func() { restarts++ }}, tasktest.Lost, "interrupted", "", "injected process restart", false},
	} {
		tt.plan.Attempts = []int{2}
		for _, after := range []bool{false, true} {
			tt.plan.AfterHandler = after
			calls := 0
			h := inject.Func(tt.plan, work(&calls))
			if out := tasktest.Run(t, typ, h, args{21}); out.Kind != tasktest.Succeeded || string(out.Result) != "42" || calls != 1 {
				t.Errorf("%s, not chosen: %s, %d calls", tt.plan.Mode, out, calls)
			}
			out := tasktest.Run(t, typ, h, args{21}, tasktest.Attempt(2), tasktest.Timeout(20*time.Millisecond))
			if out.Kind != tt.kind || out.State != tt.state || out.Code != tt.code || out.Message != tt.is || out.Retryable != tt.retryable ||
				out.Delay != -1 || out.Result != nil || !errors.Is(out.Err, inject.ErrInjected) {
				t.Errorf("%s: %+v", tt.plan.Mode, out)
			}
			if want := map[bool]int{false: 1, true: 2}[after]; calls != want {
				t.Errorf("%s, after the handler: %t: the handler was called %d times, want %d", tt.plan.Mode, after, calls, want)
			}
		}
		out := tasktest.Run(t, typ, inject.Func(tt.plan, work(nil)), args{-1}, tasktest.Attempt(2))
		if out.Message != "of its own" || errors.Is(out.Err, inject.ErrInjected) {
			t.Errorf("%s after a failure of the handler's own: %s", tt.plan.Mode, out)
		}
	}
	if restarts != 2 {
		t.Errorf("Restart was called %d times, want 2", restarts)
	}
}

func TestWrapRawHandler(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		calls := 0
		h := inject.Wrap(inject.Plan{Mode: inject.TransientError, Times: 1, AfterHandler: after}, func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
			calls++
			return r.Payload, nil
		})
		out := tasktest.RunRaw(t, "t", h, json.RawMessage(`[1]`))
		if out.Kind != tasktest.Failed || out.Result != nil || calls != map[bool]int{true: 1}[after] {
			t.Errorf("delivery 1: %s, %d calls", out, calls)
		}
		if out = tasktest.RunRaw(t, "t", h, json.RawMessage(`[1]`), tasktest.Delivery(2)); string(out.Result) != "[1]" {
			t.Errorf("delivery 2: %s", out)
		}
	}
}

// The start-to-close timeout ends a held execution, and so does any other end
// of its context, which then has its own meaning.
func TestTimeoutHoldsUntilTheContextEnds(t *testing.T) {
	t.Parallel()
	h := inject.Func(inject.Plan{Mode: inject.Timeout, Always: true}, work(nil))
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		out := tasktest.Run(t, typ, h, args{}, tasktest.Timeout(3*time.Hour))
		if took := time.Since(began); took != 3*time.Hour || out.Code != "TASK_TIMEOUT" {
			t.Errorf("%s after %s", out, took)
		}
		for _, cause := range []error{context.DeadlineExceeded, task.ErrTimeout, inject.ErrInjected} {
			if !errors.Is(out.Err, cause) {
				t.Errorf("%v is no %v", out.Err, cause)
			}
		}
	})
	for _, cause := range []error{task.ErrShutdown, task.ErrLeaseLost} {
		stop := make(chan struct{})
		time.AfterFunc(10*time.Millisecond, func() { close(stop) })
		if out := tasktest.Run(t, typ, h, args{}, tasktest.CancelledWhen(stop, cause)); out.Kind != tasktest.Released || !errors.Is(out.Err, cause) {
			t.Errorf("%v: %s", cause, out)
		}
	}
}

func TestTimeoutWithoutADeadlineDoesNotHang(t *testing.T) {
	t.Parallel()
	h := inject.Wrap(inject.Plan{Mode: inject.Timeout, Always: true}, succeed)
	synctest.Test(t, func(t *testing.T) {
		for _, timeout := range []time.Duration{time.Hour, 0} {
			began := time.Now()
			_, err := h(context.Background(), &task.Raw{Info: task.Info{Timeout: timeout}})
			if took := time.Since(began); took != timeout || !errors.Is(err, task.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Info.Timeout %s: %v after %s", timeout, err, took)
			}
		}
	})
}

func TestPlansNest(t *testing.T) {
	t.Parallel()
	h := inject.Func(inject.Plan{Mode: inject.TransientError, Attempts: []int{1}},
		inject.Func(inject.Plan{Mode: inject.PermanentError, Attempts: []int{1, 2}}, work(nil)))
	for attempt, want := range map[int]string{1: "retrying", 2: "dlq_pending", 3: "succeeded"} {
		if out := tasktest.Run(t, typ, h, args{}, tasktest.Attempt(attempt)); out.State != want {
			t.Errorf("attempt %d: %s, want %s", attempt, out, want)
		}
	}
}

func TestAWrappedHandlerDoesNotFollowChangesOfThePlan(t *testing.T) {
	t.Parallel()
	plan := inject.Plan{Mode: inject.TransientError, Attempts: []int{1}}
	h := inject.Func(plan, work(nil))
	plan.Attempts[0] = 7
	if out := tasktest.Run(t, typ, h, args{}); !strings.Contains(out.Message, "injected") {
		t.Errorf("got %s", out)
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	plan := inject.Plan{Mode: inject.TransientError, Times: 1, Attempts: []int{5}, Probability: 0.5, Seed: 1}
	h := inject.Wrap(plan, succeed)
	var g sync.WaitGroup
	for range 8 {
		g.Go(func() {
			for i := range 2000 {
				e := execution("t", i%6+1, int64(i+1))
				if _, err := h(t.Context(), &task.Raw{Info: e}); (err != nil) != plan.Fails(e) {
					t.Errorf("%+v: %v", e, err)
				}
			}
		})
	}
	g.Wait()
}
