package main

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/task"
)

// future is what very many tasks cost that are not due for long.
var future = &part{
	name: "future", group: "size", ratio: "none waiting",
	about: func(b *bench) string {
		return fmt.Sprintf(`%d tasks that are due now enqueued and drained, in turn in a system where %s tasks wait for a time a year away, and in one where none does.
Targets: enqueue slowed by less than 10%%, no memory of Redis`, b.n, thousands(b.future))
	},
	once: []func(*bench, context.Context, *system) error{(*bench).besideFuture},
}

func (b *bench) besideFuture(ctx context.Context, empty *system) error {
	full, err := b.system(ctx, "future", b.fillFuture)
	if err != nil {
		return err
	}
	return b.inTurn(ctx, pair{"none waiting", empty}, pair{"many waiting", full})
}

// fillFuture stores the tasks that wait, and measures what that takes in Redis.
func (b *bench) fillFuture(ctx context.Context, s *system) error {
	warmUp := load{n: min(b.future, 1000), payload: b.payload, queues: 1} // what Redis needs anyway
	if _, err := s.enqueueDrain(ctx, "warm-up: ", warmUp); err != nil {
		return err
	}
	before, at, q := s.raw.memory(ctx), time.Now().Add(year), newQueue()
	u, err := s.timed(ctx, "fill", func() error {
		_, err := s.enqueueAll(ctx, b.future, func(i int) *task.Request {
			return &task.Request{Type: noop.Name(), Queue: q, Payload: b.payload, At: at.Add(time.Duration(i) * time.Millisecond)}
		})
		return err
	})
	if err != nil {
		return err
	}
	b.rate("storing the tasks that wait", "", b.future, u)
	b.add("Redis memory, before", "MB", "", before)
	b.add("Redis memory, with the tasks that wait", "MB", "Redis memory, before", s.raw.memory(ctx))
	return s.quiesce(ctx)
}
