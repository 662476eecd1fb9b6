// Package unknown brings tasks back that were handed back because no worker that
// lived knew their type, once one does: they need not wait for the end of their
// delay, which may be a minute.
//
// It goes by what this process saw being handed back. What it does not know, e.g.
// after a restart, waits for its time.
package unknown

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

const (
	// interval is how often Redis is asked whether anybody knows the types; it is
	// not asked while no task waits.
	interval = 500 * time.Millisecond
	// maxTasks bounds how many tasks are remembered, maxKinds how many types.
	maxTasks, maxKinds = 10_000, 1000
	// perRound is how many tasks of a type one transaction brings back.
	perRound = 500
	// maxDelivery: a task that was handed back this often is left to its delays.
	// Workers that know of no offers may share its queue with one that knows it.
	maxDelivery = 8
)

// Task is one that was handed back.
type Task struct {
	ID          protocol.ID
	Queue, Type string
	Delivery    int64
}

// Options are the settings of a Stage.
type Options struct {
	Store *store.Store
	Redis *streams.Client
	// Wake is told when tasks become due.
	Wake func(time.Time)
	Log  *slog.Logger
}

// Stage brings tasks back.
type Stage struct {
	o    Options
	kick chan struct{}

	mu    sync.Mutex
	tasks map[streams.Kind]map[protocol.ID]bool
	count int
}

// New makes a Stage; Run works until its context ends.
func New(o Options) *Stage {
	return &Stage{o: o, kick: make(chan struct{}, 1), tasks: map[streams.Kind]map[protocol.ID]bool{}}
}

// Note remembers tasks that were handed back.
func (s *Stage) Note(tasks []Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tasks {
		k := streams.Kind{Queue: t.Queue, Type: t.Type}
		ids := s.tasks[k]
		if t.Delivery > maxDelivery || s.count >= maxTasks || ids == nil && len(s.tasks) >= maxKinds {
			continue
		}
		if ids == nil {
			ids = map[protocol.ID]bool{}
			s.tasks[k] = ids
		}
		if !ids[t.ID] {
			ids[t.ID] = true
			s.count++
		}
	}
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Run works until ctx ends.
func (s *Stage) Run(ctx context.Context) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	failing := false
	for {
		var next <-chan time.Time
		if len(s.kinds()) > 0 {
			next = tick.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.kick:
			continue
		case <-next:
		}
		err := lifecycle.Detach(ctx, func() error { return s.Look(ctx) })
		if err != nil && !failing && ctx.Err() == nil {
			s.o.Log.Warn("tasks of unknown types wait for the end of their delays", "error", err)
		}
		failing = err != nil
	}
}

func (s *Stage) kinds() []streams.Kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]streams.Kind, 0, len(s.tasks))
	for k := range s.tasks {
		out = append(out, k)
	}
	return out
}

// Look brings back the tasks whose type is known by now.
func (s *Stage) Look(ctx context.Context) error {
	kinds := s.kinds()
	known, err := s.o.Redis.Known(ctx, kinds)
	if err != nil {
		return err
	}
	for i, k := range kinds {
		if !known[i] {
			continue
		}
		ids := s.take(k)
		n := 0
		err := s.o.Store.Decide(ctx, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, _ []*protocol.Event) {
			for _, t := range tasks {
				if t.TypeKnown(now) {
					changed = append(changed, t)
				}
			}
			n = len(changed)
			return changed, nil
		})
		if err != nil {
			return err
		}
		if n > 0 {
			s.o.Log.Info("a worker knows the type now; tasks do not wait any longer", "queue", k.Queue, "type", k.Type, "tasks", n)
			s.o.Wake(time.Now())
		}
	}
	return nil
}

// take forgets some tasks of a kind, and returns them.
func (s *Stage) take(k streams.Kind) (ids []protocol.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.tasks[k] {
		if len(ids) == perRound {
			break
		}
		ids = append(ids, id)
		delete(s.tasks[k], id)
		s.count--
	}
	if len(s.tasks[k]) == 0 {
		delete(s.tasks, k)
	}
	return ids
}
