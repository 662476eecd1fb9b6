package reclaim_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A worker dies with entries in its hands. After the visibility timeout, and
// not before, its tasks are interrupted, dispatched again and finished by
// another; the events say who held what.
func TestWorkerThatDies(t *testing.T) {
	t.Parallel()
	onEach(t, workerThatDies)
}

func workerThatDies(t *testing.T, s testkit.Stores) {
	r := rigOn(t, s)
	r.Start(t, r.Reclaim.Run)
	ids := r.Enqueue(t, testkit.Requests(5, "t")...)
	start := time.Now()
	dead := r.Fetch(t, "dead", 5)
	r.Report(t, dead[0].Outcome(protocol.OutcomeClaimed), dead[1].Outcome(protocol.OutcomeClaimed))
	again := finish(t, r, 5)
	if took := time.Since(start); took < visibility {
		t.Errorf("reclaimed after %s, the visibility timeout is %s", took, visibility)
	}
	r.WaitState(t, protocol.StateSucceeded, ids...)
	testkit.VerifyLog(t, r.Stores)
	held := map[protocol.ID]testkit.Held{}
	for _, h := range dead {
		held[h.ID] = h
	}
	for i, id := range ids {
		row := r.Row(t, id)
		if row.Attempt != 1 || row.Interruptions != 1 || row.Delivery != 2 {
			t.Errorf("%+v; a lost worker spends no retry", row)
		}
		rest := []string{"task.reclaimed", "task.interrupted", "task.queued", "task.claimed", "task.succeeded"}
		if i < 2 {
			rest = append([]string{"task.claimed"}, rest...)
		}
		events(t, r, id, append([]string{"task.created"}, rest...)...)
		var d protocol.ReclaimData
		var raw []byte
		if err := r.DB.QueryRow(t.Context(), "SELECT data FROM event_log WHERE task_id = $1 AND type = 'task.reclaimed'", id[:]).Scan(&raw); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &d); err != nil {
			t.Fatal(err)
		}
		if d.OriginalConsumer != "dead" || d.NewConsumer != r.Consumer || d.MessageID != held[id].MessageID || d.IdleMS < visibility.Milliseconds() {
			t.Errorf("reclaimed: %+v", d)
		}
	}
	for _, h := range again {
		if h.Delivery != 2 {
			t.Errorf("dispatched again as delivery %d", h.Delivery)
		}
	}
}

// What the dead worker still managed to report counts: in stream:result before
// the entry is claimed, it is never overruled.
func TestOutcomeWinsOverReclaim(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, short(s))
	r.StartDispatch(t)
	ids := r.Enqueue(t, testkit.Requests(2, "t")...)
	hs := r.Fetch(t, "dead", 2)
	failure := hs[1].Outcome(protocol.OutcomeFailed)
	failure.Error, failure.Retryable, failure.Delay = "boom", true, time.Hour
	r.Report(t, succeed(hs[0]), failure)
	age(t, r, time.Hour, hs...)
	done := make(chan error, 1)
	go func() { done <- r.Reclaim.Scan(t.Context()) }()
	// The entries are claimed, and the scan waits for the outcomes.
	testkit.Eventually(t, "the entries are claimed", func() (bool, string) {
		ps, _, err := r.Client.PendingAfter(t.Context(), protocol.StreamTask, protocol.GroupWorkers, "", 0)
		return err == nil && len(ps) == 2 && ps[0].Consumer == r.Consumer, fmt.Sprint(ps, err)
	})
	select {
	case err := <-done:
		t.Fatalf("the scan did not wait for the outcomes: %v", err)
	default:
	}
	r.Start(t, r.Results.Run)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	events(t, r, ids[0], "task.created", "task.claimed", "task.succeeded")
	events(t, r, ids[1], "task.created", "task.claimed", "task.retry_scheduled")
	if n := pending(t, r); n != 0 {
		t.Errorf("%d pending: the stale entries were not acknowledged", n)
	}
	testkit.VerifyEvents(t, s)
}

// The worker crashed between its outcome and its XACK (model check, violation
// 2): a task that is done, or given up, keeps its delivery, and its stale entry
// is only acknowledged.
func TestStaleEntriesAreOnlyAcknowledged(t *testing.T) {
	t.Parallel()
	r := rig(t)
	ids := r.Enqueue(t, testkit.Requests(3, "t")...)
	hs := r.Fetch(t, "dead", 3)
	fatal := hs[1].Outcome(protocol.OutcomeFailed)
	fatal.Error = "permanent"
	r.Report(t, succeed(hs[0]), fatal, hs[2].Outcome(protocol.OutcomeReleased))
	settled(t, r)
	r.WaitState(t, protocol.StateFailed, ids[1])
	next := finish(t, r, 1)[0] // the released one, as its next delivery
	if next.ID != ids[2] || next.Delivery != 2 {
		t.Fatalf("%+v", next.TaskEntry)
	}
	r.WaitState(t, protocol.StateSucceeded, ids[0], ids[2])
	age(t, r, time.Hour, hs...)
	if err := r.Reclaim.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pending(t, r); n != 0 {
		t.Errorf("%d pending", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM event_log WHERE type IN ('task.reclaimed', 'task.transition_rejected')"); n != 0 {
		t.Errorf("%d events of tasks that were finished", n)
	}
	testkit.VerifyLog(t, r.Stores)
}

// Thousands of leases that are renewed come before the one that is dead.
func TestHealthyLeasesDoNotHideADeadOne(t *testing.T) {
	t.Parallel()
	onEach(t, healthyLeases)
}

func healthyLeases(t *testing.T, s testkit.Stores) {
	r := rigOn(t, s)
	const n = 2500
	r.Enqueue(t, testkit.Requests(n, "t")...)
	hs := r.Fetch(t, "w", n)
	dead := hs[n-1]
	age(t, r, time.Hour, dead)
	young := make([]string, 0, n)
	for _, h := range hs[:n-1] {
		young = append(young, h.MessageID)
	}
	if _, err := r.Client.Renew(t.Context(), protocol.StreamTask, protocol.GroupWorkers, "w", young); err != nil {
		t.Fatal(err)
	}
	if err := r.Reclaim.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if row := r.Row(t, dead.ID); row.Interruptions != 1 {
		t.Errorf("the dead one: %+v", row)
	}
	if got := r.Count(t, "SELECT count(*) FROM tasks WHERE interruptions > 0"); got != 1 {
		t.Errorf("%d tasks interrupted, want 1", got)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// Leases that are nearly over fill more than a page ahead of a dead one. The
// page of which nothing could be claimed is not the end.
func TestAnEmptyPageIsNotTheEnd(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s testkit.Stores) {
		r := rigWith(t, s, time.Hour)
		const n = 1300
		r.Enqueue(t, testkit.Requests(n, "t")...)
		hs := r.Fetch(t, "w", n)
		dead := hs[n-1]
		age(t, r, 57*time.Minute, hs[:n-1]...)
		age(t, r, 2*time.Hour, dead)
		if err := r.Reclaim.Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
		if row := r.Row(t, dead.ID); row.Interruptions != 1 {
			t.Errorf("the dead one: %+v", row)
		}
		if got := r.Count(t, "SELECT count(*) FROM tasks WHERE interruptions > 0"); got != 1 {
			t.Errorf("%d tasks interrupted, want 1", got)
		}
		testkit.VerifyEvents(t, r.Stores)
	})
}

// More dead entries than one page of anything holds, and several reclaimers at
// once: each task is interrupted once, and who held it is always known.
func TestConcurrentReclaimers(t *testing.T) {
	t.Parallel()
	onEach(t, concurrentReclaimers)
}

func concurrentReclaimers(t *testing.T, s testkit.Stores) {
	r := rigOn(t, s)
	const n = 1300
	r.Enqueue(t, testkit.Requests(n, "t")...)
	hs := append(r.Fetch(t, "a", n/2), r.Fetch(t, "b", n/2)...)
	pipe := r.Raw.Pipeline()
	for i, h := range hs {
		pipe.Do(t.Context(), "XCLAIM", protocol.StreamTask, protocol.GroupWorkers, h.Consumer, 0, h.MessageID, "IDLE", visibility.Milliseconds()-int64(i%40), "JUSTID")
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 3 {
		o := testkit.NewRig(t, r.Stores, short(r.Stores))
		wg.Go(func() {
			testkit.Eventually(t, "nothing is in the dead workers' hands", func() (bool, string) {
				if err := o.Reclaim.Scan(t.Context()); err != nil {
					t.Error(err)
				}
				c, err := o.Raw.XInfoConsumers(t.Context(), protocol.StreamTask, protocol.GroupWorkers).Result()
				left := int64(0)
				for _, x := range c {
					left += x.Pending
				}
				return err == nil && left == 0, fmt.Sprint(left, err)
			})
		})
	}
	wg.Wait()
	if got := r.Count(t, "SELECT count(*) FROM event_log WHERE type = 'task.reclaimed'"); got != n {
		t.Errorf("%d reclaimed, want %d", got, n)
	}
	if got := r.Count(t, "SELECT count(*) FROM tasks WHERE interruptions <> 1"); got != 0 {
		t.Errorf("%d tasks not interrupted once", got)
	}
	if got := r.Count(t, "SELECT count(*) FROM event_log WHERE type = 'task.reclaimed' AND data->>'original_consumer' NOT IN ('a', 'b')"); got != 0 {
		t.Errorf("of %d tasks it is not known who held them", got)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// A store goes away after the entries were claimed. The next scan finishes, and
// still knows who held them.
func TestReclaimAfterAnOutage(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	p := chaosproxy.Postgres(t, s.PostgresURL)
	direct := testkit.NewRig(t, s, short(s))
	direct.StartDispatch(t)
	direct.Start(t, direct.Results.Run)
	id := direct.Enqueue(t, testkit.Requests(1, "t")...)[0]
	h := direct.Fetch(t, "dead", 1)[0]
	r := testkit.NewRig(t, testkit.Stores{PostgresURL: p.URL, RedisURL: s.RedisURL}, short(s))
	age(t, direct, time.Hour, h)
	lost := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has("begin"), Forward: 0})
	if err := r.Reclaim.Scan(t.Context()); err == nil {
		t.Fatal("a scan without Postgres succeeds")
	}
	<-lost
	if row := direct.Row(t, id); row.Interruptions != 0 || pending(t, direct) != 1 {
		t.Fatalf("%+v, %d pending: acknowledged without being interrupted?", row, pending(t, direct))
	}
	age(t, direct, time.Hour, testkit.Held{MessageID: h.MessageID, Consumer: r.Consumer})
	if err := r.Reclaim.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := direct.Count(t, "SELECT count(*) FROM event_log WHERE type = 'task.reclaimed' AND data->>'original_consumer' = 'dead'"); n != 1 {
		t.Error("the original consumer is not recorded")
	}
	if row := direct.Row(t, id); row.Interruptions != 1 || pending(t, direct) != 0 {
		t.Errorf("%+v, %d pending", row, pending(t, direct))
	}
	testkit.VerifyEvents(t, s)
}

// A task whose worker is lost again and again becomes a dead letter.
func TestTooManyInterruptions(t *testing.T) {
	t.Parallel()
	r := rig(t)
	id := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	for range r.Env.MaxInterruptions + 1 {
		h := r.Fetch(t, "dead", 1)[0]
		age(t, r, time.Hour, h)
		if err := r.Reclaim.Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.WaitState(t, protocol.StateFailed, id)
	row := r.Row(t, id)
	if row.Code != string(protocol.CodeWorkerLost) || row.Attempt != 1 || row.Interruptions != 4 || !strings.Contains(row.Reason, "4 times") {
		t.Errorf("%+v", row)
	}
	lost := []string{"task.reclaimed", "task.interrupted"}
	want := append([]string{"task.created"}, lost...)
	for range 3 {
		want = append(append(want, "task.queued"), lost...)
	}
	events(t, r, id, append(want, "task.dlq", "task.dlq", "task.failed")...)
	if n := r.Count(t, "SELECT count(*) FROM dlq_items WHERE task_id = $1 AND error_code = 'TASK_WORKER_LOST' AND recorded_at IS NOT NULL", id[:]); n != 1 {
		t.Errorf("%d dead letters", n)
	}
	testkit.VerifyLog(t, r.Stores)
}

// Garbage in a dead worker's hands, entries that were deleted there, and entries
// of tasks that do not exist: all are acknowledged, garbage is kept.
func TestGarbageAndGhosts(t *testing.T) {
	t.Parallel()
	onEach(t, garbageAndGhosts)
}

func garbageAndGhosts(t *testing.T, s testkit.Stores) {
	r := rigOn(t, s)
	ids := r.Enqueue(t, testkit.Requests(1, "t")...)
	stranger := protocol.TaskEntry{ID: ids[0], Type: "t", Payload: []byte("{}"), Attempt: 1, Delivery: 1, Timeout: time.Second}
	stranger.ID[15] ^= 1
	bad := stranger.Values()
	bad[1] = "99" // a version nobody knows
	for _, a := range r.Client.Add(t.Context(), protocol.StreamTask, [][]any{{"junk", "\x00\xff"}, stranger.Values(), bad, {"deleted", "later"}}) {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	es, err := r.Client.ReadNow(t.Context(), protocol.StreamTask, protocol.GroupWorkers, "dead", 10)
	if err != nil || len(es) != 5 {
		t.Fatalf("%d entries, %v", len(es), err)
	}
	if err := r.Raw.XDel(t.Context(), protocol.StreamTask, es[4].ID).Err(); err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		age(t, r, time.Hour, testkit.Held{MessageID: e.ID, Consumer: "dead"})
	}
	if err := r.Reclaim.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pending(t, r); n != 0 {
		t.Errorf("%d pending", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM dlq_items WHERE task_id IS NULL AND stream = 'stream:task'"); n != 1 {
		t.Errorf("%d dead letters of garbage, want 1: nobody else will report it", n)
	}
	finish(t, r, 1)
	r.WaitState(t, protocol.StateSucceeded, ids...)
	testkit.VerifyLog(t, r.Stores)
}

// A queue whose key is not a stream does not keep the others' dead workers from
// being noticed.
func TestOneQueueInTrouble(t *testing.T) {
	t.Parallel()
	r := rig(t)
	reqs := testkit.Requests(2, "t")
	reqs[1].Queue = "aaa"
	ids := r.Enqueue(t, reqs...)
	if err := r.Raw.Set(t.Context(), protocol.TaskStream("aaa"), "no stream", 0).Err(); err != nil {
		t.Fatal(err)
	}
	h := r.Fetch(t, "dead", 1)[0]
	age(t, r, time.Hour, h)
	if err := r.Reclaim.Scan(t.Context()); err == nil {
		t.Error("the trouble is not reported")
	}
	if row := r.Row(t, ids[0]); row.Interruptions != 1 {
		t.Errorf("%+v, want it interrupted", row)
	}
	testkit.VerifyEvents(t, r.Stores)
}
