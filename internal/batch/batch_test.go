package batch_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/internal/batch"
)

const limit = 30 * time.Second

// double returns twice each item, and an error for negative ones.
func double(items []int) []batch.Result[int] {
	out := make([]batch.Result[int], len(items))
	for i, n := range items {
		if n < 0 {
			out[i].Err = fmt.Errorf("negative: %d", n)
		} else {
			out[i].Value = 2 * n
		}
	}
	return out
}

// gated is a batcher whose flushes wait to be let through.
type gated struct {
	*batch.Batcher[int, int]
	started chan []int
	let     chan struct{}
}

func newGated(o batch.Options) *gated {
	g := &gated{started: make(chan []int, 1000), let: make(chan struct{})}
	g.Batcher = batch.New(o, func(ctx context.Context, items []int) []batch.Result[int] {
		g.started <- append([]int(nil), items...)
		select {
		case <-g.let:
			return double(items)
		case <-ctx.Done():
			out := make([]batch.Result[int], len(items))
			for i := range out {
				out[i].Err = ctx.Err()
			}
			return out
		}
	})
	return g
}

func (g *gated) next(t *testing.T) []int {
	t.Helper()
	select {
	case items := <-g.started:
		return items
	case <-time.After(limit):
		t.Fatal("no flush began")
		return nil
	}
}

func (g *gated) waitLen(t *testing.T, n int) {
	t.Helper()
	for end := time.Now().Add(limit); g.Len() != n; {
		if time.Now().After(end) {
			t.Fatalf("%d items wait, want %d", g.Len(), n)
		}
		<-time.After(time.Millisecond)
	}
}

func seq(from, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = from + i
	}
	return out
}

// TestNaturalBatches: the first item goes alone and at once; what arrives
// while it is under way goes together, in order, up to Max.
func TestNaturalBatches(t *testing.T) {
	t.Parallel()
	g := newGated(batch.Options{Max: 4, Flushes: 1})
	if err := g.Go(0); err != nil {
		t.Fatal(err)
	}
	if got := g.next(t); fmt.Sprint(got) != "[0]" {
		t.Fatalf("first flush %v", got)
	}
	for i := 1; i <= 9; i++ {
		if err := g.Go(i); err != nil {
			t.Fatal(err)
		}
	}
	if g.Len() != 9 {
		t.Errorf("%d items wait, want 9", g.Len())
	}
	for _, want := range []string{"[1 2 3 4]", "[5 6 7 8]", "[9]"} {
		g.let <- struct{}{}
		if got := g.next(t); fmt.Sprint(got) != want {
			t.Errorf("flush %v, want %s", got, want)
		}
	}
	g.let <- struct{}{}
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFlushesAtOnce(t *testing.T) {
	t.Parallel()
	g := newGated(batch.Options{Max: 2, Flushes: 3})
	done := make(chan error, 1)
	go func() {
		res, err := g.SubmitAll(t.Context(), seq(0, 10))
		for i, r := range res {
			if r.Err != nil || r.Value != 2*i {
				err = errors.Join(err, fmt.Errorf("item %d: %v", i, r))
			}
		}
		done <- err
	}()
	for range 3 {
		g.next(t)
	}
	g.waitLen(t, 4)
	select {
	case items := <-g.started:
		t.Errorf("a fourth flush runs: %v", items)
	default:
	}
	close(g.let)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFull(t *testing.T) {
	t.Parallel()
	g := newGated(batch.Options{Max: 10, Flushes: 1, Waiting: 3})
	results := make(chan error, 10)
	submit := func(n int) { go func() { _, err := g.Submit(t.Context(), n); results <- err }() }
	submit(0)
	g.next(t)
	for i := 1; i <= 3; i++ {
		submit(i)
		g.waitLen(t, i)
	}
	if _, err := g.Submit(t.Context(), 9); !errors.Is(err, batch.ErrFull) {
		t.Errorf("over the bound: %v", err)
	}
	if res, err := g.SubmitAll(t.Context(), []int{9}); !errors.Is(err, batch.ErrFull) || res != nil {
		t.Errorf("over the bound: %v, %v", res, err)
	}
	if err := g.Go(4); err != nil {
		t.Errorf("Go was refused: %v", err)
	}
	close(g.let)
	for range 4 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	// More than the bound at once is taken while nothing waits.
	if res, err := g.SubmitAll(t.Context(), seq(0, 8)); err != nil || len(res) != 8 {
		t.Errorf("%v, %v", res, err)
	}
}

func TestCancelledCallers(t *testing.T) {
	t.Parallel()
	g := newGated(batch.Options{Max: 10, Flushes: 1})
	ctx, cancel := context.WithCancel(t.Context())
	one, all := make(chan error, 1), make(chan []batch.Result[int], 1)
	go func() { _, err := g.Submit(ctx, 1); one <- err }()
	g.next(t)
	go func() {
		res, err := g.SubmitAll(ctx, []int{2, 3})
		if err != nil {
			t.Errorf("%v", err)
		}
		all <- res
	}()
	g.waitLen(t, 2)
	cancel()
	if err := <-one; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for _, r := range <-all {
		if !errors.Is(r.Err, context.Canceled) {
			t.Errorf("%v", r)
		}
	}
	// The flusher is not held up by callers that left.
	close(g.let)
	if v, err := g.Submit(t.Context(), 5); err != nil || v != 10 {
		t.Errorf("%d, %v", v, err)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	t.Run("waits for everything taken", func(t *testing.T) {
		t.Parallel()
		g := newGated(batch.Options{Max: 1, Flushes: 1})
		var got atomic.Int64
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				if v, err := g.Submit(t.Context(), i); err == nil && v == 2*i {
					got.Add(1)
				}
			})
		}
		g.next(t)
		g.waitLen(t, 4)
		closed := make(chan error, 2)
		go func() { closed <- g.Close(t.Context()) }()
		for end := time.Now().Add(limit); ; { // until Close has taken effect
			if _, err := g.SubmitAll(t.Context(), nil); errors.Is(err, batch.ErrClosed) {
				break
			}
			if time.Now().After(end) {
				t.Fatal("Close has no effect")
			}
		}
		if _, err := g.Submit(t.Context(), 9); !errors.Is(err, batch.ErrClosed) {
			t.Errorf("%v", err)
		}
		if _, err := g.SubmitAll(t.Context(), []int{9}); !errors.Is(err, batch.ErrClosed) {
			t.Errorf("%v", err)
		}
		select {
		case err := <-closed:
			t.Errorf("Close returned early: %v", err)
		default:
		}
		close(g.let)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		wg.Wait()
		if got.Load() != 5 {
			t.Errorf("%d of 5 results", got.Load())
		}
		if err := g.Close(t.Context()); err != nil {
			t.Errorf("closing twice: %v", err)
		}
	})
	t.Run("gives up with its context", func(t *testing.T) {
		t.Parallel()
		g := newGated(batch.Options{Max: 1, Flushes: 1})
		result := make(chan error, 1)
		go func() { _, err := g.Submit(context.Background(), 1); result <- err }()
		g.next(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Close(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("the flush under way: %v", err)
		}
	})
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		if err := newGated(batch.Options{}).Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestShortFlush: a flush that returns too few results is an error of the
// items without one, never a hang.
func TestShortFlush(t *testing.T) {
	t.Parallel()
	b := batch.New(batch.Options{Max: 10}, func(_ context.Context, items []int) []batch.Result[int] { return double(items[:1]) })
	res, err := b.SubmitAll(t.Context(), []int{1, 2, 3})
	if err != nil || res[0].Err != nil || res[1].Err == nil || res[2].Err == nil {
		t.Errorf("%v, %v", res, err)
	}
	if res, err := b.SubmitAll(t.Context(), nil); err != nil || len(res) != 0 {
		t.Errorf("nothing: %v, %v", res, err)
	}
}

// TestProperties: under any load, every item is flushed once, no flush is
// larger than Max, never more than Flushes run, and every caller gets its own
// result.
func TestProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := batch.Options{Max: rapid.IntRange(1, 8).Draw(t, "max"), Flushes: rapid.IntRange(1, 4).Draw(t, "flushes"), Waiting: rapid.IntRange(0, 30).Draw(t, "waiting")}
		callers := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(1, 12), 1, 6), 1, 12).Draw(t, "callers")
		var mu sync.Mutex
		seen := map[int]int{}
		var running, most, largest atomic.Int64
		b := batch.New(o, func(_ context.Context, items []int) []batch.Result[int] {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			largest.Store(max(largest.Load(), int64(len(items))))
			mu.Lock()
			for _, n := range items {
				seen[n]++
			}
			mu.Unlock()
			return double(items)
		})
		var taken, refused atomic.Int64
		var wg sync.WaitGroup
		next := 1
		for _, calls := range callers {
			first := next
			for _, n := range calls {
				next += n
			}
			wg.Go(func() {
				at := first
				for _, n := range calls {
					items := seq(at, n)
					at += n
					if n%3 == 0 {
						items[0] = -items[0]
					}
					res, err := b.SubmitAll(context.Background(), items)
					if errors.Is(err, batch.ErrFull) && o.Waiting > 0 {
						refused.Add(int64(n))
						continue
					}
					if err != nil || len(res) != n {
						t.Errorf("%v, %v", res, err)
						return
					}
					taken.Add(int64(n))
					for i, r := range res {
						if want := double(items[i : i+1])[0]; r.Value != want.Value || fmt.Sprint(r.Err) != fmt.Sprint(want.Err) {
							t.Errorf("item %d: %v, want %v", items[i], r, want)
						}
					}
				}
			})
		}
		wg.Wait()
		if err := b.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if most.Load() > int64(o.Flushes) || largest.Load() > int64(o.Max) {
			t.Errorf("%d flushes at once, the largest %d: %+v", most.Load(), largest.Load(), o)
		}
		if int64(len(seen)) != taken.Load() || taken.Load()+refused.Load() != int64(next-1) {
			t.Errorf("%d flushed, %d taken, %d refused, %d submitted", len(seen), taken.Load(), refused.Load(), next-1)
		}
		for n, times := range seen {
			if times != 1 {
				t.Errorf("item %d was flushed %d times", n, times)
			}
		}
	})
}
