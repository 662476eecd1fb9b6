package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestMain keeps the settings of whoever runs the tests out of them.
func TestMain(m *testing.M) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, envPrefix) {
			_ = os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

// write makes a file and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantError checks that err has each of the parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error lacks %q:\n%v", part, err)
		}
	}
}

func flagsFor(t *testing.T, cfg any, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(fs, cfg)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

func TestDefaultsLoad(t *testing.T) {
	t.Parallel()
	o, from, err := LoadOrchestrator("", nil)
	if err != nil || !reflect.DeepEqual(o, DefaultOrchestrator()) {
		t.Errorf("orchestrator = %+v, %v", o, err)
	}
	if got := from.Of("server.listen"); got != (Origin{}) || got.String() != "default" {
		t.Errorf("origin = %v", got)
	}
	if w, _, err := LoadWorker("", nil); err != nil || !reflect.DeepEqual(w, DefaultWorker()) {
		t.Errorf("worker = %+v, %v", w, err)
	}
	if c, _, err := LoadClient("", nil); err != nil || c != DefaultClient() {
		t.Errorf("client = %+v, %v", c, err)
	}
}

func TestPrecedence(t *testing.T) {
	file := write(t, "p.yaml", "dispatch: {window: 1, max_batch: 2, poll_interval: 3s}\nlog:\n  level: debug\n  format:\n")
	t.Setenv("PENSTOCK_DISPATCH_MAX_BATCH", "20")
	t.Setenv("PENSTOCK_DISPATCH_POLL_INTERVAL", "30s")
	t.Setenv("PENSTOCK_LOG_LEVEL", "") // counts as unset
	c, from, err := LoadOrchestrator(file, flagsFor(t, DefaultOrchestrator(), "--dispatch-poll-interval=5m"))
	if err != nil {
		t.Fatal(err)
	}
	if want := (Dispatch{Window: 1, MaxBatch: 20, PollInterval: 5 * time.Minute}); c.Dispatch != want {
		t.Errorf("dispatch = %+v, want %+v", c.Dispatch, want)
	}
	if want := (Log{Level: "debug", Format: "auto"}); c.Log != want {
		t.Errorf("log = %+v, want %+v", c.Log, want)
	}
	for key, want := range map[string]string{
		"dispatch.window":        "file " + file,
		"dispatch.max_batch":     "env PENSTOCK_DISPATCH_MAX_BATCH",
		"dispatch.poll_interval": "flag --dispatch-poll-interval",
		"log.level":              "file " + file,
		"log.format":             "default",
		"enqueue.flushes":        "default",
	} {
		if got := from.Of(key).String(); got != want {
			t.Errorf("origin of %s = %q, want %q", key, got, want)
		}
	}
}

// TestEverySetting sets each key of each program from each source to a value
// that is not its default.
func TestEverySetting(t *testing.T) {
	samples := map[string]string{
		"server.listen": ":1", "debug.listen": "127.0.0.1:6060", "postgres.url": "postgres://h/d", "redis.url": "redis://h", "redis.key_prefix": "shop:",
		"postgres.role": "r", "retry.strategy": "fixed", "log.level": "warn", "log.format": "json",
		"server.allowed_hosts": "penstock.example.com, *.svc.cluster.local", "server.max_connections": "70",
		"health_listen": ":2", "queues": "a, b", "http.allow": "example.com, 10.0.0.0/8", "server": "https://h",
		"retry.base": "3s", "retry.schedule": "1s,2s", "enqueue.max_schedule_ahead": "2s", "retry.max_backoff": "31s",
		"retention.dead_letters": "720h", "retention.tasks": "720h", "retention.idempotency_keys": "720h", "retention.consumers": "720h", "retention.tombstones": "1h", "retention.effects": "720h", "schedules.keep_fires": "48h", "auth.tokens_file": write(t, "tokens", "alice 0123456789abcdef"),
		"token": "0123456789abcdef", "token_file": write(t, "token", "0123456789abcdef"),
		"orchestrator.url": "http://a:1, https://b", "orchestrator.token": "0123456789abcdef", "orchestrator.token_file": write(t, "worker-token", "0123456789abcdef"),
	}
	for _, section := range []string{"tls.", "server.tls.", "orchestrator.tls."} {
		for _, name := range []string{"cert_file", "key_file", "ca_file", "client_ca_file"} {
			samples[section+name] = "some.pem"
		}
	}
	samples["metrics.queues"], samples["metrics.types"] = "default, mail", "email.send, report"
	samples["auth.anonymous_roles"] = "viewer, worker"
	byType := map[string]string{typeInt: "7", typeDuration: "1500ms"}
	for _, cfg := range []any{&Orchestrator{}, &Worker{}, &Client{}} {
		for _, k := range Keys(cfg) {
			if k.Type == typeMap || strings.HasSuffix(k.Name, "url_file") {
				continue
			}
			value := samples[k.Name]
			if value == "" {
				value = byType[k.Type]
			}
			if k.Type == typeBool {
				value = "false"
				if k.Name == "http.allow_private" || k.Name == "internal_jobs.enabled" || k.Name == "auth.allow_unauthenticated" || k.Name == "guard.allow_anonymous" {
					value = "true"
				}
			}
			if value == "" {
				t.Fatalf("no sample for %s", k.Name)
			}
			t.Run(k.Env, func(t *testing.T) {
				if k.Name == "retry.schedule" { // is refused without its strategy
					t.Setenv("PENSTOCK_RETRY_STRATEGY", "schedule")
				}
				if section, _, ok := strings.Cut(k.Env, "_TLS_"); ok && !strings.HasSuffix(k.Env, "_TLS_CA_FILE") { // they come in pairs
					for _, name := range []string{"_TLS_CERT_FILE", "_TLS_KEY_FILE"} {
						t.Setenv(section+name, "other.pem")
					}
				}
				fs := flagsFor(t, cfg, "--"+k.Flag+"="+value)
				byFlag := loadLike(t, cfg, fs)
				t.Setenv(k.Env, value)
				byEnv := loadLike(t, cfg, nil)
				if !reflect.DeepEqual(byFlag, byEnv) {
					t.Errorf("by flag %+v, by env %+v", byFlag, byEnv)
				}
				if reflect.DeepEqual(byEnv, loadedDefaults(cfg)) {
					t.Errorf("%s=%s changed nothing", k.Env, value)
				}
			})
		}
	}
}

func loadLike(t *testing.T, cfg any, fs *pflag.FlagSet) any {
	t.Helper()
	var (
		got any
		err error
	)
	switch cfg.(type) {
	case *Orchestrator:
		got, _, err = LoadOrchestrator("", fs)
	case *Worker:
		got, _, err = LoadWorker("", fs)
	default:
		got, _, err = LoadClient("", fs)
	}
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func loadedDefaults(cfg any) any {
	switch cfg.(type) {
	case *Orchestrator:
		return DefaultOrchestrator()
	case *Worker:
		return DefaultWorker()
	default:
		return DefaultClient()
	}
}

func TestHandlersKeepTheirNames(t *testing.T) {
	t.Parallel()
	want := map[string]Handler{
		"email.send": {
			Kind: "http", URL: "https://mail.example.com/send",
			Headers: map[string]string{"X-Api-Key": "K", "Accept": "a/b"},
		},
		"Report:Daily/PDF": {
			Kind: "exec", Command: []string{"Run", " a, b "}, Env: map[string]string{"LANG": "C", "lower": "x"},
			Dir: "/srv", MaxOutputBytes: 5,
		},
	}
	for name, text := range map[string]string{
		"w.yaml": `
http: {allow: [mail.example.com]}
handlers:
  email.send: {kind: http, url: "https://mail.example.com/send", headers: {X-Api-Key: K, Accept: a/b}}
  "Report:Daily/PDF":
    {kind: exec, command: [Run, " a, b "], env: {LANG: C, lower: x}, dir: /srv, max_output_bytes: 5}
`,
		"w.toml": `
http.allow = ["mail.example.com"]
[handlers."email.send"]
kind = "http"
url = "https://mail.example.com/send"
headers = {X-Api-Key = "K", Accept = "a/b"}
[handlers."Report:Daily/PDF"]
kind = "exec"
command = ["Run", " a, b "]
env = {LANG = "C", lower = "x"}
dir = "/srv"
max_output_bytes = 5
`,
		"w.json": `{"http": {"allow": ["mail.example.com"]}, "handlers": {
"email.send": {"kind": "http", "url": "https://mail.example.com/send", "headers": {"X-Api-Key": "K", "Accept": "a/b"}},
"Report:Daily/PDF": {"kind": "exec", "command": ["Run", " a, b "], "env": {"LANG": "C", "lower": "x"},
"dir": "/srv", "max_output_bytes": 5}}}`,
	} {
		file := write(t, name, text)
		c, from, err := LoadWorker(file, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(c.Handlers, want) {
			t.Errorf("%s: handlers = %+v", name, c.Handlers)
		}
		if got := from.Of("handlers").Source; got != SourceFile {
			t.Errorf("%s: source of handlers = %v", name, got)
		}
	}
}

func TestFormatsAgree(t *testing.T) {
	t.Parallel()
	want := DefaultOrchestrator()
	want.Server.ShutdownGrace = 0
	want.Postgres.AutoMigrate = false
	want.Retry.Base = 90 * time.Second
	want.Retry.MaxBackoff = 2 * time.Minute
	want.Enqueue.Flushes = 4
	for name, text := range map[string]string{
		"o.yml":  "server: {shutdown_grace: 0}\npostgres: {auto_migrate: false}\nretry: {base: 1m30s, max_backoff: 2m}\nenqueue: {flushes: 4}\n",
		"o.TOML": "[server]\nshutdown_grace = 0\n[postgres]\nauto_migrate = false\n[retry]\nbase = '1m30s'\nmax_backoff = '2m'\n[enqueue]\nflushes = 4\n",
		"o.json": `{"server":{"shutdown_grace":0},"postgres":{"auto_migrate":false},"retry":{"base":"1m30s","max_backoff":"2m"},"enqueue":{"flushes":4}}`,
	} {
		c, _, err := LoadOrchestrator(write(t, name, text), nil)
		if err != nil || !reflect.DeepEqual(c, want) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	for _, name := range []string{"empty.yaml", "empty.toml", "empty.json"} {
		if c, _, err := LoadOrchestrator(write(t, name, "\n"), nil); err != nil || !reflect.DeepEqual(c, DefaultOrchestrator()) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func TestURLFile(t *testing.T) {
	secret := write(t, "pg", "\n  postgres://u:p@h/d \r\n")
	t.Setenv("PENSTOCK_POSTGRES_URL_FILE", secret)
	c, from, err := LoadOrchestrator("", nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Postgres.URL != "postgres://u:p@h/d" || c.Postgres.URLFile != secret {
		t.Errorf("postgres = %+v", c.Postgres)
	}
	if got, want := from.Of("postgres.url").String(), "url_file "+secret; got != want {
		t.Errorf("origin = %q, want %q", got, want)
	}
	if err := c.RequirePostgres(); err != nil {
		t.Error(err)
	}
	wantError(t, c.RequireRedis(), "redis.url: is required", "PENSTOCK_REDIS_URL,", "PENSTOCK_REDIS_URL_FILE")

	_, _, err = LoadOrchestrator(write(t, "o.yaml", "postgres: {url: 'postgres://x:hunter2@y/z'}"), nil)
	wantError(t, err, "postgres.url: postgres.url_file is set too, by env PENSTOCK_POSTGRES_URL_FILE; set only one of them (file ")
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error shows the password: %v", err)
	}

	for text, want := range map[string]string{
		" \n":               "is empty",
		"redis://a\nredis:": "must hold one line",
		"http://u:pw@h":     "redis.url: must start with redis://",
	} {
		t.Setenv("PENSTOCK_REDIS_URL_FILE", write(t, "redis", text))
		_, _, err := LoadWorker("", nil)
		wantError(t, err, want)
	}
	t.Setenv("PENSTOCK_REDIS_URL_FILE", filepath.Join(t.TempDir(), "absent"))
	_, _, err = LoadWorker("", nil)
	wantError(t, err, "redis.url_file: open ", "(env PENSTOCK_REDIS_URL_FILE)")
}

func TestFlags(t *testing.T) {
	t.Parallel()
	c, from, err := LoadWorker("", flagsFor(t, DefaultWorker(),
		"--queues=a,b", "--queues", "c", "--shutdown_grace=1s", "--http-allow-private", "--redis-url="))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Queues, []string{"a", "b", "c"}) || c.ShutdownGrace != time.Second || !c.HTTP.AllowPrivate {
		t.Errorf("worker = %+v", c)
	}
	if got := from.Of("shutdown_grace"); got != (Origin{SourceFlag, "--shutdown-grace"}) {
		t.Errorf("origin = %v", got)
	}
	if got := from.Of("redis.url"); got != (Origin{SourceFlag, "--redis-url"}) {
		t.Errorf("origin of an empty flag = %v", got)
	}

	own := pflag.NewFlagSet("own", pflag.ContinueOnError)
	own.String("server-listen", "", "registered by the program")
	own.Int("dispatch-max_batch", 0, "with the key's underscore")
	if err := own.Parse([]string{"--server-listen=:9", "--dispatch-max_batch=9"}); err != nil {
		t.Fatal(err)
	}
	o, _, err := LoadOrchestrator("", own)
	if err != nil || o.Server.Listen != ":9" || o.Dispatch.MaxBatch != 9 {
		t.Errorf("own flags: %+v, %+v, %v", o.Server, o.Dispatch, err)
	}
	AddFlags(own, DefaultOrchestrator())
	if got := own.Lookup("server-listen").Usage; got != "registered by the program" {
		t.Errorf("AddFlags replaced a flag: %q", got)
	}
}

func TestFlagHelpHidesPasswords(t *testing.T) {
	t.Parallel()
	c := DefaultOrchestrator()
	c.Redis.URL = "redis://u:hunter2@h"
	fs := pflag.NewFlagSet("help", pflag.ContinueOnError)
	AddFlags(fs, c)
	help := fs.FlagUsages()
	if strings.Contains(help, "hunter2") {
		t.Error("the help shows a password")
	}
	for _, want := range []string{"--server-shutdown-grace duration", "Allowed: 1 to 1000000.", "(default 10000)"} {
		if !strings.Contains(help, want) {
			t.Errorf("the help lacks %q", want)
		}
	}
}
