package api_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/testkit"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

type waited struct {
	res *connect.Response[penstockv1.WaitTaskResponse]
	err error
	at  time.Time
}

func startWait(ctx context.Context, c penstockv1connect.TaskServiceClient, r *penstockv1.WaitTaskRequest) <-chan waited {
	out := make(chan waited, 1)
	go func() {
		res, err := c.WaitTask(ctx, connect.NewRequest(r))
		out <- waited{res, err, time.Now()}
	}()
	return out
}

func take(t *testing.T, c <-chan waited) waited {
	t.Helper()
	select {
	case w := <-c:
		return w
	case <-time.After(testkit.Deadline):
		t.Fatal("WaitTask did not return")
		return waited{}
	}
}

// TestWaitTask: it returns when the task is done, whichever orchestrator
// applied the outcome, also to one who asks afterwards.
func TestWaitTask(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	second := testkit.StartOrchestrator(t, e.stores.Config())
	ready(t, second.URL)
	other := dial(t, second.URL, connect.WithGRPC())
	release := make(chan struct{})
	e.stores.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("held", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return json.RawMessage(`{"ok":true}`), nil
		})
	})
	id := e.enqueue(t, &penstockv1.EnqueueRequest{Type: "held", TaskId: "held 1"}).TaskId
	waits := []<-chan waited{
		startWait(t.Context(), e.rpc, &penstockv1.WaitTaskRequest{TaskId: id}),
		startWait(t.Context(), e.grpc, &penstockv1.WaitTaskRequest{TaskId: id, TimeoutMs: 60_000}),
		startWait(t.Context(), other, &penstockv1.WaitTaskRequest{TaskId: id}),
	}
	testkit.Eventually(t, "running", func() (bool, string) {
		res, err := e.rpc.GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: id}))
		if err != nil {
			return false, err.Error()
		}
		return res.Msg.Task.State == "running", res.Msg.Task.State
	})
	for i, w := range waits {
		select {
		case r := <-w:
			t.Fatalf("wait %d ended while the task runs: %v, %v", i, r.res, r.err)
		default:
		}
	}
	released := time.Now()
	close(release)
	waits = append(waits, startWait(t.Context(), other, &penstockv1.WaitTaskRequest{TaskId: id}))
	for i, c := range waits {
		w := take(t, c)
		if w.err != nil || !w.res.Msg.Done || w.res.Msg.Task.State != "succeeded" || string(w.res.Msg.Task.Result) != `{"ok":true}` {
			t.Errorf("wait %d: %v, %v", i, w.res, w.err)
		}
		if d := w.at.Sub(released); d > 10*time.Second {
			t.Errorf("wait %d took %s", i, d)
		}
	}
	w := take(t, startWait(t.Context(), e.rpc, &penstockv1.WaitTaskRequest{TaskId: id}))
	if w.err != nil || !w.res.Msg.Done {
		t.Errorf("waiting for a finished task: %v, %v", w.res, w.err)
	}
}

// TestWaitTaskEnds: at its own limit and just before the caller's deadline
// with done = false, at once when the orchestrator stops.
func TestWaitTaskEnds(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.enqueue(t, pending()).TaskId
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		deadline, least time.Duration
		limit           int32
	}{
		"limit": {time.Minute, 300 * time.Millisecond, 300}, "deadline": {6 * time.Second, 3 * time.Second, 0}, "both": {time.Minute, 100 * time.Millisecond, 100},
	} {
		for _, client := range []penstockv1connect.TaskServiceClient{e.rpc, e.grpc} {
			all.Go(func() {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
				defer cancel()
				w := <-startWait(ctx, client, &penstockv1.WaitTaskRequest{TaskId: id, TimeoutMs: c.limit})
				if d := w.at.Sub(start); w.err != nil || w.res.Msg.Done || w.res.Msg.Task.State != "pending" || d < c.least || c.limit > 0 && d > 25*time.Second { // without its limit it waits for 30 s
					t.Errorf("%s: %v, %v after %s", name, w.res, w.err, d)
				}
			})
		}
	}
	all.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	c := startWait(ctx, e.rpc, &penstockv1.WaitTaskRequest{TaskId: id})
	cancel()
	if w := take(t, c); connect.CodeOf(w.err) != connect.CodeCanceled {
		t.Errorf("cancelled: %v", w.err)
	}
	waiting := startWait(t.Context(), e.grpc, &penstockv1.WaitTaskRequest{TaskId: id, TimeoutMs: 600_000})
	testkit.Eventually(t, "the call is being served", func() (bool, string) {
		_, err := e.grpc.GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: id}))
		return err == nil, ""
	})
	start := time.Now()
	e.orch.Stop(t)
	w := take(t, waiting)
	if w.err == nil && w.res.Msg.Done || w.err != nil && connect.CodeOf(w.err) != connect.CodeUnavailable {
		t.Errorf("stopped: %v, %v", w.res, w.err)
	}
	if d := w.at.Sub(start); d > 10*time.Second {
		t.Errorf("the wait held the stop up for %s", d)
	}
}

// TestWaitTaskWhilePostgresHangs: the caller's deadline is kept even if the
// last look gets no answer: what the first one saw is told.
func TestWaitTaskWhilePostgresHangs(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	proxy := chaosproxy.Postgres(t, s.PostgresURL)
	cfg := s.Config()
	cfg.Postgres.URL = proxy.URL
	e := &env{stores: s, orch: testkit.StartOrchestrator(t, cfg)}
	e.rpc = dial(t, e.orch.URL)
	ready(t, e.orch.URL)
	id := e.enqueue(t, pending()).TaskId
	polled := proxy.Lose(chaosproxy.Rule{Match: chaosproxy.Has("TerminalAmong"), Silent: true}) // asked while somebody waits
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	waiting := startWait(ctx, e.rpc, &penstockv1.WaitTaskRequest{TaskId: id})
	select {
	case <-polled:
	case <-time.After(testkit.Deadline):
		t.Fatal("nobody waits")
	}
	proxy.Hang(true)
	w := take(t, waiting)
	proxy.Hang(false)
	if w.err != nil || w.res.Msg.Done || w.res.Msg.Task.State != "pending" {
		t.Errorf("%v, %v; want what the first look saw", w.res, w.err)
	}
}
