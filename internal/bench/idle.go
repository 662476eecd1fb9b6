package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/task"
)

// idle is what a system takes that has nothing to do.
var idle = &part{
	name: "idle", group: "size", most: 1,
	about: func(b *bench) string {
		return fmt.Sprintf(`nothing is enqueued and no worker runs; for %s each: no task, %s and %s tasks that wait, in one queue, with one and with two orchestrators. Immediate:
due, but nobody works on them. Scheduled: due in a year. Expiring: immediate, to be cancelled if not started within a year. After they are
enqueued Postgres is vacuumed, and all is left alone for a while`, b.idle, thousands(b.future/10), thousands(b.future))
	},
	once: []func(*bench, context.Context, *system) error{(*bench).idleEmpty, (*bench).idleWaiting},
}

// settle is by how much the time in which a system is left alone is shorter than
// that in which it is looked at.
const settle = 4

const year = 365 * 24 * time.Hour

// waitings are the kinds of tasks that wait.
var waitings = []struct {
	name string
	make func(*task.Request)
}{
	{"immediate", func(*task.Request) {}},
	{"scheduled", func(r *task.Request) { r.Delay = year }},
	{"expiring", func(r *task.Request) { r.StartWithin = year }},
}

func (b *bench) idleEmpty(ctx context.Context, s *system) error {
	return b.lookIdle(ctx, s, "no task")
}

func (b *bench) idleWaiting(ctx context.Context, _ *system) error {
	for _, w := range waitings {
		if err := b.closeSystems(); err != nil { // the others' background work would be seen
			return err
		}
		s, err := b.system(ctx, w.name, nil)
		if err != nil {
			return err
		}
		q, there := newQueue(), 0
		for _, n := range []int{max(1, b.future/10), b.future} {
			_, err := s.enqueueAll(ctx, n-there, func(int) *task.Request {
				r := &task.Request{Type: noop.Name(), Queue: q, Payload: b.payload}
				w.make(r)
				return r
			})
			if err != nil {
				return err
			}
			there = n
			if err := b.lookIdle(ctx, s, fmt.Sprintf("%s %s", thousands(n), w.name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookIdle looks at a system with one orchestrator, and then with two.
func (b *bench) lookIdle(ctx context.Context, s *system, what string) error {
	if err := s.quiesce(ctx); err != nil {
		return err
	}
	if err := b.lookOnce(ctx, s, what+", 1 orchestrator"); err != nil {
		return err
	}
	if err := s.addOrchestrator(ctx); err != nil {
		return err
	}
	return errors.Join(b.lookOnce(ctx, s, what+", 2 orchestrators"), s.dropOrchestrator())
}

func (b *bench) lookOnce(ctx context.Context, s *system, what string) error {
	if err := pause(ctx, b.idle/settle); err != nil {
		return err
	}
	u, err := s.timed(ctx, what, func() error { return pause(ctx, b.idle) })
	if err != nil {
		return err
	}
	percent := func(cpu float64) float64 { return 100 * cpu / u.took.Seconds() }
	b.add(what+": all servers", "% of a CPU", "", percent(u.servers()))
	b.add(what+": of that, orchestrators", "% of a CPU", "", percent(u.orchestrators))
	return nil
}
