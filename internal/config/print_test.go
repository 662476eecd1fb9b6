package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	for _, p := range programs() {
		seen := make(map[string]bool)
		for _, k := range p.keys {
			if k.Doc == "" || !strings.HasSuffix(k.Doc, ".") {
				t.Errorf("%s: %s: documentation %q is no sentence", p.program, k.Name, k.Doc)
			}
			for kind, name := range []string{k.Name, k.Env, k.Flag} {
				id := fmt.Sprint(kind, name)
				if name != "" && seen[id] {
					t.Errorf("%s: %q is taken twice", p.program, name)
				}
				seen[id] = true
			}
			if (k.Type == typeInt || k.Type == typeDuration) && k.Allowed == "" {
				t.Errorf("%s: %s has no bounds", p.program, k.Name)
			}
		}
	}
	got := Keys(DefaultOrchestrator())[1]
	got.index, got.rule = nil, rule{}
	want := Key{
		Name: "server.shutdown_grace", Type: "duration", Default: "20s", Allowed: "0s to 1h", Doc: got.Doc,
		Env: "PENSTOCK_SERVER_SHUTDOWN_GRACE", Flag: "server-shutdown-grace",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("key = %+v, want %+v", got, want)
	}
	for _, k := range HandlerKeys() {
		if k.Env != "" || k.Flag != "" || k.Doc == "" {
			t.Errorf("handler key %+v", k)
		}
	}
}

// TestEnvNamesAreUnambiguous: programs share an environment, so one variable
// must not stand for two keys.
func TestEnvNamesAreUnambiguous(t *testing.T) {
	t.Parallel()
	keys := make(map[string]string)
	for _, p := range programs() {
		for _, k := range p.keys {
			if other, ok := keys[k.Env]; ok && k.Env != "" && other != k.Name {
				t.Errorf("%s stands for %s and %s", k.Env, other, k.Name)
			}
			keys[k.Env] = k.Name
		}
	}
}

func TestKeysRefusesMistakes(t *testing.T) {
	t.Parallel()
	type badBound struct {
		A int `mapstructure:"a" min:"x" max:"1"`
	}
	type badType struct {
		A float64 `mapstructure:"a"`
	}
	for _, cfg := range []any{5, badBound{}, badType{}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Keys(%T) did not panic", cfg)
				}
			}()
			Keys(cfg)
		}()
	}
}

func secretWorker() Worker {
	c := DefaultWorker()
	c.Redis.URL = "rediss://me:hunter2@h:6379/0"
	c.HTTP.Allow = []string{"a", "b"}
	c.Handlers = map[string]Handler{
		"email.send": {
			Kind: "http", URL: "https://u:hunter2@h/p?a=1&b=2",
			Headers: map[string]string{"Authorization": "hunter2", "Referer": "https://x/hunter2"},
		},
		"Run": {
			Kind: "exec", Command: []string{"x", "redis://:hunter2@h"}, Env: map[string]string{"T": "hunter2"},
			MaxOutputBytes: 7,
		},
	}
	return c
}

func TestPrintTable(t *testing.T) {
	t.Parallel()
	o := &Origins{byKey: map[string]Origin{
		"redis.url": {SourceEnv, "PENSTOCK_REDIS_URL"}, "handlers": {SourceFile, "w.yaml"},
	}}
	var b strings.Builder
	if err := Print(&b, secretWorker(), o, "table"); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if strings.Contains(text, "hunter2") {
		t.Errorf("a password is shown:\n%s", text)
	}
	lines := make(map[string]bool)
	for line := range strings.Lines(text) {
		lines[strings.Join(strings.Fields(line), " ")] = true
	}
	for _, want := range []string{
		"KEY VALUE ORIGIN",
		"redis.url rediss://me:xxxxx@h:6379/0 env PENSTOCK_REDIS_URL",
		`redis.url_file "" default`,
		"visibility_timeout 5m default",
		"http.allow a,b default",
		`handlers["email.send"].url https://u:xxxxx@h/p?a=1&b=2 file w.yaml`,
		`handlers["email.send"].headers["Authorization"] xxxxx file w.yaml`,
		`handlers["Run"].command x,redis://:xxxxx@h file w.yaml`,
		`handlers["Run"].max_output_bytes 7 file w.yaml`,
	} {
		if !lines[want] {
			t.Errorf("no line %q in:\n%s", want, text)
		}
	}
}

func TestPrintJSON(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	c := secretWorker()
	if err := Print(&b, &c, nil, "json"); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "hunter2") || strings.Contains(b.String(), `\u0026`) {
		t.Errorf("printed:\n%s", b.String())
	}
	var got map[string]struct {
		Value  any
		Origin string
	}
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatalf("%v in:\n%s", err, b.String())
	}
	if len(got) != len(Keys(c)) {
		t.Errorf("%d keys, want %d", len(got), len(Keys(c)))
	}
	if v := got["concurrency"]; v.Value != 10.0 || v.Origin != "default" {
		t.Errorf("concurrency = %+v", v)
	}
	if v := got["queues"].Value; !reflect.DeepEqual(v, []any{"default"}) {
		t.Errorf("queues = %v", v)
	}
	if v := got["shutdown_grace"].Value; v != "20s" {
		t.Errorf("shutdown_grace = %v", v)
	}
	handlers, _ := got["handlers"].Value.(map[string]any)
	if run, _ := handlers["Run"].(map[string]any); run["kind"] != "exec" {
		t.Errorf("handlers = %v", handlers)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken") }

func TestPrintErrors(t *testing.T) {
	t.Parallel()
	wantError(t, Print(&strings.Builder{}, Client{}, nil, "xml"), `unknown format "xml"`)
	for _, format := range []string{"", "table", "json"} {
		wantError(t, Print(brokenWriter{}, Client{}, nil, format), "broken")
	}
}

func TestDurationText(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 10 * time.Second: "10s", 5 * time.Minute: "5m", 10 * time.Minute: "10m",
		43800 * time.Hour: "43800h", 90 * time.Minute: "1h30m", time.Hour + time.Second: "1h0m1s",
		300 * time.Millisecond: "300ms", -time.Minute: "-1m",
	} {
		got := durationText(d)
		if got != want {
			t.Errorf("durationText(%v) = %q, want %q", d, got, want)
		}
		if back, err := time.ParseDuration(got); err != nil || back != d {
			t.Errorf("%q reads as %v, %v", got, back, err)
		}
	}
}

func TestValueText(t *testing.T) {
	t.Parallel()
	if got, want := valueText("a\tb\x1b"), `"a\tb\x1b"`; got != want {
		t.Errorf("valueText = %s, want %s", got, want)
	}
	if got, want := valueText([]any{"a", ""}), `a,""`; got != want {
		t.Errorf("valueText = %s, want %s", got, want)
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, url, text string }{
		{"", "", ""},
		{"plain text", "plain text", "plain text"},
		{"postgres://u:p@h:5432/d", "postgres://u:xxxxx@h:5432/d", "postgres://u:xxxxx@h:5432/d"},
		{"postgresql://u:p@a:1,b:2/d", "postgresql://u:xxxxx@a:1,b:2/d", "postgresql://u:xxxxx@a:1,b:2/d"},
		{"REDIS://:p@h", "REDIS://:xxxxx@h", "REDIS://:xxxxx@h"},
		{"rediss://u@h:6379/0", "rediss://u@h:6379/0", "rediss://u@h:6379/0"},
		{"redis://h:6379", "redis://h:6379", "redis://h:6379"},
		{"redis://u:p/w@x#y@h", "redis://u:xxxxx@h", "redis://u:xxxxx@h"},
		{"postgres://h/d?user=a&password=p&sslmode=off", "postgres://h/d?user=a&password=xxxxx&sslmode=off", "postgres://h/d?user=a&password=xxxxx&sslmode=off"},
		{"https://u:p@h", "https://u:xxxxx@h", "https://u:p@h"},
		{"host=h password=p dbname=d", "host=h password=xxxxx dbname=d", "host=h password=p dbname=d"},
		{`host=h password = 'a \' b' user=u`, `host=h password = xxxxx user=u`, `host=h password = 'a \' b' user=u`},
		{"unix://u:p@/run/s", "unix://u:xxxxx@/run/s", "unix://u:xxxxx@/run/s"},
	} {
		if got := RedactURL(tt.in); got != tt.url {
			t.Errorf("RedactURL(%q) = %q, want %q", tt.in, got, tt.url)
		}
		if got := RedactText(tt.in); got != tt.text {
			t.Errorf("RedactText(%q) = %q, want %q", tt.in, got, tt.text)
		}
	}
	const in = `dial "postgres://u:p"w@h/d": no; redis://:x@y too, https://u:p@h not`
	const want = `dial "postgres://u:xxxxx@h/d": no; redis://:xxxxx@y too, https://u:p@h not`
	if got := RedactText(in); got != want {
		t.Errorf("RedactText = %q, want %q", got, want)
	}
	if got := RedactURL("postgres://u:a b@h"); got != "postgres://u:xxxxx@h" {
		t.Errorf("RedactURL with a space = %q", got)
	}
	if got := redactSecret("hunter2"); got != "xxxxx" {
		t.Errorf("redactSecret = %q", got)
	}
}
