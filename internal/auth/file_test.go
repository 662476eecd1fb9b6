package auth

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// logBuffer collects log records.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take returns what was logged since the last call.
func (l *logBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

// setup opens a token file with one token of alice's.
func setup(t *testing.T) (f *File, path string, logs *logBuffer) {
	t.Helper()
	path, logs = filepath.Join(t.TempDir(), "tokens"), &logBuffer{}
	put(t, path, "alice "+aliceToken+" roles=viewer\n")
	f, err := Open(path, slog.New(slog.NewTextHandler(logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return f, path, logs
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (f *File) knows(token string) bool {
	_, ok := f.tokens.Load().Principal(token)
	return ok
}

func TestRotation(t *testing.T) {
	t.Parallel()
	f, path, logs := setup(t)
	f.look()
	if got := logs.take(); got != "" {
		t.Errorf("an unchanged file is logged: %s", got)
	}
	const second = "alice-9876543210fedcba"
	steps := []struct {
		what, text    string
		first, second bool // valid afterwards
		logged        string
	}{
		{"a second token is added", "alice " + aliceToken + " roles=viewer\nalice " + hashed(second) + " roles=viewer\n", true, true, "read again"},
		{"the file is bad", "alice\n", true, true, "can't be used"},
		{"the first is removed", "alice " + hashed(second) + " roles=viewer\n", false, true, "read again"},
		{"the same content again", "alice " + hashed(second) + " roles=viewer\n", false, true, ""},
		{"nobody is left", "", false, false, "read again"},
	}
	for _, s := range steps {
		put(t, path, s.text)
		before := [2]bool{f.knows(aliceToken), f.knows(second)}
		f.look()
		if now := [2]bool{f.knows(aliceToken), f.knows(second)}; now != before {
			t.Errorf("%s: it counted at first sight", s.what)
		}
		f.look()
		if f.knows(aliceToken) != s.first || f.knows(second) != s.second {
			t.Errorf("%s: first %v, second %v", s.what, f.knows(aliceToken), f.knows(second))
		}
		f.look()
		got := logs.take()
		if strings.Count(got, "\n") > 1 || !strings.Contains(got, s.logged) || s.logged == "" && got != "" {
			t.Errorf("%s: logged %q", s.what, got)
		}
		if strings.Contains(got, "0123456789") || strings.Contains(got, "9876543210") {
			t.Errorf("%s: a token is in the log: %s", s.what, got)
		}
	}
}

// TestRotationAmidAWrite reads a file while it is being written: what is there
// for one read only never counts.
func TestRotationAmidAWrite(t *testing.T) {
	t.Parallel()
	f, path, logs := setup(t)
	for _, half := range []string{"", "alice alice-0123456789", "ali", "bob " + bobToken + " roles=viewer\n"} {
		put(t, path, half)
		f.look()
	}
	if !f.knows(aliceToken) || f.knows(bobToken) {
		t.Error("a half-written file counted")
	}
	f.look()
	if f.knows(aliceToken) || !f.knows(bobToken) {
		t.Error("the whole file does not count")
	}
	if got := logs.take(); strings.Count(got, "\n") != 1 {
		t.Errorf("logged %s", got)
	}
}

func TestFileVanishes(t *testing.T) {
	t.Parallel()
	f, path, logs := setup(t)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		f.look()
	}
	if got := logs.take(); strings.Count(got, "no such file") != 1 || !f.knows(aliceToken) {
		t.Errorf("alice is known: %v; logged %s", f.knows(aliceToken), got)
	}
	put(t, path, "bob "+bobToken)
	f.look()
	f.look()
	if f.knows(aliceToken) || !f.knows(bobToken) {
		t.Error("the new file does not count")
	}
}

func TestRunReadsWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, path, _ := setup(t)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		synctest.Wait()
		for i, token := range []string{bobToken, aliceToken, bobToken} {
			put(t, path, "someone "+token)
			time.Sleep(time.Second)
			synctest.Wait()
			if !f.knows(token) {
				t.Errorf("change %d is not known after a second", i)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestRunWithoutAFile(t *testing.T) {
	t.Parallel()
	f, err := Open("", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := f.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad, large := filepath.Join(dir, "bad"), filepath.Join(dir, "large")
	put(t, bad, "alice "+aliceToken+"\nbob x\n")
	put(t, large, strings.Repeat("#\n", maxFileBytes))
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file", bad: "line 2", large: "larger than", dir: "directory",
	} {
		_, err := Open(path, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		if checked := Check(path); checked == nil || checked.Error() != err.Error() {
			t.Errorf("%s: Check says %v, Open %v", path, checked, err)
		}
	}
	if err := Check(""); err != nil {
		t.Errorf("no file: %v", err)
	}
}

func TestOpenWarnsOfReaders(t *testing.T) {
	t.Parallel()
	_, path, logs := setup(t)
	if got := logs.take(); got != "" {
		t.Errorf("mode 600: %s", got)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o644} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, slog.New(slog.NewTextHandler(logs, nil))); err != nil {
			t.Fatal(err)
		}
		if got := logs.take(); strings.Count(got, "chmod 600") != 1 {
			t.Errorf("mode %o: %q", mode, got)
		}
	}
}
