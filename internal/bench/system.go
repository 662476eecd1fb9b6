package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

var noop = task.Define[json.RawMessage]("bench.noop")

func counting(hit func()) task.Handler {
	return func(context.Context, *task.Raw) (json.RawMessage, error) {
		hit()
		return nil, nil
	}
}

// counter tells when the n-th task ran.
type counter struct {
	n    int64
	c    atomic.Int64
	done chan struct{}
}

func newCounter(n int) *counter { return &counter{n: int64(n), done: make(chan struct{})} }

func (c *counter) hit() {
	if c.c.Add(1) == c.n {
		close(c.done)
	}
}

func (c *counter) wait(ctx context.Context) error {
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(5 * time.Minute):
		return fmt.Errorf("only %d of %d tasks ran within 5 minutes", c.c.Load(), c.n)
	}
}

func (b *bench) queue() string { return fmt.Sprintf("bench-%d", time.Now().UnixNano()) }

// enqueueAll enqueues n tasks through the RPC in batches from a few callers
// and returns their ids in order.
func (b *bench) enqueueAll(ctx context.Context, n int, request func(i int) *task.Request) ([]string, error) {
	const chunk, callers = 500, 4
	var wg sync.WaitGroup
	var next atomic.Int64
	ids, errs := make([]string, n), make(chan error, callers)
	for range callers {
		wg.Go(func() {
			for {
				from := int(next.Add(chunk)) - chunk
				if from >= n {
					return
				}
				if err := b.enqueueChunk(ctx, ids[from:min(from+chunk, n)], from, request); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return nil, err
	default:
		return ids, nil
	}
}

func (b *bench) enqueueChunk(ctx context.Context, ids []string, from int, request func(i int) *task.Request) error {
	reqs := make([]*task.Request, len(ids))
	for i := range reqs {
		reqs[i] = request(from + i)
	}
	res, err := b.client.EnqueueMany(ctx, reqs)
	if err != nil {
		return err
	}
	for i, r := range res {
		if r.Err != nil {
			return r.Err
		}
		ids[i] = r.Value.TaskID
	}
	return nil
}

// noops makes requests of tasks that do nothing.
func (b *bench) noops(queue string) func(int) *task.Request {
	return func(int) *task.Request { return &task.Request{Type: noop.Name(), Queue: queue, Payload: b.payload} }
}

// finished waits until every task of the queue, all of which have run, succeeded
// on record.
func (b *bench) finished(ctx context.Context, queue string, n int) error {
	// Counting in Postgres is work that would be measured too: it comes last.
	for b.raw.open(ctx, protocol.StreamResult, protocol.GroupOrchestrators) > 0 {
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return b.become(ctx, queue, "succeeded", n, 20*time.Millisecond)
}

// become waits until the queue's tasks are n in one state and none in another;
// it looks every so often.
func (b *bench) become(ctx context.Context, queue, state string, n int, every time.Duration) error {
	for {
		res, err := b.client.RPC().CountTasks(ctx, connect.NewRequest(&penstockv1.CountTasksRequest{Queue: queue}))
		if err != nil {
			return err
		}
		if c := res.Msg.Counts; len(c) == 1 && c[0].State == state && c[0].Count == int64(n) {
			return nil
		}
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// enqueueDrain fills a queue, then lets a worker empty it.
func (b *bench) enqueueDrain(ctx context.Context) error {
	q := b.queue()
	t := time.Now()
	if _, err := b.enqueueAll(ctx, b.n, b.noops(q)); err != nil {
		return err
	}
	b.add("enqueue, batches through the RPC", "tasks/s", "raw: XADD, pipelines of 100", elapsed(b.n, t))
	c := newCounter(b.n)
	t = time.Now()
	stop, err := b.noopWorker(ctx, q, c.hit)
	if err != nil {
		return err
	}
	if err := c.wait(ctx); err != nil {
		return err
	}
	b.add("drain, until the last handler ran", "tasks/s", "raw: drain (XREADGROUP, XACK)", elapsed(b.n, t))
	if err := b.finished(ctx, q, b.n); err != nil {
		return err
	}
	b.add("drain, until the last result is on record", "tasks/s", "raw: drain (XREADGROUP, XACK)", elapsed(b.n, t))
	return stop()
}

// through enqueues and drains at the same time.
func (b *bench) through(ctx context.Context) error {
	q := b.queue()
	c := newCounter(b.n)
	stop, err := b.noopWorker(ctx, q, c.hit)
	if err != nil {
		return err
	}
	t := time.Now()
	if _, err := b.enqueueAll(ctx, b.n, b.noops(q)); err != nil {
		return err
	}
	if err := c.wait(ctx); err != nil {
		return err
	}
	if err := b.finished(ctx, q, b.n); err != nil {
		return err
	}
	b.add("through: enqueue → run → on record", "tasks/s", "raw: through (XADD and drain at once)", elapsed(b.n, t))
	return stop()
}

// single makes one Enqueue call a task from many goroutines; the client and
// the orchestrator gather them into batches.
func (b *bench) single(ctx context.Context) error {
	q := b.queue()
	n, callers := b.n/5, 64
	c := newCounter(n)
	stop, err := b.noopWorker(ctx, q, c.hit)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var next atomic.Int64
	errs := make(chan error, callers)
	t := time.Now()
	for range callers {
		wg.Go(func() {
			for int(next.Add(1)) <= n {
				if _, err := b.client.EnqueueTask(ctx, &task.Request{Type: noop.Name(), Queue: q, Payload: b.payload}); err != nil {
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
	}
	b.add("enqueue, single calls from 64 goroutines", "tasks/s", "raw: XADD, pipelines of 100", elapsed(n, t))
	if err := errors.Join(c.wait(ctx), b.finished(ctx, q, n)); err != nil {
		return err
	}
	return stop()
}

const latencyRate = 500

// startLatency enqueues single tasks at a fixed pace and measures from the
// call to the start of the handler.
func (b *bench) startLatency(ctx context.Context) error {
	q := b.queue()
	lat := newLatencies(b.latency)
	stop, err := b.noopWorkerTimed(ctx, q, lat)
	if err != nil {
		return err
	}
	err = pace(ctx, b.latency, func(i int) error {
		lat.sent(i)
		p := fmt.Appendf(nil, `{"i":%d}`, i)
		_, err := b.client.EnqueueTask(ctx, &task.Request{Type: noop.Name(), Queue: q, Payload: p})
		return err
	})
	if err != nil {
		return err
	}
	if err := lat.wait(ctx); err != nil {
		return err
	}
	p50, p99 := lat.percentiles()
	b.add("start latency at 500/s, p50", "ms", "raw: start latency at 500/s, p50", p50)
	b.add("start latency at 500/s, p99", "ms", "raw: start latency at 500/s, p99", p99)
	return stop()
}

// noopWorkerTimed is noopWorker with a handler that notes when it starts.
func (b *bench) noopWorkerTimed(ctx context.Context, queue string, lat *latencies) (stop func() error, err error) {
	return b.work(ctx, queue, concurrency, map[string]task.Handler{noop.Name(): func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
		var p struct {
			I int `json:"i"`
		}
		if err := json.Unmarshal(r.Payload, &p); err != nil {
			return nil, err
		}
		lat.started(p.I)
		return nil, nil
	}})
}

// pace calls send(i) in its own goroutine at latencyRate, open loop.
func pace(ctx context.Context, n int, send func(i int) error) error {
	var wg sync.WaitGroup
	errs := make(chan error, n)
	t := time.Now()
	for i := range n {
		if d := time.Until(t.Add(time.Duration(i) * time.Second / latencyRate)); d > 0 {
			if err := pause(ctx, d); err != nil {
				return err
			}
		}
		wg.Go(func() {
			if err := send(i); err != nil {
				errs <- err
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

// latencies are the times from a call to the start of its handler; the first
// tenth is warm-up and left out.
type latencies struct {
	mu    sync.Mutex
	at    []time.Time
	took  []float64
	count *counter
}

func newLatencies(n int) *latencies {
	return &latencies{at: make([]time.Time, n), count: newCounter(n)}
}

func (l *latencies) sent(i int) {
	l.mu.Lock()
	l.at[i] = time.Now()
	l.mu.Unlock()
}

func (l *latencies) started(i int) {
	now := time.Now()
	l.mu.Lock()
	if i >= len(l.at)/10 {
		l.took = append(l.took, float64(now.Sub(l.at[i]).Microseconds())/1000)
	}
	l.mu.Unlock()
	l.count.hit()
}

func (l *latencies) wait(ctx context.Context) error { return l.count.wait(ctx) }

func (l *latencies) percentiles() (p50, p99 float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.took)
	return l.took[len(l.took)/2], l.took[len(l.took)*99/100]
}
