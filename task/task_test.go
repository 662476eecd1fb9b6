package task_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/task"
)

type fake struct{ got *task.Request }

func (f *fake) EnqueueTask(_ context.Context, r *task.Request) (*task.Enqueued, error) {
	f.got = r
	return &task.Enqueued{TaskID: "id"}, nil
}

func TestRequestOptions(t *testing.T) {
	t.Parallel()
	type args struct{ N int }
	f := &fake{}
	at := time.Now()
	_, err := task.Define[args]("x").Enqueue(t.Context(), f, args{7}, task.ID("i"), task.Key("k"), task.Scope("s"), task.At(at), task.Delay(1), task.Timeout(2),
		task.MaxRetries(0), task.WithRetry(task.Retry{Strategy: "fixed"}), task.Queue("q"), task.Tenant("t"), task.TraceID("tr"))
	if err != nil {
		t.Fatal(err)
	}
	r := f.got
	if r.Type != "x" || string(r.Payload) != `{"N":7}` || r.TaskID != "i" || r.Key != "k" || r.Scope != "s" || !r.At.Equal(at) || r.Delay != 1 || r.Timeout != 2 ||
		*r.MaxRetries != 0 || r.Retry.Strategy != "fixed" || r.Queue != "q" || r.Tenant != "t" || r.TraceID != "tr" {
		t.Errorf("%+v", r)
	}
	f.got = nil
	if _, err := task.Define[float64]("x").Enqueue(t.Context(), f, math.Inf(1)); err == nil || f.got != nil {
		t.Errorf("a payload without a JSON form was enqueued: %v", err)
	}
}

func TestTyped(t *testing.T) {
	t.Parallel()
	h := task.Typed(func(_ context.Context, j *task.Job[[]int]) error {
		if len(j.Args) == 0 {
			return errors.New("nothing")
		}
		return j.SetResult(len(j.Args))
	})
	got, err := h(t.Context(), &task.Raw{Payload: json.RawMessage(`[1,2]`)})
	if err != nil || string(got) != "2" {
		t.Errorf("%s, %v", got, err)
	}
	got, err = h(t.Context(), &task.Raw{Payload: json.RawMessage(`[]`)})
	if err == nil || got != nil || task.IsPermanent(err) {
		t.Errorf("%s, %v", got, err)
	}
	for _, p := range []string{`{}`, `["a"]`, `x`, ``} {
		got, err := h(t.Context(), &task.Raw{Payload: json.RawMessage(p)})
		if !task.IsInvalidInput(err) || !task.IsPermanent(err) || got != nil {
			t.Errorf("payload %q: %s, %v", p, got, err)
		}
	}
	if err := (&task.Job[int]{}).SetResult(math.NaN()); err == nil {
		t.Error("a result without a JSON form was taken")
	}
}

func TestClassification(t *testing.T) {
	t.Parallel()
	base := errors.New("base")
	wrap := func(err error) error { return fmt.Errorf("outer: %w", err) }
	for name, c := range map[string]struct {
		err                error
		permanent, invalid bool
		retry, snooze      time.Duration // -1: not
	}{
		"plain": {base, false, false, -1, -1}, "permanent": {wrap(task.Permanent(base)), true, false, -1, -1}, "invalid": {wrap(task.InvalidInput(base)), true, true, -1, -1},
		"retry": {wrap(task.RetryAfter(time.Minute, base)), false, false, time.Minute, -1}, "retry now": {task.RetryAfter(-1, base), false, false, 0, -1},
		"retry without cause": {task.RetryAfter(1, nil), false, false, 1, -1}, "snooze": {wrap(task.Snooze(time.Hour)), false, false, -1, time.Hour},
		"snooze now": {task.Snooze(-5), false, false, -1, 0},
	} {
		delay := func(d time.Duration, ok bool) time.Duration {
			if !ok {
				return -1
			}
			return d
		}
		if task.IsPermanent(c.err) != c.permanent || task.IsInvalidInput(c.err) != c.invalid || delay(task.RetryDelay(c.err)) != c.retry || delay(task.SnoozeDelay(c.err)) != c.snooze {
			t.Errorf("%s: %+v", name, c)
		}
		if c.err.Error() == "" {
			t.Errorf("%s has no text", name)
		}
	}
	for _, err := range []error{task.Permanent(base), task.InvalidInput(base), task.RetryAfter(1, base)} {
		if !errors.Is(err, base) {
			t.Errorf("%v does not wrap its cause", err)
		}
	}
	if task.Permanent(nil) != nil || task.InvalidInput(nil) != nil {
		t.Error("no error became one")
	}
	if got := (task.Info{TaskID: "a:b", RetryCount: 2}).ExecutionKey(); got != "a:b:2" {
		t.Errorf("execution key %q", got)
	}
}
