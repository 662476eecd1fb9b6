package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var (
	quiet = slog.New(slog.DiscardHandler)
	never = context.Background() // no hurry
)

// record notes in which order things happen.
type record struct {
	mu  sync.Mutex
	got []string
}

func (r *record) add(s string) {
	r.mu.Lock()
	r.got = append(r.got, s)
	r.mu.Unlock()
}

func (r *record) want(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.got, want) {
		t.Errorf("got %q, want %q", r.got, want)
	}
}

// loop runs until its context ends, and then takes a while to stop.
func (r *record) loop(name string, takes time.Duration) Loop {
	return Loop{Name: name, Run: func(ctx context.Context) error {
		<-ctx.Done()
		r.add(name + " told")
		<-time.After(takes)
		r.add(name + " stopped")
		return nil
	}}
}

func TestRunStopsLoopsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r record
		first := r.loop("first", time.Second)
		first.Stop = func(grace context.Context) {
			if d, ok := grace.Deadline(); !ok || time.Until(d) != 10*time.Second {
				t.Errorf("the grace period ends %v, %v; want in 10s", time.Until(d), ok)
			}
			r.add("first asked")
		}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, stop)
		if err := Run(ctx, never, quiet, 10*time.Second, []Loop{first, r.loop("second", 2*time.Second), r.loop("third", 0)}); err != nil {
			t.Errorf("Run: %v", err)
		}
		r.want(t, "first asked", "first told", "first stopped", "second told", "second stopped", "third told", "third stopped")
	})
}

func TestRunStopsEverythingWhenALoopEnds(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for want, err := range map[string]error{"broken: boom": boom, "broken ended by itself": nil} {
		synctest.Test(t, func(t *testing.T) {
			var r record
			got := Run(t.Context(), never, quiet, time.Minute, []Loop{
				r.loop("a", 0),
				{Name: "broken", Run: func(context.Context) error { <-time.After(time.Second); return err }, Stop: func(context.Context) { r.add("stop of what has ended") }},
				r.loop("b", 0),
			})
			if got == nil || got.Error() != want || err != nil && !errors.Is(got, err) {
				t.Errorf("got %v, want %s", got, want)
			}
			r.want(t, "a told", "a stopped", "b told", "b stopped")
		})
	}
}

// An error while stopping is reported; the rest is stopped nevertheless.
func TestRunReportsAnErrorWhileStopping(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r record
		ctx, stop := context.WithCancel(t.Context())
		stop()
		err := Run(ctx, never, quiet, time.Minute, []Loop{
			{Name: "a", Run: func(ctx context.Context) error { <-ctx.Done(); return errors.New("flush failed") }}, r.loop("b", 0),
		})
		if err == nil || err.Error() != "a: flush failed" {
			t.Errorf("got %v", err)
		}
		r.want(t, "b told", "b stopped")
	})
}

func TestRunAbandonsWhatDoesNotStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		var r record
		began := time.Now()
		release := make(chan struct{})
		err := Run(ctx, never, quiet, 3*time.Second, []Loop{
			r.loop("good", time.Second),
			{Name: "stuck", Run: func(context.Context) error { <-release; return nil }},
			r.loop("later", 0),
		})
		if err == nil || !strings.Contains(err.Error(), "stuck did not stop within 3s") {
			t.Errorf("got %v, want one that names the stuck loop", err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("gave up after %s, want 3s", took)
		}
		synctest.Wait()
		// What comes after the stuck loop is told to stop, though nobody waits.
		r.want(t, "good told", "good stopped", "later told", "later stopped")
		close(release)
	})
}

// A second signal: open calls are cut off, loops have a moment left.
func TestRunInAHurry(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		takes time.Duration
		want  string
		after time.Duration
	}{
		"loops that stop": {500 * time.Millisecond, "told to stop at once: context canceled", 6 * time.Second},
		"a stuck loop":    {time.Hour, "second did not stop within 7s\ntold to stop at once: context canceled", 7 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			hurry, now := context.WithCancel(t.Context())
			stop()
			time.AfterFunc(5*time.Second, now)
			began := time.Now()
			var r record
			first, second := r.loop("first", tt.takes), r.loop("second", tt.takes)
			first.Stop = func(grace context.Context) { <-grace.Done() }
			if tt.takes == time.Hour {
				first = r.loop("first", 0)
			}
			err := Run(ctx, hurry, quiet, time.Hour, []Loop{first, second})
			if !errors.Is(err, ErrInterrupted) || !errors.Is(err, context.Canceled) || err.Error() != tt.want {
				t.Errorf("%s: %v, want %q", name, err, tt.want)
			}
			if took := time.Since(began); took != tt.after {
				t.Errorf("%s: ended after %s, want %s", name, took, tt.after)
			}
			<-time.After(2 * time.Hour) // until the stuck loop has ended, too
		})
	}
}

func TestRetryUntilItSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, began := 0, time.Now()
		err := Retry(t.Context(), quiet, "Postgres", time.Minute, func(context.Context) error {
			if n++; n < 8 {
				return errors.New("refused")
			}
			return nil
		})
		// 0.1, 0.2, 0.4, 0.8, 1.6, then 3 s each.
		if took := time.Since(began); err != nil || n != 8 || took != 9100*time.Millisecond {
			t.Errorf("%v after %d calls and %s, want success at the 8th after 9.1s", err, n, took)
		}
	})
}

func TestRetryGivesUp(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	tests := []struct {
		name  string
		limit time.Duration
		err   error
		want  string
		calls int
	}{
		{"at the limit", time.Second, refused, "Postgres could not be used within 1s (server.start_deadline): refused", 4},
		{"no limit at all: one try", 0, refused, "Postgres could not be used within 0s (server.start_deadline): refused", 1},
		{"fatal", time.Hour, Fatal(refused), "refused", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := 0
				err := Retry(t.Context(), quiet, "Postgres", tt.limit, func(context.Context) error { n++; return tt.err })
				if err == nil || err.Error() != tt.want || !errors.Is(err, refused) || n != tt.calls {
					t.Errorf("%v after %d calls, want %q after %d", err, n, tt.want, tt.calls)
				}
			})
		})
	}
}

func TestRetryEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer stop()
		began := time.Now()
		err := Retry(ctx, quiet, "Redis", time.Hour, func(context.Context) error { return errors.New("refused") })
		if err == nil || !strings.Contains(err.Error(), "stopped while waiting for Redis") || time.Since(began) != 250*time.Millisecond {
			t.Errorf("got %v after %s, want it to stop at 250ms", err, time.Since(began))
		}
	})
}
