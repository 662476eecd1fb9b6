package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-dev/penstock/task"
)

// drain is how fast tasks are accepted, and run.
var drain = &part{
	name: "drain", group: "throughput", ratio: "raw",
	about: func(b *bench) string {
		return fmt.Sprintf(`%d tasks that do nothing, payload %d bytes: all enqueued, then drained by a worker with %d slots; and a fifth as many
enqueued by single calls, while a worker drains them. Ratios are to the raw go-redis loop of the
same run, which keeps no record. CPU is that of orchestrator, Redis and Postgres; that of client and worker is this process'`, b.n, len(b.payload), concurrency)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).rawEnqueueDrain, (*bench).enqueueDrain, (*bench).single},
}

func (b *bench) enqueueDrain(ctx context.Context, s *system) error {
	d, err := s.enqueueDrain(ctx, "", b.load())
	if err != nil {
		return err
	}
	b.add("enqueue, batches through the RPC", "tasks/s", rawAdd, float64(b.n)/d.enqueue.took.Seconds())
	b.add("drain, until the last handler ran", "tasks/s", rawDrain, float64(b.n)/d.handled.took.Seconds())
	b.add("drain, until the last result is on record", "tasks/s", rawDrain, float64(b.n)/d.recorded.took.Seconds())
	for _, x := range []struct {
		what string
		u    spent
	}{{"enqueue", d.enqueue}, {"drain", d.recorded}} {
		per := 1000 / float64(b.n)
		b.add(x.what+", CPU for 1,000: servers", "CPU s", "", x.u.servers()*per)
		b.add(x.what+", CPU for 1,000: orchestrator", "CPU s", "", x.u.orchestrators*per)
		b.add(x.what+", CPU for 1,000: Postgres", "CPU s", "", x.u.postgres*per)
		b.add(x.what+", CPU for 1,000: Redis", "CPU s", "", x.u.redis*per)
		b.add(x.what+", CPU for 1,000: client and worker", "CPU s", "", x.u.own*per)
	}
	return nil
}

// through is enqueueing and draining at the same time.
var through = &part{
	name: "through", group: "throughput", ratio: "raw",
	about: func(b *bench) string {
		return fmt.Sprintf("%d tasks enqueued while a worker drains them. Ratios are to the raw go-redis loop", b.n)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).rawThrough, (*bench).through},
}

// through enqueues and drains at the same time.
func (b *bench) through(ctx context.Context, s *system) error {
	q, began, c := newQueue(), time.Now(), newCounter(b.n)
	stop, err := s.noopWorker(ctx, c.hit, q)
	if err != nil {
		return err
	}
	u, err := s.timed(ctx, "through", func() error {
		if _, err := s.enqueueAll(ctx, b.n, noops(b.payload, q)); err != nil {
			return err
		}
		if err := c.wait(ctx); err != nil {
			return err
		}
		return s.onRecord(ctx, q)
	})
	if err != nil {
		return errors.Join(err, stop())
	}
	b.rate("through: enqueue → run → on record", rawThrough, b.n, u)
	return errors.Join(stop(), s.succeeded(ctx, began.Add(-time.Minute), b.n, q))
}

// single makes one Enqueue call a task from many goroutines; the client and
// the orchestrator gather them into batches.
func (b *bench) single(ctx context.Context, s *system) error {
	q, n := newQueue(), b.n/5
	c := newCounter(n)
	stop, err := s.noopWorker(ctx, c.hit, q)
	if err != nil {
		return err
	}
	u, err := s.timed(ctx, "single", func() error { return s.singles(ctx, n, q) })
	if err != nil {
		return errors.Join(err, stop())
	}
	b.rate("enqueue, single calls from 64 goroutines", rawAdd, n, u)
	return errors.Join(c.wait(ctx), s.onRecord(ctx, q), stop())
}

func (s *system) singles(ctx context.Context, n int, queue string) error {
	const callers = 64
	var wg sync.WaitGroup
	var next atomic.Int64
	errs := make(chan error, callers)
	for range callers {
		wg.Go(func() {
			for int(next.Add(1)) <= n {
				if _, err := s.client.EnqueueTask(ctx, &task.Request{Type: noop.Name(), Queue: queue, Payload: s.b.payload}); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// elapsed turns a count and a start into a rate.
func elapsed(n int, since time.Time) float64 { return float64(n) / time.Since(since).Seconds() }
