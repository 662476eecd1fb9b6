package main

import (
	"context"
	"fmt"
)

// counts are the numbers of orchestrators and queues that are compared.
var (
	orchestratorCounts = []int{1, 2, 3}
	queueCounts        = []int{1, 10, 50}
	payloadSizes       = []int{smallPayload, 4 << 10, largePayload}
)

// orchestrators is what more of them bring.
var orchestrators = &part{
	name: "orchestrators", group: "shapes", ratio: "1 orchestrator",
	about: func(b *bench) string {
		return fmt.Sprintf(`%d tasks enqueued and drained by 1, 2 and 3 orchestrators, which share this machine and its one Postgres: in turn, on servers of their own. The
callers who enqueue share the orchestrators; there is one worker`, b.n)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).severalOrchestrators},
}

func (b *bench) severalOrchestrators(ctx context.Context, _ *system) error {
	for _, n := range orchestratorCounts {
		key := map[bool]string{false: fmt.Sprint(n)}[n == 1] // one is what there is anyway
		s, err := b.system(ctx, key, func(ctx context.Context, s *system) error {
			for len(s.orchestrators) < n {
				if err := s.addOrchestrator(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := b.compare(ctx, s, plural(n, "orchestrator"), plural(orchestratorCounts[0], "orchestrator"), b.load()); err != nil {
			return err
		}
	}
	return nil
}

// queues is the same work in more queues.
var queues = &part{
	name: "queues", group: "shapes", ratio: "1 queue",
	about: func(b *bench) string {
		return fmt.Sprintf("%d tasks enqueued and drained, in 1, 10 and 50 queues in turn; one worker of %d slots for all of them", b.n, concurrency)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).severalQueues},
}

func (b *bench) severalQueues(ctx context.Context, s *system) error {
	for _, n := range queueCounts {
		l := b.load()
		l.queues = n
		if err := b.compare(ctx, s, plural(n, "queue"), plural(queueCounts[0], "queue"), l); err != nil {
			return err
		}
	}
	return nil
}

// payloads is the same work with more to carry.
var payloads = &part{
	name: "payloads", group: "shapes", ratio: fmt.Sprintf("%d B", smallPayload),
	about: func(b *bench) string {
		return fmt.Sprintf("tasks with payloads of 200 B, 4 KB and 64 KB, %d, %d and %d of them: enqueued and drained, in turn",
			b.sized(smallPayload), b.sized(4<<10), b.sized(largePayload))
	},
	once: []func(*bench, context.Context, *system) error{(*bench).severalPayloads},
}

// sized is how many tasks of a payload's size are measured: of the largest ones
// fewer, so that Redis holds less than a gigabyte of them.
func (b *bench) sized(payload int) int {
	if payload == largePayload {
		return max(1, b.n/10)
	}
	return b.n
}

func (b *bench) severalPayloads(ctx context.Context, s *system) error {
	for _, size := range payloadSizes {
		name := func(size int) string {
			if size < 1<<10 {
				return fmt.Sprintf("%d B", size)
			}
			return fmt.Sprintf("%d KB", size>>10)
		}
		l := load{n: b.sized(size), payload: payloadOf(size), queues: 1}
		if err := b.compare(ctx, s, name(size), name(smallPayload), l); err != nil {
			return err
		}
	}
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// thousands writes a number so that it can be read.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
