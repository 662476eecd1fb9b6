package dispatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// retryTimes reads when each task's last retry was to be due.
func retryTimes(t *testing.T, db *pgx.Conn) map[string]time.Time {
	t.Helper()
	rows, err := db.Query(t.Context(), "SELECT task_id::text, next_retry_at FROM event_log WHERE type = 'task.retry_scheduled' ORDER BY task_id, seq")
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

// entryTime is the last moment at which the entry can have been added, by
// Redis' clock.
func entryTime(t *testing.T, messageID string) time.Time {
	t.Helper()
	s, _, _ := strings.Cut(messageID, "-")
	ms, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatalf("entry %q: %v", messageID, err)
	}
	return time.UnixMilli(ms + 1)
}

// failOnce has all tasks run once and fail, to be retried at random within a
// second. Nothing dispatches from then on.
func failOnce(t *testing.T, s testkit.Stores, n int) {
	t.Helper()
	cfg := s.Config()
	cfg.Dispatch.Window = 2 * n
	r := testkit.NewRig(t, s, cfg)
	stop := r.StartDispatch(t)
	ids := r.Enqueue(t, testkit.Requests(n, "t")...)
	held := r.Fetch(t, "w", n)
	r.Ack(t, held...)
	stop()
	at := time.Now().Add(time.Second)
	outcomes := make([]*protocol.Outcome, n)
	for i, h := range held {
		o := h.Outcome(protocol.OutcomeFailed)
		o.Retryable, o.Code, o.Error = true, protocol.CodeExecutionFailed, "fails once"
		o.Delay = time.Until(at.Add(rand.N(900 * time.Millisecond)))
		outcomes[i] = o
	}
	stop = r.Start(t, r.Results.Run)
	r.Report(t, outcomes...)
	r.WaitState(t, protocol.StateRetrying, ids...)
	stop()
}

// Retries that become due at once leave in the order of their due times, none
// before it, in a stream that never holds more than the window; also those that
// became due while no dispatcher ran.
func TestRetriesDrainInDueOrder(t *testing.T) {
	t.Parallel()
	n, window := 1500, 100
	if devtest.Full() {
		n, window = 100_000, 10_000
	}
	s := testkit.NewStores(t)
	failOnce(t, s, n)
	cfg := s.Config()
	cfg.Dispatch.Window, cfg.Dispatch.MaxBatch, cfg.Dispatch.PollInterval = window, window/3, time.Hour
	stop := watch(t, s)
	testkit.StartOrchestrator(t, cfg)
	var y tally
	startWorker(t, s, &y, worker.Options{})
	got := y.wait(t, n, 2*testkit.Deadline)
	testkit.VerifyLog(t, s)
	most := stop()
	y.once(t, n)

	due := retryTimes(t, s.SQL(t))
	slices.SortFunc(got, func(a, b task.Info) int {
		if streams.Less(a.MessageID, b.MessageID) {
			return -1
		}
		return 1
	})
	inversions, early := 0, 0
	for i, x := range got {
		if x.Attempt != 2 || x.Delivery != 2 {
			t.Fatalf("task %s ran as attempt %d, delivery %d; want 2 and 2", x.ID, x.Attempt, x.Delivery)
		}
		if entryTime(t, x.MessageID).Before(due[x.ID]) {
			early++
		}
		if i > 0 && due[x.ID].Before(due[got[i-1].ID]) {
			inversions++
		}
	}
	if inversions > 0 || early > 0 {
		t.Errorf("of %d retries %d were dispatched after one that was due later, %d before they were due", n, inversions, early)
	}
	if limit := int64(window + 2*cfg.Dispatch.MaxBatch); most.open > limit {
		t.Errorf("%d entries were undelivered or pending, the window is %d", most.open, window)
	}
}

// Retries run at their moment, by the timer alone. How late they are is logged;
// a busy machine makes it more.
func TestRetriesAreOnTime(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Dispatch.PollInterval = time.Hour
	o := testkit.StartOrchestrator(t, cfg)
	c := testkit.Client(t, o.URL)
	var y tally
	s.StartWorker(t, worker.Options{Concurrency: 50}, func(w *worker.Worker) {
		w.HandleRaw("t", func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
			if r.Attempt <= 2 {
				return nil, task.RetryAfter(rand.N(time.Second), errors.New("fails twice"))
			}
			return y.handler(ctx, r)
		})
	})
	const n = 300
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			out, err := c.EnqueueMany(t.Context(), requests(n/3, 0))
			for _, r := range out {
				err = errors.Join(err, r.Err)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got := y.wait(t, n, testkit.Deadline)
	testkit.VerifyLog(t, s)
	due := retryTimes(t, s.SQL(t))
	late := make([]time.Duration, n)
	for i, x := range got {
		late[i] = y.at[i].Sub(due[x.ID])
		if entryTime(t, x.MessageID).Before(due[x.ID]) {
			t.Errorf("task %s was dispatched before its retry was due", x.ID)
		}
	}
	p50, p99 := quantile(late, .5), quantile(late, .99)
	t.Logf("lateness of %d retries: p50 %s, p99 %s, worst %s", n, p50, p99, late[n-1])
	if p99 > 10*time.Second {
		t.Errorf("lateness p50 %s, p99 %s", p50, p99)
	}
}

// Tasks of many queues that are due at the same moment leave at that moment,
// not one before it, in the stream as in the log.
func TestManyQueuesDueTogether(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Dispatch.PollInterval = time.Hour
	cfg.Retention.TrimGrace = noTrim
	r := testkit.NewRig(t, s, cfg)
	r.StartDispatch(t)
	const n = 20
	at := time.Now().Add(time.Second).Truncate(time.Millisecond)
	reqs := testkit.Requests(n, "t")
	for i, q := range reqs {
		q.Queue, q.ScheduleType, q.ScheduledAt = fmt.Sprintf("q%d", i), "at", at
	}
	ids := r.Enqueue(t, reqs...)
	r.WaitState(t, protocol.StateQueued, ids...)
	worst := time.Duration(0)
	for i := range n {
		testkit.Eventually(t, "the entry is in its stream", func() (bool, string) {
			ms, err := r.Raw.XRange(t.Context(), protocol.TaskStream(fmt.Sprintf("q%d", i)), "-", "+").Result()
			if err != nil || len(ms) != 1 {
				return false, fmt.Sprint(len(ms), err)
			}
			worst = max(worst, entryTime(t, ms[0].ID).Sub(at))
			if entryTime(t, ms[0].ID).Add(-time.Millisecond).Before(at) {
				t.Errorf("entry %s was added before %d", ms[0].ID, at.UnixMilli())
			}
			return true, ""
		})
	}
	t.Logf("the last of %d queues was served %s after the due time", n, worst)
	if early := r.Count(t, "SELECT count(*) FROM event_log WHERE type = 'task.queued' AND occurred_at < $1", at); early > 0 {
		t.Errorf("the log has %d tasks queued before their time", early)
	}
}
