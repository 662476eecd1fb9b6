package handlers

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/task"
)

// rule is a row of a table in docs/handlers.md: codes, and what they mean.
type rule struct {
	from, to []int // ranges, both ends included
	outcome  string
	delay    string
}

func (r rule) names(code int) bool {
	for i := range r.from {
		if r.from[i] <= code && code <= r.to[i] {
			return true
		}
	}
	return false
}

// documented reads the table of docs/handlers.md whose first column has the
// given head.
func documented(t *testing.T, head string) (rules []rule) {
	t.Helper()
	b, err := os.ReadFile("../../docs/handlers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(b), "| "+head+" |")
	if !ok {
		t.Fatalf("no table of %s", head)
	}
	span := regexp.MustCompile(`^(\d+)(?:–(\d+))?$`)
	for i, line := range strings.Split(table, "\n") {
		if i < 2 {
			continue // the rest of the head, and the line below
		}
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := append(strings.Split(line, "|"), "")
		r := rule{outcome: strings.TrimSpace(cells[2]), delay: strings.TrimSpace(cells[3])}
		for part := range strings.SplitSeq(cells[1], ",") {
			m := span.FindStringSubmatch(strings.TrimSpace(part))
			if m == nil {
				t.Fatalf("row %q: %q is no code", line, part)
			}
			from, _ := strconv.Atoi(m[1])
			to := from
			if m[2] != "" {
				to, _ = strconv.Atoi(m[2])
			}
			r.from, r.to = append(r.from, from), append(r.to, to)
		}
		rules = append(rules, r)
	}
	return rules
}

// ruleOf returns the first rule that names the code.
func ruleOf(t *testing.T, rules []rule, code int) rule {
	t.Helper()
	i := slices.IndexFunc(rules, func(r rule) bool { return r.names(code) })
	if i < 0 {
		t.Fatalf("no rule for %d", code)
	}
	return rules[i]
}

// outcomeOf names what a handler's error means, in the document's words.
func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "succeeded"
	case task.IsInvalidInput(err):
		return "input invalid"
	case task.IsPermanent(err):
		return "permanent"
	}
	return "retryable"
}

// transport answers every request with a status.
type transport struct {
	status int
	header http.Header
}

func (f *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: f.status, Header: f.header, Body: io.NopCloser(strings.NewReader("text")), Request: r}, nil
}

// TestEveryStatus compares each status from 100 to 599 with docs/handlers.md,
// without Retry-After, and with it in both forms.
func TestEveryStatus(t *testing.T) {
	t.Parallel()
	rules := documented(t, "status")
	h, wrap := newHandler(t, "http://127.0.0.1:1"), &transport{}
	h.client.Transport = wrap
	const date = "Sun, 01 Mar 2026 12:00:00 GMT"
	for code := 100; code <= 599; code++ {
		want := ruleOf(t, rules, code)
		for after, delay := range map[string]time.Duration{"": -1, "7": 7 * time.Second, "Sun, 01 Mar 2026 12:00:09 GMT": 9 * time.Second} {
			wrap.status, wrap.header = code, http.Header{"Retry-After": {after}, "Date": {date}}
			res, err := h.run(t.Context(), raw(`{}`))
			if got := outcomeOf(err); got != want.outcome {
				t.Errorf("%d: %s (%v), documented is %s", code, got, err, want.outcome)
			}
			if err == nil && string(res) != `"text"` {
				t.Errorf("%d: result %s", code, res)
			}
			if !strings.Contains(want.delay, "Retry-After") {
				delay = -1
			}
			if d, ok := task.RetryDelay(err); ok != (delay >= 0) || ok && d != delay {
				t.Errorf("%d with Retry-After %q: delay %s, %v; documented is %q", code, after, d, ok, want.delay)
			}
		}
	}
	// And the rules as they were asked for, so that document and code can't go
	// wrong together.
	for code, want := range map[int]string{
		100: "permanent", 199: "permanent", 200: "succeeded", 299: "succeeded", 300: "permanent", 308: "permanent", 400: "permanent", 401: "permanent",
		404: "permanent", 408: "retryable", 409: "retryable", 410: "permanent", 422: "permanent", 425: "retryable", 429: "retryable", 499: "permanent",
		500: "retryable", 501: "retryable", 503: "retryable", 599: "retryable",
	} {
		if got := ruleOf(t, rules, code).outcome; got != want {
			t.Errorf("documented for %d is %s, want %s", code, got, want)
		}
	}
}

// TestEveryExitCode compares each exit code with docs/handlers.md.
func TestEveryExitCode(t *testing.T) {
	t.Parallel()
	if !execSupported {
		return
	}
	rules := documented(t, "exit code")
	th := mustNew(t, config.Handler{
		Kind: "exec", Command: []string{"sh", "-c", `echo "code $1" >&2; exit "$1"`, "sh", "{{attempt}}"}, Dir: t.TempDir(),
	}, config.HTTPClient{})
	for code := range 256 {
		r := raw(`{}`)
		r.Attempt = code
		res, err := th(t.Context(), r)
		want := ruleOf(t, rules, code)
		if got := outcomeOf(err); got != want.outcome {
			t.Errorf("%d: %s (%v), documented is %s", code, got, err, want.outcome)
		}
		if code == 0 && string(res) != "null" {
			t.Errorf("0: result %s", res)
		}
		if text := fmt.Sprintf("exit status %d: code %d", code, code); code > 0 && (err == nil || !strings.HasSuffix(err.Error(), text)) {
			t.Errorf("%d: %v, want %s", code, err, text)
		}
	}
	for code, want := range map[int]string{0: "succeeded", 1: "retryable", 64: "retryable", 65: "permanent", 75: "retryable", 126: "retryable", 127: "retryable", 255: "retryable"} {
		if got := ruleOf(t, rules, code).outcome; got != want {
			t.Errorf("documented for %d is %s, want %s", code, got, want)
		}
	}
}
