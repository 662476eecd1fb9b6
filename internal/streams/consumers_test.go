package streams_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/testkit"
)

func (f *fixture) consumers(t *testing.T) []string {
	t.Helper()
	cs, err := f.raw.XInfoConsumers(t.Context(), stream, group).Result()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range cs {
		names = append(names, c.Name)
	}
	return names
}

// Consumers that hold something stay, however idle; so do those that did
// something lately.
func TestDropIdleConsumers(t *testing.T) {
	t.Parallel()
	f, _ := setUp(t, devtest.Redis(t), 3)
	f.ack(t, f.take(t, "done", 1)...)
	f.ack(t, f.take(t, "done too", 1)...)
	f.take(t, "holds", 1)
	if n, err := f.DropIdleConsumers(t.Context(), stream, group, time.Hour); n != 0 || err != nil {
		t.Errorf("dropped %d, %v: none has been idle for an hour", n, err)
	}
	testkit.Eventually(t, "all have been idle", func() (bool, string) {
		cs, err := f.raw.XInfoConsumers(t.Context(), stream, group).Result()
		return err == nil && !slices.ContainsFunc(cs, func(c redis.XInfoConsumer) bool { return c.Idle <= 50*time.Millisecond }), ""
	})
	if n, err := f.DropIdleConsumers(t.Context(), stream, group, 50*time.Millisecond); n != 2 || err != nil {
		t.Errorf("dropped %d, %v, want 2", n, err)
	}
	equal(t, "left", f.consumers(t), []string{"holds"})
	if i := f.info(t); i.Pending != 1 {
		t.Errorf("%+v: a lease was thrown away", i)
	}
	for _, gone := range []string{"no stream", "no group"} {
		if gone == "no stream" {
			f.raw.XGroupDestroy(t.Context(), stream, group)
		} else {
			f.raw.Del(t.Context(), stream)
		}
		if n, err := f.DropIdleConsumers(t.Context(), stream, group, 0); n != 0 || err != nil {
			t.Errorf("%s: dropped %d, %v", gone, n, err)
		}
	}
}

// A consumer that was idle is given entries at the very moment at which it is
// removed: the entries stay pending, but not in its hands, because it may have
// acknowledged them before they were made pending again.
func TestDropConsumerThatComesBack(t *testing.T) {
	t.Parallel()
	f, _ := setUp(t, devtest.Redis(t), 3)
	ids := f.take(t, "back", 3)
	f.ack(t, ids[2])
	held, err := streams.DropConsumer(f.Client, t.Context(), stream, group, "back")
	if err != nil || held {
		t.Errorf("reported as empty: %v, %v", held, err)
	}
	ps, _, err := f.PendingAfter(t.Context(), stream, group, "", 0)
	if err != nil || len(ps) != 2 || ps[0].Consumer == "back" || ps[0].ID != ids[0] || ps[1].Consumer == "back" || ps[1].ID != ids[1] {
		t.Errorf("pending %v, %v, want the two that were not acknowledged, held by another consumer", ps, err)
	}
}

// One consumer reads and acknowledges, one that blocks in a read most of the
// time, while everything idle is removed as fast as possible: each entry is
// delivered, and none is left without a lease before it is acknowledged.
func TestDropConsumersThatWork(t *testing.T) {
	t.Parallel()
	f, _ := setUp(t, devtest.Redis(t), 0)
	const n = 2000
	ctx, stop := context.WithCancel(t.Context())
	var janitor, work sync.WaitGroup
	janitor.Go(func() {
		for ctx.Err() == nil {
			if _, err := f.DropIdleConsumers(t.Context(), stream, group, -1); err != nil {
				t.Error(err)
			}
		}
	})
	var mu sync.Mutex
	acked, lost := 0, 0
	for _, name := range []string{"a", "b"} {
		work.Go(func() {
			for {
				mu.Lock()
				done := acked >= n
				mu.Unlock()
				if done {
					return
				}
				es, err := f.Read(t.Context(), stream, group, name, streams.Fresh, 3)
				if err != nil {
					t.Error(err)
					return
				}
				for _, id := range ids(es) {
					k, err := f.raw.XAck(t.Context(), stream, group, id).Result()
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					acked++
					if k == 0 {
						lost++ // acknowledged in between: it is pending again
					}
					mu.Unlock()
				}
			}
		})
	}
	for range n / 10 {
		f.add(t, 10)
	}
	work.Wait()
	stop()
	janitor.Wait()
	i := f.info(t)
	t.Logf("%d acknowledged, %d of them between removal and return, %d pending", acked, lost, i.Pending)
	if acked != n || i.Undelivered != 0 || int(i.Pending) != lost {
		t.Errorf("%d of %d delivered, %d acknowledgements missed, %+v", acked, n, lost, i)
	}
}
