package dispatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// peak is the most that Redis held.
type peak struct{ open, length, memory int64 }

// watch samples a stream until stop is called.
func watch(t *testing.T, s testkit.Stores) (stop func() peak) {
	t.Helper()
	c, raw := s.Streams(t), s.Redis(t)
	ctx, cancel := context.WithCancel(context.Background())
	var p peak
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			i, err := c.Info(ctx, protocol.StreamTask, protocol.GroupWorkers)
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, streams.ErrNoGroup) {
					t.Error(err)
				}
				continue
			}
			p.open, p.length = max(p.open, i.Undelivered+i.Pending), max(p.length, i.Length)
			var used int64
			_, _ = fmt.Sscan(raw.InfoMap(ctx, "memory").Item("Memory", "used_memory"), &used)
			p.memory = max(p.memory, used)
		}
	})
	return func() peak { cancel(); wg.Wait(); return p }
}

// fill enqueues tasks from several callers.
func fill(t *testing.T, c *client.Client, tasks int) {
	t.Helper()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range tasks / 4 / 500 {
				out, err := c.EnqueueMany(t.Context(), requests(500, 0))
				for _, r := range out {
					err = errors.Join(err, r.Err)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// A backlog far beyond the window waits in Postgres: the stream holds the
// window and no more, every task runs once, and all of Redis stays small.
func TestBacklogIsBoundedByTheWindow(t *testing.T) {
	t.Parallel()
	tasks, window := 8000, 400
	if devtest.Full() {
		tasks, window = 200_000, 10_000
	}
	stack := devtest.Stack(t, devstack.Options{Redis: true})
	s := testkit.Stores{PostgresURL: testkit.Database(t), RedisURL: stack.RedisURL}
	cfg := s.Config()
	cfg.Dispatch.Window = window
	cfg.Retention.TrimGrace = 200 * time.Millisecond
	cfg.Recovery.ReconcileInterval = 5 * time.Second
	o := testkit.StartOrchestrator(t, cfg)
	stop := watch(t, s)
	start := time.Now()
	c := testkit.Client(t, o.URL)
	fill(t, c, tasks)
	enqueued := time.Since(start)
	testkit.Eventually(t, "the window is full", func() (bool, string) {
		i, err := s.Streams(t).Info(t.Context(), protocol.StreamTask, protocol.GroupWorkers)
		return err == nil && i.Undelivered+i.Pending >= int64(window)/2, fmt.Sprintf("%+v, %v", i, err)
	})
	filled := stop()
	stop = watch(t, s)
	start = time.Now()
	var y tally
	startWorker(t, s, &y, worker.Options{Concurrency: 200})
	y.wait(t, tasks, 4*testkit.Deadline)
	drained := time.Since(start)
	testkit.VerifyLog(t, s)
	p := stop()
	y.once(t, tasks)
	t.Logf("%d tasks, window %d: enqueued in %s (%.0f/s), drained in %s (%.0f/s)", tasks, window, enqueued,
		float64(tasks)/enqueued.Seconds(), drained, float64(tasks)/drained.Seconds())
	t.Logf("filled: open %d, XLEN %d, used_memory %.1f MB; draining: open %d, XLEN %d, used_memory %.1f MB",
		filled.open, filled.length, float64(filled.memory)/1e6, p.open, p.length, float64(p.memory)/1e6)
	// Two enqueue flushes and the dispatcher may each see the same room, and
	// take a batch of it.
	slack := int64(3 * cfg.Dispatch.MaxBatch)
	if most := max(filled.open, p.open); most > int64(window)+slack {
		t.Errorf("%d entries were undelivered or pending, the window is %d", most, window)
	}
	if filled.open < int64(window)/2 {
		t.Errorf("only %d entries at once: the window was never full", filled.open)
	}
	if filled.length > int64(window)+slack {
		t.Errorf("XLEN grew to %d while the backlog built up, the window is %d", filled.length, window)
	}
}

// One consumer sees tasks in the order of their due times, whatever the order
// in which they were enqueued, across window and batch boundaries.
func TestOrderByDueTime(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Dispatch.Window, cfg.Dispatch.MaxBatch = 100, 30
	o := testkit.StartOrchestrator(t, cfg)
	c := testkit.Client(t, o.URL)
	const n = 2000
	base := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	due := map[string]time.Time{}
	rs := make([]*task.Request, n)
	for i := range rs {
		rs[i] = &task.Request{Type: "t", Payload: json.RawMessage(`{}`), At: base.Add(time.Duration(i) * 100 * time.Microsecond)}
	}
	rand.Shuffle(n, func(i, j int) { rs[i], rs[j] = rs[j], rs[i] })
	out, err := c.EnqueueMany(t.Context(), rs)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range out {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		due[r.Value.TaskID] = rs[i].At
	}
	// All are stored before the first is due, however slow the machine is.
	if _, err := s.SQL(t).Exec(t.Context(), "UPDATE tasks SET due_at = due_at - ($1::timestamptz - now()) + interval '0.5 s'", base); err != nil {
		t.Fatal(err)
	}
	var y tally
	startWorker(t, s, &y, worker.Options{Concurrency: 1})
	got := y.wait(t, n, testkit.Deadline)
	y.once(t, n)
	if !slices.IsSortedFunc(got, func(a, b task.Info) int { return due[a.TaskID].Compare(due[b.TaskID]) }) {
		inversions := 0
		for i := 1; i < n; i++ {
			if due[got[i].TaskID].Before(due[got[i-1].TaskID]) {
				inversions++
			}
		}
		t.Errorf("not in due order: %d inversions", inversions)
	}
	testkit.VerifyLog(t, s)
}

// A long backlog of one queue does not hold up another queue's tasks.
func TestQueuesDoNotStarveEachOther(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Dispatch.Window, cfg.Dispatch.MaxBatch = 100_000, 100 // as if workers kept up with the dispatcher
	r := testkit.NewRig(t, s, cfg)
	const backlog = 10_000
	if _, err := r.DB.Exec(t.Context(), `INSERT INTO tasks (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, due_at,
		idempotency_scope, given, trace_id, payload)
		SELECT gen_random_uuid(), 'default', 'big', 't', 'queued', 3, 'now', 1000, now() - interval '1 hour', 'default', 0, 'x', '{}'
		FROM generate_series(1, $1)`, backlog); err != nil {
		t.Fatal(err)
	}
	reqs := testkit.Requests(1, "t") // before the dispatcher starts, so that it is stored as due, and is due after all others
	reqs[0].Queue = "small"
	r.Enqueue(t, reqs...)
	r.StartDispatch(t)
	testkit.Eventually(t, "the small queue's task is dispatched", func() (bool, string) {
		return r.Raw.XLen(t.Context(), protocol.TaskStream("small")).Val() == 1, ""
	})
	if left := r.Count(t, "SELECT count(*) FROM tasks WHERE queue = 'big' AND due_at IS NOT NULL"); left == 0 {
		t.Error("the small queue's task was dispatched only after the whole backlog of the other")
	}
}

// Two orchestrators that dispatch the same backlog give each task out once.
func TestTwoDispatchersShareABacklog(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Dispatch.Window, cfg.Dispatch.MaxBatch = 500, 50
	cfg.Retention.TrimGrace = noTrim
	r := testkit.NewRig(t, s, cfg)
	a, b := testkit.StartOrchestrator(t, cfg), testkit.StartOrchestrator(t, cfg)
	const n = 2000
	var wg sync.WaitGroup
	for i, url := range []string{a.URL, b.URL} {
		c := testkit.Client(t, url)
		wg.Go(func() {
			rs := make([]*task.Request, n/2)
			for j := range rs {
				rs[j] = &task.Request{Type: "t", Payload: json.RawMessage(`{}`), Queue: []string{"", "named"}[(i+j)%2]}
			}
			out, err := c.EnqueueMany(t.Context(), rs)
			for _, r := range out {
				err = errors.Join(err, r.Err)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	var y tally
	startWorker(t, s, &y, worker.Options{Queues: []string{"default", "named"}})
	wg.Wait()
	y.wait(t, n, testkit.Deadline)
	testkit.VerifyLog(t, s)
	y.once(t, n)
	total := 0
	for _, stream := range []string{protocol.StreamTask, protocol.TaskStream("named")} {
		ps := pairs(t, r, stream)
		total += len(ps)
		noneTwice(t, r, stream)
	}
	if total != n {
		t.Errorf("%d deliveries in the streams, want %d: none was lost, so none may be repeated", total, n)
	}
	if len(pairs(t, r, protocol.StreamTask)) != n/2 {
		t.Errorf("%d tasks in the default queue's stream, want %d", len(pairs(t, r, protocol.StreamTask)), n/2)
	}
}
