package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// queues are those of all tasks: the third one is for those that run long, the last
// for those with effects, of which a worker without an orchestrator knows nothing.
var queues = []string{protocol.DefaultQueue, "bulk", "slow", "effects"}

// effectsQueue is the place of the queue of effects.
const effectsQueue = 3

// load is the client side: it enqueues, and remembers what it was promised.
type load struct {
	rate       int
	visibility time.Duration
	n          atomic.Int64
	// fast is the load in full batches beside it, nil if there is none.
	fast *fast

	mu      sync.Mutex
	tasks   map[string]*check.Task
	refused []string // answers that no enqueue should get
	// answered counts the tasks that were accepted.
	answered int
	// late are the longest time until an enqueue was answered.
	late time.Duration
}

// kind is a kind of task; weight is its share of 1,000.
type kind struct {
	name   string
	weight int
	make   func(l *load, r *rand.Rand, p *payload, req *task.Request, t *check.Task)
}

// marathon is the kind whose leases are stolen: it runs for long enough that
// its worker must notice.
const marathon = "marathon"

// charged makes tasks that have an effect; the receiver keeps its call for so many
// visibility timeouts. How many attempts it takes depends on what breaks.
func charged(how string, hold float64) func(*load, *rand.Rand, *payload, *task.Request, *check.Task) {
	return func(l *load, r *rand.Rand, p *payload, req *task.Request, t *check.Task) {
		many := 100
		p.Effect, p.MS, req.Queue, req.MaxRetries, t.Attempt = how, r.IntN(10), queues[effectsQueue], &many, 0
		p.Hold = int(hold * float64(l.visibility.Milliseconds()))
	}
}

var kinds = []kind{
	{"short", 548, func(_ *load, r *rand.Rand, p *payload, _ *task.Request, _ *check.Task) { p.MS = r.IntN(20) }},
	{"flaky", 100, func(_ *load, r *rand.Rand, p *payload, _ *task.Request, t *check.Task) {
		p.Fail = 1 + r.IntN(2)
		t.Attempt = 1 + p.Fail
	}},
	{"failing", 40, func(_ *load, _ *rand.Rand, p *payload, _ *task.Request, t *check.Task) {
		p.Permanent = true
		t.State = string(protocol.StateFailed)
	}},
	{"exhausted", 30, func(_ *load, _ *rand.Rand, p *payload, req *task.Request, t *check.Task) {
		one := 1
		p.Fail, req.MaxRetries = 99, &one
		t.State, t.Attempt = string(protocol.StateFailed), 2
	}},
	{"delayed", 90, func(_ *load, r *rand.Rand, _ *payload, req *task.Request, _ *check.Task) {
		req.Delay = time.Duration(500+r.IntN(3500)) * time.Millisecond
	}},
	{"snoozing", 50, func(_ *load, _ *rand.Rand, p *payload, _ *task.Request, _ *check.Task) { p.Snooze = 300 }},
	{"long", 18, func(l *load, _ *rand.Rand, p *payload, req *task.Request, _ *check.Task) {
		p.MS, req.Queue = int(l.visibility.Milliseconds())*3/2, queues[2]
	}},
	{marathon, 4, func(l *load, _ *rand.Rand, p *payload, req *task.Request, _ *check.Task) {
		p.MS, req.Queue = int(l.visibility.Milliseconds())*3, queues[2]
	}},
	{"cancelled", 15, func(l *load, r *rand.Rand, p *payload, req *task.Request, t *check.Task) {
		p.MS, req.Queue, t.CancelAsked = int(l.visibility.Milliseconds())*3/2, queues[2], true
	}},
	{"withdrawn", 10, func(_ *load, r *rand.Rand, _ *payload, req *task.Request, t *check.Task) {
		req.Delay, t.CancelAsked = time.Duration(500+r.IntN(2500))*time.Millisecond, true
	}},
	{"charging", 40, charged(byPerson, 0)},
	{"charging-checked", 40, charged(byCheck, 0)},
	{"charging-slowly", 6, charged(byPerson, 1.5)},
	{"charging-slowly-checked", 6, charged(byCheck, 1.5)},
	{"large", 3, func(_ *load, r *rand.Rand, p *payload, _ *task.Request, _ *check.Task) {
		p.Pad = strings.Repeat("large payload ", 5000+r.IntN(10_000))
	}},
}

// request makes one task of a random kind.
func (l *load) request(r *rand.Rand, kinds []kind) (*task.Request, *check.Task) {
	k, at := kinds[0], r.IntN(1000)
	for _, k = range kinds {
		if at -= k.weight; at < 0 {
			break
		}
	}
	p := payload{N: int(l.n.Add(1)), Kind: k.name}
	req := &task.Request{
		TaskID: uuid.Must(uuid.NewV7()).String(), Type: taskType, Queue: queues[r.IntN(2)], Timeout: time.Minute,
	}
	t := &check.Task{Kind: k.name, State: string(protocol.StateSucceeded), Attempt: 1}
	k.make(l, r, &p, req, t)
	t.Sum = p.sum()
	req.Payload, _ = json.Marshal(p) // plain fields
	return req, t
}

// tick is how often each producer enqueues.
const tick = 200 * time.Millisecond

// produce enqueues until ctx ends, with one client of its own; what is open
// then is still tried until hard ends.
func (l *load) produce(ctx, hard context.Context, seed uint64, urls []string, share int) error {
	c, err := client.NewWith(strings.Join(urls, ","), client.Options{RetryFor: 10 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	r := rand.New(rand.NewPCG(seed, uint64(share)))
	var cancels sync.WaitGroup
	defer cancels.Wait()
	pace := time.NewTicker(tick)
	defer pace.Stop()
	owed, last := 0.0, time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pace.C:
		}
		passed := tick
		if l.fast != nil { // beside it calls take longer than a tick: what they made late is owed
			passed = time.Since(last)
		}
		last = time.Now()
		owed += float64(l.rate) * passed.Seconds() / producers
		n := int(owed)
		owed -= float64(n)
		reqs := make([]*task.Request, n)
		for i := range reqs {
			var t *check.Task
			reqs[i], t = l.request(r, kinds)
			l.asked(reqs[i].TaskID, t)
		}
		l.enqueue(hard, c, reqs)
		if r.IntN(20) == 0 { // a repeat must find what is there
			l.enqueue(hard, c, reqs)
		}
		for _, req := range reqs {
			if after := time.Duration(r.IntN(3000)) * time.Millisecond; l.toCancel(req.TaskID) {
				cancels.Go(func() { l.cancel(hard, c, req.TaskID, after) })
			}
		}
	}
}

// callLimit bounds one call; what is not answered by then is asked again.
const callLimit = 8 * time.Second

// enqueue asks for the tasks until each has an answer or ctx ends.
func (l *load) enqueue(ctx context.Context, c *client.Client, reqs []*task.Request) {
	began := time.Now()
	for len(reqs) > 0 && ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, callLimit)
		res, err := c.EnqueueMany(call, reqs)
		cancel()
		if err != nil {
			continue
		}
		var again []*task.Request
		for i, r := range res {
			switch {
			case r.Err == nil:
				l.accepted(reqs[i].TaskID, r.Value.TaskID, time.Since(began))
			case protocol.CodeOf(r.Err) != "":
				l.refuse(fmt.Sprintf("task %s: %v", reqs[i].TaskID, r.Err))
			default:
				again = append(again, reqs[i])
			}
		}
		if reqs = again; len(reqs) > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

// asked notes that a task is about to be asked for.
func (l *load) asked(id string, t *check.Task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tasks[id] = t
}

// accepted notes the answer to the request with an id: it names a task, which is
// another request's only if they share a key.
func (l *load) accepted(id, answer string, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tasks[id]
	l.late = max(l.late, took)
	if l.tasks[answer] != t {
		l.refused1(fmt.Sprintf("task %s was answered with %s, which is another", id, answer))
		return
	}
	if !t.Accepted {
		l.answered++
	}
	if t.Accepted = true; t.Key == nil {
		return
	}
	if told := t.Key.Answer; told != "" && told != answer {
		l.refused1(fmt.Sprintf("task %s was answered with %s, and before with %s", id, answer, told))
	}
	t.Key.Answer = answer
}

func (l *load) refuse(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused1(what)
}

// refused1 needs mu.
func (l *load) refused1(what string) {
	if len(l.refused) < 20 {
		l.refused = append(l.refused, what)
	}
}

// toCancel reports whether a task was accepted and is to be cancelled.
func (l *load) toCancel(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tasks[id].Accepted && l.tasks[id].CancelAsked
}

// cancel cancels a task after a while, and asks until it has an answer.
func (l *load) cancel(ctx context.Context, c *client.Client, id string, after time.Duration) {
	for err := pause(ctx, after); err == nil; err = pause(ctx, 50*time.Millisecond) {
		call, stop := context.WithTimeout(ctx, callLimit)
		_, err := c.CancelTask(call, "", id, "chaos")
		stop()
		switch code := protocol.CodeOf(err); {
		case err == nil:
			l.mu.Lock()
			l.tasks[id].Cancelled = time.Now()
			l.mu.Unlock()
			return
		case code == protocol.CodeInvalidTransition: // it was faster
			return
		case code != "":
			l.refuse(fmt.Sprintf("cancelling task %s: %v", id, err))
			return
		}
	}
}

// kindOf returns the kind of a task, "" if it is not known.
func (l *load) kindOf(id string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tasks[id]; t != nil {
		return t.Kind
	}
	return ""
}
