// Package batch gathers concurrent calls into batches without a timer: while
// one flush is in flight, arrivals wait; the next flush takes them all, up to
// a bound. An idle caller pays no added wait, a busy system shares its round
// trips.
package batch

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Errors of Submit.
var (
	// ErrClosed: the batcher was closed before the item was taken.
	ErrClosed = errors.New("batch: closed")
	// ErrFull: as many items wait as the batcher admits.
	ErrFull = errors.New("batch: too many items are waiting")
)

// Result is what a flush returns for one item.
type Result[R any] struct {
	Value R
	Err   error
}

// Options bound a Batcher.
type Options struct {
	// Max is the largest batch; at least 1.
	Max int
	// Flushes is how many flushes may run at once; at least 1.
	Flushes int
	// Waiting is how many items may wait for a flush; 0: no bound.
	Waiting int
	// MaxSize and WaitingSize bound the same by the items' total size, in the
	// unit of NewSized's function; 0: no bound. A single larger item is a batch
	// of its own.
	MaxSize, WaitingSize int
}

// Batcher turns single items into batches. It is safe for concurrent use.
type Batcher[T, R any] struct {
	flush func(ctx context.Context, items []T) []Result[R]
	size  func(T) int
	opt   Options

	mu      sync.Mutex
	waiting []entry[T, R]
	total   int // size of what waits
	running int
	closed  bool
	idle    chan struct{} // closed when closed and nothing runs or waits
	ctx     context.Context
	cancel  context.CancelFunc
}

type entry[T, R any] struct {
	item T
	size int
	done chan Result[R] // buffered: the flusher never blocks on a caller that left
}

// New makes a Batcher. flush gets 1 to Max items and returns one result for
// each, in order; its context ends only when Close gives up waiting.
func New[T, R any](o Options, flush func(ctx context.Context, items []T) []Result[R]) *Batcher[T, R] {
	return NewSized(o, func(T) int { return 0 }, flush)
}

// NewSized is New for items whose size matters; size is called once an item.
func NewSized[T, R any](o Options, size func(T) int, flush func(ctx context.Context, items []T) []Result[R]) *Batcher[T, R] {
	o.Max, o.Flushes = max(o.Max, 1), max(o.Flushes, 1)
	b := &Batcher[T, R]{flush: flush, size: size, opt: o, idle: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Submit hands an item in and waits for its result. If ctx ends first it
// returns ctx's error, and whether the item was processed is open.
func (b *Batcher[T, R]) Submit(ctx context.Context, item T) (R, error) {
	done, err := b.add(item, b.opt.Waiting)
	if err != nil {
		var zero R
		return zero, err
	}
	select {
	case r := <-done[0]:
		return r.Value, r.Err
	case <-ctx.Done():
		var zero R
		return zero, ctx.Err()
	}
}

// SubmitAll hands several items in at once, in order, and waits for all
// results. Either all of them are taken or none (ErrFull, ErrClosed). If ctx
// ends first, results that are still open carry ctx's error.
func (b *Batcher[T, R]) SubmitAll(ctx context.Context, items []T) ([]Result[R], error) {
	done, err := b.addAll(items, b.opt.Waiting)
	if err != nil {
		return nil, err
	}
	out := make([]Result[R], len(items))
	for i, d := range done {
		select {
		case out[i] = <-d:
		case <-ctx.Done():
			select {
			case out[i] = <-d:
			default:
				out[i].Err = ctx.Err()
			}
		}
	}
	return out, nil
}

// Go hands an item in without waiting; the result is dropped. It is never
// refused as full, so that work that must not be lost can always be handed in.
func (b *Batcher[T, R]) Go(item T) error {
	_, err := b.add(item, 0)
	return err
}

func (b *Batcher[T, R]) add(item T, limit int) ([]chan Result[R], error) {
	return b.addAll([]T{item}, limit)
}

func (b *Batcher[T, R]) addAll(items []T, limit int) ([]chan Result[R], error) {
	entries, sum := make([]entry[T, R], len(items)), 0
	for i, item := range items {
		entries[i] = entry[T, R]{item, b.size(item), make(chan Result[R], 1)}
		sum += entries[i].size
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrClosed
	}
	if limit > 0 && len(b.waiting) > 0 && (len(b.waiting)+len(items) > limit || b.opt.WaitingSize > 0 && b.total+sum > b.opt.WaitingSize) {
		return nil, ErrFull
	}
	done := make([]chan Result[R], len(items))
	for i, e := range entries {
		done[i] = e.done
	}
	b.waiting, b.total = append(b.waiting, entries...), b.total+sum
	b.start()
	return done, nil
}

// start begins flushes while there is work and room; the lock is held.
func (b *Batcher[T, R]) start() {
	for len(b.waiting) > 0 && b.running < b.opt.Flushes {
		n := b.next()
		batch := b.waiting[:n:n]
		b.waiting = b.waiting[n:]
		b.running++
		go b.run(batch)
	}
	if len(b.waiting) == 0 {
		b.waiting = nil // let go of the backing array
		if b.closed && b.running == 0 {
			close(b.idle)
		}
	}
}

// next returns how many of the waiting items are the next batch, and takes
// their size off the total.
func (b *Batcher[T, R]) next() (n int) {
	size := 0
	for n < min(len(b.waiting), b.opt.Max) {
		s := b.waiting[n].size
		if n > 0 && b.opt.MaxSize > 0 && size+s > b.opt.MaxSize {
			break
		}
		size += s
		n++
	}
	b.total -= size
	return n
}

func (b *Batcher[T, R]) run(batch []entry[T, R]) {
	defer func() {
		b.mu.Lock()
		b.running--
		b.start()
		b.mu.Unlock()
	}()
	items := make([]T, len(batch))
	for i, e := range batch {
		items[i] = e.item
	}
	results := b.flush(b.ctx, items)
	for i, e := range batch {
		if i < len(results) {
			e.done <- results[i]
		} else {
			e.done <- Result[R]{Err: fmt.Errorf("batch: flush returned %d results for %d items", len(results), len(batch))}
		}
	}
}

// Len returns how many items wait for a flush.
func (b *Batcher[T, R]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

// Close takes no more items and waits until all that were taken are flushed.
// When ctx ends first, the flushes' context is cancelled and ctx's error
// returned.
func (b *Batcher[T, R]) Close(ctx context.Context) error {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		if len(b.waiting) == 0 && b.running == 0 {
			close(b.idle)
		}
	}
	b.mu.Unlock()
	defer b.cancel()
	select {
	case <-b.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
