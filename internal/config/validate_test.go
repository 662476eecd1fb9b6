package config

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestOrchestratorValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(c *Orchestrator)
		want   string // "" for valid
	}{
		{"defaults", func(*Orchestrator) {}, ""},
		{"window", func(c *Orchestrator) { c.Dispatch.Window = 0 }, "dispatch.window: must be at least 1, got 0"},
		{"window", func(c *Orchestrator) { c.Dispatch.Window = 1_000_001 }, "dispatch.window: must be at most 1000000, got 1000001"},
		{"visibility", func(c *Orchestrator) { c.Recovery.VisibilityTimeout = 300 * time.Millisecond }, ""},
		{"visibility", func(c *Orchestrator) { c.Recovery.VisibilityTimeout = 299 * time.Millisecond },
			"recovery.visibility_timeout: must be at least 300ms, got 299ms"},
		{"reclaim", func(c *Orchestrator) { c.Recovery.ReclaimInterval = 1 },
			"recovery.reclaim_interval: must be 0 or at least 1ms, got 1ns"},
		{"reclaim", func(c *Orchestrator) { c.Recovery.ReclaimInterval = -1 }, "recovery.reclaim_interval: must be 0 or"},
		{"conns", func(c *Orchestrator) { c.Postgres.MaxConns = 5 }, "postgres.max_conns: must be at least 6, got 5"},
		{"strategy", func(c *Orchestrator) { c.Retry.Strategy = "Fixed" },
			`retry.strategy: must be exponential, linear, fixed or schedule, got "Fixed"`},
		{"backoff", func(c *Orchestrator) { c.Retry.MaxBackoff = c.Retry.Base / 2 },
			"retry.max_backoff: must be at least retry.base (1s), got 500ms"},
		{"millis", func(c *Orchestrator) { c.Retry.JitterMax = 1500 * time.Microsecond },
			"retry.jitter_max: must be whole milliseconds, got 1.5ms"},
		{"tombstones", func(c *Orchestrator) { c.Retention.TrimGrace = 10 * time.Minute },
			"retention.tombstones: must be longer than retention.trim_grace (10m0s), got 10m0s"},
		{"timeout", func(c *Orchestrator) { c.Enqueue.DefaultTimeout = 2147483647 * time.Millisecond }, ""},
		{"timeout", func(c *Orchestrator) { c.Enqueue.DefaultTimeout = 2147483648 * time.Millisecond },
			"enqueue.default_timeout: must be at most 596h31m23.647s"},
		{"grace", func(c *Orchestrator) { c.Server.ShutdownGrace = -time.Second }, "server.shutdown_grace: must be at least 0s, got -1s"},
		{"format", func(c *Orchestrator) { c.Log.Format = "" }, `log.format: must be auto, text or json, got ""`},
		{"listen", func(c *Orchestrator) { c.Server.Listen = ":0" }, ""},
		{"listen", func(c *Orchestrator) { c.Server.Listen = "[::1]:8080" }, ""},
		{"listen", func(c *Orchestrator) { c.Server.Listen = "8080" }, `server.listen: must be host:port, got "8080"`},
		{"hosts", func(c *Orchestrator) { c.Server.AllowedHosts = []string{"a.example:80"} }, `server.allowed_hosts: must be names without a port`},
		{"listen", func(c *Orchestrator) { c.Server.Listen = "h:http" }, "server.listen: must end in a port"},
		{"listen", func(c *Orchestrator) { c.Server.Listen = "h:65536" }, "server.listen: must end in a port"},
		{"listen", func(c *Orchestrator) { c.Server.Listen = "h:080" }, "server.listen: must end in a plain port number"},
		{"debug", func(c *Orchestrator) { c.Debug.Listen = "127.0.0.1:0" }, ""},
		{"debug", func(c *Orchestrator) { c.Debug.Listen = "[::1]:6060" }, ""},
		{"debug", func(c *Orchestrator) { c.Debug.Listen = "localhost:6060" }, ""},
		{"debug", func(c *Orchestrator) { c.Debug.Listen = ":6060" }, `debug.listen: must be an address of this machine alone, such as 127.0.0.1:6060, got ":6060"`},
		{"debug", func(c *Orchestrator) { c.Debug.Listen = "0.0.0.0:6060" }, "debug.listen: must be an address of this machine alone"},
		{"debug", func(c *Orchestrator) { c.Debug.Listen = "db.example.com:6060" }, "debug.listen: must be an address of this machine alone"},
		{"debug", func(c *Orchestrator) { c.Debug.Listen = "127.0.0.1" }, `debug.listen: must be host:port, got "127.0.0.1"`},
		{"postgres", func(c *Orchestrator) { c.Postgres.URL = "postgresql://u:p@a:1,b:2/d" }, ""},
		{"postgres", func(c *Orchestrator) { c.Postgres.URL = "mysql://h" }, "postgres.url: must start with postgres://"},
		{"postgres", func(c *Orchestrator) { c.Postgres.URL = "postgres://" }, "postgres.url: must start with postgres://"},
		{"redis", func(c *Orchestrator) { c.Redis.URL = "unix:///run/redis.sock?db=1" }, ""},
		{"redis", func(c *Orchestrator) { c.Redis.URL = "unix://socket" }, "redis.url: names no socket"},
	} {
		c := DefaultOrchestrator()
		tt.change(&c)
		check(t, tt.name, c.Validate(), tt.want)
	}
}

func TestWorkerValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(c *Worker)
		want   string
	}{
		{"defaults", func(*Worker) {}, ""},
		{"concurrency", func(c *Worker) { c.Concurrency = 10_001 }, "concurrency: must be at most 10000, got 10001"},
		{"concurrency", func(c *Worker) { c.Concurrency = 0 }, "concurrency: must be at least 1, got 0"},
		{"visibility", func(c *Worker) { c.VisibilityTimeout = 0 }, "visibility_timeout: must be at least 300ms, got 0s"},
		{"no queue", func(c *Worker) { c.Queues = nil }, "queues: must name at least one queue"},
		{"many queues", func(c *Worker) { c.Queues, c.Concurrency = []string{"a", "b"}, 1 },
			"queues: must be at most concurrency (1) many, got 2"},
		{"queue twice", func(c *Worker) { c.Queues = []string{"a", "a"} }, `queues: names "a" twice`},
		{"queue name", func(c *Worker) { c.Queues = []string{"a b"} }, `queues: must each be 1 to 64 of A-Z a-z 0-9 . _ -, got "a b"`},
		{"queue empty", func(c *Worker) { c.Queues = []string{""} }, "queues: must each be"},
		{"queue long", func(c *Worker) { c.Queues = []string{strings.Repeat("q", 64)} }, ""},
		{"queue too long", func(c *Worker) { c.Queues = []string{strings.Repeat("q", 65)} }, "queues: must each be"},
		{"queue newline", func(c *Worker) { c.Queues = []string{"a\n"} }, "queues: must each be"},
		{"health", func(c *Worker) { c.HealthListen = "x" }, "health_listen: must be host:port"},
	} {
		c := DefaultWorker()
		tt.change(&c)
		check(t, tt.name, c.Validate(), tt.want)
	}
}

func TestHandlerValidate(t *testing.T) {
	t.Parallel()
	const u = "https://h/p"
	for _, tt := range []struct {
		name string
		h    Handler
		want string
	}{
		{"echo", Handler{Kind: "echo"}, ""},
		{"sleep", Handler{Kind: "sleep"}, ""},
		{"inject", Handler{Kind: "inject", SimulateRestart: true}, ""},
		{"http", Handler{Kind: "http", URL: u, Headers: map[string]string{"X-A": "b\tc"}, MaxOutputBytes: 1}, ""},
		{"exec", Handler{Kind: "exec", Command: []string{"a", ""}, Env: map[string]string{"A": ""}, Dir: "d"}, ""},
		{"kind", Handler{}, `.kind: must be http, exec, echo, sleep or inject, got ""`},
		{"url", Handler{Kind: "http"}, ".url: must start with http:// or https://"},
		{"url", Handler{Kind: "http", URL: "http:///p"}, ".url: names no host"},
		{"url", Handler{Kind: "http", URL: "http://h/#f"}, ".url: must not have a fragment"},
		{"url", Handler{Kind: "http", URL: "http://h:port"}, ".url: is not a URL"},
		{"header name", Handler{Kind: "http", URL: u, Headers: map[string]string{"A b": ""}}, `.headers: "A b" is no header name`},
		{"header value", Handler{Kind: "http", URL: u, Headers: map[string]string{"A": "b\r\nC: d"}}, `the value of "A" has control characters`},
		{"command", Handler{Kind: "exec"}, ".command: must name a program"},
		{"command", Handler{Kind: "exec", Command: []string{"a", "\x00"}}, ".command: has an argument with a NUL"},
		{"env", Handler{Kind: "exec", Command: []string{"a"}, Env: map[string]string{"A=B": ""}}, `.env: "A=B" is no name`},
		{"env", Handler{Kind: "exec", Command: []string{"a"}, Env: map[string]string{"A": "\x00"}}, ".env: the value of A has a NUL"},
		{"env", Handler{Kind: "exec", Command: []string{"a"}, Env: map[string]string{"PENSTOCK_TASK_ID": ""}},
			".env: PENSTOCK_TASK_ID is set by the worker"},
		{"other kind", Handler{Kind: "echo", URL: u}, ".url: is for kind http only"},
		{"other kind", Handler{Kind: "http", URL: u, Command: []string{"a"}}, ".command: is for kind exec only"},
		{"other kind", Handler{Kind: "sleep", MaxOutputBytes: 1}, ".max_output_bytes: is for kind http or exec only"},
		{"other kind", Handler{Kind: "echo", SimulateRestart: true}, ".simulate_restart: is for kind inject only"},
		{"bound", Handler{Kind: "http", URL: u, MaxOutputBytes: -1}, ".max_output_bytes: must be at least 0"},
	} {
		c := DefaultWorker()
		c.HTTP.Allow = []string{"h"}
		c.Handlers = map[string]Handler{"a.b": tt.h}
		want := tt.want
		if strings.HasPrefix(want, ".") {
			want = `handlers["a.b"]` + want
		}
		check(t, tt.name, c.Validate(), want)
	}
	c := DefaultWorker()
	c.Handlers = map[string]Handler{"a b": {Kind: "echo"}}
	check(t, "type", c.Validate(), `handlers["a b"]: a task type must be`)
	c.Handlers = map[string]Handler{"a": {Kind: "http", URL: u}}
	check(t, "nothing allowed", c.Validate(), "http.allow: is empty")
}

func TestAllowEntries(t *testing.T) {
	t.Parallel()
	for entry, ok := range map[string]bool{
		"example.com": true, "localhost": true, "example.com:8443": true, "*.example.com": true, "10.0.0.0/8": true,
		"fd00::/8": true, "127.0.0.1": true, "::1": true, "127.0.0.1:80": true, "[::1]:80": true, "a_b.example.com.": true,
		"": false, "*": false, "http://h": false, "h/p": false, "h:": false, "h:0": false, "h:x": false, "*.h:80": true, "[::1]": true, "*.*.h": false,
		"a b": false, "a..b": false, "-a": false, "10.0.0.0/33": false, "a.*.b": false, ":80": false,
	} {
		if got := allowEntry(entry); got != ok {
			t.Errorf("allowEntry(%q) = %v", entry, got)
		}
	}
	c := DefaultWorker()
	c.HTTP.Allow = []string{"http://h"}
	check(t, "allow", c.Validate(), `http.allow: must each be a host or *.domain, with or without :port, or a CIDR, got "http://h"`)
}

func TestClientValidate(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"https://h/base": "", "http://[::1]:80": "",
		"": "server: must start with http", "h:80": "server: must start with http", "http://": "server: names no host",
	} {
		check(t, server, Client{Server: server}.Validate(), want)
	}
}

func TestValidateJoinsFaults(t *testing.T) {
	t.Parallel()
	err := Orchestrator{}.Validate()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%T is not joined", err)
	}
	for _, one := range joined.Unwrap() {
		if key, _, ok := strings.Cut(one.Error(), ": "); !ok || strings.Contains(key, " ") {
			t.Errorf("%q does not start with a key", one)
		}
	}
	if n := len(joined.Unwrap()); n < 10 {
		t.Errorf("only %d faults of the zero value", n)
	}
}

// check compares an error with the text it must contain; "" for none.
func check(t *testing.T, name string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: error %q, want %q", name, fmt.Sprint(err), want)
	}
}
