package dispatch_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func quantile(ds []time.Duration, q float64) time.Duration {
	slices.Sort(ds)
	return ds[min(int(float64(len(ds))*q), len(ds)-1)]
}

// dueTimes reads when each task was due; a delay counts from the commit.
func dueTimes(t *testing.T, db *pgx.Conn) map[string]time.Time {
	t.Helper()
	rows, err := db.Query(t.Context(), "SELECT task_id::text, COALESCE((data->>'due_at')::timestamptz, occurred_at) FROM event_log WHERE seq = 1")
	if err != nil {
		t.Fatal(err)
	}
	due := map[string]time.Time{}
	var id string
	var at time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &at}, func() error { due[id] = at; return nil }); err != nil {
		t.Fatal(err)
	}
	return due
}

// Tasks with times and delays start at their moment, by the timer: there is no
// poll that could start them. How late they are is logged; a busy machine makes
// it more.
func TestScheduledTasksAreOnTime(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Dispatch.PollInterval = time.Hour
	o := testkit.StartOrchestrator(t, cfg)
	c := testkit.Client(t, o.URL)
	var y tally
	startWorker(t, s, &y, worker.Options{})
	const n = 400
	var wg sync.WaitGroup
	var errs error
	var mu sync.Mutex
	for i := range n {
		wg.Go(func() {
			d := time.Duration(500+rand.IntN(2500)) * time.Millisecond
			r := &task.Request{Type: "t", Payload: json.RawMessage(`{}`)}
			if i%2 == 0 {
				r.At = time.Now().Add(d).Truncate(time.Microsecond)
			} else {
				r.Delay = d
			}
			_, err := c.EnqueueTask(t.Context(), r)
			mu.Lock()
			defer mu.Unlock()
			errs = errors.Join(errs, err)
		})
	}
	wg.Wait()
	if errs != nil {
		t.Fatal(errs)
	}
	y.wait(t, n, testkit.Deadline)
	testkit.VerifyLog(t, s)
	y.once(t, n)
	db := s.SQL(t)
	var early int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM event_log q JOIN event_log c ON c.task_id = q.task_id AND c.seq = 1
		WHERE q.type = 'task.queued' AND q.occurred_at < (c.data->>'due_at')::timestamptz`).Scan(&early); err != nil || early > 0 {
		t.Errorf("%d tasks were dispatched before their time, %v", early, err)
	}
	due := dueTimes(t, db)
	late := make([]time.Duration, n)
	for i, info := range y.order {
		late[i] = y.at[i].Sub(due[info.TaskID])
	}
	p50, p99 := quantile(late, .5), quantile(late, .99)
	t.Logf("lateness of %d scheduled tasks: p50 %s, p99 %s, worst %s", n, p50, p99, late[n-1])
	if p99 > 10*time.Second {
		t.Errorf("lateness p50 %s, p99 %s", p50, p99)
	}
}

// A task that is scheduled while the dispatcher is in the middle of a round is
// not forgotten until the next poll.
func TestScheduledDuringARoundIsNotForgotten(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Dispatch.PollInterval = time.Hour
	r := testkit.NewRig(t, s, cfg)
	r.StartDispatch(t)
	var want []protocol.ID
	for i := range 300 { // each enqueue meets the dispatcher at another point of its round
		reqs := testkit.Requests(1, "t")
		reqs[0].ScheduleType, reqs[0].DelayMS = "delay", int64(1+i%20)
		want = append(want, r.Enqueue(t, reqs...)...)
	}
	testkit.Eventually(t, "all scheduled tasks are dispatched", func() (bool, string) {
		n := r.Count(t, "SELECT count(*) FROM tasks WHERE due_at IS NOT NULL")
		return n == 0, fmt.Sprintf("%d wait", n)
	})
	if len(pairs(t, r, protocol.StreamTask)) != len(want) {
		t.Errorf("%d entries, want %d", len(pairs(t, r, protocol.StreamTask)), len(want))
	}
}

// A time that has passed means now.
func TestPastTimesRunAtOnce(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Dispatch.PollInterval = time.Hour
	r := testkit.NewRig(t, s, cfg)
	r.StartDispatch(t)
	reqs := testkit.Requests(3, "t")
	reqs[0].ScheduleType, reqs[0].ScheduledAt = "at", time.Now().Add(-time.Hour)
	reqs[1].ScheduleType, reqs[1].ScheduledAt = "at", time.Unix(1, 0)
	reqs[2].ScheduleType = "delay"
	ids := r.Enqueue(t, reqs...)
	r.Fetch(t, "w", 3)
	for _, id := range ids {
		if row := r.Row(t, id); row.State != protocol.StateQueued || row.Due {
			t.Errorf("%+v, want it queued and dispatched", row)
		}
		if got := testkit.EventTypes(t, s, id); got != "task.created" {
			t.Errorf("events: %s", got)
		}
	}
}
