package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-dev/penstock/inject"
	"github.com/penstock-dev/penstock/task"
)

// poison is what a type that always fails does to another one beside it.
var poison = &part{
	name: "poison", group: "failures", ratio: "alone",
	about: func(b *bench) string {
		return fmt.Sprintf(`healthy tasks (%d in the system at any time: as one is done, another is enqueued) alone, and next to as many poison tasks in the same queue
and worker, which fail every time, are retried after 1 ms and never give up; %s each, after %s of warm-up. The healthy type's share
of slots is its part of the time for which slots are taken: by the handler, and by the turn from one execution to the next, as long as
it is alone (slots / rate - handler). Where no handler takes time it is its part of the executions, and the processors are full, not the slots`, circulating, b.window, warmUp)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).poisoned},
}

// circulating is how many tasks of each type are in the system, warmUp how long
// they are before anything is counted.
const (
	circulating = 100
	warmUp      = 500 * time.Millisecond
)

// mix is one setting: how long the handlers take, and the worker's slots.
type mix struct {
	name            string
	healthy, poison time.Duration
	slots           int
}

var mixes = []mix{
	{"both take 10 ms, 20 slots", 10 * time.Millisecond, 10 * time.Millisecond, 20},
	{"healthy takes 10 ms, poison none, 20 slots", 10 * time.Millisecond, 0, 20},
	{"neither takes time, 100 slots", 0, 0, 100},
}

func (b *bench) poisoned(ctx context.Context, s *system) error {
	for _, m := range mixes {
		alone, _, err := s.run(ctx, m, false)
		if err != nil {
			return err
		}
		mixed, failing, err := s.run(ctx, m, true)
		if err != nil {
			return err
		}
		share := m.share(alone, mixed, failing)
		base := m.name + ": healthy alone"
		b.add(base, "tasks/s", base, alone)
		b.add(m.name+": healthy next to poison", "tasks/s", base, mixed)
		b.add(m.name+": its share of slots", "of 1", "", share)
		b.add(m.name+": rate kept, by that share (target ≥ 1)", "of 1", "", mixed/alone/share)
	}
	return nil
}

// share is the healthy type's part of the slots' time, from its rate alone and
// the rates of both.
func (m mix) share(alone, healthy, failing float64) float64 {
	turn := float64(m.slots)/alone - m.healthy.Seconds()
	h, f := healthy*(m.healthy.Seconds()+turn), failing*(m.poison.Seconds()+turn)
	return h / (h + f)
}

// handled counts executions of one type.
type handled struct{ n atomic.Int64 }

// taking is a handler that takes a while, and counts.
func (h *handled) taking(d time.Duration, then func(*task.Raw)) task.Handler {
	return func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
		if d > 0 {
			if err := pause(ctx, d); err != nil {
				return nil, err
			}
		}
		h.n.Add(1)
		then(r)
		return nil, nil
	}
}

// run measures one setting and returns the executions a second of both types.
func (s *system) run(ctx context.Context, m mix, withPoison bool) (ok, failing float64, err error) {
	var healthy, bad handled
	ran := make([]chan struct{}, circulating) // by the healthy task's number
	for i := range ran {
		ran[i] = make(chan struct{}, 1)
	}
	q := newQueue()
	always := inject.Plan{Mode: inject.TransientError, Always: true, AfterHandler: true}
	stop, err := s.work(ctx, []string{q}, m.slots, map[string]task.Handler{
		"bench.poison": inject.Wrap(always, bad.taking(m.poison, func(*task.Raw) {})),
		"bench.healthy": healthy.taking(m.healthy, func(r *task.Raw) {
			if i, err := strconv.Atoi(string(r.Payload)); err == nil {
				ran[i] <- struct{}{}
			}
		}),
	})
	if err != nil {
		return 0, 0, err
	}
	if withPoison {
		most := 1000
		_, err := s.enqueueAll(ctx, circulating, func(int) *task.Request {
			return &task.Request{
				Type: "bench.poison", Queue: q, Payload: json.RawMessage(`{}`), MaxRetries: &most,
				Retry: &task.Retry{Strategy: "fixed", Base: time.Millisecond, NoJitter: true},
			}
		})
		if err != nil {
			return 0, 0, err
		}
	}
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := s.circulate(cctx, q, ran)
	for _, d := range []time.Duration{warmUp, s.b.window} { // the warm-up is counted away
		healthy.n.Store(0)
		bad.n.Store(0)
		began := time.Now()
		if err := pause(ctx, d); err != nil {
			return 0, 0, err
		}
		ok, failing = elapsed(int(healthy.n.Load()), began), elapsed(int(bad.n.Load()), began)
	}
	cancel()
	if err := failed(); err != nil {
		return 0, 0, err
	}
	return ok, failing, stop()
}

// circulate keeps one task a channel in the system until ctx ends; the returned
// function waits for the end and returns what went wrong.
func (s *system) circulate(ctx context.Context, queue string, ran []chan struct{}) (failed func() error) {
	var wg sync.WaitGroup
	errs := make(chan error, len(ran))
	for i, c := range ran {
		wg.Go(func() {
			for ctx.Err() == nil {
				_, err := s.client.EnqueueTask(ctx, &task.Request{Type: "bench.healthy", Queue: queue, Payload: json.RawMessage(strconv.Itoa(i))})
				if err != nil {
					if ctx.Err() == nil {
						errs <- err
					}
					return
				}
				select {
				case <-c:
				case <-ctx.Done():
				}
			}
		})
	}
	return func() error {
		wg.Wait()
		select {
		case err := <-errs:
			return err
		default:
			return nil
		}
	}
}
