package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// Nothing is left behind by a start that failed, nor after a stop.
func TestMain(m *testing.M) { goleak.VerifyTestMain(devtest.Runner{M: m}) }

var quiet = slog.New(slog.DiscardHandler)

func TestGate(t *testing.T) {
	t.Parallel()
	g := newGate()
	ask := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w
	}
	if w := ask("/livez"); w.Code != http.StatusOK {
		t.Errorf("/livez before the start: %d", w.Code)
	}
	for _, path := range []string{"/readyz", "/api/v1/tasks"} {
		if w := ask(path); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "not ready") {
			t.Errorf("%s before the start: %d %s", path, w.Code, w.Body)
		}
	}
	g.open(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	for _, path := range []string{"/livez", "/readyz"} {
		if w := ask(path); w.Code != http.StatusTeapot {
			t.Errorf("%s after the start: %d, want the real handler", path, w.Code)
		}
	}
}

func testConfig(postgres, redis string) config.Orchestrator {
	c := config.DefaultOrchestrator()
	c.Server.Listen, c.Server.StartDeadline = "127.0.0.1:0", 10*time.Second
	c.Postgres.URL, c.Redis.URL = postgres, redis
	return c
}

// Each fault is reported at once, in words that name it; the port is free
// afterwards.
func TestNewOrchestratorRefuses(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	evicting := devtest.Stack(t, devstack.Options{Redis: true})
	setPolicy(t, evicting.RedisURL, "allkeys-lru")
	empty, migrated := devtest.Postgres(t), migratedDatabase(t)
	foreign := devtest.Redis(t)
	rdb := redisClient(t, foreign)
	if err := rdb.HSet(t.Context(), "penstock:epoch", "id", "x", "deployment", "of-another-database").Err(); err != nil {
		t.Fatal(err)
	}
	for want, edit := range map[string]func(*config.Orchestrator){
		"postgres.url":            func(c *config.Orchestrator) { c.Postgres.URL = "" },
		"redis.url":               func(c *config.Orchestrator) { c.Redis.URL = "" },
		"server.listen":           func(c *config.Orchestrator) { c.Server.Listen = taken.Addr().String() },
		"debug.listen":            func(c *config.Orchestrator) { c.Debug.Listen = taken.Addr().String() },
		"allkeys-lru":             func(c *config.Orchestrator) { c.Redis.URL = evicting.RedisURL },
		"of-another-database":     func(c *config.Orchestrator) { c.Redis.URL = foreign },
		"orchestrator migrate up": func(c *config.Orchestrator) { c.Postgres.URL, c.Postgres.AutoMigrate = empty, false },
		"nobody_such":             func(c *config.Orchestrator) { c.Postgres.Role, c.Server.StartDeadline = "nobody_such", 0 },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			c := testConfig(migrated, "redis://127.0.0.1:1/0")
			c.Server.Listen, c.Server.StartDeadline = freeAddr(t), 2*time.Minute
			addr := c.Server.Listen
			edit(&c)
			began := time.Now()
			o, err := NewOrchestrator(t.Context(), c, quiet)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("got %v, %v; want an error with %q", o, err, want)
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it took %s: a fault that waiting can't cure was waited for", took)
			}
			l, err := net.Listen("tcp", addr)
			if err != nil {
				t.Fatalf("the port is still taken: %v", err)
			}
			_ = l.Close()
		})
	}
}

func runWorker(ctx context.Context, c config.Worker) error {
	w, err := NewWorker(c, quiet)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

func TestRunWorkerRefuses(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	for want, edit := range map[string]func(*config.Worker){
		"redis.url":                    func(c *config.Worker) { c.Redis.URL = "" },
		"declares none":                func(c *config.Worker) { c.Handlers = nil },
		`handlers.echo.kind`:           func(c *config.Worker) { c.Handlers["echo"] = config.Handler{Kind: "eco"} },
		"health_listen":                func(c *config.Worker) { c.HealthListen = taken.Addr().String() },
		"Redis not reached within -1n": func(c *config.Worker) { c.StartDeadline = 0 },
	} {
		c := config.DefaultWorker()
		c.Redis.URL = "redis://127.0.0.1:1/0"
		c.Handlers = map[string]config.Handler{"echo": {Kind: "echo"}}
		edit(&c)
		if err := runWorker(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// On servers that are given, a whole system runs a task, says how it is, and
// stops when it is told to.
func TestDevOnGivenServers(t *testing.T) {
	t.Parallel()
	w := config.DefaultWorker()
	w.Handlers = map[string]config.Handler{"echo": {Kind: "echo"}}
	d, err := StartDev(t.Context(), DevOptions{Orchestrator: testConfig(migratedDatabase(t), devtest.Redis(t)), Worker: w, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if d.Stack != nil {
		t.Error("servers were started although both URLs are given")
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	url := "http://" + d.Orchestrator.Addr()
	c, err := client.New(url)
	if err != nil {
		t.Fatal(err)
	}
	e, err := c.EnqueueTask(t.Context(), &task.Request{Type: "echo", Payload: []byte(`7`)})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Wait(t.Context(), "", e.TaskID); err != nil || string(got.Result) != "7" {
		t.Errorf("%v, %v", got, err)
	}
	if code, body := get(t, url+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, body := get(t, url+"/metrics"); code != http.StatusOK || !strings.Contains(body, `penstock_outcomes_total{kind="succeeded",verdict="applied"} 1`) {
		t.Errorf("/metrics: %d without the outcome", code)
	}
	_ = c.Close()
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := http.Get(url + "/livez"); err == nil { //nolint:bodyclose // there is no answer
		t.Error("the port answers after the end")
	}
}

// A worker configuration that can't work is an error of the start, and the
// servers that were started for it are stopped again.
func TestDevWithAWrongWorker(t *testing.T) {
	t.Parallel()
	w := config.DefaultWorker()
	w.Handlers = map[string]config.Handler{"echo": {Kind: "eco"}}
	_, err := StartDev(t.Context(), DevOptions{Orchestrator: testConfig("", ""), Worker: w, Log: quiet})
	if err == nil || !strings.Contains(err.Error(), "handlers.echo.kind") {
		t.Errorf("got %v", err)
	}
}

func TestWorkerHealth(t *testing.T) {
	t.Parallel()
	c := config.DefaultWorker()
	c.Redis.URL, c.HealthListen = devtest.Redis(t), freeAddr(t)
	c.Handlers = map[string]config.Handler{"echo": {Kind: "echo"}}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- runWorker(ctx, c) }()
	// Without an orchestrator there is nothing to fetch.
	answers := func(want int, reason string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; <-time.After(5 * time.Millisecond) {
			code, body := get(t, "http://"+c.HealthListen+"/readyz")
			if code == want && strings.Contains(body, reason) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("/readyz: %d %s, want %d with %q", code, body, want, reason)
			}
		}
	}
	answers(http.StatusServiceUnavailable, `"reasons":["queue default: no orchestrator has made its group for `)
	r, err := streams.New(streams.Options{URL: c.Redis.URL, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	// With one, a queue that has had no task yet is fine.
	if _, err := r.CreateGroup(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators); err != nil {
		t.Fatal(err)
	}
	answers(http.StatusOK, `{"status":"ready","stuck_handlers":0}`)
	if code, _ := get(t, "http://"+c.HealthListen+"/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d", code)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("RunWorker: %v", err)
	}
}

func migratedDatabase(t *testing.T) string {
	t.Helper()
	url := devtest.Postgres(t)
	if _, err := store.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	return url
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	res, err := c.Get(url)
	if err != nil {
		return 0, fmt.Sprint(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}
