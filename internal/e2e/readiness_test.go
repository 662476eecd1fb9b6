package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/testkit"
)

// waitUnready waits until /readyz answers 503 with a reason.
func waitUnready(t *testing.T, addr string, reasons ...string) {
	t.Helper()
	began := time.Now()
	testkit.Eventually(t, fmt.Sprintf("%s is not ready: %q", addr, reasons), func() (bool, string) {
		code, body := get("http://" + addr + "/readyz")
		ok := code == http.StatusServiceUnavailable
		for _, r := range reasons {
			ok = ok && strings.Contains(body, r)
		}
		return ok, fmt.Sprint(code, " ", body)
	})
	took := time.Since(began)
	t.Logf("%q shows after %s", reasons, took.Round(time.Millisecond))
}

// alive fails unless /livez answers 200: a store that is away is no reason to
// restart a process.
func alive(t *testing.T, addr string) {
	t.Helper()
	if code, body := get("http://" + addr + "/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d %s", code, body)
	}
}

// A store that is there but never answers shows within seconds, in both
// programs, with the loops that it stops; and they recover by themselves.
func TestReadinessWhileAStoreHangs(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 30 * time.Second}
	rp, pp := chaosproxy.Redis(t, s.RedisURL), chaosproxy.Postgres(t, s.PostgresURL)
	behind := *s
	behind.RedisURL, behind.PostgresURL = rp.URL, pp.URL
	addr, health := freeAddr(t), freeAddr(t)
	behind.orchestrator(addr)
	waitReady(t, addr)
	behind.worker(fmt.Sprintf("health_listen: %q\n%s", health, echoConfig))
	waitReady(t, health)

	rp.Hang(true)
	waitUnready(t, health, "queue default: no round finished for ")
	waitUnready(t, addr, "redis: ", "result-0: ")
	alive(t, addr)
	alive(t, health)
	rp.Hang(false)
	waitReady(t, health)
	waitReady(t, addr)

	pp.Hang(true)
	waitUnready(t, addr, "postgres: ", "dispatch: no round finished for ")
	alive(t, addr)
	waitReady(t, health) // a worker does not need Postgres
	pp.Hang(false)
	waitReady(t, addr)
	l := startLoad(t, []string{addr}, "echo", 5*time.Millisecond)
	l.more(20)
	l.finish(s.Stores)
}

// A worker is not ready before there is an orchestrator, while Redis is stopped
// as a process, and while it drains; it is alive all the time.
func TestReadinessOfAWorker(t *testing.T) {
	t.Parallel()
	s, stack := private(t)
	addr, health := freeAddr(t), freeAddr(t)
	config, open := gated(t)
	w := s.worker(fmt.Sprintf("health_listen: %q\nshutdown_grace: 1h\n%s", health, config))
	waitUnready(t, health, "queue default: no orchestrator has made its group")
	s.orchestrator(addr)
	waitReady(t, health)
	waitReady(t, addr)
	must(t, syscall.Kill(stack.RedisPID(), syscall.SIGSTOP))
	waitUnready(t, health, "queue default: ")
	must(t, syscall.Kill(stack.RedisPID(), syscall.SIGCONT))
	waitReady(t, health)
	c := testkit.Client(t, "http://"+addr)
	id := enqueue(t, c, "gated", `1`)
	waitRunning(t, c, id)
	must(t, w.cmd.Process.Signal(syscall.SIGTERM))
	waitUnready(t, health, "stopping")
	alive(t, health)
	open()
	if code := w.wait(t); code != 0 {
		t.Errorf("the worker ended with %d:\n%s", code, w.out.tail())
	}
	if got, err := c.Wait(t.Context(), "", id); err != nil || got.State != "succeeded" || got.Delivery != 1 {
		t.Errorf("%v, %v", got, err)
	}
}
