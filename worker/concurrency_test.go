package worker_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// gauge counts how many handlers run at once.
type gauge struct{ now, most, total atomic.Int32 }

func (g *gauge) enter() {
	n := g.now.Add(1)
	for m := g.most.Load(); n > m && !g.most.CompareAndSwap(m, n); m = g.most.Load() {
	}
	g.total.Add(1)
}

func (g *gauge) leave() { g.now.Add(-1) }

func TestConcurrencyIsRespectedAndUsed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var g gauge
	full := make(chan struct{})
	b.raw(worker.Options{Concurrency: 4}, func(context.Context, *task.Raw) (json.RawMessage, error) {
		g.enter()
		defer g.leave()
		if g.now.Load() == 4 && g.total.Load() == 4 {
			close(full)
		}
		<-full
		return nil, nil
	})
	for _, id := range b.enqueueMany(60, "") {
		b.wait(id)
	}
	if g.most.Load() != 4 || g.total.Load() != 60 {
		t.Errorf("at most %d handlers ran at once, %d in all; want 4 and 60", g.most.Load(), g.total.Load())
	}
}

// A queue without work does not keep slots from one that has some.
func TestSeveralQueues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var g gauge
	full, queues := make(chan struct{}), make(chan string, 100)
	b.raw(worker.Options{Concurrency: 8, Queues: []string{"busy", "quiet", "default"}}, func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
		g.enter()
		defer g.leave()
		queues <- r.Queue
		if r.Queue == "busy" {
			if g.now.Load() == 6 && g.total.Load() == 6 {
				close(full)
			}
			<-full
		}
		return nil, nil
	})
	busy := b.enqueueMany(40, "busy") // 6 of 8: the two others' readers hold a slot each
	for _, id := range busy {
		b.wait(id)
	}
	if g.most.Load() > 8 {
		t.Errorf("%d handlers ran at once, want at most 8", g.most.Load())
	}
	for _, id := range append(b.enqueueMany(3, "quiet"), b.enqueueMany(3, "")...) {
		b.wait(id)
	}
	got := map[string]int{}
	for range 46 {
		got[receive(t, "a queue's name", queues)]++
	}
	if got["busy"] != 40 || got["quiet"] != 3 || got["default"] != 3 {
		t.Errorf("handlers ran for queues %v", got)
	}
	testkit.VerifyLog(t, b.Stores)
}
