package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/task"
)

// raw returns an execution with the payload.
func raw(payload string) *task.Raw {
	return &task.Raw{
		Info: task.Info{
			TaskID: "order-7", Type: "order.bill", Tenant: "acme", Queue: "billing",
			Attempt: 3, RetryCount: 2, Delivery: 5, IdempotencyKey: "key-7",
			TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
		},
		Payload: json.RawMessage(payload),
	}
}

// mustNew returns the handler of a declaration that has to be valid.
func mustNew(t *testing.T, h config.Handler, net config.HTTPClient) task.Handler {
	t.Helper()
	th, err := New("order.bill", h, net, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return th
}

// wantText fails the test unless err's text contains every one of parts.
func wantText(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not contain %q", err, p)
		}
	}
}

var allowed = config.HTTPClient{Allow: []string{"api.example.com", "*.svc.example.com:8443"}}

const hookURL = "https://api.example.com/hook"

var declarations = map[string]struct {
	h    config.Handler
	net  config.HTTPClient
	want string // "": valid
}{
	"echo":               {h: config.Handler{Kind: "echo"}},
	"sleep":              {h: config.Handler{Kind: "sleep"}},
	"http":               {h: config.Handler{Kind: "http", URL: hookURL}, net: allowed},
	"http wildcard":      {h: config.Handler{Kind: "http", URL: "https://A.svc.example.com:8443"}, net: allowed},
	"exec":               {h: config.Handler{Kind: "exec", Command: []string{"cat", "{{task_id}}", "a{{ queue }}b"}}},
	"no kind":            {want: "handlers.order.bill.kind: missing"},
	"unknown kind":       {h: config.Handler{Kind: "shell"}, want: `handlers.order.bill.kind: "shell" is not`},
	"negative bound":     {h: config.Handler{Kind: "http", URL: hookURL, MaxOutputBytes: -1}, net: allowed, want: "handlers.order.bill.max_output_bytes: -1"},
	"huge bound":         {h: config.Handler{Kind: "http", URL: hookURL, MaxOutputBytes: 1 << 40}, net: allowed, want: "max_output_bytes"},
	"url for echo":       {h: config.Handler{Kind: "echo", URL: hookURL}, want: "handlers.order.bill.url: does not apply to kind echo"},
	"env for http":       {h: config.Handler{Kind: "http", URL: hookURL, Env: map[string]string{"A": "b"}}, net: allowed, want: "env: does not apply"},
	"no url":             {h: config.Handler{Kind: "http"}, want: "handlers.order.bill.url: missing"},
	"scheme":             {h: config.Handler{Kind: "http", URL: "file:///etc/passwd"}, want: "scheme is not http or https"},
	"opaque":             {h: config.Handler{Kind: "http", URL: "http:api.example.com"}, want: "has no host"},
	"user":               {h: config.Handler{Kind: "http", URL: "https://u:p@api.example.com"}, net: allowed, want: "contains a user"},
	"port":               {h: config.Handler{Kind: "http", URL: "https://api.example.com:70000"}, net: allowed, want: `port "70000"`},
	"not allowed":        {h: config.Handler{Kind: "http", URL: "https://evil.example.net/s3cret"}, net: allowed, want: "host evil.example.net:443 is not allowed by http.allow"},
	"nothing allowed":    {h: config.Handler{Kind: "http", URL: hookURL}, want: "is not allowed by http.allow"},
	"bad allow":          {h: config.Handler{Kind: "echo"}, net: config.HTTPClient{Allow: []string{"a", "http://b"}}, want: `http.allow[1]: "http://b"`},
	"no command":         {h: config.Handler{Kind: "exec"}, want: "handlers.order.bill.command: missing"},
	"no program":         {h: config.Handler{Kind: "exec", Command: []string{"no-such-program-7"}}, want: "handlers.order.bill.command[0]: exec:"},
	"placeholder argv0":  {h: config.Handler{Kind: "exec", Command: []string{"{{type}}"}}, want: "command[0]: the program can't contain a placeholder"},
	"unknown":            {h: config.Handler{Kind: "exec", Command: []string{"cat", "{{payload}}"}}, want: "command[1]: unknown placeholder {{payload}}"},
	"unclosed":           {h: config.Handler{Kind: "exec", Command: []string{"cat", "{{task_id"}}, want: "command[1]: {{ begins no placeholder"},
	"shell code":         {h: config.Handler{Kind: "exec", Command: []string{"sh", "-ec", "echo {{task_id}}"}}, want: "command[2]: a placeholder in shell code"},
	"shell argument":     {h: config.Handler{Kind: "exec", Command: []string{"sh", "-c", `echo "$1"`, "sh", "--", "{{task_id}}"}}},
	"task variable":      {h: config.Handler{Kind: "exec", Command: []string{"cat"}, Env: map[string]string{"PENSTOCK_TASK_ID": "x"}}, want: "env.PENSTOCK_TASK_ID: can't be set"},
	"variable name":      {h: config.Handler{Kind: "exec", Command: []string{"cat"}, Env: map[string]string{"A=B": "x"}}, want: `env: "A=B" is not the name`},
	"no directory":       {h: config.Handler{Kind: "exec", Command: []string{"cat"}, Dir: "/no/such/dir"}, want: "handlers.order.bill.dir: "},
	"not a directory":    {h: config.Handler{Kind: "exec", Command: []string{"cat"}, Dir: "/dev/null"}, want: "is not a directory"},
	"header line break":  {h: config.Handler{Kind: "http", URL: hookURL, Headers: map[string]string{"X-A": "b\r\nX-Evil: 1"}}, net: allowed, want: "headers.X-A: value contains a line break"},
	"header bare LF":     {h: config.Handler{Kind: "http", URL: hookURL, Headers: map[string]string{"X-A": "b\nc"}}, net: allowed, want: "headers.X-A: value contains a line break"},
	"header name":        {h: config.Handler{Kind: "http", URL: hookURL, Headers: map[string]string{"X A:": "b"}}, net: allowed, want: `headers: "X A:" is not the name of a header`},
	"idempotency header": {h: config.Handler{Kind: "http", URL: hookURL, Headers: map[string]string{"idempotency-key": "b"}}, net: allowed, want: "headers.idempotency-key: can't be set"},
	"task header":        {h: config.Handler{Kind: "http", URL: hookURL, Headers: map[string]string{"penstock-x": "b"}}, net: allowed, want: "headers.penstock-x: can't be set"},
	"host header":        {h: config.Handler{Kind: "http", URL: hookURL, Headers: map[string]string{"host": "b"}}, net: allowed, want: "headers.host: can't be set"},
	"header twice":       {h: config.Handler{Kind: "http", URL: hookURL, Headers: map[string]string{"x-a": "b", "X-A": "c"}}, net: allowed, want: "declared twice"},
}

func TestDeclarations(t *testing.T) {
	for name, tt := range declarations {
		t.Run(name, func(t *testing.T) {
			th, err := New("order.bill", tt.h, tt.net, nil)
			if tt.want == "" {
				if err != nil || th == nil {
					t.Fatalf("New: %v", err)
				}
				return
			}
			wantText(t, err, tt.want)
			for _, secret := range []string{"X-Evil", "s3cret", "u:p"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("error %q contains %q", err, secret)
				}
			}
		})
	}
}

func TestNewRefusesTaskType(t *testing.T) {
	for _, typ := range []string{"", "a b", "é", strings.Repeat("a", 129)} {
		if _, err := New(typ, config.Handler{Kind: "echo"}, config.HTTPClient{}, nil); err == nil {
			t.Errorf("type %q is accepted", typ)
		}
	}
}

func TestAll(t *testing.T) {
	hs := map[string]config.Handler{
		"a": {Kind: "echo"}, "b": {Kind: "nope"}, "c": {Kind: "http", URL: "ftp://x"},
	}
	got, err := All(hs, config.HTTPClient{Allow: []string{"::ffff:10.0.0.0/64"}}, nil)
	if got != nil {
		t.Errorf("All returns handlers %v besides an error", got)
	}
	wantText(t, err, "http.allow[0]: ", "handlers.b.kind: ", "handlers.c.url: ")

	got, err = All(map[string]config.Handler{"a": {Kind: "echo"}, "b": {Kind: "sleep"}}, config.HTTPClient{}, nil)
	if err != nil || len(got) != 2 || got["a"] == nil || got["b"] == nil {
		t.Errorf("All = %v, %v", got, err)
	}
}

func TestEcho(t *testing.T) {
	th := mustNew(t, config.Handler{Kind: "echo"}, config.HTTPClient{})
	for payload, want := range map[string]string{`{"a":[1,"é"]}`: `{"a":[1,"é"]}`, "": "null"} {
		got, err := th(t.Context(), raw(payload))
		if err != nil || string(got) != want {
			t.Errorf("echo of %q = %s, %v", payload, got, err)
		}
	}
	if _, err := th(t.Context(), raw(`"\u0000"`)); !task.IsPermanent(err) {
		t.Errorf("echo of NUL: %v, want a permanent failure", err)
	}
}

func TestSleep(t *testing.T) {
	th := mustNew(t, config.Handler{Kind: "sleep"}, config.HTTPClient{})
	for payload, want := range map[string]string{
		`{"ms":1}`: `{"slept_ms":1}`, `{"ms":0}`: `{"slept_ms":0}`, `{"duration":"2ms"}`: `{"slept_ms":2}`,
	} {
		start := time.Now()
		got, err := th(t.Context(), raw(payload))
		if err != nil || string(got) != want {
			t.Errorf("sleep of %s = %s, %v", payload, got, err)
		}
		if payload == `{"duration":"2ms"}` && time.Since(start) < 2*time.Millisecond {
			t.Errorf("sleep of %s took %v", payload, time.Since(start))
		}
	}
	for _, payload := range []string{
		"", "null", "{}", "[]", `{"ms":-1}`, `{"ms":86400001}`, `{"ms":9223372036854775807}`, `{"ms":1.5}`,
		`{"ms":"1"}`, `{"ms":1,"duration":"1s"}`, `{"duration":"-1s"}`, `{"duration":"25h"}`,
		`{"duration":"soon"}`, `{"ms":1,"x":2}`, `{"ms":1}{}`,
	} {
		if _, err := th(t.Context(), raw(payload)); !task.IsInvalidInput(err) {
			t.Errorf("sleep of %s: %v, want invalid input", payload, err)
		}
	}
}

func TestSleepEndsWithContext(t *testing.T) {
	for _, payload := range []string{`{"duration":"24h"}`, `{"ms":0}`} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(task.ErrLeaseLost)
		if _, err := sleep(ctx, raw(payload)); !errors.Is(err, task.ErrLeaseLost) {
			t.Errorf("sleep of %s: %v, want the cause", payload, err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, task.ErrTimeout)
	defer cancel()
	if _, err := sleep(ctx, raw(`{"duration":"24h"}`)); !errors.Is(err, task.ErrTimeout) {
		t.Errorf("sleep: %v, want the cause", err)
	}
}

func TestResultOf(t *testing.T) {
	for out, want := range map[string]string{
		"":                      "null",
		" {\"a\": 1}\n":         `{"a": 1}`,
		"12":                    "12",
		"hello <b>\n":           `"hello <b>\n"`,
		"a\x00b":                `"a` + "\uFFFD" + `b"`,
		"\"a\x00b\"":            `"\"a` + "\uFFFD" + `b\""`,
		`"\ud83d\ude00"`:        `"\ud83d\ude00"`,
		`"\\u0000"`:             `"\\u0000"`,
		`{"\\":"\"\u00e9\\"}`:   `{"\\":"\"\u00e9\\"}`,
		"\"\U0001F600\" \t\r\n": "\"\U0001F600\"",
	} {
		got, err := resultOf("output", []byte(out))
		if err != nil || string(got) != want {
			t.Errorf("result of %q = %q, %v; want %q", out, got, err, want)
		}
		if !json.Valid(got) {
			t.Errorf("result of %q is not JSON", out)
		}
	}
	for out, want := range map[string]string{
		`"\u0000"`:           `the character NUL (\u0000)`,
		`{"a\u0000":1}`:      `the character NUL (\u0000)`,
		`"\\\u0000"`:         `the character NUL (\u0000)`,
		`"\ud83d"`:           `half a surrogate pair, \ud83d`,
		`"\ude00\ud83d"`:     `half a surrogate pair, \ude00`,
		`"\ud83d\ud83d"`:     `half a surrogate pair`,
		`"\ud83dx\ude00 "`:   `half a surrogate pair`,
		"\"\xff\"":           "not UTF-8",
		"plain \xff":         "not UTF-8",
		`["\ud83d\n\ude00"]`: `half a surrogate pair`,
	} {
		_, err := resultOf("output", []byte(out))
		wantText(t, err, want)
		if !task.IsPermanent(err) {
			t.Errorf("result of %q: %v is not permanent", out, err)
		}
	}
}

func TestExcerpts(t *testing.T) {
	if got, want := clean("  a\x1b[31m\r\nb\xffc\x00\t \n"), "a\uFFFD[31m\nb\uFFFDc\uFFFD"; got != want {
		t.Errorf("clean = %q, want %q", got, want)
	}
	if got := head("aéb", 2); got != "a" {
		t.Errorf("head = %q", got)
	}
	if got := tail("aéb", 2); got != "b" {
		t.Errorf("tail = %q", got)
	}
	l := &lastBytes{max: 4}
	for _, s := range []string{"ab", "", "cde", "0123456789", "x"} {
		if n, err := l.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	if !bytes.Equal(l.buf, []byte("789x")) {
		t.Errorf("last bytes = %q", l.buf)
	}
}
