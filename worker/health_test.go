package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// freePort is a port of this machine that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// probe asks a worker; 0 if it does not answer.
func probe(port, path string) (int, string) {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := c.Get("http://127.0.0.1:" + port + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, fmt.Sprint(string(body), err)
}

// awaits waits for an answer with all the texts.
func awaits(t *testing.T, port, path string, code int, texts ...string) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%s answers %d %q", path, code, texts), func() (bool, string) {
		got, body := probe(port, path)
		ok := got == code
		for _, text := range texts {
			ok = ok && strings.Contains(body, text)
		}
		return ok, fmt.Sprint(got, " ", body)
	})
}

// A worker of the SDK that is given an address tells how it is and what it does:
// on this machine only where the address names no host.
func TestHealthAndMetrics(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(time.Second))
	proxy := chaosproxy.Redis(t, b.RedisURL)
	port, running, finish := freePort(t), make(chan struct{}, 2), make(chan struct{})
	behind := b.Stores
	behind.RedisURL = proxy.URL
	behind.StartWorker(t, worker.Options{HealthListen: ":" + port, Concurrency: 5, VisibilityTimeout: time.Second}, func(w *worker.Worker) {
		w.HandleRaw("t", func(context.Context, *task.Raw) (json.RawMessage, error) {
			running <- struct{}{}
			<-finish
			return nil, nil
		})
	})
	if l, err := net.Listen("tcp", "127.0.0.2:"+port); err != nil {
		t.Errorf("it listens on every address: %v", err)
	} else {
		_ = l.Close()
	}
	ids := b.enqueueMany(2, "")
	for range ids {
		receive(t, "a task runs", running)
	}
	awaits(t, port, "/readyz", http.StatusOK, `"ready"`)
	awaits(t, port, "/livez", http.StatusOK, `"alive"`)
	awaits(t, port, "/metrics", http.StatusOK, "\npenstock_worker_slots 5\n", "\npenstock_worker_running 2\n", "\npenstock_worker_outcomes_pending 0\n",
		"\npenstock_worker_stuck_handlers 0\n", "\npenstock_worker_leases_lost_total 0\n", "\ngo_goroutines ")
	testkit.Eventually(t, "leases are renewed", func() (bool, string) {
		_, body := probe(port, "/metrics")
		return !strings.Contains(body, "\npenstock_worker_lease_renewals_total{result=\"renewed\"} 0\n"), body
	})
	// Without Redis it is alive, but not ready; what has ended waits.
	proxy.Down(true)
	awaits(t, port, "/readyz", http.StatusServiceUnavailable, "cannot be fetched from")
	close(finish)
	awaits(t, port, "/metrics", http.StatusOK, "\npenstock_worker_running 0\n", "\npenstock_worker_outcomes_pending 2\n")
	testkit.Eventually(t, "renewals fail", func() (bool, string) {
		_, body := probe(port, "/metrics")
		return !strings.Contains(body, "\npenstock_worker_lease_renewals_total{result=\"failed\"} 0\n"), body
	})
	awaits(t, port, "/livez", http.StatusOK)
	proxy.Down(false)
	awaits(t, port, "/readyz", http.StatusOK)
	awaits(t, port, "/metrics", http.StatusOK, "\npenstock_worker_outcomes_pending 0\n")
}

// A lost lease counts, and a worker that drains is alive and not ready.
func TestHealthOfADrain(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(3*time.Second))
	port, causes, finish := freePort(t), make(chan error, 1), make(chan struct{})
	w := b.raw(worker.Options{HealthListen: "127.0.0.1:" + port, ShutdownGrace: time.Hour}, func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
		if string(r.Payload) == "0" && r.Delivery == 1 {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		}
		if string(r.Payload) == "1" {
			<-finish
		}
		return nil, nil
	})
	b.enqueueMany(1, "")
	var entry = b.pending("default")
	testkit.Eventually(t, "it is fetched", func() (bool, string) { entry = b.pending("default"); return len(entry) == 1, "" })
	_ = b.steal(entry[0], causes)
	awaits(t, port, "/metrics", http.StatusOK, "\npenstock_worker_leases_lost_total 1\n")
	id := b.enqueue(task.Request{Payload: []byte("1")})
	b.waitState(id, protocol.StateRunning)
	stopped := make(chan struct{})
	go func() { defer close(stopped); w.Stop(t) }()
	awaits(t, port, "/readyz", http.StatusServiceUnavailable, "stopping")
	awaits(t, port, "/livez", http.StatusOK)
	close(finish)
	receive(t, "it stops", stopped)
	if code, body := probe(port, "/livez"); code != 0 {
		t.Errorf("it answers after its end: %d %s", code, body)
	}
}

// An address that can't be listened on is an error of the start.
func TestHealthAddress(t *testing.T) {
	t.Parallel()
	if _, err := worker.New(worker.Options{RedisURL: "redis://127.0.0.1:1/0", HealthListen: "8081"}); err == nil || !strings.Contains(err.Error(), `health_listen: "8081" is no address`) {
		t.Errorf("got %v", err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	w, err := worker.New(worker.Options{RedisURL: "redis://127.0.0.1:1/0", HealthListen: taken.Addr().String(), IgnoreSignals: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "health_listen: ") {
		t.Errorf("got %v", err)
	}
}

// A loop that hangs shows in /livez.
func TestAHangingLoopIsNotAlive(t *testing.T) {
	t.Parallel()
	w, err := worker.New(worker.Options{RedisURL: "redis://127.0.0.1:1/0"})
	if err != nil {
		t.Fatal(err)
	}
	if code := worker.Livez(w, time.Hour); code != http.StatusOK {
		t.Errorf("before anything hangs: %d", code)
	}
	worker.HangLoop(w)
	testkit.Eventually(t, "it hangs", func() (bool, string) {
		code := worker.Livez(w, time.Millisecond)
		return code == http.StatusServiceUnavailable, fmt.Sprint(code)
	})
	if code := worker.Livez(w, time.Hour); code != http.StatusOK {
		t.Errorf("within its time: %d", code)
	}
}
