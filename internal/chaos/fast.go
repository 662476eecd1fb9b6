package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// fast is a load of cheap tasks beside the normal one. It comes in batches as large
// as a client may send, so that orchestrators, workers and stores are broken in the
// middle of full batches, too. What it could not send while nobody took it is owed,
// and sent afterwards.
type fast struct {
	rate int
	// full: more tasks than the bound have not ended, and nothing is enqueued.
	full atomic.Bool
	// sent counts the tasks that were asked for; owed are those that are due and were
	// not, by producer, in the end.
	sent atomic.Int64
	owed [producers]atomic.Int64
	// most is the largest backlog, paused how long the load waited in nanoseconds.
	most, paused atomic.Int64
}

const (
	// maxBatch is the most tasks of one call.
	maxBatch = 1000
	// maxFast bounds -fast: the harness keeps all tasks in memory.
	maxFast = 20_000
	// singly bounds how many tasks of a batch are enqueued one by one beside it.
	singly = 10
)

// keyed is the kind of which two requests with different ids share a key.
const keyed = "cheap-keyed"

// fastKinds are the cheap tasks.
var fastKinds = []kind{
	{"cheap", 780, func(*load, *rand.Rand, *payload, *task.Request, *check.Task) {}},
	{"cheap-delayed", 60, func(_ *load, r *rand.Rand, _ *payload, req *task.Request, _ *check.Task) {
		req.Delay = time.Duration(100+r.IntN(2000)) * time.Millisecond
	}},
	{"cheap-flaky", 50, func(_ *load, _ *rand.Rand, p *payload, _ *task.Request, t *check.Task) {
		p.Fail, t.Attempt = 1, 2
	}},
	{"cheap-failing", 15, func(_ *load, _ *rand.Rand, p *payload, _ *task.Request, t *check.Task) {
		p.Permanent, t.State = true, string(protocol.StateFailed)
	}},
	{"cheap-lasting", 15, func(_ *load, r *rand.Rand, p *payload, _ *task.Request, _ *check.Task) {
		p.MS = 100 + r.IntN(400)
	}},
	{keyed, 80, func(_ *load, _ *rand.Rand, p *payload, req *task.Request, t *check.Task) {
		req.Key, t.Key = fmt.Sprintf("key-%d", p.N), &check.Key{}
	}},
}

// twin is a request for the same task under another id.
func (l *load) twin(req *task.Request, t *check.Task) *task.Request {
	other := *req
	other.TaskID = uuid.Must(uuid.NewV7()).String()
	l.asked(other.TaskID, t)
	return &other
}

// fastTick is how often each producer looks what it owes.
const fastTick = 50 * time.Millisecond

// inFlight is how many batches of one producer may wait for their answers: an
// orchestrator that stands still must not hold up what the others can take.
const inFlight = 2

// produceFast is produce for the load in full batches.
func (l *load) produceFast(ctx, hard context.Context, seed uint64, urls []string, share int) error {
	c, err := client.NewWith(strings.Join(urls, ","), client.Options{RetryFor: 10 * time.Second, MaxBatch: maxBatch})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	r := rand.New(rand.NewPCG(seed, uint64(100+share)))
	var batches errgroup.Group
	batches.SetLimit(inFlight)
	defer func() { _ = batches.Wait() }()
	pace := time.NewTicker(fastTick)
	defer pace.Stop()
	owed, last := 0.0, time.Now()
	var later []*task.Request // twins of an earlier batch
	size := batchSize(r)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pace.C:
		}
		now := time.Now()
		if !l.fast.full.Load() {
			owed += float64(l.fast.rate) * now.Sub(last).Seconds() / producers
		}
		last = now
		for int(owed) >= size && !l.fast.full.Load() && ctx.Err() == nil {
			l.fast.owed[share].Store(int64(owed))
			var reqs []*task.Request
			reqs, later = l.batch(r, size, later)
			single, repeat := min(r.IntN(singly+1), len(reqs)), r.IntN(20) == 0
			batches.Go(func() error { l.sendFast(hard, c, reqs, single, repeat); return nil })
			owed -= float64(size)
			size = batchSize(r)
		}
		l.fast.owed[share].Store(int64(owed))
	}
}

// batchSize: half of the batches are as large as a call may be, a tenth is small.
func batchSize(r *rand.Rand) int {
	switch at := r.IntN(100); {
	case at < 10:
		return 1 + r.IntN(50)
	case at < 50:
		return 100 + r.IntN(400)
	}
	return maxBatch
}

// batch makes n tasks and adds their requests to those given. Some of them are
// asked for again under other ids: at once, or by the requests for later.
func (l *load) batch(r *rand.Rand, n int, given []*task.Request) (reqs, later []*task.Request) {
	reqs = given
	for range n {
		req, t := l.request(r, fastKinds)
		l.asked(req.TaskID, t)
		reqs = append(reqs, req)
		if t.Key == nil {
			continue
		}
		if twin := l.twin(req, t); r.IntN(2) == 0 {
			reqs = append(reqs, twin)
		} else {
			later = append(later, twin)
		}
	}
	l.fast.sent.Add(int64(n))
	return reqs, later
}

// sendFast enqueues so many of the tasks one by one, and beside it the others in one
// call. A repeat must find what is there.
func (l *load) sendFast(ctx context.Context, c *client.Client, reqs []*task.Request, single int, repeat bool) {
	var beside sync.WaitGroup
	beside.Go(func() {
		for i := range single {
			l.enqueue(ctx, c, reqs[i:i+1])
		}
	})
	l.enqueue(ctx, c, reqs[single:])
	beside.Wait()
	if repeat {
		l.enqueue(ctx, c, reqs)
	}
}

// backlogEvery is how often the backlog is counted: at thousands of tasks a second
// that is work for Postgres, too.
const backlogEvery = 2 * time.Second

// watchBacklog stops the fast load while more than its bound has not ended. What is
// not known, for Postgres is away, stays as it was.
func (h *harness) watchBacklog(ctx context.Context) {
	f, last := h.load.fast, time.Now()
	for pause(ctx, backlogEvery) == nil {
		call, cancel := context.WithTimeout(ctx, backlogEvery)
		var n int64
		err := h.db.QueryRow(call, "SELECT count(*) FROM tasks WHERE state NOT IN ('succeeded', 'failed', 'cancelled')").Scan(&n)
		cancel()
		now := time.Now()
		if f.full.Load() {
			f.paused.Add(int64(now.Sub(last)))
		}
		last = now
		if err != nil {
			continue
		}
		f.most.Store(max(f.most.Load(), n))
		f.full.Store(n > int64(h.backlog))
	}
}

// fastReport is what came of the fast load; rates are in tasks a second, of all
// tasks, from the first enqueue to the last, outages included.
type fastReport struct {
	Rate     int     `json:"rate"`
	Offered  float64 `json:"offered"`
	Accepted float64 `json:"accepted"`
	Finished float64 `json:"finished"`
	// Paused is for how many seconds the load waited for the backlog; Backlog is the
	// largest one, Owed what was due and not sent in the end.
	Paused  float64 `json:"paused_seconds"`
	Backlog int64   `json:"largest_backlog"`
	Owed    int64   `json:"owed"`
}

func (f *fastReport) String() string {
	return fmt.Sprintf("%.0f tasks/s accepted, %.0f finished, on average over the whole load", f.Accepted, f.Finished) +
		fmt.Sprintf("; cheap ones: %.0f/s asked for of %d/s, %d owed in the end", f.Offered, f.Rate, f.Owed) +
		fmt.Sprintf("; paused for %.1fs by a backlog of %d at most", f.Paused, f.Backlog)
}

// endFast takes the numbers at the end of the load.
func (r *report) endFast() {
	f := r.h.load.fast
	if f == nil {
		return
	}
	took := r.loadTo.Sub(r.loadFrom).Seconds()
	r.h.load.mu.Lock()
	accepted := r.h.load.answered
	r.h.load.mu.Unlock()
	r.Fast = &fastReport{
		Rate: f.rate, Offered: float64(f.sent.Load()) / took, Accepted: float64(accepted) / took,
		Paused: time.Duration(f.paused.Load()).Seconds(), Backlog: f.most.Load(),
	}
	for i := range f.owed {
		r.Fast.Owed += f.owed[i].Load()
	}
}

// judgeFast applies -at-least.
func (r *report) judgeFast() {
	finished := r.rate(r.loadFrom, r.loadTo)
	if r.Fast != nil {
		r.Fast.Finished = finished
	}
	if finished < float64(r.h.atLeast) {
		r.fail(ruleRate, "%.0f tasks/s ended on average, at least %d were demanded", finished, r.h.atLeast)
	}
}
