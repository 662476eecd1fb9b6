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

	"github.com/penstock-dev/penstock/task"
)

// timers is how late tasks start that are due at a time.
var timers = &part{
	name: "timers", group: "timers", most: 1,
	about: func(b *bench) string {
		return fmt.Sprintf("%d tasks due at random moments within %s, all stored before the first is due. Dispatch: the time in the id of the stream\nentry, whole milliseconds, against the due time. Target on an idle machine: p99 below 20 ms", b.timers, b.span)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).lateness},
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
func (b *bench) lateness(ctx context.Context, s *system) error {
	q := newQueue()
	l := &late{due: make([]time.Time, b.timers), count: newCounter(b.timers)}
	from := time.Now().Add(2*time.Second + time.Duration(b.timers)*time.Millisecond)
	for i := range l.due {
		l.due[i] = from.Add(rand.N(b.span)).Truncate(time.Microsecond)
	}
	_, err := s.enqueueAll(ctx, b.timers, func(i int) *task.Request {
		return &task.Request{Type: "bench.timer", Queue: q, Payload: json.RawMessage(strconv.Itoa(i)), At: l.due[i]}
	})
	if err != nil {
		return err
	}
	if time.Now().After(from) {
		return errors.New("the tasks could not be stored before the first was due: try a smaller -timers")
	}
	stop, err := s.work(ctx, []string{q}, concurrency, map[string]task.Handler{"bench.timer": l.handle})
	if err != nil {
		return err
	}
	if err := errors.Join(l.count.wait(ctx), s.onRecord(ctx, q)); err != nil {
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
