package inject_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/inject"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// system is an orchestrator and a client of it, with a short visibility
// timeout.
type system struct {
	testkit.Stores
	*client.Client
}

const visibility = time.Second

func start(t *testing.T) system {
	t.Helper()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout = visibility
	return system{s, testkit.Client(t, testkit.StartOrchestrator(t, cfg).URL)}
}

func (s system) worker(t *testing.T, name string, h func(context.Context, *task.Job[args]) error) *testkit.Worker {
	t.Helper()
	return s.StartWorker(t, worker.Options{Name: name, VisibilityTimeout: visibility}, func(w *worker.Worker) { worker.Handle(w, typ, h) })
}

func (s system) enqueue(t *testing.T, opts ...task.Option) string {
	t.Helper()
	e, err := typ.Enqueue(t.Context(), s, args{21}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return e.TaskID
}

// ends waits for the task's end and fails unless it and the log are as wanted.
func (s system) ends(t *testing.T, id, state, events string) *client.Task {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Deadline)
	defer cancel()
	got, err := s.Wait(ctx, "", id)
	if err != nil {
		t.Fatal(err)
	}
	uuid, _ := protocol.ResolveTaskID(protocol.DefaultTenant, id, time.Now())
	if log := testkit.EventTypes(t, s.Stores, uuid); got.State != state || log != events {
		t.Errorf("%s with events %s; want %s with %s", got.State, log, state, events)
	}
	return got
}

// reasons lists the error codes and reasons of all events of one type.
func (s system) reasons(t *testing.T, typ protocol.EventType) (out []string) {
	t.Helper()
	rows, err := s.SQL(t).Query(t.Context(), "SELECT COALESCE(error_code, '') || ' ' || COALESCE(reason, '') FROM event_log WHERE type = $1 ORDER BY task_id, seq", string(typ))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var reason string
		if err := rows.Scan(&reason); err != nil {
			t.Fatal(err)
		}
		out = append(out, reason)
	}
	return out
}

// wantReasons fails unless the events of a type have these codes and reasons.
func (s system) wantReasons(t *testing.T, typ protocol.EventType, want ...string) {
	t.Helper()
	if got := s.reasons(t, typ); !slices.Equal(got, want) {
		t.Errorf("%s events: %q, want %q", typ, got, want)
	}
}

func TestTransientErrorsOfTwoAttempts(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.worker(t, "w", inject.Func(inject.Plan{Mode: inject.TransientError, Attempts: []int{1, 2}, Text: "bank away"}, work(nil)))
	got := s.ends(t, s.enqueue(t), "succeeded",
		"task.created task.claimed task.retry_scheduled task.claimed task.retry_scheduled task.claimed task.succeeded")
	if got.RetryCount != 2 || got.Delivery != 3 || got.Interruptions != 0 || string(got.Result) != "42" {
		t.Errorf("got %v", got)
	}
	s.wantReasons(t, protocol.EventRetryScheduled, "TASK_EXECUTION_FAILED bank away", "TASK_EXECUTION_FAILED bank away")
	testkit.VerifyLog(t, s.Stores)
}

func TestPermanentErrorIsADeadLetterAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.worker(t, "w", inject.Func(inject.Plan{Mode: inject.PermanentError, Always: true}, work(nil)))
	got := s.ends(t, s.enqueue(t), "failed", "task.created task.claimed task.dlq task.dlq task.failed")
	if got.RetryCount != 0 || got.LastErrorReason.GetValue() != "injected permanent error" {
		t.Errorf("got %v", got)
	}
	testkit.VerifyLog(t, s.Stores)
}

func TestTimeoutOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.worker(t, "w", inject.Func(inject.Plan{Mode: inject.Timeout, Times: 1}, work(nil)))
	got := s.ends(t, s.enqueue(t, task.Timeout(50*time.Millisecond)), "succeeded", "task.created task.claimed task.retry_scheduled task.claimed task.succeeded")
	if got.RetryCount != 1 || got.Delivery != 2 {
		t.Errorf("got %v", got)
	}
	s.wantReasons(t, protocol.EventRetryScheduled, "TASK_TIMEOUT start-to-close timeout: injected timeout")
	testkit.VerifyLog(t, s.Stores)
}

// With Restart the worker lives, but leaves the task as if it had died: another
// worker gets it after the visibility timeout, and no retry is spent.
func TestProcessRestartOfAWorkerInThisProcess(t *testing.T) {
	t.Parallel()
	s := start(t)
	died := make(chan struct{})
	calls := 0
	first := s.worker(t, "first", inject.Func(inject.Plan{
		Mode: inject.ProcessRestartInterrupt, Times: 1, AfterHandler: true, Restart: func() { close(died) },
	}, work(&calls)))
	id := s.enqueue(t)
	select {
	case <-died:
	case <-time.After(testkit.Deadline):
		t.Fatal("the task did not run")
	}
	began := time.Now()
	first.Stop(t) // it reports nothing at its end either
	if calls != 1 {
		t.Errorf("%d calls of the handler, want 1", calls)
	}
	second := s.worker(t, "second", inject.Func(inject.Plan{Mode: inject.ProcessRestartInterrupt, Times: 1, Restart: func() { t.Error("died again") }}, work(nil)))
	got := s.ends(t, id, "succeeded", "task.created task.reclaimed task.interrupted task.queued task.claimed task.succeeded")
	if took := time.Since(began); took < visibility/2 {
		t.Errorf("the task ended %s after its worker, want the visibility timeout, %s", took, visibility)
	}
	if got.RetryCount != 0 || got.Interruptions != 1 || got.Delivery != 2 || got.WorkerId != second.ID() || string(got.Result) != "42" {
		t.Errorf("got %v", got)
	}
	s.wantReasons(t, protocol.EventInterrupted, "TASK_WORKER_LOST its worker did not renew the lease for the visibility timeout")
	testkit.VerifyLog(t, s.Stores)
}

// A worker that goes on after a restart that it only pretended does not renew
// the lease, and takes the task like any other once it was reclaimed. Its
// other tasks are not touched.
func TestAWorkerGoesOnAfterAPretendedRestart(t *testing.T) {
	t.Parallel()
	s := start(t)
	var died atomic.Int32
	dies := inject.Func(inject.Plan{Mode: inject.ProcessRestartInterrupt, Times: 1, Restart: func() { died.Add(1) }}, work(nil))
	hold := make(chan struct{})
	s.StartWorker(t, worker.Options{VisibilityTimeout: visibility}, func(w *worker.Worker) {
		worker.Handle(w, typ, dies)
		w.HandleRaw("held", func(context.Context, *task.Raw) (json.RawMessage, error) { <-hold; return nil, nil })
	})
	held, err := s.EnqueueTask(t.Context(), &task.Request{Type: "held"})
	if err != nil {
		t.Fatal(err)
	}
	got := s.ends(t, s.enqueue(t), "succeeded",
		"task.created task.reclaimed task.interrupted task.queued task.claimed task.succeeded")
	close(hold)
	if got.RetryCount != 0 || got.Interruptions != 1 || got.Delivery != 2 || died.Load() != 1 {
		t.Errorf("%v after %d restarts", got, died.Load())
	}
	if got := s.ends(t, held.TaskID, "succeeded", "task.created task.claimed task.succeeded"); got.Delivery != 1 {
		t.Errorf("the other task: %v", got)
	}
	testkit.VerifyLog(t, s.Stores)
}

// A task that takes its worker along every time is given up.
func TestAttemptsDieUntilTheTaskIsGivenUp(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.worker(t, "w", inject.Func(inject.Plan{Mode: inject.ProcessRestartInterrupt, Attempts: []int{1}, Restart: func() {}}, work(nil)))
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Deadline)
	defer cancel()
	got, err := s.Wait(ctx, "", s.enqueue(t))
	if err != nil || got.State != "failed" || got.Interruptions != 4 || got.RetryCount != 0 || got.LastErrorCode.GetValue() != string(protocol.CodeWorkerLost) {
		t.Errorf("%v, %v", got, err)
	}
	testkit.VerifyLog(t, s.Stores)
}

// Two workers with the same plan fail the same executions, and the handler's
// view of them agrees with the log.
func TestTwoWorkersAgreeByProbability(t *testing.T) {
	t.Parallel()
	s := start(t)
	plan := inject.Plan{Mode: inject.TransientError, Probability: 0.4, Seed: 11}
	for _, name := range []string{"a", "b"} {
		s.worker(t, name, inject.Func(plan, work(nil)))
	}
	expected := 0
	for i := range 30 {
		id := fmt.Sprint("task-", i)
		for d := int64(1); plan.Fails(execution(id, int(d), d)); d++ {
			expected++
		}
		s.enqueue(t, task.ID(id), task.MaxRetries(50))
	}
	for i := range 30 {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Deadline)
		if got, err := s.Wait(ctx, "", fmt.Sprint("task-", i)); err != nil || got.State != "succeeded" {
			t.Errorf("task %d: %v, %v", i, got, err)
		}
		cancel()
	}
	if got := len(s.reasons(t, protocol.EventRetryScheduled)); got != expected || expected < 10 {
		t.Errorf("%d failures, foretold were %d", got, expected)
	}
	testkit.VerifyLog(t, s.Stores)
}
