package cancel_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func within(d time.Duration) func(*enqueue.Request) {
	return func(r *enqueue.Request) { ms := d.Milliseconds(); r.StartWithinMS = &ms }
}

// over makes the time to start of all tasks be long over.
func over(t *testing.T, r *testkit.Rig) {
	t.Helper()
	if _, err := r.DB.Exec(t.Context(), "UPDATE tasks SET expires_at = expires_at - interval '2 hours'"); err != nil {
		t.Fatal(err)
	}
}

func expireDispatched(t *testing.T, r *testkit.Rig) {
	t.Helper()
	if _, err := r.Cancel.ExpireDispatched(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func wantExpired(t *testing.T, r *testkit.Rig, id protocol.ID, types string) {
	t.Helper()
	if row := r.Row(t, id); row.State != protocol.StateCancelled || row.Code != "TASK_EXPIRED" {
		t.Errorf("%+v, want it expired", row)
	}
	events(t, r, id, types)
}

// The loop cancels what waits too long: scheduled, queued without a worker, and
// retrying; not before its time, and one in a stream after the grace.
func TestExpiryLoop(t *testing.T) {
	t.Parallel()
	r := rig(t)
	retrying := r.Enqueue(t, requests(1, within(time.Hour))...)[0]
	h := r.Fetch(t, "w", 1)
	failure := h[0].Outcome(protocol.OutcomeFailed)
	failure.Retryable, failure.Delay, failure.Error = true, time.Hour, "boom"
	r.Report(t, failure)
	r.Ack(t, h...)
	r.WaitState(t, protocol.StateRetrying, retrying)
	over(t, r)
	scheduled := r.Enqueue(t, requests(1, func(q *enqueue.Request) { later(q); q.ExpiresAt = time.Now().Add(200 * time.Millisecond) })...)[0]
	queued := r.Enqueue(t, requests(1, within(300*time.Millisecond))...)[0]
	fine := r.Enqueue(t, requests(1, within(time.Hour))...)[0]
	r.Start(t, r.Cancel.RunExpiry)
	r.WaitState(t, protocol.StateCancelled, retrying, scheduled, queued)
	wantExpired(t, r, retrying, "task.created task.claimed task.retry_scheduled task.cancelled")
	wantExpired(t, r, scheduled, "task.created task.cancelled")
	wantExpired(t, r, queued, "task.created task.cancelled")
	for id, least := range map[protocol.ID]time.Duration{scheduled: 0, queued: grace} {
		var late float64
		if err := r.DB.QueryRow(t.Context(), "SELECT extract(epoch FROM finished_at - expires_at) FROM tasks WHERE id = $1", id[:]).Scan(&late); err != nil {
			t.Fatal(err)
		}
		if late < least.Seconds() {
			t.Errorf("task %s expired %.3f s after its time, want at least %s", id, late, least)
		}
	}
	if row := r.Row(t, fine); row.State != protocol.StateQueued {
		t.Errorf("%+v, want it queued", row)
	}
	if !tombstoned(t, r, queued, 1) || tombstoned(t, r, scheduled, 1) {
		t.Error("tombstones are not those of what Redis holds")
	}
	testkit.VerifyEvents(t, r.Stores)
}

// What becomes due after its time to start is never dispatched.
func TestNoDispatchAfterExpiry(t *testing.T) {
	t.Parallel()
	r := rig(t)
	past := r.Enqueue(t, requests(3, func(q *enqueue.Request) { q.ExpiresAt = time.Now().Add(-time.Minute) })...)
	later := r.Enqueue(t, requests(3, func(q *enqueue.Request) {
		q.ScheduleType, q.DelayMS, q.ExpiresAt = "delay", 300, time.Now().Add(100*time.Millisecond)
	})...)
	both := append(past, later...)
	r.WaitState(t, protocol.StateCancelled, both...) // by the dispatcher: nothing else runs
	for _, id := range both {
		wantExpired(t, r, id, "task.created task.cancelled")
	}
	if n, err := r.Raw.XLen(t.Context(), protocol.StreamTask).Result(); n != 0 || err != nil {
		t.Errorf("%d entries were dispatched, %v", n, err)
	}
	// The same request again is a repeat, whatever the time is.
	q := requests(1, func(q *enqueue.Request) {
		q.IdempotencyKey, q.ExpiresAt = "k", time.Now().Add(-time.Minute)
	})[0]
	id := r.Enqueue(t, q)[0]
	r.WaitState(t, protocol.StateCancelled, id)
	res, err := r.Enqueuer.Enqueue(t.Context(), q)
	if err != nil || !res.Hit || protocol.ID(res.Task().ID) != id || res.Task().State != "cancelled" {
		t.Errorf("repeat: %+v, %v", res, err)
	}
	wantTombstones(t, r, 0, 0)
	testkit.VerifyLog(t, r.Stores)
}

// A claim that a worker managed to report counts, even if it was not applied
// when the time was over; a running task never expires.
func TestClaimWinsOverExpiry(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, calm(s))
	r.StartDispatch(t)
	r.Enqueue(t, requests(2, within(time.Hour))...)
	hs := r.Fetch(t, "w", 2)
	r.Report(t, hs[0].Outcome(protocol.OutcomeClaimed))
	over(t, r)
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := r.Cancel.ExpireDispatched(soon); !errors.Is(err, context.DeadlineExceeded) || r.Row(t, hs[1].ID).State != protocol.StateQueued {
		t.Fatalf("expiry did not wait for the outcomes: %v", err)
	}
	r.Start(t, r.Results.Run)
	expireDispatched(t, r)
	r.WaitState(t, protocol.StateRunning, hs[0].ID)
	wantExpired(t, r, hs[1].ID, "task.created task.cancelled")
	if !tombstoned(t, r, hs[1].ID, 1) {
		t.Error("the expired task in the stream has no tombstone")
	}
	// Its worker says too late that it started it.
	r.Report(t, succeed(hs[0]), hs[1].Outcome(protocol.OutcomeClaimed))
	r.Ack(t, hs...)
	settled(t, r)
	expireDispatched(t, r)
	events(t, r, hs[0].ID, "task.created task.claimed task.succeeded")
	events(t, r, hs[1].ID, "task.created task.cancelled task.transition_rejected")
	testkit.VerifyLog(t, s)
}

// Redis stands still while the time to start and the grace of a dispatched task
// end: its worker could not say that it started it, and gets the grace once more.
func TestWorkersCatchUpAfterRedisStoodStill(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	p := chaosproxy.Redis(t, s.RedisURL)
	direct := testkit.NewRig(t, s, calm(s))
	direct.StartDispatch(t)
	direct.Start(t, direct.Results.Run)
	ids := direct.Enqueue(t, requests(2, within(time.Hour))...)
	hs := direct.Fetch(t, "cut off", 2)
	r := testkit.NewRig(t, testkit.Stores{PostgresURL: s.PostgresURL, RedisURL: p.URL}, calm(s))
	p.Hang(true)
	over(t, direct)
	hung := time.Now()
	r.Start(t, r.Cancel.RunExpiry)
	testkit.Eventually(t, "Redis stands still for long", func() (bool, string) { return time.Since(hung) > time.Second, "" })
	back := time.Now()
	p.Hang(false)
	direct.Report(t, hs[0].Outcome(protocol.OutcomeClaimed))
	other := ids[0]
	if other == hs[0].ID {
		other = ids[1]
	}
	direct.WaitState(t, protocol.StateCancelled, other)
	if took := time.Since(back); took < 900*time.Millisecond {
		t.Errorf("a task expired %s after Redis went on, want a second", took)
	}
	events(t, direct, hs[0].ID, "task.created task.claimed")
	testkit.VerifyEvents(t, s)
}

// Any number of orchestrators look at once, while others claim and dispatch:
// there is one end.
func TestReplicasExpireOnce(t *testing.T) {
	t.Parallel()
	r := rig(t)
	const n = 120
	r.Enqueue(t, requests(n/2, within(time.Hour))...)
	r.Enqueue(t, requests(n/2, func(q *enqueue.Request) { later(q); q.ExpiresAt = time.Now().Add(time.Hour) })...)
	hs := r.Fetch(t, "w", n/2)
	over(t, r)
	var g sync.WaitGroup
	for range 3 {
		replica := testkit.NewRig(t, r.Stores, calm(r.Stores))
		g.Go(func() {
			if _, err := replica.Cancel.ExpireWaiting(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := replica.Cancel.ExpireDispatched(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	g.Go(func() {
		for _, h := range hs {
			r.Report(t, succeed(h))
		}
	})
	g.Wait()
	r.Ack(t, hs...)
	settled(t, r)
	expireDispatched(t, r)
	if k := r.Count(t, "SELECT count(*) FROM tasks WHERE state NOT IN ('cancelled', 'succeeded')"); k != 0 {
		t.Errorf("%d tasks have not ended", k)
	}
	if k := r.Count(t, "SELECT count(*) FROM event_log WHERE type IN ('task.cancelled', 'task.succeeded')"); k != n {
		t.Errorf("%d final events of %d tasks", k, n)
	}
	testkit.VerifyLog(t, r.Stores)
}
