package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// stubborn is the name under which this test program is a worker whose handler
// ignores everything.
const stubborn = "stubborn"

func runStubborn() int {
	w, err := worker.New(worker.FromEnv())
	if err == nil {
		w.HandleRaw(stubborn, func(context.Context, *task.Raw) (json.RawMessage, error) {
			fmt.Println("nothing ends this handler")
			select {}
		})
		err = w.Run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// stubborn starts such a worker.
func (s *system) stubborn(grace time.Duration) *process {
	s.t.Helper()
	return start(s.t, stubborn, []string{
		"PENSTOCK_REDIS_URL=" + s.WorkerRedis(), "PENSTOCK_VISIBILITY_TIMEOUT=" + s.visibility.String(), "PENSTOCK_SHUTDOWN_GRACE=" + grace.String(),
	})
}

// one starts an orchestrator in the test, and returns a client.
func one(t *testing.T, visibility time.Duration) (*system, *client.Client) {
	t.Helper()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: visibility}
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout = visibility
	return s, testkit.Client(t, testkit.StartOrchestrator(t, cfg).URL)
}

func enqueue(t *testing.T, c *client.Client, typ, payload string) string {
	t.Helper()
	e, err := c.EnqueueTask(t.Context(), &task.Request{Type: typ, Payload: json.RawMessage(payload)})
	if err != nil {
		t.Fatal(err)
	}
	return e.TaskID
}

// waitFor waits until a task is as wanted.
func waitFor(t *testing.T, c *client.Client, id, what string, want func(*client.Task) bool) *client.Task {
	t.Helper()
	var got *client.Task
	testkit.Eventually(t, "the task "+what, func() (bool, string) {
		var err error
		got, err = c.Get(t.Context(), "", id)
		return err == nil && want(got), fmt.Sprint(got, err)
	})
	return got
}

func waitRunning(t *testing.T, c *client.Client, id string) {
	t.Helper()
	waitFor(t, c, id, "runs", func(got *client.Task) bool { return got.State == "running" })
}

// unspent fails if handing the task back cost it anything.
func unspent(t *testing.T, got *client.Task) {
	t.Helper()
	if got.RetryCount != 0 || got.Interruptions != 0 {
		t.Errorf("%v: want neither a retry nor an interruption spent", got)
	}
}

// idle fails unless the group has nothing pending, and only the consumers named.
func (s *system) idle(consumers int) {
	s.t.Helper()
	rdb := s.Redis(s.t)
	cs, err := rdb.XInfoConsumers(s.t.Context(), protocol.StreamTask, protocol.GroupWorkers).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	p, err := rdb.XPending(s.t.Context(), protocol.StreamTask, protocol.GroupWorkers).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	if len(cs) != consumers || p.Count != 0 {
		s.t.Errorf("%d pending entries, consumers %v; want none, and %d", p.Count, cs, consumers)
	}
}

// What has not finished within the grace is handed back at its end, and runs
// again elsewhere at once: long before the visibility timeout.
func TestHandBackAtTheEndOfTheGrace(t *testing.T) {
	t.Parallel()
	s, c := one(t, time.Minute)
	const grace = time.Second
	a := s.worker(fmt.Sprintf("shutdown_grace: %s\n%s", grace, echoConfig))
	id := enqueue(t, c, "sleep", `{"ms":8000}`)
	waitRunning(t, c, id)
	b := s.worker(echoConfig)
	b.says(t, "worker started")
	began := time.Now()
	must(t, a.cmd.Process.Signal(syscall.SIGTERM))
	got := waitFor(t, c, id, "runs elsewhere", func(got *client.Task) bool { return got.State == "running" && got.Delivery == 2 })
	after := time.Since(began) - grace
	t.Logf("the claim was applied %s after the end of the grace", after.Round(time.Millisecond))
	if after < 0 || after > 30*time.Second { // the visibility timeout is a minute
		t.Errorf("it runs again %s after the end of the grace, want at once", after)
	}
	unspent(t, got)
	if code := a.wait(t); code != 0 {
		t.Errorf("the worker ended with %d:\n%s", code, a.out.tail())
	}
	if got, err := c.Wait(t.Context(), "", id); err != nil || got.State != "succeeded" || got.WorkerId != b.workerID(t) {
		t.Errorf("%v, %v; want it to succeed on the other worker", got, err)
	}
	b.stop(t, syscall.SIGTERM)
	s.idle(0)
	testkit.VerifyLog(t, s.Stores)
}

// A handler that ignores everything ends with its process, and its task is
// handed back before.
func TestStopWithAStubbornHandler(t *testing.T) {
	t.Parallel()
	s, c := one(t, time.Minute)
	a := s.stubborn(500 * time.Millisecond)
	id := enqueue(t, c, stubborn, `1`)
	waitRunning(t, c, id)
	s.StartWorker(t, worker.Options{VisibilityTimeout: s.visibility}, func(w *worker.Worker) {
		w.HandleRaw(stubborn, func(context.Context, *task.Raw) (json.RawMessage, error) { return json.RawMessage(`"elsewhere"`), nil })
	})
	began := time.Now()
	a.stop(t, syscall.SIGTERM)
	took := time.Since(began)
	if took > 20*time.Second {
		t.Errorf("the worker took %s to stop", took)
	}
	got, err := c.Wait(t.Context(), "", id)
	if err != nil || string(got.Result) != `"elsewhere"` || got.Delivery != 2 {
		t.Fatalf("%v, %v; want it run elsewhere", got, err)
	}
	unspent(t, got)
	t.Logf("the process ended after %s, the task %s after the signal", took.Round(time.Millisecond), got.FinishedAt.AsTime().Sub(began).Round(time.Millisecond))
	testkit.VerifyLog(t, s.Stores)
}

// A second signal ends the grace, a third the process.
func TestSignalsToAWorker(t *testing.T) {
	t.Parallel()
	s, c := one(t, 3*time.Second)
	a := s.worker("shutdown_grace: 1h\nhandlers:\n  work: {kind: exec, command: [sh, -c, 'trap \"\" TERM; sleep 300']}\n")
	id := enqueue(t, c, "work", `1`)
	waitRunning(t, c, id)
	must(t, a.cmd.Process.Signal(syscall.SIGTERM))
	a.says(t, "worker draining")
	began := time.Now()
	must(t, a.cmd.Process.Signal(syscall.SIGTERM))
	if code := a.wait(t); code != 130 {
		t.Errorf("after the second signal the worker ended with %d, want 130:\n%s", code, a.out.tail())
	}
	t.Logf("ended %s after the second signal", time.Since(began).Round(time.Millisecond))
	unspent(t, waitFor(t, c, id, "is queued again", func(got *client.Task) bool { return got.State == "queued" && got.Delivery == 2 }))
	s.idle(0)
	next := s.worker("handlers:\n  work: {kind: echo}\n")
	if got, err := c.Wait(t.Context(), "", id); err != nil || got.State != "succeeded" {
		t.Errorf("%v, %v", got, err)
	}

	next.stop(t, syscall.SIGTERM) // it does not know the other type
	b := s.stubborn(time.Hour)
	id = enqueue(t, c, stubborn, `1`)
	waitRunning(t, c, id)
	must(t, b.cmd.Process.Signal(syscall.SIGTERM))
	b.says(t, "worker draining")
	began = time.Now()
	testkit.Eventually(t, "the process ends", func() (bool, string) { // at the third signal
		_ = b.cmd.Process.Signal(syscall.SIGTERM)
		return b.ended(), ""
	})
	t.Logf("ended %s after the third signal", time.Since(began).Round(time.Millisecond))
	if code := b.wait(t); code != -1 {
		t.Errorf("the stubborn worker ended with %d, want death by the signal:\n%s", code, b.out.tail())
	}
	s.StartWorker(t, worker.Options{VisibilityTimeout: s.visibility}, func(w *worker.Worker) {
		w.HandleRaw(stubborn, func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	if got, err := c.Wait(t.Context(), "", id); err != nil || got.State != "succeeded" || got.RetryCount != 0 {
		t.Errorf("after the third signal: %v, %v; want the task to run again", got, err)
	}
	testkit.VerifyLog(t, s.Stores)
}

// An entry that arrives while the worker stops is handed back or left alone.
func TestAnEntryThatArrivesDuringTheStop(t *testing.T) {
	t.Parallel()
	s, c := one(t, time.Minute)
	a := s.worker(echoConfig)
	if _, err := c.Wait(t.Context(), "", enqueue(t, c, "echo", `0`)); err != nil {
		t.Fatal(err)
	}
	must(t, a.cmd.Process.Signal(syscall.SIGTERM)) // its read is under way for up to a second more
	id := enqueue(t, c, "echo", `1`)
	if code := a.wait(t); code != 0 {
		t.Errorf("the worker ended with %d:\n%s", code, a.out.tail())
	}
	began := time.Now()
	s.worker(echoConfig)
	got, err := c.Wait(t.Context(), "", id)
	if err != nil || got.State != "succeeded" {
		t.Fatalf("%v, %v", got, err)
	}
	unspent(t, got)
	t.Logf("delivery %d; done %s after the next worker was started", got.Delivery, time.Since(began).Round(time.Millisecond))
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s, want no wait for the visibility timeout", took)
	}
}

// A worker that is told to stop while Redis hangs ends in bounded time, and its
// task runs again after the visibility timeout.
func TestStopAWorkerWhileRedisHangs(t *testing.T) {
	t.Parallel()
	s, c := one(t, 4*time.Second)
	p := chaosproxy.Redis(t, s.RedisURL)
	behind := *s
	behind.RedisURL = p.URL
	a := behind.worker("shutdown_grace: 500ms\n" + echoConfig)
	id := enqueue(t, c, "sleep", `{"ms":600000}`)
	waitRunning(t, c, id)
	p.Hang(true)
	began := time.Now()
	must(t, a.cmd.Process.Signal(syscall.SIGTERM))
	code := a.wait(t)
	took := time.Since(began)
	t.Logf("ended with %d after %s", code, took.Round(time.Millisecond))
	if code != 1 || !strings.Contains(a.out.String(), "could not be reported in time") {
		t.Errorf("the worker ended with %d, want 1 and why:\n%s", code, a.out.tail())
	}
	if took > 30*time.Second {
		t.Errorf("it took %s, want at most 17.5 s and what a slow machine adds", took)
	}
	s.worker("handlers:\n  sleep: {kind: echo}\n")
	if got, err := c.Wait(t.Context(), "", id); err != nil || got.State != "succeeded" || got.RetryCount != 0 {
		t.Errorf("%v, %v; want it run again", got, err)
	}
	testkit.VerifyLog(t, s.Stores)
}

// An orchestrator that can't finish in peace, because Postgres hangs, ends soon
// after a second signal; what it had in hand is done by the next.
func TestSignalsToAnOrchestrator(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: time.Minute}
	p := chaosproxy.Postgres(t, s.PostgresURL)
	behind := *s
	behind.PostgresURL = p.URL
	addr := freeAddr(t)
	o := behind.orchestrator(addr, "PENSTOCK_SERVER_SHUTDOWN_GRACE=1h")
	waitReady(t, addr)
	l := startLoad(t, []string{addr}, "count", 2*time.Millisecond)
	s.counter(8)
	l.more(100)
	p.Hang(true)
	must(t, o.cmd.Process.Signal(syscall.SIGTERM))
	testkit.Eventually(t, "the port is closed", func() (bool, string) {
		code, body := get("http://" + addr + "/livez")
		return code == 0, body
	})
	if o.ended() {
		t.Fatalf("the orchestrator ended within its grace period:\n%s", o.out.tail())
	}
	began := time.Now()
	must(t, o.cmd.Process.Signal(syscall.SIGTERM))
	if code := o.wait(t); code != 130 {
		t.Errorf("after the second signal the orchestrator ended with %d, want 130:\n%s", code, o.out.tail())
	}
	t.Logf("ended %s after the second signal", time.Since(began).Round(time.Millisecond))
	p.Close()
	s.orchestrator(addr)
	waitReady(t, addr)
	l.more(100)
	l.finish(s.Stores)
}

// Told to stop while it waits for a store that hangs, a program ends at once.
func TestStopWhileAStoreHangsAtTheStart(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: time.Minute}
	redisHangs := func() (system, *chaosproxy.Proxy) {
		p, behind := chaosproxy.Redis(t, s.RedisURL), *s
		p.Hang(true)
		behind.RedisURL = p.URL
		return behind, p
	}
	type program struct {
		*process
		proxy *chaosproxy.Proxy
		code  int
	}
	programs := map[string]program{}
	behind, p := redisHangs()
	programs["worker without Redis"] = program{behind.worker(echoConfig), p, 0}
	behind, p = redisHangs()
	programs["orchestrator without Redis"] = program{behind.orchestrator(freeAddr(t)), p, 130}
	p, behind = chaosproxy.Postgres(t, s.PostgresURL), *s
	p.Hang(true)
	behind.PostgresURL = p.URL
	programs["orchestrator without Postgres"] = program{behind.orchestrator(freeAddr(t)), p, 130}
	for name, p := range programs {
		testkit.Eventually(t, name+" has connected", func() (bool, string) { return p.proxy.Conns() > 0, "" })
		began := time.Now()
		must(t, p.cmd.Process.Signal(syscall.SIGTERM))
		code := p.wait(t)
		t.Logf("%s: ended with %d after %s", name, code, time.Since(began).Round(time.Millisecond))
		if code != p.code {
			t.Errorf("%s ended with %d, want %d:\n%s", name, code, p.code, p.out.tail())
		}
	}
}

// A policy under which Redis may drop whole streams is refused.
func TestRefusesARedisThatEvicts(t *testing.T) {
	t.Parallel()
	s, _ := private(t)
	opts, err := redis.ParseURL(s.RedisURL)
	must(t, err)
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	must(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	o := s.orchestrator(freeAddr(t))
	if code := o.wait(t); code != 1 || !strings.Contains(o.out.String(), "redis maxmemory-policy is allkeys-lru, which evicts whole streams under memory pressure: set it to noeviction") {
		t.Errorf("the orchestrator ended with %d:\n%s", code, o.out.tail())
	}
}
