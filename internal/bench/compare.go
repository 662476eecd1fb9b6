package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// load is so many tasks that do nothing.
type load struct {
	n       int
	payload []byte
	queues  int
}

// load is what most parts measure with.
func (b *bench) load() load { return load{n: b.n, payload: b.payload, queues: 1} }

// drained is what it took to enqueue and to drain a load.
type drained struct {
	enqueue, handled, recorded spent
}

// enqueueDrain fills new queues, then lets a worker empty them. Sections are named
// with the prefix.
func (s *system) enqueueDrain(ctx context.Context, prefix string, l load) (d drained, err error) {
	queues, base, began := make([]string, l.queues), newQueue(), time.Now()
	for i := range queues {
		queues[i] = fmt.Sprintf("%s-%d", base, i)
	}
	d.enqueue, err = s.timed(ctx, prefix+"enqueue", func() error {
		_, err := s.enqueueAll(ctx, l.n, noops(l.payload, queues...))
		return err
	})
	if err != nil {
		return d, err
	}
	m, err := s.meter(ctx, prefix+"drain")
	if err != nil {
		return d, err
	}
	c := newCounter(l.n)
	stop, err := s.noopWorker(ctx, c.hit, queues...)
	if err != nil {
		return d, err
	}
	err = c.wait(ctx)
	if d.handled = m.lap(); err == nil {
		err = s.onRecord(ctx, queues...)
	}
	var stopped error
	d.recorded, stopped = m.stop(ctx)
	if err := errors.Join(err, stopped, stop()); err != nil {
		return d, err
	}
	return d, s.succeeded(ctx, began.Add(-time.Minute), l.n, queues...)
}

// compare measures a load, and notes it under a name, beside that of another name.
func (b *bench) compare(ctx context.Context, s *system, name, base string, l load) error {
	d, err := s.enqueueDrain(ctx, name+": ", l)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b.rate(name+": enqueue", base+": enqueue", l.n, d.enqueue)
	b.rate(name+": drain", base+": drain", l.n, d.recorded)
	return nil
}

// pair is a system and what its figures are called.
type pair struct {
	name string
	s    *system
}

// inTurn compares the systems with the first one. Who is measured last in one
// repetition is first in the next.
func (b *bench) inTurn(ctx context.Context, systems ...pair) error {
	base := systems[0].name
	if b.turns++; b.turns%2 == 0 {
		systems = slices.Clone(systems)
		slices.Reverse(systems)
	}
	for _, x := range systems {
		if err := b.compare(ctx, x.s, x.name, base, b.load()); err != nil {
			return err
		}
	}
	return nil
}
