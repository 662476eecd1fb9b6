package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func ptr[T any](v T) *T { return &v }

// typesFiles say the same in each format.
var typesFiles = map[string]string{
	"o.yaml": `
retry: {max_retries: 5, base: 2s, max_backoff: 1m}
types:
  email.send: {max_retries: 0, jitter_max: 0, timeout: 90s}
  "Report:Daily/PDF": {strategy: schedule, schedule: [1m, 5m, 15m]}
  a: {base: 50ms, max_backoff: 70ms, strategy: linear, jitter_max: 1ms}
  nothing:
`,
	"o.toml": `
retry = {max_retries = 5, base = "2s", max_backoff = "1m"}
[types."email.send"]
max_retries = 0
jitter_max = 0
timeout = "90s"
[types."Report:Daily/PDF"]
strategy = "schedule"
schedule = ["1m", "5m", "15m"]
[types.a]
base = "50ms"
max_backoff = "70ms"
strategy = "linear"
jitter_max = "1ms"
[types.nothing]
`,
	"o.json": `{"retry": {"max_retries": 5, "base": "2s", "max_backoff": "1m"}, "types": {
"email.send": {"max_retries": 0, "jitter_max": 0, "timeout": "90s"},
"Report:Daily/PDF": {"strategy": "schedule", "schedule": ["1m", "5m", "15m"]},
"a": {"base": "50ms", "max_backoff": "70ms", "strategy": "linear", "jitter_max": "1ms"}, "nothing": null}}`,
}

// TestTypesInherit: an entry's own values count, zero among them, and the
// common ones for the rest.
func TestTypesInherit(t *testing.T) {
	t.Parallel()
	common := TypeDefaults{Timeout: 5 * time.Minute, Retry: Retry{
		MaxRetries: 5, Strategy: "exponential", Base: 2 * time.Second, MaxBackoff: time.Minute, JitterMax: 300 * time.Millisecond,
	}}
	mail, report, a := common, common, common
	mail.Retry.MaxRetries, mail.Retry.JitterMax, mail.Timeout = 0, 0, 90*time.Second
	report.Retry.Strategy, report.Retry.Schedule = "schedule", []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute}
	a.Retry.Strategy, a.Retry.Base, a.Retry.MaxBackoff, a.Retry.JitterMax = "linear", 50*time.Millisecond, 70*time.Millisecond, time.Millisecond
	for name, text := range typesFiles {
		c, from, err := LoadOrchestrator(write(t, name, text), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if from.Of("types").Source != SourceFile {
			t.Errorf("%s: origin of types: %v", name, from.Of("types"))
		}
		for typ, want := range map[string]TypeDefaults{
			"email.send": mail, "Report:Daily/PDF": report, "a": a, "nothing": common, "unlisted": common, "email": common, "": common,
		} {
			if got := c.DefaultsOf(typ); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s = %+v, want %+v", name, typ, got, want)
			}
		}
	}
}

// TestScheduleIsLeftBehind: a type with another strategy does not inherit the
// common schedule, and one without a list of its own does.
func TestScheduleIsLeftBehind(t *testing.T) {
	t.Parallel()
	c, _, err := LoadOrchestrator(write(t, "o.yaml", `
retry: {strategy: schedule, schedule: [1s, 2s]}
types: {a: {strategy: fixed}, b: {strategy: schedule}, c: {schedule: [3s]}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for typ, want := range map[string][]time.Duration{
		"a": nil, "b": {time.Second, 2 * time.Second}, "c": {3 * time.Second}, "d": {time.Second, 2 * time.Second},
	} {
		if got := c.DefaultsOf(typ).Retry.Schedule; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", typ, got, want)
		}
	}
}

func TestTypeFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{a.b: {max_retries: -1}}`:                        `types["a.b"].max_retries: must be at least 0, got -1 (file `,
		`{a.b: {max_retries: 1001}}`:                      `types["a.b"].max_retries: must be at most 1000, got 1001`,
		`{a.b: {timeout: 0}}`:                             `types["a.b"].timeout: must be at least 1ms, got 0s`,
		`{a.b: {timeout: 1.5ms}}`:                         `types["a.b"].timeout: must be whole milliseconds, got 1.5ms`,
		`{a.b: {base: 0}}`:                                `types["a.b"].base: must be at least 1ms, got 0s`,
		`{a.b: {base: -1s}}`:                              `types["a.b"].base: must be at least 1ms, got -1s`,
		`{a.b: {max_backoff: 8761h}}`:                     `types["a.b"].max_backoff: must be at most 8760h, got 8761h`,
		`{a.b: {jitter_max: -1ms}}`:                       `types["a.b"].jitter_max: must be at least 0s, got -1ms`,
		`{a.b: {jitter_max: 500us}}`:                      `types["a.b"].jitter_max: must be whole milliseconds, got 500µs`,
		`{a.b: {strategy: ""}}`:                           `types["a.b"].strategy: must be exponential, linear, fixed or schedule, got ""`,
		`{a.b: {strategy: schedule}}`:                     `types["a.b"].schedule: is required for strategy schedule`,
		`{a.b: {strategy: schedule, schedule: []}}`:       `types["a.b"].schedule: is required for strategy schedule`,
		`{a.b: {schedule: [1s]}}`:                         `types["a.b"].schedule: is for strategy schedule only, not for exponential`,
		`{a.b: {strategy: schedule, schedule: [1s, 0s]}}`: `types["a.b"].schedule: each must be at least 1ms, got 0s`,
		`{a.b: {strategy: schedule, schedule: [8761h]}}`:  `types["a.b"].schedule: each must be at most 8760h, got 8761h`,
		`{a.b: {strategy: schedule, schedule: [1500us]}}`: `types["a.b"].schedule: must be whole milliseconds, got 1.5ms`,
		`{a.b: {strategy: schedule, schedule: [1]}}`:      `types["a.b"].schedule: must be a list of durations with a unit, e.g. 300ms, 20s or 5m, got a list`,
		`{a.b: {strategy: schedule, schedule: 1m}}`:       `types["a.b"].schedule: must be a list of durations, got "1m"`,
		`{a.b: {base: 1m}}`:                               `types["a.b"].base: must be at most retry.max_backoff (30s), got 1m; set max_backoff too`,
		`{a.b: {max_backoff: 500ms}}`:                     `types["a.b"].max_backoff: must be at least retry.base (1s), got 500ms; set base too`,
		`{a.b: {base: 2m, max_backoff: 1m}}`:              `types["a.b"].max_backoff: must be at least base (2m), got 1m`,
		`{a.b: {base: 5}}`:                                `types["a.b"].base: must be a duration with a unit, e.g. 300ms, 20s or 5m, got 5`,
		`{a.b: {retries: 1}}`:                             `types["a.b"].retries: unknown key; the nearest one is max_retries (file `,
		`{a.b: 5}`:                                        `types["a.b"]: must be a section, got 5`,
		`{a b: {}}`:                                       `types["a b"]: a task type must be 1 to 128 of`,
		`[a]`:                                             `types: must be a section, got a list`,
		`{a.b: {schema: 5}}`:                              `types["a.b"].schema: must be a string`,
		`{a.b: {schema: none.json}}`:                      `none.json: no such file or directory (file `,
		`{a.b: {strategy: schedule, schedule: [` + strings.Repeat("1s,", 101) + `]}}`: `types["a.b"].schedule: must have at most 100 delays, got 101`,
	} {
		_, _, err := LoadOrchestrator(write(t, "o.yaml", "types: "+text), nil)
		wantError(t, err, want)
		if n := strings.Count(err.Error(), "\n"); n != 0 {
			t.Errorf("%s: %d faults:\n%v", text, n+1, err)
		}
	}
}

func TestRetryScheduleFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{strategy: schedule}`:                       "retry.schedule: is required for strategy schedule",
		`{schedule: [1s]}`:                           "retry.schedule: is for strategy schedule only, not for exponential",
		`{strategy: schedule, schedule: [-1s]}`:      "retry.schedule: each must be at least 1ms, got -1s",
		`{strategy: schedule, schedule: [1s, soon]}`: "retry.schedule: must be a list of durations with a unit, e.g. 300ms, 20s or 5m, got a list",
		`{jitter_max: 500us}`:                        "retry.jitter_max: must be whole milliseconds, got 500µs",
	} {
		_, _, err := LoadOrchestrator(write(t, "o.yaml", "retry: "+text), nil)
		wantError(t, err, want)
	}
}

// TestRetryScheduleSources: a list of durations from the file, the environment
// and flags.
func TestRetryScheduleSources(t *testing.T) {
	want := []time.Duration{10 * time.Millisecond, 20 * time.Millisecond}
	load := func(file string, args ...string) {
		t.Helper()
		c, _, err := LoadOrchestrator(file, flagsFor(t, DefaultOrchestrator(), args...))
		if err != nil || !reflect.DeepEqual(c.Retry.Schedule, want) {
			t.Errorf("%v, %v; want %v", c.Retry.Schedule, err, want)
		}
	}
	load(write(t, "o.yaml", "retry: {strategy: schedule, schedule: [10ms, 20ms]}"))
	load("", "--retry-strategy=schedule", "--retry-schedule=10ms,20ms")
	load("", "--retry-strategy=schedule", "--retry-schedule=10ms", "--retry-schedule=20ms")
	t.Setenv("PENSTOCK_RETRY_STRATEGY", "schedule")
	t.Setenv("PENSTOCK_RETRY_SCHEDULE", "10ms, 20ms")
	load("")
	t.Setenv("PENSTOCK_RETRY_SCHEDULE", "10ms,,20ms")
	_, _, err := LoadOrchestrator("", nil)
	wantError(t, err, `retry.schedule: must be a list of durations with a unit, e.g. 300ms, 20s or 5m, got "10ms,,20ms" (env PENSTOCK_RETRY_SCHEDULE)`)
}

// TestSchemaFiles: names are relative to the configuration file, and files
// that can't be used are faults.
func TestSchemaFiles(t *testing.T) {
	t.Parallel()
	file := write(t, "o.yaml", `
types:
  a: {schema: schemas/good.json}
  b.c: {schema: schemas/bad.json}
  d: {schema: schemas/remote.json}
  e: {schema: schemas}
`)
	dir := filepath.Join(filepath.Dir(file), "schemas")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"good.json": `{"type": "object"}`, "bad.json": `{"type": "objekt"}`, "remote.json": `{"$ref": "http://127.0.0.1:1/x"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, _, err := LoadOrchestrator(file, nil)
	wantError(t, err, `types["b.c"].schema: `+dir+"/bad.json: is no valid JSON Schema: at /type: ",
		`types["d"].schema: `+dir+"/remote.json: refers to http://127.0.0.1:1/x: a $ref can't leave the file",
		`types["e"].schema: `, "(file "+file+")")
	if strings.Contains(err.Error(), `types["a"]`) {
		t.Errorf("the good schema is faulted: %v", err)
	}
	if got, want := c.DefaultsOf("a").Schema, filepath.Join(dir, "good.json"); got != want {
		t.Errorf("schema of a = %q, want %q", got, want)
	}
}

func TestPrintTypes(t *testing.T) {
	t.Parallel()
	c := DefaultOrchestrator()
	c.Types = map[string]Type{
		"email.send": {MaxRetries: ptr(0), Strategy: ptr("schedule"), Schedule: []time.Duration{time.Minute, 5 * time.Minute}, Schema: "a.json"},
		"nothing":    {},
	}
	var b strings.Builder
	if err := Print(&b, c, nil, "table"); err != nil {
		t.Fatal(err)
	}
	lines := make(map[string]bool)
	for line := range strings.Lines(b.String()) {
		lines[strings.Join(strings.Fields(line), " ")] = true
	}
	for _, want := range []string{
		`types["email.send"].max_retries 0 default`,
		`types["email.send"].strategy schedule default`,
		`types["email.send"].schedule 1m,5m default`,
		`types["email.send"].schema a.json default`,
		"retry.schedule [] default",
	} {
		if !lines[want] {
			t.Errorf("no line %q in:\n%s", want, b.String())
		}
	}
	b.Reset()
	if err := Print(&b, c, nil, "json"); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(strings.Fields(b.String()), " "); !strings.Contains(text,
		`"types": { "value": { "email.send": { "max_retries": 0, "schedule": [ "1m", "5m" ], "schema": "a.json", "strategy": "schedule" }, "nothing": {} }`) {
		t.Errorf("printed:\n%s", b.String())
	}
	b.Reset()
	if err := Print(&b, DefaultOrchestrator(), nil, ""); err != nil || !strings.Contains(b.String(), "types ") {
		t.Errorf("%v; no types in:\n%s", err, b.String())
	}
}

func TestTypeKeys(t *testing.T) {
	t.Parallel()
	common := make(map[string]bool)
	for _, k := range Keys(DefaultOrchestrator()) {
		common[k.Name] = true
	}
	for _, k := range TypeKeys() {
		if k.Env != "" || k.Flag != "" || !strings.HasSuffix(k.Doc, ".") {
			t.Errorf("type key %+v", k)
		}
		if k.Name != "schema" && k.Name != "heartbeat_timeout" && !common[k.Inherits] {
			t.Errorf("%s inherits %q, which is no key", k.Name, k.Inherits)
		}
	}
}
