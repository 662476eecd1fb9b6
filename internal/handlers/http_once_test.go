package handlers

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/tasktest"
)

// runOnce runs the handler as one execution of a task whose effects e keeps.
func runOnce(t *testing.T, h task.Handler, e *tasktest.Effects, opts ...tasktest.Option) *tasktest.Outcome {
	t.Helper()
	return tasktest.RunRaw(t, "a", h, []byte(`{"n":1}`), append(opts, tasktest.WithEffects(e), tasktest.IdempotencyKey("k 1"))...)
}

// A response says whether the effect has happened, unless it comes from a proxy.
func TestHTTPOnceByStatus(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		200: "done", 201: "done", 204: "done", 307: "free", 308: "free", 400: "free", 401: "free", 404: "free", 409: "free", 422: "free", 425: "free", 429: "free",
		500: "free", 501: "free", 505: "free", 519: "free", 528: "free", 599: "free",
		408: "in doubt", 499: "in doubt", 503: "in doubt", 520: "in doubt", 522: "in doubt", 524: "in doubt", 527: "in doubt", -503: "free", 301: "in doubt", 302: "in doubt", 303: "in doubt", 304: "in doubt", 502: "in doubt", 504: "in doubt",
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				if r.Header.Get("Idempotency-Key") != "k 1" {
					t.Errorf("key %q", r.Header.Get("Idempotency-Key"))
				}
				if status < 0 {
					w.Header().Set("Retry-After", "0")
				}
				w.WriteHeader(max(status, -status))
			})
			e := tasktest.NewEffects()
			h := mustNew(t, config.Handler{Kind: "http", URL: s.URL}, loopback)
			runOnce(t, h, e)
			_, done := e.Result("http")
			got := map[bool]string{true: "done", false: "free"}[done]
			if e.InDoubt("http") {
				got = "in doubt"
			}
			if got != want {
				t.Errorf("the effect is %s, want %s", got, want)
			}
			out := runOnce(t, h, e)
			if again := calls.Load() == 2; again != (want == "free") {
				t.Errorf("%d calls after the second run", calls.Load())
			}
			if (out.Kind == tasktest.Waiting) != (want == "in doubt") || (out.Kind == tasktest.Succeeded) != (want == "done") {
				t.Errorf("the second run: %s", out)
			}
		})
	}
}

// breaker accepts connections, reads a request from each, and answers the first n;
// then it hangs up.
func breaker(t *testing.T, answered int) (url string, requests *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	requests = &atomic.Int32{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				buf := make([]byte, 64<<10)
				for {
					if n, err := c.Read(buf); err != nil || n == 0 {
						return
					}
					if int(requests.Add(1)) > answered {
						return
					}
					if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n7"); err != nil {
						return
					}
				}
			}()
		}
	}()
	return "http://" + l.Addr().String(), requests
}

// Where the connection breaks under a request, nobody knows; and net/http must not
// send it again by itself, as it would one with an Idempotency-Key.
func TestHTTPOnceIsNotResent(t *testing.T) {
	t.Parallel()
	for _, header := range []map[string]string{nil, {"X-Idempotency-Key": "mine"}} {
		url, requests := breaker(t, 1)
		h := mustNew(t, config.Handler{Kind: "http", URL: url, Headers: header}, loopback)
		if out := runOnce(t, h, tasktest.NewEffects()); string(out.Result) != "7" {
			t.Fatal(out)
		}
		e := tasktest.NewEffects()
		if out := runOnce(t, h, e); out.Kind != tasktest.Failed || !out.Retryable || !e.InDoubt("http") {
			t.Errorf("%s, in doubt: %v", out, e.InDoubt("http"))
		}
		if n := requests.Load(); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
		again := mustNew(t, config.Handler{Kind: "http", URL: url, Headers: header, InDoubt: "run_again"}, loopback)
		runOnce(t, again, e)
		if n := requests.Load(); n != 3 {
			t.Errorf("%d requests after running it again, want 3", n)
		}
	}
}

func TestHTTPOnceUnsent(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	for name, h := range map[string]task.Handler{
		"nobody listens": mustNew(t, config.Handler{Kind: "http", URL: s.URL}, loopback),
		"no such host":   mustNew(t, config.Handler{Kind: "http", URL: "http://nowhere.invalid/"}, config.HTTPClient{Allow: []string{"nowhere.invalid"}}),
		"forbidden":      mustNew(t, config.Handler{Kind: "http", URL: "http://localhost:1/"}, config.HTTPClient{Allow: []string{"localhost"}}),
	} {
		e := tasktest.NewEffects()
		if out := runOnce(t, h, e); out.Kind != tasktest.Failed || e.InDoubt("http") || e.Runs("http") != 1 {
			t.Errorf("%s: %s, in doubt: %v", name, out, e.InDoubt("http"))
		}
	}
}

func TestHTTPOnceTimesOut(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	s := serve(t, func(http.ResponseWriter, *http.Request) { <-stop })
	t.Cleanup(func() { close(stop) })
	e := tasktest.NewEffects()
	h := mustNew(t, config.Handler{Kind: "http", URL: s.URL}, loopback)
	if out := runOnce(t, h, e, tasktest.Timeout(200*time.Millisecond)); out.Code != "TASK_TIMEOUT" || !e.InDoubt("http") {
		t.Errorf("%s, in doubt: %v", out, e.InDoubt("http"))
	}
}

// After a 2xx the effect has happened, whatever becomes of the body.
func TestHTTPOnceBodies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		max    int
		body   func(w http.ResponseWriter)
		first  tasktest.Kind
		second tasktest.Kind
	}{
		"breaks off":       {0, func(w http.ResponseWriter) { w.Header().Set("Content-Length", "50"); _, _ = io.WriteString(w, "{") }, tasktest.Failed, tasktest.Failed},
		"too long":         {8, func(w http.ResponseWriter) { _, _ = io.WriteString(w, "123456789") }, tasktest.Failed, tasktest.Failed},
		"too long to keep": {1 << 20, func(w http.ResponseWriter) { _, _ = io.WriteString(w, strings.Repeat("x", 300<<10)) }, tasktest.Succeeded, tasktest.Failed},
		"text":             {0, func(w http.ResponseWriter) { _, _ = io.WriteString(w, "hello") }, tasktest.Succeeded, tasktest.Succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			s := serve(t, func(w http.ResponseWriter, _ *http.Request) { calls.Add(1); c.body(w) })
			h := mustNew(t, config.Handler{Kind: "http", URL: s.URL, MaxOutputBytes: c.max}, loopback)
			e := tasktest.NewEffects()
			for i, want := range []tasktest.Kind{c.first, c.second} {
				out := runOnce(t, h, e)
				if out.Kind != want || out.Retryable || calls.Load() != 1 {
					t.Errorf("run %d: %s, %d calls", i+1, out, calls.Load())
				}
			}
		})
	}
}

func TestHTTPOnceOff(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { calls.Add(1) })
	e := tasktest.NewEffects()
	h := mustNew(t, config.Handler{Kind: "http", URL: s.URL, Effects: "off"}, loopback)
	for range 2 {
		runOnce(t, h, e)
	}
	if calls.Load() != 2 || e.Runs("http") != 0 {
		t.Errorf("%d calls, %d runs", calls.Load(), e.Runs("http"))
	}
	for _, bad := range []config.Handler{{Kind: "http", URL: s.URL, Effects: "on"}, {Kind: "http", URL: s.URL, InDoubt: "x"}, {Kind: "http", URL: s.URL, KeyForm: "quoted"}, {Kind: "exec", KeyForm: "plain"}, {Kind: "echo", Effects: "off"}, {Kind: "echo", InDoubt: "stop"}} {
		if _, err := New("a", bad, loopback, nil); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}
