package tasktest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/tasktest"
	"github.com/penstock-dev/penstock/worker"
)

type receipt struct{ No int }

// charges makes a handler that charges once, with the given end, and a counter.
func charges(end func() error, opts ...worker.OnceOption) (fn func(ctx context.Context, j *task.Job[args]) error, calls *int) {
	calls = new(int)
	return func(ctx context.Context, j *task.Job[args]) error {
		r, err := worker.Once(ctx, "charge", func(context.Context) (receipt, error) {
			*calls++
			return receipt{*calls}, end()
		}, opts...)
		if err != nil {
			return err
		}
		return j.SetResult(r)
	}, calls
}

func ok() error { return nil }

func TestOnce(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	check := func(done bool, err error) worker.OnceOption {
		return worker.WithCheck(func(context.Context) (bool, receipt, error) { return done, receipt{9}, err })
	}
	for name, c := range map[string]struct {
		end    func() error
		opts   []worker.OnceOption
		before func(e *tasktest.Effects)
		kind   tasktest.Kind
		state  string
		result string
		calls  int
		doubt  bool
	}{
		"new":                     {end: ok, kind: tasktest.Succeeded, state: "succeeded", result: `{"No":1}`, calls: 1},
		"done before":             {end: ok, before: func(e *tasktest.Effects) { e.SetDone("charge", receipt{7}) }, kind: tasktest.Succeeded, state: "succeeded", result: `{"No":7}`},
		"done, of another type":   {end: ok, before: func(e *tasktest.Effects) { e.SetDone("charge", "x") }, kind: tasktest.Failed, state: "dlq_pending"},
		"busy":                    {end: ok, before: func(e *tasktest.Effects) { e.SetBusy("charge") }, kind: tasktest.Snoozed, state: "retrying"},
		"in doubt":                {end: ok, before: func(e *tasktest.Effects) { e.SetInDoubt("charge") }, kind: tasktest.Waiting, state: "waiting_approval", doubt: true},
		"in doubt, run again":     {end: ok, opts: []worker.OnceOption{worker.RunAgain()}, before: func(e *tasktest.Effects) { e.SetInDoubt("charge") }, kind: tasktest.Succeeded, state: "succeeded", result: `{"No":1}`, calls: 1},
		"in doubt, checked: done": {end: ok, opts: []worker.OnceOption{check(true, nil)}, before: func(e *tasktest.Effects) { e.SetInDoubt("charge") }, kind: tasktest.Succeeded, state: "succeeded", result: `{"No":9}`},
		"in doubt, checked: not":  {end: ok, opts: []worker.OnceOption{check(false, nil)}, before: func(e *tasktest.Effects) { e.SetInDoubt("charge") }, kind: tasktest.Succeeded, state: "succeeded", result: `{"No":1}`, calls: 1},
		"in doubt, check fails":   {end: ok, opts: []worker.OnceOption{check(true, boom)}, before: func(e *tasktest.Effects) { e.SetInDoubt("charge") }, kind: tasktest.Failed, state: "retrying", doubt: true},
		"error":                   {end: func() error { return boom }, kind: tasktest.Failed, state: "retrying", calls: 1, doubt: true},
		"not done":                {end: func() error { return worker.NotDone(boom) }, kind: tasktest.Failed, state: "retrying", calls: 1},
		"not done, permanently":   {end: func() error { return worker.NotDone(task.Permanent(boom)) }, kind: tasktest.Failed, state: "dlq_pending", calls: 1},
		"panic":                   {end: func() error { panic("p") }, kind: tasktest.Failed, state: "retrying", calls: 1, doubt: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := tasktest.NewEffects()
			if c.before != nil {
				c.before(e)
			}
			fn, calls := charges(c.end, c.opts...)
			out := tasktest.Run(t, double, fn, args{1}, tasktest.WithEffects(e))
			if out.Kind != c.kind || out.State != c.state || *calls != c.calls || e.InDoubt("charge") != c.doubt {
				t.Errorf("%s, %d calls, in doubt: %v", out, *calls, e.InDoubt("charge"))
			}
			if c.result != "" && string(out.Result) != c.result {
				t.Errorf("result %s", out.Result)
			}
			if c.kind == tasktest.Snoozed && (out.Delay < time.Second || out.Delay > 5*time.Second) {
				t.Errorf("snoozed for %s", out.Delay)
			}
		})
	}
}

// What an execution did is there for the next one.
func TestOnceOverSeveralExecutions(t *testing.T) {
	t.Parallel()
	e := tasktest.NewEffects()
	fail := true
	fn, calls := charges(ok)
	h := func(ctx context.Context, j *task.Job[args]) error {
		if err := fn(ctx, j); err != nil {
			return err
		}
		if fail {
			return errors.New("after the charge")
		}
		return nil
	}
	if out := tasktest.Run(t, double, h, args{}, tasktest.WithEffects(e)); out.State != "retrying" {
		t.Fatal(out)
	}
	fail = false
	if out := tasktest.Run(t, double, h, args{}, tasktest.WithEffects(e), tasktest.Attempt(2)); string(out.Result) != `{"No":1}` || *calls != 1 || e.Runs("charge") != 1 {
		t.Errorf("%s %s, %d calls", out, out.Result, *calls)
	}
	if r, done := e.Result("charge"); !done || string(r) != `{"No":1}` {
		t.Errorf("%s, %v", r, done)
	}
	fn, calls = charges(func() error { return errors.New("timeout") })
	e = tasktest.NewEffects()
	for _, want := range []tasktest.Kind{tasktest.Failed, tasktest.Waiting} {
		out := tasktest.Run(t, double, fn, args{}, tasktest.WithEffects(e), tasktest.IdempotencyKey("order-7"))
		if out.Kind != want || *calls != 1 {
			t.Errorf("%s, %d calls", out, *calls)
		}
		d, ok := errors.AsType[*worker.InDoubtError](out.Err)
		if want == tasktest.Waiting && (!ok || d.Key != "order-7" || !strings.Contains(string(out.Approval), `"kind":"effect"`)) {
			t.Errorf("%v %s", out.Err, out.Approval)
		}
	}
}

func TestOnceRefuses(t *testing.T) {
	t.Parallel()
	run := func(name string, result string) *tasktest.Outcome {
		return tasktest.Run(t, double, func(ctx context.Context, _ *task.Job[args]) error {
			_, err := worker.Once(ctx, name, func(context.Context) (string, error) { return result, nil })
			return err
		}, args{})
	}
	for name, out := range map[string]*tasktest.Outcome{
		"name of 10 kB": run(strings.Repeat("k", 10_000), ""), "no name": run("", ""), "huge result": run("x", strings.Repeat("x", 256<<10)),
		"NUL": run("x", "\x00"),
	} {
		if out.Kind != tasktest.Failed || out.Retryable {
			t.Errorf("%s: %s", name, out)
		}
	}
	if _, err := worker.Once(t.Context(), "x", func(context.Context) (int, error) { return 1, nil }); !task.IsPermanent(err) {
		t.Errorf("outside of a handler: %v", err)
	}
	out := tasktest.Run(t, double, func(ctx context.Context, _ *task.Job[args]) error {
		_, err := worker.Once(ctx, "x", func(context.Context) (int, error) { t.Error("ran"); return 1, nil })
		return err
	}, args{}, tasktest.Cancelled(task.ErrLeaseLost))
	if out.Kind != tasktest.Released {
		t.Errorf("with a lost lease: %s", out)
	}
}
