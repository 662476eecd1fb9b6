package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// lockedBuffer collects a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A failure is one line at Warn that says what failed and what happens next;
// payloads stay out of it.
func TestFailuresAreLogged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	logs := &lockedBuffer{}
	w, err := worker.New(worker.Options{RedisURL: b.RedisURL, IgnoreSignals: true, Log: slog.New(slog.NewTextHandler(logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	w.HandleRaw("t", func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
		if r.Attempt == 1 { // retryable
			return nil, errors.New("mailbox is full " + strings.Repeat("x", 5000))
		}
		return nil, task.Permanent(errors.New("gone for good"))
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	id := b.enqueue(task.Request{Payload: json.RawMessage(`{"secret":"hunter2"}`)})
	b.wait(id)
	never := 0
	last := b.enqueue(task.Request{MaxRetries: &never})
	b.wait(last)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	var failures []string
	for line := range strings.SplitSeq(logs.String(), "\n") {
		if strings.Contains(line, "level=WARN msg=\"task failed\"") {
			failures = append(failures, line)
		}
	}
	if len(failures) != 3 || !strings.Contains(failures[2], last) || !strings.Contains(failures[2], "dead letter: all 1 attempts are used up") || strings.Contains(logs.String(), "hunter2") {
		t.Fatalf("the log:\n%s", logs)
	}
	for i, want := range [][]string{{"attempt=1", "mailbox is full", "code=TASK_EXECUTION_FAILED", "retry as attempt 2 of"}, {"attempt=2", "gone for good", "dead letter: not retryable"}} {
		for _, part := range append(want, "type=t", "task_id="+id) {
			if !strings.Contains(failures[i], part) || len(failures[i]) > 1000 {
				t.Errorf("no %q in %s", part, failures[i])
			}
		}
	}
}
