// Package inject makes chosen executions of a task fail in a chosen way, so
// that a test or a demonstration sees what becomes of a task whose handler
// runs out of time, returns an error, or dies with its process.
//
//	flaky := inject.Plan{Mode: inject.TransientError, Attempts: []int{1, 2}}
//	worker.Handle(w, SendEmail, inject.Func(flaky, sendEmail))
//
// Which executions fail depends on nothing but the plan and the execution's
// task id, attempt and delivery. There is no state: any number of goroutines
// and processes decide alike, a process that was killed decides after its
// restart as it did before, and a second run with the same ids and the same
// course of events fails in the same places.
//
// Plans can be nested; the outermost that chooses an execution decides.
package inject

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/penstock-dev/penstock/internal/execute"
	"github.com/penstock-dev/penstock/task"
)

// Mode is a way to fail.
type Mode string

// The modes.
const (
	// Timeout holds the execution until its context ends: at the start-to-close
	// timeout, and the worker reports TASK_TIMEOUT; or earlier for another
	// cause, with that cause's usual outcome. A context without a deadline,
	// which no worker and no tasktest gives, is held for Info.Timeout, and not
	// at all where that is 0, so that a handler that is called directly does
	// not hang.
	Timeout Mode = "timeout"
	// TransientError returns an ordinary error: TASK_EXECUTION_FAILED, retried
	// by the task's policy.
	TransientError Mode = "transient_error"
	// PermanentError returns an error that no retry can cure: the task becomes
	// a dead letter at once.
	PermanentError Mode = "permanent_error"
	// ProcessRestartInterrupt ends the process as kill -9 does, with all that
	// runs in it; see Plan.Restart for another way. The task is interrupted
	// when the visibility timeout has passed, and runs again without having
	// spent a retry.
	ProcessRestartInterrupt Mode = "process_restart_interrupt"
)

// modes lists all modes as error messages show them.
var modes = []Mode{Timeout, TransientError, PermanentError, ProcessRestartInterrupt}

// ErrInjected is what errors.Is finds in every error that this package returns
// from a handler.
var ErrInjected = errors.New("injected failure")

// Plan says which executions fail, and how. An execution fails if any of
// Always, Times, Attempts and Probability chooses it; at least one must be set.
type Plan struct {
	// Mode is the way to fail.
	Mode Mode
	// Always chooses every execution.
	Always bool
	// Times chooses the first executions of each task, this many. They are
	// counted by the delivery, which grows with every execution that ends,
	// interrupted ones included; that is why it is the one to use with
	// ProcessRestartInterrupt. The delivery also grows when an entry is handed
	// back, snoozed or lost before it ran: then fewer executions fail than
	// Times. Where the exact number of failures matters, use Attempts.
	Times int
	// Attempts chooses executions by their attempt, 1 for the first. Only
	// failures count as attempts: with ProcessRestartInterrupt a listed attempt
	// dies again and again, until the task is given up with TASK_WORKER_LOST.
	Attempts []int
	// Probability chooses this share of executions, above 0 and at most 1. It
	// is decided for each delivery of each task by a hash of Seed, the task's
	// id and the delivery.
	Probability float64
	// Seed varies what Probability chooses.
	Seed uint64
	// AfterHandler runs the wrapped handler first and lets the failure take the
	// place of its success: its side effects have happened and its result is
	// lost. What the handler returns as an error stays. Otherwise the wrapped
	// handler is not called.
	AfterHandler bool
	// Text is the error's text, for TransientError and PermanentError; empty: a
	// text that names the mode.
	Text string
	// Restart replaces the death of the process in ProcessRestartInterrupt, for
	// tests whose workers are no processes of their own. It is called in the
	// handler's goroutine; once it returns, the worker leaves the execution as
	// a dead process would: no outcome is reported, the entry is not
	// acknowledged, and its lease is not renewed. The same worker's other tasks
	// run on. If a further wrapper is around this one it must keep the error
	// (%w), for that is how the worker is told.
	Restart func()
}

// Validate returns an error that names the field which is wrong, or nil.
func (p Plan) Validate() error {
	switch {
	case !slices.Contains(modes, p.Mode):
		return fmt.Errorf("inject: mode is %q, want %s, %s, %s or %s", clip(string(p.Mode)), modes[0], modes[1], modes[2], modes[3])
	case p.Times < 0:
		return fmt.Errorf("inject: times is %d, want at least 1", p.Times)
	case !(p.Probability >= 0 && p.Probability <= 1): // NaN as well
		return fmt.Errorf("inject: probability is %v, want above 0 and at most 1", p.Probability)
	case !p.Always && p.Times == 0 && len(p.Attempts) == 0 && p.Probability == 0:
		return errors.New("inject: the plan chooses no execution: set always, times, attempts or probability")
	case p.Seed != 0 && p.Probability == 0:
		return errors.New("inject: seed is set, but it is for probability only")
	case p.Text != "" && p.Mode != TransientError && p.Mode != PermanentError:
		return fmt.Errorf("inject: text is set, but it is for modes %s and %s only", TransientError, PermanentError)
	case p.Restart != nil && p.Mode != ProcessRestartInterrupt:
		return fmt.Errorf("inject: restart is set, but it is for mode %s only", ProcessRestartInterrupt)
	}
	for _, n := range p.Attempts {
		if n < 1 {
			return fmt.Errorf("inject: attempts has %d, want 1 for the first and so on", n)
		}
	}
	return nil
}

// clip shortens what came from outside, for a message.
func clip(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Fails reports whether the plan chooses the execution. It depends on the
// plan and on the execution's TaskID, Attempt and Delivery only.
func (p Plan) Fails(e task.Info) bool {
	return p.Always || p.Times > 0 && e.Delivery <= int64(p.Times) || slices.Contains(p.Attempts, e.Attempt) ||
		p.Probability > 0 && draw(p.Seed, e.TaskID, e.Delivery) < p.Probability
}

// draw returns a number from 0 up to, but not, 1. It is the same in every
// version, so that a seed that once showed a fault still does.
func draw(seed uint64, taskID string, delivery int64) float64 {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], seed)
	binary.BigEndian.PutUint64(b[8:], uint64(delivery))
	h := sha256.New()
	h.Write(b[:])
	h.Write([]byte(taskID))
	return float64(binary.BigEndian.Uint64(h.Sum(nil))>>11) / (1 << 53)
}

// Wrap returns a handler that fails in the executions that the plan chooses
// and calls h in the others. It panics if the plan is not valid, which is a
// mistake in the program; see Plan.Validate for plans that come from outside.
func Wrap(p Plan, h task.Handler) task.Handler {
	p = p.valid()
	return func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
		if !p.Fails(r.Info) {
			return h(ctx, r)
		}
		if p.AfterHandler {
			if _, err := h(ctx, r); err != nil {
				return nil, err
			}
		}
		return nil, p.fail(ctx, r.Info)
	}
}

// Func is Wrap for the functions that worker.Handle, task.Typed and
// tasktest.Run take.
func Func[T any](p Plan, fn func(ctx context.Context, j *task.Job[T]) error) func(ctx context.Context, j *task.Job[T]) error {
	p = p.valid()
	return func(ctx context.Context, j *task.Job[T]) error {
		if !p.Fails(j.Info) {
			return fn(ctx, j)
		}
		if p.AfterHandler {
			if err := fn(ctx, j); err != nil {
				return err
			}
		}
		return p.fail(ctx, j.Info)
	}
}

// valid returns a copy that nobody else can change.
func (p Plan) valid() Plan {
	if err := p.Validate(); err != nil {
		panic(err.Error())
	}
	p.Attempts = slices.Clone(p.Attempts)
	return p
}

// fail does what the mode says; the error is never nil.
func (p Plan) fail(ctx context.Context, e task.Info) error {
	switch p.Mode {
	case Timeout:
		return hold(ctx, e)
	case ProcessRestartInterrupt:
		if p.Restart == nil {
			kill()
		}
		p.Restart()
		return &failure{"injected process restart", []error{ErrInjected, execute.ErrAbandoned}}
	case PermanentError:
		return task.Permanent(&failure{or(p.Text, "injected permanent error"), []error{ErrInjected}})
	default:
		return &failure{or(p.Text, "injected transient error"), []error{ErrInjected}}
	}
}

func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// hold waits until the context ends.
func hold(ctx context.Context, e task.Info) error {
	if _, ok := ctx.Deadline(); !ok {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, e.Timeout, task.ErrTimeout)
		defer stop()
	}
	<-ctx.Done()
	return &failure{"injected timeout", []error{ErrInjected, ctx.Err(), context.Cause(ctx)}}
}

// kill ends the process without running anything that it has still to do.
func kill() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	// Reached only where the signal has no effect: the kernel spares process 1
	// of a container.
	os.Exit(137)
}

// failure is an injected error.
type failure struct {
	text   string
	causes []error
}

func (e *failure) Error() string   { return e.text }
func (e *failure) Unwrap() []error { return e.causes }
