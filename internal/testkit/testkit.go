// Package testkit runs real orchestrators and workers inside a test, on a
// database and a Redis key space of the test's own.
package testkit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/worker"
)

// Deadline bounds every wait of a test.
const Deadline = 60 * time.Second

// Stores are a migrated database and an empty Redis key space of one test.
type Stores struct {
	PostgresURL, RedisURL string
	// Prefix is that of all keys.
	Prefix string
	// users are the users in Redis of programs, by role; nil: that of RedisURL, who
	// may do everything.
	users map[string]*url.Userinfo
}

// NewStores makes them; they vanish with the test.
func NewStores(t testing.TB) Stores {
	t.Helper()
	s := Stores{PostgresURL: Database(t), RedisURL: devtest.Redis(t)}
	return s.Restricted(t)
}

// Restricted has programs on the shared server use Redis with no more rights than
// they need. A server that loses its users, as one that is restarted, is not for
// that.
func (s Stores) Restricted(t testing.TB) Stores {
	t.Helper()
	s.users = map[string]*url.Userinfo{RoleOrchestrator: s.user(t, RoleOrchestrator), RoleWorker: s.user(t, RoleWorker)}
	return s
}

// OrchestratorRedis is the URL of Redis for orchestrators.
func (s Stores) OrchestratorRedis() string { return s.as(RoleOrchestrator) }

// WorkerRedis is the URL of Redis for workers.
func (s Stores) WorkerRedis() string { return s.as(RoleWorker) }

func (s Stores) as(role string) string {
	u, err := url.Parse(s.RedisURL)
	if err != nil || s.users == nil {
		return s.RedisURL
	}
	u.User = s.users[role]
	return u.String()
}

// Database makes a migrated database.
func Database(t testing.TB) string {
	t.Helper()
	return devtest.PostgresTemplate(t, "penstock_"+schemaHash(t), func(url string) error {
		_, err := store.Migrate(context.Background(), url)
		return err
	})
}

func schemaHash(t testing.TB) string {
	t.Helper()
	h := sha256.New()
	err := fs.WalkDir(store.MigrationFiles(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(store.MigrationFiles(), path)
		h.Write([]byte(path))
		h.Write(b)
		return err
	})
	if err != nil {
		t.Fatalf("read migrations: %v", err)
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// Config is the configuration of a test's orchestrator: the defaults with
// short times.
func (s Stores) Config() config.Orchestrator {
	c := config.DefaultOrchestrator()
	c.Server.Listen = "127.0.0.1:0"
	c.Postgres.URL, c.Redis.URL, c.Redis.KeyPrefix = s.PostgresURL, s.OrchestratorRedis(), s.Prefix
	c.Postgres.MaxConns = 6
	c.Recovery.VisibilityTimeout = 5 * time.Second
	c.Recovery.ReconcileInterval = time.Second
	c.Recovery.InstanceTTL = time.Second
	c.Recovery.TimeoutGrace = 2 * time.Second
	c.Recovery.ExpiryGrace = time.Second
	c.Result.TakeOver = time.Second
	c.Retry.Base, c.Retry.MaxBackoff, c.Retry.JitterMax = 10*time.Millisecond, 50*time.Millisecond, 5*time.Millisecond
	c.Retention.TrimGrace = 2 * time.Second
	return c
}

// Store opens the database as the application does, with the protocol's retry
// policy for all tasks that bring none.
func (s Stores) Store(t testing.TB) *store.Store {
	t.Helper()
	return s.openStore(t, nil)
}

func (s Stores) openStore(t testing.TB, policy func(typ string) protocol.RetryPolicy) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), store.Options{URL: s.PostgresURL, Role: "penstock_app", MaxConns: 4, Policy: policy})
	if err != nil {
		t.Fatalf("open store: %v", err)
	}
	t.Cleanup(st.Close)
	return st
}

// Streams opens Redis with the application's client, and with every right.
func (s Stores) Streams(t testing.TB) *streams.Client {
	t.Helper()
	return s.streams(t, s.RedisURL)
}

func (s Stores) streams(t testing.TB, url string) *streams.Client {
	t.Helper()
	c, err := streams.New(streams.Options{URL: url, Prefix: s.Prefix, Readers: 2, Name: "test", Log: Log(t)})
	if err != nil {
		t.Fatalf("open redis: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Log is quiet unless PENSTOCK_TEST_LOG is set.
func Log(t testing.TB) *slog.Logger {
	t.Helper()
	if os.Getenv("PENSTOCK_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("test", t.Name())
}

// Orchestrator is one running in the test.
type Orchestrator struct {
	URL  string
	stop context.CancelFunc
	done chan error
}

// StartOrchestrator runs one until the test ends or Stop is called, and returns
// when it serves.
func StartOrchestrator(t testing.TB, cfg config.Orchestrator) *Orchestrator {
	t.Helper()
	o, err := app.NewOrchestrator(t.Context(), cfg, Log(t))
	if err != nil {
		t.Fatalf("start orchestrator: %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Orchestrator{URL: "http://" + o.Addr(), stop: stop, done: make(chan error, 1)}
	go func() { r.done <- o.Run(ctx) }()
	t.Cleanup(func() { r.Stop(t) })
	Eventually(t, "the orchestrator serves", func() (bool, string) {
		select {
		case err := <-r.done:
			r.done <- err
			return true, "" // Stop tells why
		default:
		}
		res, err := http.Get(r.URL + "/openapi.json") //nolint:noctx // it is in this process
		if err != nil {
			return false, err.Error()
		}
		_ = res.Body.Close()
		return res.StatusCode != http.StatusServiceUnavailable, res.Status
	})
	return r
}

// Stop stops it cleanly; stopping twice is fine.
func (o *Orchestrator) Stop(t testing.TB) {
	t.Helper()
	if o.done == nil {
		return
	}
	o.stop()
	select {
	case err := <-o.done:
		if err != nil {
			t.Errorf("orchestrator: %v", err)
		}
	case <-time.After(Deadline):
		t.Errorf("orchestrator did not stop within %s", Deadline)
	}
	o.done = nil
}

// Client makes a client of orchestrators at the given URLs (comma-separated).
func Client(t testing.TB, urls string) *client.Client {
	t.Helper()
	c, err := client.New(urls)
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Worker is one running in the test.
type Worker struct {
	*worker.Worker
	stop context.CancelFunc
	done chan error
}

// StartWorker makes a worker, lets set add its handlers, and runs it until the
// test ends or Stop is called. Empty options take the test's values.
func (s Stores) StartWorker(t testing.TB, o worker.Options, set func(w *worker.Worker)) *Worker {
	t.Helper()
	o.RedisURL, o.RedisKeyPrefix, o.IgnoreSignals, o.Log = s.WorkerRedis(), s.Prefix, true, Log(t)
	if o.VisibilityTimeout == 0 {
		o.VisibilityTimeout = 5 * time.Second
	}
	if o.ShutdownGrace == 0 {
		o.ShutdownGrace = 5 * time.Second
	}
	w, err := worker.New(o)
	if err != nil {
		t.Fatalf("worker: %v", err)
	}
	set(w)
	ctx, stop := context.WithCancel(context.Background())
	r := &Worker{Worker: w, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- w.Run(ctx) }()
	t.Cleanup(func() { r.Stop(t) })
	return r
}

// Stop drains it; stopping twice is fine.
func (w *Worker) Stop(t testing.TB) {
	t.Helper()
	w.stop()
	w.Ended(t)
}

// Ended waits until Run has returned, and fails the test if it does with an
// error; repeating it is fine.
func (w *Worker) Ended(t testing.TB) {
	t.Helper()
	if w.done == nil {
		return
	}
	select {
	case err := <-w.done:
		if err != nil {
			t.Errorf("worker: %v", err)
		}
	case <-time.After(Deadline):
		t.Errorf("worker did not stop within %s", Deadline)
	}
	w.done = nil
}

// Eventually waits until cond holds, asking again and again, at last every 25
// ms, and fails the test if it does not within Deadline. cond returns a
// description of what it saw, for the failure.
func Eventually(t testing.TB, what string, cond func() (ok bool, saw string)) {
	t.Helper()
	end := time.Now().Add(Deadline)
	for pause := time.Millisecond; ; pause = min(2*pause, 25*time.Millisecond) {
		ok, saw := cond()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s; last seen: %s", Deadline, what, saw)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("test ended while waiting: %s; last seen: %s", what, saw)
		case <-time.After(pause):
		}
	}
}
