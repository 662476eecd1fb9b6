package worker_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func TestFromEnv(t *testing.T) { // sets the environment: not parallel
	for k, v := range map[string]string{
		"PENSTOCK_REDIS_URL": "redis://localhost:1/3", "PENSTOCK_REDIS_KEY_PREFIX": "shop:", "PENSTOCK_QUEUES": "a, b", "PENSTOCK_CONCURRENCY": "7",
		"PENSTOCK_VISIBILITY_TIMEOUT": "90s", "PENSTOCK_SHUTDOWN_GRACE": "3s", "PENSTOCK_START_DEADLINE": "4s",
		"PENSTOCK_ORCHESTRATOR_URL": "http://a,https://b", "PENSTOCK_ORCHESTRATOR_TOKEN": "some-token", "PENSTOCK_HEARTBEAT_INTERVAL": "5s",
		"PENSTOCK_HEALTH_LISTEN": ":8081",
	} {
		t.Setenv(k, v)
	}
	want := worker.Options{
		RedisURL: "redis://localhost:1/3", RedisKeyPrefix: "shop:", Queues: []string{"a", "b"}, Concurrency: 7,
		VisibilityTimeout: 90 * time.Second, ShutdownGrace: 3 * time.Second, StartDeadline: 4 * time.Second,
		OrchestratorURL: "http://a,https://b", OrchestratorToken: "some-token", HeartbeatInterval: 5 * time.Second,
		HealthListen: ":8081",
	}
	if got := worker.FromEnv(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for name, bad := range map[string]string{"PENSTOCK_CONCURRENCY": "many", "PENSTOCK_SHUTDOWN_GRACE": "3", "PENSTOCK_QUEUES": "a,,b", "PENSTOCK_REDIS_KEY_PREFIX": "{a}:"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, bad)
			if _, err := worker.New(worker.FromEnv()); err == nil || name != "PENSTOCK_QUEUES" && name != "PENSTOCK_REDIS_KEY_PREFIX" && !strings.Contains(err.Error(), name) {
				t.Errorf("error %v, want one that names %s", err, name)
			}
		})
	}
}

func TestFromEnvReadsFiles(t *testing.T) { // sets the environment: not parallel
	file := func(text string) string {
		t.Helper()
		name := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	t.Setenv("PENSTOCK_REDIS_URL", "")
	t.Setenv("PENSTOCK_REDIS_URL_FILE", file(" redis://localhost:1/3\n"))
	t.Setenv("PENSTOCK_ORCHESTRATOR_TOKEN_FILE", file("some-long-token-text\n"))
	if got := worker.FromEnv(); got.RedisURL != "redis://localhost:1/3" || got.OrchestratorToken != "some-long-token-text" {
		t.Errorf("got %+v", got)
	}
	for text, set := range map[string]func(){
		"must hold one line":                   func() { t.Setenv("PENSTOCK_REDIS_URL_FILE", file("a\nb")) },
		"no such file":                         func() { t.Setenv("PENSTOCK_REDIS_URL_FILE", "/nowhere/at/all") },
		"PENSTOCK_REDIS_URL_FILE are both set": func() { t.Setenv("PENSTOCK_REDIS_URL", "redis://localhost:1") },
	} {
		set()
		if _, err := worker.New(worker.FromEnv()); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want one with %q", err, text)
		}
		t.Setenv("PENSTOCK_REDIS_URL", "")
	}
}

func TestNewRefusesWrongOptions(t *testing.T) {
	t.Parallel()
	for want, edit := range map[string]func(*worker.Options){
		"no Redis URL":                     func(o *worker.Options) { o.RedisURL = "" },
		"redis.url":                        func(o *worker.Options) { o.RedisURL = "http://localhost" },
		"concurrency is -1":                func(o *worker.Options) { o.Concurrency = -1 },
		"concurrency is 10001":             func(o *worker.Options) { o.Concurrency = 10_001 },
		"2 queues need a concurrency":      func(o *worker.Options) { o.Concurrency, o.Queues = 1, []string{"a", "b"} },
		`queue "a" is named twice`:         func(o *worker.Options) { o.Queues = []string{"a", "a"} },
		`queue "a b"`:                      func(o *worker.Options) { o.Queues = []string{"a b"} },
		`queue ""`:                         func(o *worker.Options) { o.Queues = []string{""} },
		"visibility timeout is 299ms":      func(o *worker.Options) { o.VisibilityTimeout = 299 * time.Millisecond },
		"heartbeat interval is 9ms":        func(o *worker.Options) { o.HeartbeatInterval = 9 * time.Millisecond },
		`orchestrator URL "b"`:             func(o *worker.Options) { o.OrchestratorURL = "http://a,b" },
		"the orchestrator token must be":   func(o *worker.Options) { o.OrchestratorToken = "a b" },
		"name has 129 bytes":               func(o *worker.Options) { o.Name = strings.Repeat("n", 129) },
		"name has 1 bytes, want at most 1": func(o *worker.Options) { o.Name = "\x00" },
	} {
		o := worker.Options{RedisURL: "redis://localhost:1"}
		edit(&o)
		if _, err := worker.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestMistakesOfTheProgramAreRefused(t *testing.T) {
	t.Parallel()
	w, err := worker.New(worker.Options{RedisURL: "redis://127.0.0.1:1", StartDeadline: -1, IgnoreSignals: true, Log: testkit.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	h := func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil }
	w.HandleRaw("a", h)
	panics := func(what string, fn func()) {
		defer func() {
			if recover() == nil {
				t.Errorf("%s did not panic", what)
			}
		}()
		fn()
	}
	panics("a second handler for a type", func() { w.HandleRaw("a", h) })
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Redis not reached") {
		t.Errorf("Run without a Redis returned %v", err)
	}
	if w.Ready() {
		t.Error("a worker that never reached Redis says that it is ready")
	}
	panics("a handler after Run", func() { w.HandleRaw("b", h) })
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "called before") {
		t.Errorf("a second Run returned %v", err)
	}
}
