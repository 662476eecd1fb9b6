package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
)

func TestNewFormats(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		format string
		json   bool
	}{{"", true}, {"auto", true}, {"json", true}, {"text", false}} {
		var b bytes.Buffer
		l, err := New(&b, config.Log{Level: "info", Format: tt.format})
		if err != nil {
			t.Fatal(err)
		}
		l.Info("hello", "n", 1)
		if got := json.Valid(b.Bytes()); got != tt.json {
			t.Errorf("format %q wrote %s", tt.format, b.String())
		}
		if strings.Contains(b.String(), "\x1b") {
			t.Errorf("format %q wrote colours without a terminal: %q", tt.format, b.String())
		}
	}
}

func TestAutoOnATerminal(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		format               string
		terminal, colour     bool
		wantJSON, wantColour bool
	}{
		{"auto", true, true, false, true},
		{"", true, false, false, false},
		{"text", true, true, false, true},
		{"json", true, true, true, false},
		{"auto", false, false, true, false},
	} {
		var b bytes.Buffer
		h, err := newHandler(&b, tt.format, slog.LevelInfo, tt.terminal, tt.colour)
		if err != nil {
			t.Fatal(err)
		}
		slog.New(h).Warn("hello", "a", "b")
		if got := json.Valid(b.Bytes()); got != tt.wantJSON {
			t.Errorf("%+v: wrote %q", tt, b.String())
		}
		if got := strings.Contains(b.String(), "\x1b["); got != tt.wantColour {
			t.Errorf("%+v: wrote %q", tt, b.String())
		}
	}
}

func TestAFileIsNoTerminal(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(f, config.Log{Level: "info", Format: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	l.Info("hello")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(name); err != nil || !json.Valid(b) {
		t.Errorf("wrote %q, %v", b, err)
	}
}

func TestLevels(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]int{"debug": 4, "": 3, "info": 3, "warn": 2, "error": 1} {
		for _, format := range []string{"text", "json"} {
			var b bytes.Buffer
			l, err := New(&b, config.Log{Level: level, Format: format})
			if err != nil {
				t.Fatal(err)
			}
			l.Debug("d")
			l.Info("i")
			l.Warn("w")
			l.Error("e")
			if got := strings.Count(b.String(), "\n"); got != want {
				t.Errorf("level %q, format %s: %d lines, want %d", level, format, got, want)
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for cfg, want := range map[config.Log]string{
		{Level: "loud", Format: "auto"}: `log.level: must be debug, info, warn or error, got "loud"`,
		{Level: "info", Format: "xml"}:  `log.format: must be auto, text or json, got "xml"`,
	} {
		if _, err := New(&bytes.Buffer{}, cfg); err == nil || err.Error() != want {
			t.Errorf("New(%+v): %v, want %s", cfg, err, want)
		}
	}
}

// talkative prints more with %+v than its message, as errors with stacks do.
type talkative struct{ detail string }

func (talkative) Error() string { return "short" }

func (e talkative) Format(s fmt.State, _ rune) { _, _ = fmt.Fprint(s, e.detail) }

// nilError panics when a nil one is asked for its message.
type nilError struct{ msg string }

func (e *nilError) Error() string { return e.msg }

type valuer struct{}

func (valuer) LogValue() slog.Value { return slog.StringValue("redis://:hunter2@h") }

func TestRedaction(t *testing.T) {
	t.Parallel()
	const secret = "postgres://u:hunter2@h:5432/d"
	u, err := url.Parse(secret)
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		l, err := New(&b, config.Log{Level: "info", Format: format})
		if err != nil {
			t.Fatal(err)
		}
		l.With("with", secret).WithGroup("g").Error("message "+secret,
			"string", secret,
			"err", fmt.Errorf("connect: %w", errors.New("dial "+secret)),
			"joined", errors.Join(errors.New(secret), errors.New("redis://:hunter2@h")),
			"talkative", talkative{secret},
			"url", u,
			"list", []string{"a", secret},
			"valuer", valuer{},
			slog.Group("inner", "string", secret),
		)
		got := b.String()
		if strings.Contains(got, "hunter2") {
			t.Errorf("%s shows a password: %s", format, got)
		}
		if n := strings.Count(got, "postgres://u:xxxxx@h:5432/d"); n != 8 {
			t.Errorf("%s: %d redacted URLs, want 8: %s", format, n, got)
		}
		if n := strings.Count(got, "redis://:xxxxx@h"); n != 2 {
			t.Errorf("%s: %d redacted Redis URLs, want 2: %s", format, n, got)
		}
	}
}

// Nanoseconds without a unit are no duration that people can read, or compare
// with a setting.
func TestDurationsHaveAUnit(t *testing.T) {
	t.Parallel()
	d := 1500 * time.Millisecond
	var none *time.Duration
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		l, err := New(&b, config.Log{Level: "info", Format: format})
		if err != nil {
			t.Fatal(err)
		}
		l.With("with", d).WithGroup("g").Info("plain", "d", d, slog.Duration("attr", d), "pointer", &d, "nil", none,
			"list", []time.Duration{d}, slog.Group("inner", "d", d))
		if n := strings.Count(b.String(), "1.5s"); n != 6 || strings.Contains(b.String(), "1500000000") {
			t.Errorf("%s: %d durations as 1.5s, want 6: %s", format, n, b.String())
		}
	}
}

func TestOtherValuesStay(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		l, err := New(&b, config.Log{Level: "info", Format: format})
		if err != nil {
			t.Fatal(err)
		}
		var none *nilError
		var noURL *url.URL
		l.Info("plain", "s", "https://h/p", "n", 5, "err", errors.New("boom"), "nil", none, "url", noURL, "any", struct{ A int }{3})
		for _, want := range []string{"plain", "https://h/p", "boom", "5", "3"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s lacks %q: %s", format, want, b.String())
			}
		}
	}
}
