package main

import (
	"context"
	"fmt"
)

// backlog is draining when very much is queued.
var backlog = &part{
	name: "backlog", group: "size", ratio: "the short backlog", most: 1,
	about: func(b *bench) string {
		return fmt.Sprintf(`%s tasks enqueued and drained, then %s, then %s again, until the last result is on record; all of them through the client, before a worker
starts. The two short ones are one figure`, thousands(b.n), thousands(b.backlog), thousands(b.n))
	},
	once: []func(*bench, context.Context, *system) error{(*bench).longBacklog},
}

func (b *bench) longBacklog(ctx context.Context, s *system) error {
	name := func(n int) string { return thousands(n) + " queued" }
	for _, n := range []int{b.n, b.backlog, b.n} {
		l := b.load()
		l.n = n
		if err := b.compare(ctx, s, name(n), name(b.n), l); err != nil {
			return err
		}
	}
	return nil
}
