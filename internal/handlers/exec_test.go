//go:build unix

package handlers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/task"
)

// mustProgram returns a valid exec handler with a grace period.
func mustProgram(t *testing.T, h config.Handler, grace time.Duration) *program {
	t.Helper()
	h.Kind = "exec"
	d := &declaration{typ: "order.bill", Handler: h}
	p := newExec(d, slog.New(slog.DiscardHandler))
	if err := errors.Join(d.errs...); err != nil {
		t.Fatal(err)
	}
	p.grace = grace
	return p
}

// sh declares a shell script.
func sh(script string, args ...string) config.Handler {
	return config.Handler{Kind: "exec", Command: append([]string{"sh", "-c", script, "sh"}, args...)}
}

// fifo is a named pipe that processes under test hold open: it has ended when
// all of them have.
type fifo struct {
	path  string
	lines chan string
}

// newFIFO makes a pipe and reads it in the background.
func newFIFO(t *testing.T) *fifo {
	t.Helper()
	f := &fifo{path: filepath.Join(t.TempDir(), "fifo"), lines: make(chan string)}
	if err := syscall.Mkfifo(f.path, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(f.lines)
		file, err := os.Open(f.path) // waits for a writer
		if err != nil {
			return
		}
		defer file.Close()
		for sc := bufio.NewScanner(file); sc.Scan(); {
			f.lines <- sc.Text()
		}
	}()
	return f
}

// line returns the next line.
func (f *fifo) line(t *testing.T) string {
	t.Helper()
	select {
	case s, ok := <-f.lines:
		if !ok {
			t.Fatal("the processes ended without a line")
		}
		return s
	case <-time.After(20 * time.Second):
		t.Fatal("no line from the processes")
		return ""
	}
}

// wantEnd fails the test unless all processes that hold the pipe end.
func (f *fifo) wantEnd(t *testing.T) {
	t.Helper()
	select {
	case s, ok := <-f.lines:
		if ok {
			t.Errorf("unexpected line %q", s)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("a process is left")
	}
}

// start runs the program in the background.
func start(ctx context.Context, p *program, payload string) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := p.run(ctx, raw(payload))
		done <- err
	}()
	return done
}

func TestExecResults(t *testing.T) {
	for name, tt := range map[string]struct {
		h             config.Handler
		payload, want string
	}{
		"stdin":             {config.Handler{Kind: "exec", Command: []string{"cat"}}, `{"a":[1,2]}`, `{"a":[1,2]}`},
		"json is trimmed":   {sh(`echo '{"ok": true}'`), `{}`, `{"ok": true}`},
		"text":              {sh(`echo hello`), `{}`, `"hello\n"`},
		"empty":             {sh(`true`), `{}`, `null`},
		"NUL in text":       {sh(`printf 'a\000b'`), `{}`, `"a` + "\uFFFD" + `b"`},
		"stderr is no part": {sh(`echo oops >&2; echo 1`), `{}`, `1`},
		"placeholders": {config.Handler{Kind: "exec", Command: []string{"printf", "%s,", "{{task_id}}", "{{ type }}",
			"a={{attempt}};{{tenant}}/{{queue}}"}}, `{}`, `"order-7,order.bill,a=3;acme/billing,"`},
		"EPIPE": {sh(`exec <&-; echo 2`), `"` + strings.Repeat("x", 1<<20) + `"`, `2`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res, err := mustNew(t, tt.h, config.HTTPClient{})(t.Context(), raw(tt.payload))
			if err != nil || string(res) != tt.want {
				t.Errorf("result = %s, %v; want %s", res, err, tt.want)
			}
		})
	}
}

func TestExecFailures(t *testing.T) {
	const permanent, retryable = true, false
	limit := func(h config.Handler) config.Handler { h.MaxOutputBytes = 100; return h }
	for name, tt := range map[string]struct {
		h         config.Handler
		permanent bool
		text      string
	}{
		"1":             {sh(`echo before; echo no luck >&2; exit 1`), retryable, "exec sh: exit status 1: no luck"},
		"EX_DATAERR":    {sh(`echo wrong >&2; exit 65`), permanent, "exit status 65: wrong"},
		"EX_TEMPFAIL":   {sh(`exit 75`), retryable, "exit status 75"},
		"signal":        {sh(`kill -KILL $$`), retryable, "killed by SIGKILL"},
		"other signal":  {sh(`kill -USR1 $$`), retryable, "killed by SIGUSR1"},
		"too long":      {limit(sh(`printf '%101s' x`)), permanent, "standard output is longer than max_output_bytes (100)"},
		"endless":       {limit(sh(`while :; do echo xxxxxxxx; done`)), permanent, "longer than max_output_bytes (100)"},
		"escaped NUL":   {sh(`printf '"\\u0000"'`), permanent, `standard output can't be kept as the result: its JSON contains the character NUL (\u0000)`},
		"not UTF-8":     {sh(`printf '\377'`), permanent, "standard output is not UTF-8"},
		"stderr binary": {sh(`printf 'a\377\033b' >&2; exit 1`), retryable, "exit status 1: a\uFFFD\uFFFDb"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := mustProgram(t, tt.h, termGrace).run(t.Context(), raw(`{"secret":1}`))
			wantText(t, err, tt.text)
			if task.IsPermanent(err) != tt.permanent {
				t.Errorf("permanent = %v: %v", !tt.permanent, err)
			}
		})
	}
}

func TestExecOutputAtBound(t *testing.T) {
	h := sh(`printf '%100s' x`)
	h.MaxOutputBytes = 100
	if _, err := mustNew(t, h, config.HTTPClient{})(t.Context(), raw(`{}`)); err != nil {
		t.Error(err)
	}
}

func TestExecQuotesEndOfStderr(t *testing.T) {
	p := mustProgram(t, sh(`echo START >&2; i=0; while [ $i -lt 600 ]; do echo "éééé $i" >&2; i=$((i+1)); done; exit 1`), termGrace)
	_, err := p.run(t.Context(), raw(`{}`))
	wantText(t, err, "éééé 599")
	if strings.Contains(err.Error(), "START") || strings.ContainsRune(err.Error(), '\uFFFD') || len(err.Error()) > 2048+50 {
		t.Errorf("error of %d bytes: %v", len(err.Error()), err)
	}
}

// A line on standard error, not a part of one, is a heartbeat.
func TestExecStderrIsHeartbeat(t *testing.T) {
	for script, want := range map[string]bool{
		`echo at work >&2`: true, `printf 'a\nb' >&2`: true, `printf part >&2`: false, `echo result`: false, `:`: false,
	} {
		beats := 0
		ctx := task.WithRecorder(t.Context(), func(detail json.RawMessage) error {
			if detail != nil {
				t.Errorf("%s: progress %s, want a heartbeat only", script, detail)
			}
			beats++
			return nil
		})
		if _, err := mustProgram(t, sh(script), termGrace).run(ctx, raw(`{}`)); err != nil || beats > 0 != want {
			t.Errorf("%s: %d heartbeats, %v", script, beats, err)
		}
	}
}

func TestExecEnvironmentIsClean(t *testing.T) {
	t.Setenv("PENSTOCK_REDIS_URL", "redis://:password@localhost")
	t.Setenv("PATH", os.Getenv("PATH"))
	want := []string{
		"LANG=C", "PATH=" + os.Getenv("PATH"), "PENSTOCK_TASK_ATTEMPT=3", "PENSTOCK_TASK_DELIVERY=5",
		"PENSTOCK_TASK_ID=order-7", "PENSTOCK_TASK_IDEMPOTENCY_KEY=key-7", "PENSTOCK_TASK_TENANT=acme",
		"PENSTOCK_TASK_TRACE_ID=4bf92f3577b34da6a3ce929d0e0e4736", "PENSTOCK_TASK_TYPE=order.bill",
	}
	h := config.Handler{Kind: "exec", Command: []string{"env"}, Env: map[string]string{"LANG": "C"}}
	if got := envOf(t, h); !slices.Equal(got, want) {
		t.Errorf("environment = %q, want %q", got, want)
	}
	h.Env["PATH"] = "/declared"
	want[1] = "PATH=/declared"
	if got := envOf(t, h); !slices.Equal(got, want) {
		t.Errorf("environment = %q, want %q", got, want)
	}
}

// envOf returns what a handler that runs env prints, sorted.
func envOf(t *testing.T, h config.Handler) []string {
	t.Helper()
	res, err := mustNew(t, h, config.HTTPClient{})(t.Context(), raw(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	var out string
	if err := json.Unmarshal(res, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	return lines
}

func TestExecOptionInjection(t *testing.T) {
	for name, tt := range map[string]struct {
		command []string
		id      string
		refused string
	}{
		"whole":       {[]string{"echo", "{{task_id}}"}, "-rf", `{{task_id}} begins with "-"`},
		"begins":      {[]string{"echo", "{{task_id}}.x"}, "--a", `begins with "-"`},
		"after --":    {[]string{"printf", "--", "{{task_id}}"}, "-rf", ""},
		"within":      {[]string{"echo", "--id={{task_id}}"}, "-rf", ""},
		"declared -":  {[]string{"echo", "-{{task_id}}"}, "-rf", ""},
		"NUL":         {[]string{"echo", "{{task_id}}"}, "a\x00b", "an argument would contain NUL"},
		"NUL in env":  {[]string{"echo"}, "a\x00b", "PENSTOCK_TASK_ID would contain NUL"},
		"no template": {[]string{"echo", "{{task_id}}"}, "{{tenant}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := raw(`{}`)
			r.TaskID = tt.id
			res, err := mustNew(t, config.Handler{Kind: "exec", Command: tt.command}, config.HTTPClient{})(t.Context(), r)
			if tt.refused == "" {
				if err != nil || !strings.Contains(string(res), tt.id) {
					t.Errorf("result = %s, %v", res, err)
				}
				return
			}
			wantText(t, err, tt.refused)
			if !task.IsPermanent(err) {
				t.Errorf("%v is not permanent", err)
			}
		})
	}
}

func TestExecDirectory(t *testing.T) {
	fixed := t.TempDir()
	res, err := mustNew(t, config.Handler{Kind: "exec", Command: []string{"pwd", "-P"}, Dir: fixed}, config.HTTPClient{})(t.Context(), raw(`{}`))
	if err != nil || !strings.Contains(string(res), filepath.Base(fixed)) {
		t.Errorf("directory = %s, %v", res, err)
	}
	base := t.TempDir()
	t.Setenv("TMPDIR", base)
	res, err = mustNew(t, sh(`touch file; mkdir sub; ls; pwd`), config.HTTPClient{})(t.Context(), raw(`{}`))
	if err != nil || !strings.Contains(string(res), `"file\nsub\n`) || !strings.Contains(string(res), base) {
		t.Errorf("directory = %s, %v", res, err)
	}
	if left, err := os.ReadDir(base); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func TestExecProgramVanished(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := mustProgram(t, config.Handler{Command: []string{path}}, termGrace)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, err := p.run(t.Context(), raw(`{}`))
	wantText(t, err, "can't be started")
	if task.IsPermanent(err) {
		t.Errorf("%v is permanent", err)
	}
}

// TestExecTimeoutKillsGroup has a grandchild that ignores SIGTERM.
func TestExecTimeoutKillsGroup(t *testing.T) {
	for name, leader := range map[string]string{
		"leader ends":    `wait`,
		"leader ignores": `trap "" TERM; echo ready >&3; while :; do wait; done`,
		"leader exits 0": `trap "exit 0" TERM; echo ready >&3; while :; do wait; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFIFO(t)
			h := sh(`exec 3>"$FIFO"; sh -c 'trap "" TERM; echo ready >&3; while :; do sleep 600; done' & ` + leader)
			h.Env = map[string]string{"FIFO": f.path}
			ctx, cancel := context.WithCancelCause(t.Context())
			done := start(ctx, mustProgram(t, h, 50*time.Millisecond), `{}`)
			f.line(t)
			if leader != "wait" {
				f.line(t)
			}
			cancel(task.ErrTimeout)
			if err := <-done; !errors.Is(err, task.ErrTimeout) || task.IsPermanent(err) {
				t.Errorf("error = %v, want the cause", err)
			}
			f.wantEnd(t)
		})
	}
}

func TestExecContextEndedBefore(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(task.ErrShutdown)
	if _, err := mustProgram(t, sh(`true`), termGrace).run(ctx, raw(`{}`)); !errors.Is(err, task.ErrShutdown) {
		t.Errorf("error = %v, want the cause", err)
	}
}

// TestExecKillsRestOfGroup has a grandchild that outlives the program and holds
// its output.
func TestExecKillsRestOfGroup(t *testing.T) {
	f := newFIFO(t)
	h := sh(`exec 3>"$FIFO"; sleep 600 & echo '"done"'`)
	h.Env = map[string]string{"FIFO": f.path}
	res, err := mustProgram(t, h, termGrace).run(t.Context(), raw(`{}`))
	if err != nil || string(res) != `"done"` {
		t.Errorf("result = %s, %v", res, err)
	}
	f.wantEnd(t)
}

// TestExecGivesUpPipes has a process that left the group and holds the pipes.
func TestExecGivesUpPipes(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("no setsid")
	}
	f := newFIFO(t)
	goOn := filepath.Join(t.TempDir(), "go")
	if err := syscall.Mkfifo(goOn, 0o600); err != nil {
		t.Fatal(err)
	}
	h := sh(`exec 3>"$FIFO"; setsid sh -c 'echo $$ >&3; echo >"$GO"; exec sleep 600' & read x <"$GO"; echo '"done"'`)
	h.Env = map[string]string{"FIFO": f.path, "GO": goOn}
	p := mustProgram(t, h, 50*time.Millisecond)
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err := p.run(t.Context(), raw(`"`+strings.Repeat("x", 1<<20)+`"`))
		if err != nil || string(res) != `"done"` {
			t.Errorf("result = %s, %v", res, err)
		}
	}()
	pid, err := strconv.Atoi(f.line(t))
	if err != nil {
		t.Fatal(err)
	}
	<-done
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the process that left the group: %v", err)
	}
	f.wantEnd(t)
}

// TestExecDiesWithWorker kills a worker and expects its program to end.
func TestExecDiesWithWorker(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no parent-death signal")
	}
	f := newFIFO(t)
	worker := exec.Command(os.Args[0], "-test.run=^TestWorkerProcess$")
	worker.Env = append(os.Environ(), "TEST_WORKER_FIFO="+f.path)
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	f.line(t)
	if err := worker.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = worker.Wait()
	f.wantEnd(t)
}

// TestWorkerProcess is the worker of TestExecDiesWithWorker.
func TestWorkerProcess(t *testing.T) {
	path := os.Getenv("TEST_WORKER_FIFO")
	if path == "" {
		t.Skip("runs within TestExecDiesWithWorker")
	}
	h := sh(`exec 3>"$FIFO"; echo ready >&3; exec sleep 600`)
	h.Env, h.Dir = map[string]string{"FIFO": path}, "/"
	_, err := mustProgram(t, h, termGrace).run(t.Context(), raw(`{}`))
	t.Errorf("the program ended: %v", err)
}
