package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/task"
)

// latency is how long a task that is due at once waits for its start.
var latency = &part{
	name: "latency", group: "throughput", ratio: "raw, or 500/s",
	about: func(b *bench) string {
		return fmt.Sprintf(`single tasks enqueued at a fixed pace for %s, whether or not earlier calls have returned, beside a worker; from the call to the start of the
handler. CPU in processors: of the servers, and of this process, which is client and worker. The raw loop keeps no record`, b.latency)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).rawLatency, (*bench).startLatencies},
}

// rates are the paces a second; rawRate is that of the raw loop, too.
var rates = []int{100, 500, 1000, 2000}

const rawRate = 500

func (b *bench) startLatencies(ctx context.Context, s *system) error {
	for _, rate := range rates {
		name := fmt.Sprintf("%d/s", rate)
		l, u, err := s.startLatency(ctx, name, rate, b.latency)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p50, p99 := l.percentiles()
		base := fmt.Sprintf("%d/s", rawRate)
		latencies := base
		if rate == rawRate {
			latencies = "raw, " + base
		}
		b.add(name+": p50", "ms", latencies+": p50", p50)
		b.add(name+": p99", "ms", latencies+": p99", p99)
		b.add(name+": servers", "CPUs", base+": servers", u.servers()/u.took.Seconds())
		b.add(name+": client and worker", "CPUs", base+": client and worker", u.own/u.took.Seconds())
	}
	return nil
}

// startLatency enqueues single tasks at a pace and measures from the call to the
// start of the handler.
func (s *system) startLatency(ctx context.Context, section string, rate int, d time.Duration) (*latencies, spent, error) {
	q, n := newQueue(), max(10, int(float64(rate)*d.Seconds()))
	l := newLatencies(n)
	stop, err := s.work(ctx, []string{q}, concurrency, map[string]task.Handler{noop.Name(): l.handle})
	if err != nil {
		return nil, spent{}, err
	}
	u, err := s.timed(ctx, section, func() error {
		err := pace(ctx, n, rate, func(i int) error {
			l.sent(i)
			_, err := s.client.EnqueueTask(ctx, &task.Request{Type: noop.Name(), Queue: q, Payload: fmt.Appendf(nil, `{"i":%d}`, i)})
			return err
		})
		if err != nil {
			return err
		}
		return l.count.wait(ctx)
	})
	return l, u, errors.Join(err, stop())
}

// pace calls send(i) in its own goroutine so many times a second, whether or not
// earlier calls have returned.
func pace(ctx context.Context, n, rate int, send func(i int) error) error {
	var wg sync.WaitGroup
	errs := make(chan error, n)
	t := time.Now()
	for i := range n {
		if d := time.Until(t.Add(time.Duration(i) * time.Second / time.Duration(rate))); d > 0 {
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

// handle is the handler of a task that says which one it is.
func (l *latencies) handle(_ context.Context, r *task.Raw) (json.RawMessage, error) {
	var p struct {
		I int `json:"i"`
	}
	if err := json.Unmarshal(r.Payload, &p); err != nil {
		return nil, err
	}
	l.started(p.I)
	return nil, nil
}

func (l *latencies) percentiles() (p50, p99 float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.took)
	return l.took[len(l.took)/2], l.took[len(l.took)*99/100]
}
