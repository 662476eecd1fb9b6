package e2e

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
)

// private is a system on servers that the test may stop.
func private(t *testing.T) (*system, *devstack.Stack) {
	t.Helper()
	stack := devtest.Stack(t, devstack.Options{Durable: true})
	return &system{
		Stores: testkit.Stores{PostgresURL: stack.PostgresURL, RedisURL: stack.RedisURL}, t: t, visibility: 30 * time.Second,
	}, stack
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestStoresAbsentAtStart(t *testing.T) {
	t.Parallel()
	s, stack := private(t)
	must(t, stack.KillPostgres())
	must(t, stack.StopRedis(false))
	addr := freeAddr(t)
	o := s.orchestrator(addr)
	w := s.worker(echoConfig, "PENSTOCK_HEALTH_LISTEN=127.0.0.1:0")

	o.says(t, "waiting for Postgres")
	w.says(t, "Redis not reached; trying again")
	if code, body := get("http://" + addr + "/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d %s, want 200", code, body)
	}
	if code, body := get("http://" + addr + "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "waiting for Postgres and Redis") {
		t.Errorf("/readyz: %d %s, want 503 with the reason", code, body)
	}
	must(t, stack.StartPostgres(t.Context()))
	o.says(t, "waiting for Redis")
	if code, body := get("http://" + addr + "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz without Redis: %d %s, want 503", code, body)
	}
	must(t, stack.StartRedis(t.Context()))
	waitReady(t, addr)
	w.says(t, "worker started")
	l := startLoad(t, []string{addr}, "echo", 5*time.Millisecond)
	l.more(20)
	l.finish(s.Stores)
	if out := o.out.String(); strings.Contains(out, "panic") {
		t.Errorf("the orchestrator's log:\n%s", out)
	}
	w.stop(t, syscall.SIGTERM)
	o.stop(t, syscall.SIGTERM)
}

func TestGivingUpAfterTheStartDeadline(t *testing.T) {
	t.Parallel()
	s, stack := private(t)
	must(t, stack.StopRedis(false))
	o := s.orchestrator(freeAddr(t), "PENSTOCK_SERVER_START_DEADLINE=500ms")
	w := s.worker(echoConfig, "PENSTOCK_START_DEADLINE=500ms")
	if code := o.wait(t); code != 1 || !strings.Contains(o.out.String(), "Redis could not be used within 500ms (server.start_deadline)") {
		t.Errorf("without Redis the orchestrator ended with %d:\n%s", code, o.out.tail())
	}
	if code := w.wait(t); code != 1 || !strings.Contains(w.out.String(), "Redis not reached within 500ms") {
		t.Errorf("without Redis the worker ended with %d:\n%s", code, w.out.tail())
	}
	must(t, stack.KillPostgres())
	o = s.orchestrator(freeAddr(t), "PENSTOCK_SERVER_START_DEADLINE=0s")
	if code := o.wait(t); code != 1 || !strings.Contains(o.out.String(), "Postgres could not be used within 0s (server.start_deadline)") {
		t.Errorf("without Postgres the orchestrator ended with %d:\n%s", code, o.out.tail())
	}
}

// Stopped while it waits for a store, a program ends at once and cleanly.
func TestStopWhileWaitingForAStore(t *testing.T) {
	t.Parallel()
	s, stack := private(t)
	must(t, stack.StopRedis(false))
	o, w := s.orchestrator(freeAddr(t)), s.worker(echoConfig)
	o.says(t, "waiting for Redis")
	w.says(t, "Redis not reached")
	for _, p := range []*process{o, w} {
		must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	}
	if code := o.wait(t); code != 130 {
		t.Errorf("the orchestrator ended with %d, want 130 (interrupted):\n%s", code, o.out.tail())
	}
	if code := w.wait(t); code != 0 {
		t.Errorf("the worker ended with %d, want 0:\n%s", code, w.out.tail())
	}
}

// Either store restarts under load: service resumes by itself within seconds,
// and nothing is lost.
func TestStoresRestartUnderLoad(t *testing.T) {
	t.Parallel()
	s, stack := private(t)
	addrs := []string{freeAddr(t), freeAddr(t)}
	for _, a := range addrs {
		s.orchestrator(a)
		waitReady(t, a)
	}
	c := s.counter(16)
	l := startLoad(t, addrs, "count", 2*time.Millisecond)
	resumes := func(what string) {
		t.Helper()
		began := time.Now()
		l.more(200)
		tasks, _ := c.total()
		testkit.Eventually(t, "tasks run again", func() (bool, string) {
			now, _ := c.total()
			return now > tasks, ""
		})
		took := time.Since(began)
		t.Logf("%s: 200 calls and a run %s after it was back", what, took.Round(time.Millisecond))
		if took > 30*time.Second {
			t.Errorf("%s: service resumed after %s, want seconds", what, took)
		}
		for _, a := range addrs {
			waitReady(t, a)
		}
	}
	l.more(200)
	must(t, stack.KillPostgres())
	testkit.Eventually(t, "not ready without Postgres", func() (bool, string) {
		code, body := get("http://" + addrs[0] + "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "postgres"), body
	})
	must(t, stack.StartPostgres(t.Context()))
	resumes("Postgres")
	must(t, stack.StopRedis(false))
	testkit.Eventually(t, "not ready without Redis", func() (bool, string) {
		code, body := get("http://" + addrs[1] + "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "redis"), body
	})
	accepted := l.count.Load()
	l.more(50) // committed is accepted, even without Redis
	must(t, stack.StartRedis(t.Context()))
	resumes("Redis")
	must(t, stack.StopRedis(true)) // what was written in the last second may be gone
	must(t, stack.StartRedis(t.Context()))
	resumes("Redis after a kill")
	began := time.Now()
	ids := l.finish(s.Stores)
	tasks, runs := c.total()
	if tasks != len(ids) {
		t.Errorf("%d of %d tasks ran", tasks, len(ids))
	}
	t.Logf("%d tasks, %d executions, %d accepted before Redis stopped, slowest call %s, finished %s after the load",
		len(ids), runs, accepted, time.Duration(l.slowest.Load()), time.Since(began))
}
