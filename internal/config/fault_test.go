package config

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestFileFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, file, text string
		want             []string
	}{
		{"extension", "o.ini", "", []string{`unknown extension ".ini"`}},
		{"yaml syntax", "o.yaml", "a: [", []string{"config file ", "yaml: "}},
		{"yaml documents", "o.yaml", "log: {}\n---\nlog: {}\n", []string{"must hold one YAML document"}},
		{"yaml twice", "o.yaml", "log: {}\nlog: {}\n", []string{"already defined"}},
		{"yaml number key", "o.yaml", "log:\n  5: x\n", []string{"log: the key 5 must be in quotes"}},
		{"yaml list", "o.yaml", "[a]", []string{"yaml: "}},
		{"toml syntax", "o.toml", "[log]\nlevel = = 1\n", []string{"line 2, column "}},
		{"json syntax", "o.json", "{\n\"log\": x}", []string{"line 2: "}},
		{"json twice", "o.json", "{}{}", []string{"must hold one JSON object"}},
		{"misspelt key", "o.yaml", "dispatch: {windwo: 1}",
			[]string{"dispatch.windwo: unknown key; did you mean dispatch.window? (file "}},
		{"misspelt section", "o.yaml", "dispach: {window: 1}",
			[]string{"dispach: unknown key; did you mean dispatch?"}},
		{"no section", "o.yaml", "poll_interval: 1s",
			[]string{"poll_interval: unknown key; did you mean dispatch.poll_interval?"}},
		{"nothing near", "o.yaml", "server: {certificates: x}",
			[]string{"server.certificates: unknown key; the nearest one is server."}},
		{"case", "o.yaml", "Log: {}", []string{"Log: unknown key; did you mean log?"}},
		{"worker's key", "o.yaml", "concurrency: 5\nhttp: {allow: []}", []string{
			"concurrency: is a setting of the worker, not of the orchestrator",
			"http: is a setting of the worker, not of the orchestrator"}},
		{"dotted", "o.yaml", "server.listen: ':1'", []string{"server.listen: must be nested: write listen below server"}},
		{"section wanted", "o.yaml", "server: x", []string{`server: must be a section, got "x"`}},
		{"section given", "o.yaml", "server: {listen: {a: b}}", []string{"server.listen: must be a string", "got a section"}},
		{"duration without unit", "o.yaml", "server: {shutdown_grace: 20}",
			[]string{"server.shutdown_grace: must be a duration with a unit, e.g. 300ms, 20s or 5m, got 20 (file "}},
		{"fraction", "o.json", `{"enqueue": {"flushes": 1.5}}`, []string{"enqueue.flushes: must be a whole number, got 1.5"}},
		{"huge", "o.yaml", "enqueue: {flushes: 18446744073709551615}", []string{"enqueue.flushes: must be a whole number"}},
		{"number for string", "o.yaml", "postgres: {role: 5}", []string{"postgres.role: must be a string", "got 5"}},
		{"string for boolean", "o.yaml", "postgres: {auto_migrate: maybe}", []string{`must be true or false, got "maybe"`}},
		{"all at once", "o.yaml", "enqueue: {flushes: 0, max_batch: -1}\nlog: {level: loud}\nx: 1", []string{
			"enqueue.flushes: must be at least 1, got 0 (file ", "enqueue.max_batch: must be at least 1, got -1 (file ",
			`log.level: must be debug, info, warn or error, got "loud" (file `, "x: unknown key"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := LoadOrchestrator(write(t, tt.file, tt.text), nil)
			wantError(t, err, tt.want...)
		})
	}
}

func TestMissingFile(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"none.yaml", "none.toml", "none.json"} {
		_, _, err := LoadClient(filepath.Join(t.TempDir(), name), nil)
		wantError(t, err, "config file: open ", name)
	}
	if _, _, err := LoadClient(write(t, "big.yaml", strings.Repeat("#", maxFileBytes+1)), nil); err == nil {
		t.Error("a file over the limit: no error")
	}
}

func TestWorkerFileFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"orchestrator's key", "dispatch: {window: 1}", []string{"dispatch: is a setting of the orchestrator, not of the worker"}},
		{"client's key", "server: http://h", []string{"server: is a setting of the client, not of the worker"}},
		{"list of numbers", "queues: [1]", []string{"queues: must be a list of strings, got a list"}},
		{"misspelt", "handlers: {email.send: {knd: echo}, b: {kind: ecko}}",
			[]string{`handlers["email.send"].knd: unknown key; did you mean kind? (file `,
				`handlers["b"].kind: must be http, exec, echo, sleep or inject, got "ecko" (file `}},
		{"no section", "handlers: 5", []string{"handlers: must be a section, got 5"}},
		{"entry is no section", "handlers: {a: exec}", []string{`handlers["a"]: must be a section, got "exec"`}},
		{"command is a string", "handlers: {a: {kind: exec, command: run it}}",
			[]string{`handlers["a"].command: must be a list of strings, got "run it"`}},
		{"header is a number", "handlers: {a: {kind: http, url: 'http://h', headers: {Token: 12345}}}",
			[]string{`handlers["a"].headers["Token"]: must be a string`}},
		{"secret section", "handlers: {a: {kind: http, url: 'http://h', headers: 12345}}",
			[]string{`handlers["a"].headers: must be a section, got something else`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := LoadWorker(write(t, "w.yaml", tt.text), nil)
			wantError(t, err, tt.want...)
			if strings.Contains(err.Error(), "12345") {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

func TestRefusedValueIsFaultedOnce(t *testing.T) {
	t.Setenv("PENSTOCK_REDIS_URL", "redis://u:hunter2/@h:x")
	_, _, err := LoadWorker(write(t, "w.yaml", "concurrency: many"), nil)
	wantError(t, err, `concurrency: must be a whole number, got "many"`, "redis.url: is not a URL", "(env PENSTOCK_REDIS_URL)")
	if n := strings.Count(err.Error(), "concurrency"); n != 1 {
		t.Errorf("concurrency is named %d times:\n%v", n, err)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error shows the password: %v", err)
	}
}

func TestEnvironmentFaults(t *testing.T) {
	t.Setenv("PENSTOCK_DISPATCH_WINDWO", "5")
	t.Setenv("PENSTOCK_ENQUEUE_FLUSHES", "two")
	t.Setenv("PENSTOCK_CONCURRENCY", "none of ours")
	_, _, err := LoadOrchestrator("", nil)
	wantError(t, err, "PENSTOCK_DISPATCH_WINDWO: unknown setting; did you mean PENSTOCK_DISPATCH_WINDOW?",
		`enqueue.flushes: must be a whole number, got "two" (env PENSTOCK_ENQUEUE_FLUSHES)`)
	if strings.Contains(err.Error(), "CONCURRENCY") {
		t.Errorf("the worker's variable is faulted: %v", err)
	}
}

func TestCheckEnv(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ entry, want string }{
		{"PATH=/bin", ""},
		{"PENSTOCKX=1", ""},
		{"PENSTOCK_CONFIG=a.yaml", ""},
		{"PENSTOCK_TEST_POSTGRES=x", ""},
		{"PENSTOCK_TASK_ID=x", ""},
		{"PENSTOCK_SERVER=http://h", ""},
		{"PENSTOCK_SERVER_LISTEN=:1", ""},
		{"PENSTOCK_HTTP_ALLOW_PRIVATE=true", ""},
		{"PENSTOCK_TYPO=", ""},
		{"PENSTOCK_SERVICE_HOST=10.0.0.1", ""},
		{"PENSTOCK_REDIS_SERVICE_PORT_TCP=6379", ""},
		{"PENSTOCK_PORT=tcp://10.0.0.1:80", ""},
		{"PENSTOCK_PORT_80_TCP=tcp://10.0.0.1:80", ""},
		{"PENSTOCK_API_PORT_80_TCP_ADDR=10.0.0.1", ""},
		{"PENSTOCK_PORT=8080", "PENSTOCK_PORT: unknown setting"},
		{"PENSTOCK_CONFG=a", "PENSTOCK_CONFG: unknown setting; did you mean PENSTOCK_CONFIG?"},
		{"PENSTOCK_QUEUE=a", "PENSTOCK_QUEUE: unknown setting; did you mean PENSTOCK_QUEUES?"},
		{"PENSTOCK_HANDLERS=a", "PENSTOCK_HANDLERS: unknown setting; handlers can be set in a file only"},
		{"PENSTOCK_TYPES_A=a", "PENSTOCK_TYPES_A: unknown setting; types can be set in a file only"},
		{"PENSTOCK_ABRACADABRA_OPEN=1", "PENSTOCK_ABRACADABRA_OPEN: unknown setting; the nearest one is PENSTOCK_"},
	} {
		err := checkEnv([]string{tt.entry}).err()
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.entry, err)
		case tt.want != "":
			wantError(t, err, tt.want)
		}
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	if got := hint("", "x", nil); got != "" {
		t.Errorf("hint without candidates = %q", got)
	}
}
