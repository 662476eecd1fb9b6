package worker

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/penstock-dev/penstock/internal/once"
	"github.com/penstock-dev/penstock/task"
)

// OnceOption says what becomes of an effect in doubt; without one a person is
// asked.
type OnceOption func(*once.Options)

// InDoubtError is the error of Once for an effect that an execution which was
// lost may have run. A handler that returns it, wrapped or not, has its task wait
// (waiting_approval) until a person has found out; the next execution then goes
// on.
type InDoubtError = once.InDoubt

// Once runs fn, which does something outside, and keeps its result in the
// orchestrators' ledger, under the task's idempotency scope and key and the name.
// Where that was done before, by whatever execution, delivery or requeue of the
// task, it returns the result of then and does not call fn. ctx is the handler's.
// name is 1 to 128 bytes and stands for one effect of the task: two calls with the
// same name are the same effect. The result, as JSON, has at most 256 KiB.
//
// What becomes of the effect depends on what fn returns:
//
//   - nil: it has happened, and never does again;
//   - an error marked by NotDone: it certainly has not happened; the error is
//     returned, and the next execution runs fn again;
//   - any other error, or a panic: it may have happened. The error is returned.
//     The next execution finds it in doubt, as it does one whose worker died.
//
// An effect in doubt gives an *InDoubtError; see also WithCheck and RunAgain.
// While another execution is at the effect, the error is a task.Snooze: return it,
// as all errors of Once. A worker without Options.OrchestratorURL gets a permanent
// error.
//
// Once can't stop an effect that is under way when its execution is lost, nor one
// whose process was stopped in the moment before it: pass Info.IdempotencyKey on
// to systems that remove duplicates.
func Once[T any](ctx context.Context, name string, fn func(ctx context.Context) (T, error), opts ...OnceOption) (T, error) {
	var o once.Options
	for _, opt := range opts {
		opt(&o)
	}
	var first *T // what fn returned now, to be returned as it is
	raw, err := once.Do(ctx, name, func(ctx context.Context) (json.RawMessage, error) {
		v, err := fn(ctx)
		if err != nil {
			return nil, err
		}
		first = &v
		b, err := json.Marshal(v)
		if err != nil {
			return nil, once.WithoutResult(task.Permanent(fmt.Errorf("effect %q has happened, but its result has no JSON form, so it can't be kept: %w", name, err)))
		}
		return b, nil
	}, o)
	var out T
	switch {
	case err != nil:
		return out, err
	case first != nil:
		return *first, nil
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		return out, task.Permanent(fmt.Errorf("effect %q was done before, but its stored result does not decode into %T: %w", name, out, err))
	}
	return out, nil
}

// NotDone marks the error of an effect that has certainly not happened, such as a
// refused connection. It may wrap errors marked by package task, whose meaning
// stays. The mark holds for the Once whose function returns it, and not for one
// around that; joined with an error that is not marked, it counts for nothing. A
// nil err gives nil.
func NotDone(err error) error { return once.NotDone(err) }

// WithCheck has an effect in doubt checked: check asks the outside whether it has
// happened, and with what result. If it has not, fn is run. An error of check is
// returned and leaves the effect in doubt. The check must see what a lost execution
// sent just before it ended.
func WithCheck[T any](check func(ctx context.Context) (done bool, result T, err error)) OnceOption {
	return func(o *once.Options) {
		o.Check = func(ctx context.Context) (bool, json.RawMessage, error) {
			done, v, err := check(ctx)
			if err != nil || !done {
				return false, nil, err
			}
			b, err := json.Marshal(v)
			if err != nil {
				return false, nil, task.Permanent(fmt.Errorf("the result of a check has no JSON form: %w", err))
			}
			return true, b, nil
		}
	}
}

// RunAgain has an effect in doubt run again: it happens at least once, and may
// happen twice. It is for effects that may, e.g. because the other side removes
// duplicates.
func RunAgain() OnceOption { return func(o *once.Options) { o.RunAgain = true } }
