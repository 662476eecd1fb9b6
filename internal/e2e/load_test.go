package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// load enqueues tasks of one type from several goroutines until it is stopped.
type load struct {
	t      *testing.T
	client *client.Client
	stop   context.CancelFunc // no further calls
	calls  context.Context    // of the calls
	abort  context.CancelFunc // ends calls, whose outcome is then unknown
	done   sync.WaitGroup

	mu       sync.Mutex
	accepted []string
	count    atomic.Int64
	hits     atomic.Int64
	slowest  atomic.Int64 // ns of the slowest call
}

const producers = 4

// startLoad begins to enqueue tasks of a type through orchestrators at the
// given addresses. pause spaces the calls of each producer.
func startLoad(t *testing.T, addrs []string, typ string, pause time.Duration) *load {
	t.Helper()
	urls := make([]string, len(addrs))
	for i, a := range addrs {
		urls[i] = "http://" + a
	}
	ctx, stop := context.WithCancel(context.Background())
	l := &load{t: t, client: testkit.Client(t, strings.Join(urls, ",")), stop: stop}
	l.calls, l.abort = context.WithCancel(context.Background())
	for p := range producers {
		l.done.Add(1)
		go func() {
			defer l.done.Done()
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for i := 0; ctx.Err() == nil; i++ {
				l.one(typ, p, i)
				<-tick.C
			}
		}()
	}
	t.Cleanup(func() { l.abort(); l.end() })
	return l
}

func (l *load) one(typ string, p, i int) {
	began := time.Now()
	e, err := l.client.EnqueueTask(l.calls, &task.Request{Type: typ, Payload: fmt.Appendf(nil, `{"p":%d,"i":%d}`, p, i)})
	if l.calls.Err() != nil {
		return
	}
	if err != nil {
		l.t.Errorf("a client that retries got an error after %s: %v", time.Since(began), err)
		return
	}
	l.count.Add(1)
	if e.IdempotentHit { // a repeated call that found its own task
		l.hits.Add(1)
	}
	took := int64(time.Since(began))
	for old := l.slowest.Load(); took > old && !l.slowest.CompareAndSwap(old, took); old = l.slowest.Load() {
	}
	l.mu.Lock()
	l.accepted = append(l.accepted, e.TaskID)
	l.mu.Unlock()
}

// more waits until n further tasks were accepted.
func (l *load) more(n int64) {
	l.t.Helper()
	from := l.count.Load()
	testkit.Eventually(l.t, fmt.Sprintf("%d more tasks are accepted", n), func() (bool, string) {
		now := l.count.Load()
		return now >= from+n, fmt.Sprintf("%d of %d", now-from, n)
	})
}

// end stops the producers once their calls have returned.
func (l *load) end() {
	l.stop()
	l.done.Wait()
}

// finish ends the load and checks that every accepted task exists exactly
// once, has succeeded, and that nothing else exists.
func (l *load) finish(s testkit.Stores) []string {
	l.t.Helper()
	l.end()
	ids := l.accepted
	db := s.SQL(l.t)
	states := func() map[string]int {
		rows, err := db.Query(l.t.Context(), "SELECT state, count(*) FROM tasks GROUP BY state")
		if err != nil {
			l.t.Fatal(err)
		}
		defer rows.Close()
		out := map[string]int{}
		for rows.Next() {
			var st string
			var n int
			if err := rows.Scan(&st, &n); err != nil {
				l.t.Fatal(err)
			}
			out[st] = n
		}
		return out
	}
	testkit.Eventually(l.t, fmt.Sprintf("all %d accepted tasks have succeeded", len(ids)), func() (bool, string) {
		now := states()
		left := 0
		for st, n := range now {
			if !protocol.State(st).Terminal() {
				left += n
			}
		}
		return left == 0, fmt.Sprint(now)
	})
	if now := states(); now["succeeded"] != len(ids) || len(now) != 1 {
		l.t.Errorf("%d tasks were accepted, the database has %v", len(ids), now)
	}
	var found int
	if err := db.QueryRow(l.t.Context(), "SELECT count(DISTINCT id) FROM tasks WHERE id = ANY($1::uuid[])", ids).Scan(&found); err != nil {
		l.t.Fatal(err)
	}
	if found != len(ids) {
		l.t.Errorf("%d of %d accepted tasks exist", found, len(ids))
	}
	testkit.VerifyLog(l.t, s)
	return ids
}

// counter is a worker in the test that counts executions by task.
type counter struct {
	mu   sync.Mutex
	runs map[string]int
}

func (s *system) counter(concurrency int) *counter {
	s.t.Helper()
	c := &counter{runs: map[string]int{}}
	s.StartWorker(s.t, worker.Options{Concurrency: concurrency, VisibilityTimeout: s.visibility}, func(w *worker.Worker) {
		w.HandleRaw("count", func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
			c.mu.Lock()
			c.runs[r.TaskID]++
			c.mu.Unlock()
			return r.Payload, nil
		})
	})
	return c
}

// total returns how many tasks ran and how many executions there were.
func (c *counter) total() (tasks, runs int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.runs {
		runs += n
	}
	return len(c.runs), runs
}
