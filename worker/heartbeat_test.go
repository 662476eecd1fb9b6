package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// beating are the options of a worker that sends heartbeats often.
func (b *bundle) beating() worker.Options {
	return worker.Options{OrchestratorURL: b.orch.URL, HeartbeatInterval: 30 * time.Millisecond}
}

// beats sets how often a task may get an event.
func beats(d time.Duration) func(*config.Orchestrator) {
	return func(c *config.Orchestrator) { c.Recovery.HeartbeatInterval = d }
}

// workers is a client of the workers' RPC.
func (b *bundle) workers() penstockv1connect.WorkerServiceClient {
	h := &http.Client{Transport: &http.Transport{}}
	b.t.Cleanup(h.CloseIdleConnections)
	return penstockv1connect.NewWorkerServiceClient(h, b.orch.URL)
}

// listed waits until the list of workers is as wanted.
func (b *bundle) listed(what string, ok func(ws []*penstockv1.WorkerInfo) bool) {
	b.t.Helper()
	c := b.workers()
	testkit.Eventually(b.t, what, func() (bool, string) {
		res, err := c.ListWorkers(context.Background(), connect.NewRequest(&penstockv1.ListWorkersRequest{}))
		if err != nil {
			return false, err.Error()
		}
		return ok(res.Msg.Workers), fmt.Sprint(res.Msg.Workers)
	})
}

func TestHeartbeatsKeepProgress(t *testing.T) {
	t.Parallel()
	b := setup(t, beats(40*time.Millisecond))
	release := make(chan struct{})
	o := b.beating()
	o.Queues, o.Concurrency = []string{"default", "other"}, 4
	w := b.raw(o, func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		if err := task.RecordProgress(ctx, map[string]int{"done": 7}); err != nil {
			return nil, err
		}
		<-release
		return nil, nil
	})
	id := b.enqueue(task.Request{})
	e := b.waitEvent(id, protocol.EventProgress)
	if string(e.Data) != `{"done":7}` || e.WorkerId != w.ID() || e.Status != "running" || e.PreviousStatus != "running" || e.Delivery != 1 || e.Actor != protocol.ActorWorker {
		t.Errorf("progress event: %v", e)
	}
	b.waitEvent(id, protocol.EventHeartbeat) // the detail is reported once
	got := must(b.client.Get(t.Context(), "", id))
	if string(got.Progress) != `{"done":7}` || got.HeartbeatAt == nil || !got.HeartbeatAt.AsTime().After(e.OccurredAt.AsTime()) {
		t.Errorf("progress %s, heartbeat at %v; want the report and a later heartbeat than %v", got.Progress, got.HeartbeatAt, e.OccurredAt)
	}
	b.listed("the worker is listed with its task", func(ws []*penstockv1.WorkerInfo) bool {
		return len(ws) == 1 && ws[0].WorkerId == w.ID() && ws[0].Running == 1 && ws[0].Concurrency == 4 && ws[0].Pid > 0 &&
			slices.Equal(ws[0].Queues, []string{"default", "other"}) && ws[0].Stuck == 0 && ws[0].DrainAt == nil
	})
	close(release)
	if got := b.wait(id); got.State != "succeeded" || string(got.Progress) != `{"done":7}` {
		t.Errorf("%s, progress %s", got.State, got.Progress)
	}
	w.Stop(t)
	b.listed("a worker that left is not listed", func(ws []*penstockv1.WorkerInfo) bool { return len(ws) == 0 })
	testkit.VerifyLog(t, b.Stores)
}

// A task that reports all the time gets one event an interval; the row has the
// latest report.
func TestOneHeartbeatEventAnInterval(t *testing.T) {
	t.Parallel()
	b := setup(t, beats(time.Hour))
	release, first := make(chan struct{}), time.Now()
	b.raw(b.beating(), func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		for n := 0; ; n++ {
			select {
			case <-release:
				return nil, nil
			case <-time.After(time.Millisecond):
				if err := task.RecordProgress(ctx, n); err != nil {
					return nil, err
				}
			}
		}
	})
	id := b.enqueue(task.Request{})
	seen := map[string]bool{}
	testkit.Eventually(t, "several reports reach the row", func() (bool, string) {
		got := must(b.client.Get(t.Context(), "", id))
		seen[string(got.Progress)+got.HeartbeatAt.AsTime().String()] = true
		return len(seen) > 5, fmt.Sprint(seen)
	})
	close(release)
	b.wait(id)
	hours := time.Now().Truncate(time.Hour).Sub(first.Truncate(time.Hour)) / time.Hour // 0, unless a new one has begun
	if es := b.events(id); find(es, protocol.EventProgress).Type == "" || len(es) > 4+int(hours) {
		t.Errorf("events %v, want one of progress", types(es))
	}
}

// An execution that was reclaimed ends with its worker's next heartbeat, long
// before the worker would look after its lease.
func TestSupersededExecutionIsCalledOff(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(400*time.Millisecond))
	o := b.beating()
	o.VisibilityTimeout = time.Hour // it does not renew in time
	causes, second := make(chan error, 1), make(chan struct{})
	var calls atomic.Int32
	b.StartWorker(t, o, func(w *worker.Worker) {
		w.HandleRaw("t", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
			if calls.Add(1) > 1 {
				<-second
				return json.RawMessage(`"second"`), nil
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, context.Cause(ctx)
		})
	})
	id := b.enqueue(task.Request{})
	if cause := receive(t, "the execution is called off", causes); !errors.Is(cause, task.ErrLeaseLost) {
		t.Errorf("the context ended with %v, want ErrLeaseLost", cause)
	}
	close(second)
	if got := b.wait(id); got.State != "succeeded" || got.RetryCount != 0 {
		t.Errorf("got %v", got)
	}
	if d := b.waitEvent(id, protocol.EventTransitionRejected); !strings.Contains(string(d.Data), `"released"`) {
		t.Errorf("refused: %s, want what the first execution released", d.Data)
	}
	testkit.VerifyLog(t, b.Stores)
}

func TestCancelledExecutionIsCalledOff(t *testing.T) {
	t.Parallel()
	b := setup(t)
	causes := make(chan error, 1)
	b.raw(b.beating(), func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil, context.Cause(ctx)
	})
	id := b.enqueue(task.Request{})
	b.waitState(id, protocol.StateRunning)
	tid := must(protocol.ParseID(id))
	err := b.Store(t).Decide(t.Context(), []protocol.ID{tid}, func(now time.Time, ts map[protocol.ID]*store.Locked) ([]*store.Locked, []*protocol.Event) {
		events, _ := ts[tid].Cancel(protocol.Env{Now: now}, protocol.ActorAPI, protocol.CodeCancelled, "")
		return []*store.Locked{ts[tid]}, events
	})
	if err != nil {
		t.Fatal(err)
	}
	if cause := receive(t, "the execution is called off", causes); !errors.Is(cause, task.ErrCancelled) {
		t.Errorf("the context ended with %v, want ErrCancelled", cause)
	}
	b.wantAcknowledged()
	if got := b.wait(id); got.State != "cancelled" {
		t.Errorf("the task is %s", got.State)
	}
}

// A drain that is ordered over RPC is a stop: what runs is finished, nothing
// more is fetched, Run returns nil.
func TestOrderedToDrain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	started, release := make(chan struct{}, 1), make(chan struct{})
	w := b.raw(b.beating(), func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		started <- struct{}{}
		<-release
		return nil, ctx.Err()
	})
	id := b.enqueue(task.Request{})
	receive(t, "the handler starts", started)
	b.listed("its heartbeat has arrived", func(ws []*penstockv1.WorkerInfo) bool { return len(ws) == 1 })
	c := b.workers()
	for range 2 { // the second order changes nothing
		res, err := c.DrainWorker(t.Context(), connect.NewRequest(&penstockv1.DrainWorkerRequest{WorkerId: w.ID()}))
		if err != nil || res.Msg.Worker.DrainAt == nil || res.Msg.Worker.DrainBy != "anonymous" {
			t.Fatalf("%v, %v", res, err)
		}
	}
	testkit.Eventually(t, "the worker stops fetching", func() (bool, string) { err := w.Check(); return err != nil, fmt.Sprint(err) })
	close(release)
	w.Ended(t)
	if got := b.wait(id); got.State != "succeeded" || got.Attempt != 1 || got.Delivery != 1 {
		t.Errorf("%v, want what ran to be finished", got)
	}
	b.listed("it is not listed any more", func(ws []*penstockv1.WorkerInfo) bool { return len(ws) == 0 })
	_, err := c.DrainWorker(t.Context(), connect.NewRequest(&penstockv1.DrainWorkerRequest{WorkerId: w.ID()}))
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("drain of a worker that left: %v, want not found", err)
	}
}

// Orchestrators that refuse, hang or know nothing hold nobody up: the next one
// is asked, tasks run on, and the worker stops without delay.
func TestOrchestratorsThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // it accepts, and never answers
	hangs, refuses := "http://"+l.Addr().String(), "http://127.0.0.1:1"
	h := func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		return nil, task.RecordProgress(ctx, 1)
	}
	o := b.beating()
	o.OrchestratorURL = hangs + ", " + refuses + "," + b.orch.URL + "/"
	w := b.raw(o, h)
	b.listed("the third one lists the worker", func(ws []*penstockv1.WorkerInfo) bool { return len(ws) == 1 && ws[0].WorkerId == w.ID() })
	w.Stop(t)
	o.OrchestratorURL, o.OrchestratorToken = hangs, "some-token-0123456789"
	w = b.raw(o, h)
	if got := b.wait(b.enqueue(task.Request{})); got.State != "succeeded" {
		t.Errorf("the task is %s", got.State)
	}
	w.Stop(t)
}

func TestHeartbeatTimeout(t *testing.T) {
	t.Parallel()
	b := setup(t)
	causes := make(chan error, 2)
	const limit = time.Second
	b.raw(worker.Options{}, func(ctx context.Context, r *task.Raw) (json.RawMessage, error) { // it knows no orchestrator
		if r.HeartbeatTimeout != limit {
			return nil, task.Permanent(fmt.Errorf("heartbeat timeout is %s", r.HeartbeatTimeout))
		}
		if r.Attempt == 1 {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			causes <- task.Heartbeat(ctx)
			return nil, ctx.Err()
		}
		for begun := time.Now(); time.Since(begun) < limit*3/2; {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(limit / 50):
			}
			if err := task.Heartbeat(ctx); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	id := b.enqueue(task.Request{HeartbeatTimeout: limit})
	for range 2 {
		if cause := receive(t, "the first attempt ends", causes); !errors.Is(cause, task.ErrHeartbeatTimeout) {
			t.Errorf("got %v, want ErrHeartbeatTimeout", cause)
		}
	}
	if got := b.wait(id); got.State != "succeeded" || got.HeartbeatTimeoutMs != 1000 {
		t.Errorf("%s %s: %s", got.State, got.LastErrorCode.GetValue(), got.LastErrorReason.GetValue())
	}
	e := find(b.events(id), protocol.EventRetryScheduled)
	if e.ErrorCode != "TASK_TIMEOUT" || !strings.HasPrefix(e.Reason, "heartbeat timeout: no progress for 1s: ") {
		t.Errorf("retry: %s %q", e.ErrorCode, e.Reason)
	}
}

// A handler that ignores its heartbeat timeout is given up like one that ignores
// its start-to-close timeout.
func TestHandlerThatIgnoresItsHeartbeatTimeout(t *testing.T) {
	t.Parallel()
	b := setup(t)
	release := make(chan struct{})
	w := b.impatient(worker.Options{Concurrency: 2}, 50*time.Millisecond, func(context.Context, *task.Raw) (json.RawMessage, error) {
		<-release
		return nil, nil
	})
	none := 0
	id := b.enqueue(task.Request{HeartbeatTimeout: 20 * time.Millisecond, MaxRetries: &none})
	got := b.wait(id)
	const reason = "TASK_TIMEOUT: heartbeat timeout: the handler did not return within 50ms of its cancellation for no progress for 20ms"
	if got.State != "failed" || got.LastErrorReason.GetValue() != reason {
		t.Errorf("%s %q, want %q", got.State, got.LastErrorReason.GetValue(), reason)
	}
	if n := w.Stuck(); n != 1 {
		t.Errorf("%d stuck handlers, want 1", n)
	}
	close(release)
}
