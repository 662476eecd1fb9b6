package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// timers is how late tasks start that are due at a time.
var timers = &part{
	name: "timers",
	about: func(b *bench) string {
		return fmt.Sprintf("%d tasks due at random moments within %s, all stored before the first is due. Dispatch: the time in the id of the stream\nentry, whole milliseconds, against the due time. Target on an idle machine: p99 below 20 ms", b.timers, b.span)
	},
	once: []func(*bench, context.Context) error{(*bench).lateness},
}

// late is how late tasks were, in milliseconds.
type late struct {
	mu              sync.Mutex
	due             []time.Time
	start, dispatch []float64
	count           *counter
}

func (l *late) handle(_ context.Context, r *task.Raw) (json.RawMessage, error) {
	now := time.Now()
	i, err := strconv.Atoi(string(r.Payload))
	if err != nil {
		return nil, err
	}
	ms, _, _ := strings.Cut(r.MessageID, "-")
	added, err := strconv.ParseInt(ms, 10, 64)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.start = append(l.start, float64(now.Sub(l.due[i]).Microseconds())/1000)
	l.dispatch = append(l.dispatch, float64(time.UnixMilli(added).Sub(l.due[i]).Microseconds())/1000)
	l.mu.Unlock()
	l.count.hit()
	return nil, nil
}

// lateness schedules tasks and measures when each is dispatched and started.
func (b *bench) lateness(ctx context.Context) error {
	q := b.queue()
	l := &late{due: make([]time.Time, b.timers), count: newCounter(b.timers)}
	from := time.Now().Add(2*time.Second + time.Duration(b.timers)*time.Millisecond)
	for i := range l.due {
		l.due[i] = from.Add(rand.N(b.span)).Truncate(time.Microsecond)
	}
	_, err := b.enqueueAll(ctx, b.timers, func(i int) *task.Request {
		return &task.Request{Type: "bench.timer", Queue: q, Payload: json.RawMessage(strconv.Itoa(i)), At: l.due[i]}
	})
	if err != nil {
		return err
	}
	if time.Now().After(from) {
		return errors.New("the tasks could not be stored before the first was due: try a smaller -timers")
	}
	stop, err := b.work(ctx, q, concurrency, map[string]task.Handler{"bench.timer": l.handle})
	if err != nil {
		return err
	}
	if err := errors.Join(l.count.wait(ctx), b.finished(ctx, q, b.timers)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range []struct {
		what string
		ms   []float64
	}{{"handler start", l.start}, {"dispatch", l.dispatch}} {
		b.add(f.what+" after the due time, p50", "ms", "", quantile(f.ms, 0.5))
		b.add(f.what+" after the due time, p99", "ms", "", quantile(f.ms, 0.99))
		b.add(f.what+" after the due time, latest", "ms", "", quantile(f.ms, 1))
	}
	return stop()
}

// future is what very many tasks cost that are not due for long.
var future = &part{
	name: "future", ratio: "none waiting",
	about: func(b *bench) string {
		return fmt.Sprintf("Enqueue of %d tasks due now, in turn into a system where %d tasks wait for a time a year away, and into one where none\ndoes. Targets: enqueue slowed by less than 10%%, no memory of Redis", b.n, b.future)
	},
	window: futureWindow,
	once:   []func(*bench, context.Context) error{(*bench).besideFuture},
}

// futureWindow is that of both systems: what is enqueued goes to its stream.
const futureWindow = 1_000_000

// pairs is how often each of two systems is measured in one repetition.
const pairs = 5

// besideFuture fills the system once, and compares it with an empty one.
func (b *bench) besideFuture(ctx context.Context) (err error) {
	if err := b.fill(ctx); err != nil {
		return err
	}
	empty := &bench{n: b.n, payload: b.payload}
	end, err := empty.start(ctx, futureWindow)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, x := range []*bench{empty, b} { // one of them has just started
		if _, err := x.enqueueAlone(ctx); err != nil {
			return err
		}
	}
	for i := range pairs {
		systems := []*bench{b, empty}
		if i%2 == 1 { // either comes first as often
			systems = []*bench{empty, b}
		}
		rate := map[*bench]float64{}
		for _, x := range systems {
			if rate[x], err = x.enqueueAlone(ctx); err != nil {
				return err
			}
		}
		b.add("enqueue beside tasks that wait", "tasks/s", "enqueue, none waiting", rate[b])
		b.add("enqueue, none waiting", "tasks/s", "enqueue, none waiting", rate[empty])
		b.add("slower by, of two in turn", "%", "", 100*(rate[empty]/rate[b]-1))
	}
	return nil
}

// enqueueAlone measures enqueue, and returns when nothing of it is left to do but
// to run the tasks: their dispatch would slow what is measured next.
func (b *bench) enqueueAlone(ctx context.Context) (rate float64, err error) {
	q, t := b.queue(), time.Now()
	if _, err := b.enqueueAll(ctx, b.n, b.noops(q)); err != nil {
		return 0, err
	}
	rate = elapsed(b.n, t)
	for b.raw.open(ctx, protocol.TaskStream(q), protocol.GroupWorkers) < int64(b.n) {
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return rate, nil
}

// fill stores the tasks that wait, the first time it is called, and measures
// what that takes in Redis.
func (b *bench) fill(ctx context.Context) error {
	if b.filled {
		return nil
	}
	b.filled = true
	q, at := b.queue(), time.Now().AddDate(1, 0, 0)
	if _, err := b.enqueueAll(ctx, min(b.future, 1000), b.noops(b.queue())); err != nil { // what Redis needs anyway
		return err
	}
	before, t := b.raw.memory(ctx), time.Now()
	_, err := b.enqueueAll(ctx, b.future, func(i int) *task.Request {
		return &task.Request{Type: noop.Name(), Queue: q, Payload: b.payload, At: at.Add(time.Duration(i) * time.Millisecond)}
	})
	if err != nil {
		return err
	}
	b.add("storing the tasks that wait", "tasks/s", "", elapsed(b.future, t))
	b.add("Redis memory, before", "MB", "", before)
	b.add("Redis memory, with the tasks that wait", "MB", "Redis memory, before", b.raw.memory(ctx))
	return pause(ctx, 5*time.Second) // Postgres writes back
}
