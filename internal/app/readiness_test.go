package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/streams"
)

func TestWatchAStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p lifecycle.Pulse
		var mu sync.Mutex
		var answer error
		hang := make(chan struct{})
		close(hang)
		ping := func(context.Context) error {
			mu.Lock()
			h, err := hang, answer
			mu.Unlock()
			<-h
			return err
		}
		set := func(h chan struct{}, err error) {
			mu.Lock()
			hang, answer = h, err
			mu.Unlock()
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- watch(ctx, p.Watch("redis", pingQuiet, 0), ping) }()
		after := func(d time.Duration, want string) {
			t.Helper()
			<-time.After(d)
			got := ""
			if err := p.Check(); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		after(500*time.Millisecond, "")
		set(hang, errors.New("refused"))
		after(pingInterval, "redis: not reachable for 1s")
		set(hang, nil)
		after(pingInterval, "")
		stuck := make(chan struct{})
		set(stuck, nil)
		after(pingQuiet+900*time.Millisecond, "redis: no round finished for 4s")
		stop() // although the call still hangs
		if err := <-done; err != nil {
			t.Errorf("watch: %v", err)
		}
		close(stuck)
	})
}

// lockedBuffer is a log to be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// A policy that is set at run time is told of once, and so is its repair.
func TestAPolicyThatIsSetLater(t *testing.T) {
	t.Parallel()
	stack := devtest.Stack(t, devstack.Options{Redis: true})
	c, err := streams.New(streams.Options{URL: stack.RedisURL, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	opts, err := redis.ParseURL(stack.RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(opts)
	var out lockedBuffer
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- watchRules(ctx, c, 5*time.Millisecond, slog.New(slog.NewTextHandler(&out, nil))) }()
	for _, step := range []struct{ policy, says string }{
		{"allkeys-lru", "redis maxmemory-policy is allkeys-lru"}, {"noeviction", "Redis is what it must be again"},
	} {
		if err := rdb.ConfigSet(t.Context(), "maxmemory-policy", step.policy).Err(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(30 * time.Second); !strings.Contains(out.String(), step.says); <-time.After(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("after %s the log does not say %q:\n%s", step.policy, step.says, out.String())
			}
		}
	}
	stop()
	if err := errors.Join(<-done, c.Close(), rdb.Close()); err != nil {
		t.Error(err)
	}
	if n := strings.Count(out.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors are logged, want one:\n%s", n, out.String())
	}
}
