package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// proxy stands before an orchestrator; do may answer in its place.
type proxy struct {
	*httptest.Server
	calls atomic.Int64 // of EnqueueBatch
	do    atomic.Pointer[func(w http.ResponseWriter, r *http.Request, n int64) bool]
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{}
	next := httputil.NewSingleHostReverseProxy(u)
	next.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := int64(0)
		if strings.HasSuffix(r.URL.Path, "/EnqueueBatch") {
			n = p.calls.Add(1)
		}
		if f := p.do.Load(); f != nil && n > 0 && (*f)(w, r, n) {
			return
		}
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *proxy) answer(f func(w http.ResponseWriter, r *http.Request, n int64) bool) { p.do.Store(&f) }

func countTasks(t *testing.T, s testkit.Stores, where string) int {
	t.Helper()
	c, err := pgx.Connect(t.Context(), s.PostgresURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	var n int
	if err := c.QueryRow(t.Context(), "SELECT count(*) FROM tasks "+where).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func pending() *task.Request {
	return &task.Request{Type: "x", Payload: []byte("1"), Delay: time.Hour}
}

// TestCoalesce: concurrent calls share round trips, and each gets its own
// task.
func TestCoalesce(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	p := newProxy(t, testkit.StartOrchestrator(t, s.Config()).URL)
	c := testkit.Client(t, p.URL)
	if _, err := c.EnqueueTask(t.Context(), pending()); err != nil { // the orchestrator is up
		t.Fatal(err)
	}
	p.calls.Store(0)
	const n = 1000
	ids := sync.Map{}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			r := pending()
			r.TaskID = fmt.Sprint("mine ", i)
			if i%10 == 0 {
				r.Type = "" // refused alone
			}
			got, err := c.EnqueueTask(t.Context(), r)
			switch e, _ := errors.AsType[*protocol.Error](err); {
			case i%10 == 0 && (e == nil || e.Code != protocol.CodeInputInvalid || e.Field != "type"):
				t.Errorf("call %d: %v, %v", i, got, err)
			case i%10 != 0 && (err != nil || got.TaskID != r.TaskID || got.IdempotentHit):
				t.Errorf("call %d: %v, %v", i, got, err)
			}
			ids.Store(i, true)
		})
	}
	wg.Wait()
	if calls := p.calls.Load(); calls > n/4 || calls < 1 {
		t.Errorf("%d round trips for %d calls", calls, n)
	}
	if got := countTasks(t, s, ""); got != n-n/10+1 {
		t.Errorf("%d tasks", got)
	}
}

// TestRetrySameIDs: whatever happens to a call, the one that gets through
// names the same task.
func TestRetrySameIDs(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	p := newProxy(t, testkit.StartOrchestrator(t, s.Config()).URL)
	target, err := url.Parse(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := testkit.Client(t, p.URL)
	if _, err := c.EnqueueTask(t.Context(), pending()); err != nil {
		t.Fatal(err)
	}
	for name, fail := range map[string]func(w http.ResponseWriter, r *http.Request){
		"503":      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"cut off":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"429 busy": func(w http.ResponseWriter, _ *http.Request) { writeBusy(w) },
		// The call arrives and commits; its answer is lost.
		"answer lost": func(_ http.ResponseWriter, r *http.Request) {
			out := r.Clone(r.Context())
			out.URL.Scheme, out.URL.Host, out.RequestURI = "http", target.Host, ""
			p.do.Store(nil)
			res, err := http.DefaultClient.Do(out)
			if err != nil {
				t.Errorf("forward: %v", err)
			} else {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
			panic(http.ErrAbortHandler)
		},
	} {
		before := countTasks(t, s, "")
		var failed atomic.Bool
		p.answer(func(w http.ResponseWriter, r *http.Request, _ int64) bool {
			if failed.Swap(true) {
				return false
			}
			fail(w, r)
			return true
		})
		got, err := c.EnqueueTask(t.Context(), pending())
		if err != nil || !failed.Load() {
			t.Fatalf("%s: %v, %v", name, got, err)
		}
		if after := countTasks(t, s, ""); after != before+1 {
			t.Errorf("%s: %d new tasks", name, after-before)
		}
		if _, err := c.Get(t.Context(), "", got.TaskID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// writeBusy answers as a server with too many waiting calls does.
func writeBusy(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusTooManyRequests)
	// ErrorInfo{message: "busy", retryable: true}
	_, _ = w.Write([]byte(`{"code":"resource_exhausted","message":"busy","details":[{"type":"penstock.v1.ErrorInfo","value":"GgRidXN5IAE"}]}`))
}

// TestFailOver: of two orchestrators, one may be gone.
func TestFailOver(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	_ = l.Close()
	o1, o2 := testkit.StartOrchestrator(t, s.Config()), testkit.StartOrchestrator(t, s.Config())
	c := testkit.Client(t, nobody+", "+o1.URL+"/,"+o2.URL)
	for i := range 4 {
		if i == 2 {
			o1.Stop(t)
		}
		got, err := c.EnqueueTask(t.Context(), pending())
		if err != nil || got.IdempotentHit {
			t.Fatalf("call %d: %v, %v", i, got, err)
		}
		if tk, err := c.Get(t.Context(), "", got.TaskID); err != nil || tk.State != "pending" {
			t.Errorf("get: %v, %v", tk, err)
		}
	}
	if n := countTasks(t, s, ""); n != 4 {
		t.Errorf("%d tasks, want 4", n)
	}
	o2.Stop(t)
	quick, err := client.NewWith(o2.URL, client.Options{RetryFor: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = quick.Close() }()
	start := time.Now()
	if _, err := quick.EnqueueTask(t.Context(), pending()); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("with nobody there: %v", err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("gave up after %s, want about 300 ms", d)
	}
}

// TestNotRetried: errors that repeating can't change come back at once.
func TestNotRetried(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	p := newProxy(t, testkit.StartOrchestrator(t, s.Config()).URL)
	c := testkit.Client(t, p.URL)
	if _, err := c.EnqueueTask(t.Context(), &task.Request{Type: "x", Delay: time.Hour, TaskID: "taken"}); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		req   *task.Request
		code  protocol.Code
		field string
		calls int64
	}{
		"bad type":          {&task.Request{Type: "a b"}, protocol.CodeInputInvalid, "type", 1},
		"bad payload":       {&task.Request{Type: "x", Payload: []byte("{")}, protocol.CodeInputInvalid, "payload", 1},
		"negative timeout":  {&task.Request{Type: "x", Timeout: -1}, protocol.CodeInputInvalid, "timeout_ms", 1},
		"tiny timeout":      {&task.Request{Type: "x", Timeout: 1}, protocol.CodeInputInvalid, "timeout_ms", 1},
		"negative delay":    {&task.Request{Type: "x", Delay: -time.Second}, protocol.CodeInputInvalid, "delay_ms", 1},
		"far future":        {&task.Request{Type: "x", At: time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)}, protocol.CodeInputInvalid, "scheduled_at", 1},
		"retries":           {&task.Request{Type: "x", MaxRetries: new(int(1e12))}, protocol.CodeInputInvalid, "max_retries", 1},
		"duplicate":         {&task.Request{Type: "y", Delay: time.Hour, TaskID: "taken"}, protocol.CodeDuplicate, "type", 1},
		"at and delay":      {&task.Request{Type: "x", At: time.Now(), Delay: 1}, protocol.CodeInputInvalid, "schedule_type", 0},
		"invalid UTF-8":     {&task.Request{Type: "x", Key: "\xff"}, protocol.CodeInputInvalid, "idempotency_key", 0},
		"invalid UTF-8 too": {&task.Request{Type: "x", Retry: &task.Retry{Strategy: "\xff"}}, protocol.CodeInputInvalid, "retry_policy.strategy", 0},
	} {
		p.calls.Store(0)
		_, err := c.EnqueueTask(t.Context(), x.req)
		if e, ok := errors.AsType[*protocol.Error](err); !ok || e.Code != x.code || e.Field != x.field {
			t.Errorf("%s: %v, want %s of %s", name, err, x.code, x.field)
		}
		if n := p.calls.Load(); n != x.calls {
			t.Errorf("%s: %d calls, want %d", name, n, x.calls)
		}
	}
	for _, f := range []func(context.Context, string, string) (*client.Task, error){c.Get, c.Wait} {
		if _, err := f(t.Context(), "", "\xff"); protocol.CodeOf(err) != protocol.CodeInputInvalid {
			t.Errorf("invalid UTF-8 in an id: %v", err)
		}
	}
	// Over the transport's limit: no ErrorInfo, no use in repeating it.
	p.calls.Store(0)
	start := time.Now()
	_, err := c.EnqueueTask(t.Context(), &task.Request{Type: "x", Payload: []byte(`"` + strings.Repeat("a", 65<<20) + `"`)})
	if connect.CodeOf(err) != connect.CodeResourceExhausted || p.calls.Load() > 1 || time.Since(start) > 20*time.Second {
		t.Errorf("oversize: %v after %d calls and %s", err, p.calls.Load(), time.Since(start))
	}
}

// TestLargeBatch: tasks that are large together are split over calls.
func TestLargeBatch(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	p := newProxy(t, testkit.StartOrchestrator(t, s.Config()).URL)
	c := testkit.Client(t, p.URL)
	body := []byte(`"` + strings.Repeat("a", 250_000) + `"`)
	rs := make([]*task.Request, 300) // 75 MB, over the server's 64 MiB
	for i := range rs {
		rs[i] = &task.Request{Type: "x", Payload: body, TaskID: fmt.Sprint("large ", i), Delay: time.Hour}
	}
	res, err := c.EnqueueMany(t.Context(), rs)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range res {
		if r.Err != nil || r.Value.TaskID != rs[i].TaskID {
			t.Fatalf("item %d: %v, %v", i, r.Value, r.Err)
		}
	}
	if n := countTasks(t, s, ""); n != len(rs) {
		t.Errorf("%d tasks", n)
	}
}

func TestCancelAndClose(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	defer close(hang)
	c, err := client.NewWith(srv.URL, client.Options{RetryFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 3)
	go func() { _, err := c.EnqueueTask(ctx, pending()); done <- err }()
	go func() { _, err := c.Get(ctx, "", "x"); done <- err }()
	go func() { _, err := c.Wait(ctx, "", "x"); done <- err }()
	cancel()
	for range 3 {
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) && connect.CodeOf(err) != connect.CodeCanceled {
				t.Errorf("%v", err)
			}
		case <-time.After(testkit.Deadline):
			t.Fatal("a cancelled call did not return")
		}
	}
	for _, bad := range []string{"", "127.0.0.1:8080", "ftp://x", "http://", "http://a,,http://b", "http://a\x7f"} {
		if _, err := client.New(bad); err == nil {
			t.Errorf("%q was taken for a URL", bad)
		}
	}
}

// TestWaitOverRestart: Wait goes on while the orchestrator is replaced.
func TestWaitOverRestart(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o1 := testkit.StartOrchestrator(t, s.Config())
	p := newProxy(t, o1.URL)
	c := testkit.Client(t, o1.URL+","+p.URL)
	typ := task.Define[int]("double")
	got, err := typ.Enqueue(t.Context(), c, 21, task.Key("k"))
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		t   *client.Task
		err error
	}
	done := make(chan result, 1)
	go func() {
		tk, err := c.Wait(t.Context(), "", got.TaskID)
		done <- result{tk, err}
	}()
	o1.Stop(t)
	cfg := s.Config()
	cfg.Server.Listen = strings.TrimPrefix(o1.URL, "http://")
	testkit.StartOrchestrator(t, cfg)
	s.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		worker.Handle(w, typ, func(_ context.Context, j *task.Job[int]) error { return j.SetResult(2 * j.Args) })
	})
	select {
	case r := <-done:
		var v int
		if r.err != nil || r.t.State != "succeeded" || client.Decode(r.t, &v) != nil || v != 42 {
			t.Errorf("%v, %v", r.t, r.err)
		}
	case <-time.After(testkit.Deadline):
		t.Fatal("Wait did not return")
	}
	again, err := typ.Enqueue(t.Context(), c, 21, task.Key("k"))
	if err != nil || !again.IdempotentHit || again.TaskID != got.TaskID {
		t.Errorf("the key again: %v, %v", again, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	waiting, err := c.EnqueueTask(t.Context(), pending())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(ctx, "", waiting.TaskID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait with a deadline: %v", err)
	}
	if _, err := c.Wait(t.Context(), "", "nobody"); protocol.CodeOf(err) != protocol.CodeNotFound {
		t.Errorf("wait for nobody: %v", err)
	}
}
