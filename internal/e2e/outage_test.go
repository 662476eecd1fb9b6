package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// outage is how long a store is away.
const outage = 5 * time.Second

// within fails unless something happened in the given time since a moment. A
// slow machine gets three times as long.
func within(t *testing.T, what string, since, happened time.Time, want time.Duration) {
	t.Helper()
	took := happened.Sub(since)
	t.Logf("%s: after %s", what, took.Round(time.Millisecond))
	if took > 3*want {
		t.Errorf("%s after %s, want within %s", what, took, want)
	}
}

// pass waits until a moment has passed.
func pass(t *testing.T, until time.Time) {
	t.Helper()
	select {
	case <-time.After(time.Until(until)):
	case <-t.Context().Done():
	}
}

// Redis is away for a while: tasks are accepted, those that wait and those due
// meanwhile run within seconds of its return, later ones on time.
func TestRedisIsAwayForAWhile(t *testing.T) {
	t.Parallel()
	s, stack := private(t)
	addr := freeAddr(t)
	s.orchestrator(addr)
	waitReady(t, addr)
	s.counter(8)
	c := testkit.Client(t, "http://"+addr)
	add := func(opts ...task.Option) string {
		t.Helper()
		r := &task.Request{Type: "count", Payload: json.RawMessage(`{}`)}
		for _, o := range opts {
			o(r)
		}
		e, err := c.EnqueueTask(t.Context(), r)
		must(t, err)
		return e.TaskID
	}
	done := func(id string) *client.Task {
		t.Helper()
		got, err := c.Wait(t.Context(), "", id)
		if err != nil || got.State != "succeeded" || got.Interruptions+got.RetryCount != 0 {
			t.Fatalf("%v, %v", got, err)
		}
		return got
	}
	done(add())
	gone := time.Now()
	later := gone.Add(outage + 6*time.Second)
	dueMeanwhile, dueLater := add(task.At(gone.Add(outage/2))), add(task.At(later))
	must(t, stack.StopRedis(false))
	waiting := add() // committed is accepted
	pass(t, gone.Add(outage))
	must(t, stack.StartRedis(t.Context()))
	back := time.Now()
	within(t, "a task that waited has run", back, done(waiting).FinishedAt.AsTime(), 5*time.Second)
	within(t, "a task that became due meanwhile has run", back, done(dueMeanwhile).FinishedAt.AsTime(), 5*time.Second)
	began := time.Now()
	within(t, "the next task has run", began, done(add()).FinishedAt.AsTime(), 5*time.Second)
	got := done(dueLater)
	within(t, "a task that became due later has run", later, got.FinishedAt.AsTime(), time.Second)
	if got.FinishedAt.AsTime().Before(later.Truncate(time.Millisecond)) { // as workers tell it
		t.Errorf("a task ran at %s, before it was due at %s", got.FinishedAt.AsTime(), later)
	}
	testkit.VerifyLog(t, s.Stores)
}

// Postgres is away for a while: calls fail at once and may be repeated; workers
// run what they have, and their outcomes are applied afterwards.
func TestPostgresIsAwayForAWhile(t *testing.T) {
	t.Parallel()
	s, stack := private(t)
	addr := freeAddr(t)
	s.orchestrator(addr)
	waitReady(t, addr)
	const n = 20
	started, release, finished := make(chan bool, n), make(chan bool), make(chan bool, n)
	s.StartWorker(t, worker.Options{Concurrency: n, VisibilityTimeout: s.visibility}, func(w *worker.Worker) {
		w.HandleRaw("hold", func(context.Context, *task.Raw) (json.RawMessage, error) {
			started <- true
			<-release
			finished <- true
			return nil, nil
		})
	})
	patient := testkit.Client(t, "http://"+addr)
	hasty, err := client.NewWith("http://"+addr, client.Options{RetryFor: -1})
	must(t, err)
	t.Cleanup(func() { _ = hasty.Close() })
	ids := make([]string, n)
	for i := range ids {
		ids[i] = enqueue(t, patient, "hold", `1`)
	}
	for range n {
		<-started
	}
	gone := time.Now()
	must(t, stack.KillPostgres())
	close(release)
	for range n {
		<-finished
	}
	_, err = hasty.EnqueueTask(t.Context(), &task.Request{Type: "hold", Payload: json.RawMessage(`1`)})
	if connect.CodeOf(err) != connect.CodeUnavailable || rpc.InfoOf(err) == nil || !rpc.InfoOf(err).Retryable {
		t.Errorf("an enqueue without Postgres: %v, want unavailable and retryable", err)
	}
	res, err := http.Post("http://"+addr+"/api/v1/tasks", "application/json", strings.NewReader(`{"type":"hold","payload":1}`))
	must(t, err)
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), `"retryable":true`) {
		t.Errorf("an enqueue by REST without Postgres: %d %s, want 503 and retryable", res.StatusCode, body)
	}
	pass(t, gone.Add(outage))
	must(t, stack.StartPostgres(t.Context()))
	back := time.Now()
	for _, id := range ids {
		got, err := patient.Wait(t.Context(), "", id)
		if err != nil || got.State != "succeeded" || got.Delivery != 1 || got.Interruptions != 0 {
			t.Fatalf("%v, %v; want it succeeded in its only delivery", got, err)
		}
	}
	within(t, "all outcomes are applied", back, time.Now(), 5*time.Second)
	testkit.VerifyLog(t, s.Stores)
}

// Redis is out of memory: tasks are accepted and wait in Postgres, the
// orchestrator says so, and all run by themselves once there is memory.
func TestEnqueueWhileRedisIsFull(t *testing.T) {
	t.Parallel()
	s, _ := private(t)
	addr, health := freeAddr(t), freeAddr(t)
	s.orchestrator(addr)
	waitReady(t, addr)
	config, open := gated(t)
	w := s.worker(fmt.Sprintf("health_listen: %q\n%s  echo: {kind: echo}\n", health, config))
	waitReady(t, health)
	opts, err := redis.ParseURL(s.RedisURL)
	must(t, err)
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	c := testkit.Client(t, "http://"+addr)
	running := enqueue(t, c, "gated", `1`)
	waitRunning(t, c, running)
	must(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	ids := []string{running}
	for range 20 {
		ids = append(ids, enqueue(t, c, "echo", `1`))
	}
	open()
	waitUnready(t, addr, "dispatch: due tasks cannot be dispatched for ")
	waitUnready(t, health, "outcomes: wait for Redis for ")
	if got, err := c.Get(t.Context(), "", running); err != nil || got.State != "running" {
		t.Errorf("%v, %v; want its outcome to wait", got, err)
	}
	must(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	back := time.Now()
	for i, id := range ids {
		got, err := c.Wait(t.Context(), "", id)
		if err != nil || got.State != "succeeded" || got.Interruptions+got.RetryCount != 0 || i == 0 && got.Delivery != 1 {
			t.Fatalf("%v, %v", got, err)
		}
	}
	within(t, "all have run", back, time.Now(), 5*time.Second)
	waitReady(t, addr)
	waitReady(t, health)
	w.stop(t, syscall.SIGTERM)
	testkit.VerifyLog(t, s.Stores)
}

// rounds is how often Redis goes away and comes back.
const rounds = 10

// Outage after outage leaves neither goroutines nor connections behind.
func TestOutagesLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	s, stack := private(t)
	addr := freeAddr(t)
	s.orchestrator(addr)
	waitReady(t, addr)
	s.worker(echoConfig).says(t, "worker started")
	l := startLoad(t, []string{addr}, "echo", 5*time.Millisecond)
	opts, err := redis.ParseURL(s.RedisURL)
	must(t, err)
	figures := func() (f [4]int) { // goroutines, open files, connections to Redis and Postgres
		_, body := get("http://" + addr + "/metrics")
		for i, name := range []string{"go_goroutines", "process_open_fds"} {
			m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(body)
			if m == nil {
				return f
			}
			n, err := strconv.ParseFloat(m[1], 64)
			must(t, err)
			f[i] = int(n)
		}
		rdb := redis.NewClient(opts)
		defer func() { _ = rdb.Close() }()
		f[2] = strings.Count(rdb.ClientList(t.Context()).Val(), "name=penstock-")
		must(t, s.SQL(t).QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock'").Scan(&f[3]))
		return f
	}
	l.more(200)
	before := figures()
	for i := range rounds {
		if i%2 == 0 {
			must(t, stack.StopRedis(false))
			must(t, stack.StartRedis(t.Context()))
		} else {
			rdb := redis.NewClient(opts)
			must(t, rdb.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err())
			must(t, rdb.Close())
		}
		l.more(50)
	}
	waitReady(t, addr)
	l.more(200)
	var after [4]int
	testkit.Eventually(t, fmt.Sprintf("goroutines, files and connections are about what they were: %v", before), func() (bool, string) {
		after = figures()
		ok := after[0] > 0
		for i := range after {
			// A pool may hold a few more than it happened to need before.
			ok = ok && after[i] <= before[i]+before[i]/4+12
		}
		return ok, fmt.Sprint(after)
	})
	t.Logf("goroutines, open files, connections to Redis and Postgres: %v before, %v after %d outages", before, after, rounds)
	l.finish(s.Stores)
}
