package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
)

func TestWorkerProgramRunsItsHandlers(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 20 * time.Second}
	o := testkit.StartOrchestrator(t, s.Config())
	c := testkit.Client(t, o.URL)
	keys := make(chan string, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		keys <- r.Header.Get("Idempotency-Key")
		_, _ = fmt.Fprintf(w, `{"got":%s}`, b)
	}))
	t.Cleanup(hook.Close)
	health := freeAddr(t)
	s.worker(fmt.Sprintf(`
concurrency: 4
health_listen: %q
shutdown_grace: 10s
http: {allow: ["127.0.0.0/8"], allow_private: true}
handlers:
  run.wc: {kind: exec, command: [sh, -c, 'printf "{\"bytes\":%%d}" "$(wc -c)"']}
  run.bad: {kind: exec, command: [sh, -c, 'echo no such customer >&2; exit 65']}
  post.it: {kind: http, url: %q}
  echo: {kind: echo}
  sleep: {kind: sleep}
`, health, hook.URL))
	waitReady(t, health)
	enqueue := func(typ, payload string, opts ...task.Option) string {
		t.Helper()
		r := &task.Request{Type: typ, Payload: json.RawMessage(payload)}
		for _, o := range opts {
			o(r)
		}
		e, err := c.EnqueueTask(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return e.TaskID
	}
	wait := func(id string) *client.Task {
		t.Helper()
		got, err := c.Wait(t.Context(), "", id)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, tt := range []struct{ typ, payload, want string }{
		{"run.wc", `"12345"`, `{"bytes":7}`}, {"post.it", `[1]`, `{"got":[1]}`}, {"echo", `{"a":1}`, `{"a":1}`}, {"sleep", `{"ms":1}`, `{"slept_ms":1}`},
	} {
		if got := wait(enqueue(tt.typ, tt.payload, task.Key("key of "+tt.typ))); got.State != "succeeded" || strings.ReplaceAll(string(got.Result), " ", "") != tt.want {
			t.Errorf("%s: %s %s, want %s", tt.typ, got.State, got.Result, tt.want)
		}
	}
	if key := <-keys; key != "key of post.it" {
		t.Errorf("the hook got Idempotency-Key %q", key)
	}
	if got := wait(enqueue("run.bad", `1`)); got.State != "failed" || got.RetryCount != 0 || !strings.Contains(got.LastErrorReason.GetValue(), "no such customer") {
		t.Errorf("exit code 65: %v, want a permanent failure", got)
	}
	testkit.VerifyLog(t, s.Stores)
}

// SIGTERM: what runs is finished first.
func TestWorkerProgramDrains(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 20 * time.Second}
	o := testkit.StartOrchestrator(t, s.Config())
	c := testkit.Client(t, o.URL)
	config, open := gated(t)
	w := s.worker(config)
	id := enqueue(t, c, "gated", `1`)
	waitRunning(t, c, id)
	must(t, w.cmd.Process.Signal(syscall.SIGTERM))
	w.says(t, "worker draining")
	open()
	if code := w.wait(t); code != 0 {
		t.Errorf("the worker ended with %d:\n%s", code, w.out.tail())
	}
	if got, err := c.Wait(t.Context(), "", id); err != nil || got.State != "succeeded" || got.Delivery != 1 {
		t.Errorf("a task that ran at SIGTERM: %v, %v; want it finished", got, err)
	}
	testkit.VerifyLog(t, s.Stores)
}

// With no grace at all a stopping worker hands back what runs, and another one
// runs it at once.
func TestWorkerProgramHandsBack(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: time.Minute}
	o := testkit.StartOrchestrator(t, s.Config())
	c := testkit.Client(t, o.URL)
	config, _ := gated(t)
	a := s.worker("shutdown_grace: 0s\n" + config)
	id := enqueue(t, c, "gated", `1`)
	waitRunning(t, c, id)
	s.worker("handlers:\n  gated: {kind: echo}\n").says(t, "worker started")
	a.stop(t, syscall.SIGTERM) // it would wait for ever
	got, err := c.Wait(t.Context(), "", id)
	if err != nil || got.State != "succeeded" || got.Delivery != 2 || got.RetryCount+got.Interruptions != 0 {
		t.Errorf("%v, %v; want it run again without a retry or an interruption", got, err)
	}
}

// What is wrong in the configuration ends a worker with exit code 2, the
// declarations of handlers included.
func TestWrongHandlersAreWrongUsage(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: time.Minute}
	for want, config := range map[string]string{
		`handlers["a"].kind`: "handlers:\n  a: {kind: nope}\n", "declares none": "concurrency: 2\n", "handlers.b": "handlers:\n  b: {kind: exec, command: [no-such-program-anywhere]}\n",
	} {
		p := s.worker(config)
		if code := p.wait(t); code != 2 || !strings.Contains(p.out.String(), want) {
			t.Errorf("exit code %d, want 2 and %q:\n%s", code, want, p.out.tail())
		}
	}
}
