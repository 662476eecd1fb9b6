package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
)

// failOnce enqueues n tasks whose first attempt fails and whose retry is due
// after a delay.
func (s *system) failOnce(addr string, n int, delay time.Duration) (ids []string) {
	s.t.Helper()
	rs := make([]*task.Request, n)
	for i := range rs {
		rs[i] = &task.Request{
			Type: "inject", Payload: json.RawMessage(`{"mode":"transient_error","attempts":[1]}`),
			Retry: &task.Retry{Strategy: "fixed", Base: delay, MaxBackoff: delay, NoJitter: true},
		}
	}
	out, err := testkit.Client(s.t, "http://"+addr).EnqueueMany(s.t.Context(), rs)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range out {
		if r.Err != nil {
			s.t.Fatal(r.Err)
		}
		ids = append(ids, r.Value.TaskID)
	}
	return ids
}

// lateness reads how long after its due time each of the tasks' retries was
// claimed, and how long after another moment.
func (s *system) lateness(db *pgx.Conn, ids []string, from time.Time) (first, last, lastAfter time.Duration) {
	s.t.Helper()
	var n int
	var least, most float64
	var end time.Time
	err := db.QueryRow(s.t.Context(), `SELECT count(*), min(extract(epoch FROM c.occurred_at - r.next_retry_at)), max(extract(epoch FROM c.occurred_at - r.next_retry_at)),
		max(c.occurred_at) FROM event_log r JOIN event_log c ON c.task_id = r.task_id AND c.seq = r.seq + 1 AND c.type = 'task.claimed'
		WHERE r.type = 'task.retry_scheduled' AND r.task_id = ANY($1::uuid[])`, ids).Scan(&n, &least, &most, &end)
	if err != nil || n != len(ids) {
		s.t.Fatalf("%d of %d retries were claimed next, %v", n, len(ids), err)
	}
	seconds := func(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }
	return seconds(least), seconds(most), end.Sub(from)
}

// Retries survive a kill -9 of the only orchestrator: those that became due
// while none ran are retried at once when it is back, the others at their time.
// No poll helps.
func TestRetriesAfterARestart(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 30 * time.Second}
	addr := freeAddr(t)
	const noPoll = "PENSTOCK_DISPATCH_POLL_INTERVAL=1h"
	o := s.orchestrator(addr, noPoll)
	waitReady(t, addr)
	s.worker(injectConfig)
	const n = 200
	missed := s.failOnce(addr, n, 6*time.Second)
	later := s.failOnce(addr, n, 12*time.Second)
	db := s.SQL(t)
	count := func(where string) (n int) {
		t.Helper()
		if err := db.QueryRow(t.Context(), "SELECT count(*) FROM tasks WHERE "+where).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	testkit.Eventually(t, "all tasks wait for their retry", func() (bool, string) {
		k := count("state = 'retrying'")
		return k == 2*n, fmt.Sprint(k)
	})
	o.kill()
	testkit.Eventually(t, "half of the retries are due", func() (bool, string) {
		k := count("next_retry_at <= now()")
		return k >= n, fmt.Sprint(k)
	})
	if k := count("state = 'retrying'"); k != 2*n {
		t.Fatalf("%d tasks wait for their retry although no orchestrator runs, want %d", k, 2*n)
	}
	s.orchestrator(addr, noPoll)
	waitReady(t, addr)
	ready := time.Now()
	testkit.Eventually(t, "all tasks have succeeded", func() (bool, string) {
		k := count("state = 'succeeded' AND attempt = 2")
		return k == 2*n, fmt.Sprint(k)
	})
	_, _, after := s.lateness(db, missed, ready)
	first, last, _ := s.lateness(db, later, ready)
	t.Logf("%d retries that were due before the restart: all claimed %s after it; %d due after it: claimed %s to %s late", n, after, n, first, last)
	if first < 0 {
		t.Errorf("a retry was claimed %s before it was due", -first)
	}
	testkit.VerifyLog(t, s.Stores)
}
