package cancel_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/pipeline/cancel"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A task is cancelled from every state before it is given up; one that Redis
// holds gets a tombstone, the others need none.
func TestCancelInEachState(t *testing.T) {
	t.Parallel()
	r := rig(t)
	pending := r.Enqueue(t, requests(1, later)...)[0]
	queued := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	h := r.Fetch(t, "w", 1)
	mustCancel(t, r, pending)
	mustCancel(t, r, queued)
	if tombstoned(t, r, pending, 1) || !tombstoned(t, r, queued, 1) {
		t.Error("the tombstones are not those of what Redis holds")
	}
	r.Report(t, skipped(h[0]))
	r.Ack(t, h...)

	running := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	h = r.Fetch(t, "w", 1)
	r.Report(t, h[0].Outcome(protocol.OutcomeClaimed))
	r.WaitState(t, protocol.StateRunning, running)
	mustCancel(t, r, running)
	r.Report(t, h[0].Outcome(protocol.OutcomeSkipped))
	r.Ack(t, h...)

	retrying := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	h = r.Fetch(t, "w", 1)
	failure := h[0].Outcome(protocol.OutcomeFailed)
	failure.Retryable, failure.Delay, failure.Error = true, time.Hour, "boom"
	r.Report(t, failure)
	r.Ack(t, h...)
	r.WaitState(t, protocol.StateRetrying, retrying)
	mustCancel(t, r, retrying)

	interrupted := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	h = r.Fetch(t, "w", 1)
	unknown := h[0].Outcome(protocol.OutcomeReleased)
	unknown.StartedAt, unknown.Code = time.Time{}, protocol.CodeUnknownType
	r.Report(t, unknown)
	r.Ack(t, h...)
	r.WaitState(t, protocol.StateInterrupted, interrupted)
	mustCancel(t, r, interrupted)

	settled(t, r)
	events(t, r, pending, "task.created task.cancelled")
	events(t, r, queued, "task.created task.cancelled")
	events(t, r, running, "task.created task.claimed task.cancelled")
	events(t, r, retrying, "task.created task.claimed task.retry_scheduled task.cancelled")
	events(t, r, interrupted, "task.created task.interrupted task.cancelled")
	for _, id := range []protocol.ID{pending, queued, running, retrying, interrupted} {
		row := r.Row(t, id)
		if row.State != protocol.StateCancelled || row.Code != "TASK_CANCELLED" || row.Reason != why.Text || row.FinishedAt == nil || row.Due {
			t.Errorf("%+v", row)
		}
		if already, err := r.Cancel.Cancel(t.Context(), id, why); err != nil || !already {
			t.Errorf("cancel again: already %t, %v", already, err)
		}
	}
	var actor string
	if err := r.DB.QueryRow(t.Context(), "SELECT actor FROM event_log WHERE task_id = $1 AND type = 'task.cancelled'", running[:]).Scan(&actor); err != nil || actor != "user:ada" {
		t.Errorf("cancelled by %q, %v", actor, err)
	}
	wantTombstones(t, r, 2, 2)
	testkit.VerifyLog(t, r.Stores)
}

func TestCancelIsRefused(t *testing.T) {
	t.Parallel()
	r := rig(t)
	ids := r.Enqueue(t, testkit.Requests(2, "t")...)
	hs := r.Fetch(t, "w", 2)
	failure := hs[1].Outcome(protocol.OutcomeFailed)
	failure.Error = "boom"
	r.Report(t, succeed(hs[0]), failure)
	r.Ack(t, hs...)
	r.WaitState(t, protocol.StateSucceeded, hs[0].ID)
	r.WaitState(t, protocol.StateFailed, hs[1].ID)
	for _, id := range append(ids, ids...) {
		if _, err := r.Cancel.Cancel(t.Context(), id, why); protocol.CodeOf(err) != protocol.CodeInvalidTransition {
			t.Errorf("cancel of a task that has ended: %v", err)
		}
	}
	events(t, r, hs[0].ID, "task.created task.claimed task.succeeded task.transition_rejected") // once a delivery
	if _, err := r.Cancel.Cancel(t.Context(), protocol.NameID("default", "nobody"), why); protocol.CodeOf(err) != protocol.CodeNotFound {
		t.Errorf("cancel of no task: %v", err)
	}
	for _, text := range []string{strings.Repeat("x", 1025), "a\x00b", "\xff"} {
		_, err := r.Cancel.Cancel(t.Context(), ids[0], cancel.Reason{Text: text})
		if protocol.CodeOf(err) != protocol.CodeInputInvalid || !strings.Contains(err.Error(), "reason") {
			t.Errorf("reason of %d bytes: %v", len(text), err)
		}
	}
	wantTombstones(t, r, 0, 0)
	testkit.VerifyLog(t, r.Stores)
}

// Whoever commits first wins: there is one final event, and what comes second
// is refused.
func TestCancelRacesWithOutcomes(t *testing.T) {
	t.Parallel()
	r := rig(t)
	const n = 60
	r.Enqueue(t, testkit.Requests(n, "t")...)
	hs := r.Fetch(t, "w", n)
	var g sync.WaitGroup
	g.Go(func() {
		for i, h := range hs {
			if i%2 == 0 {
				r.Report(t, h.Outcome(protocol.OutcomeClaimed))
			}
			r.Report(t, succeed(h))
		}
	})
	for k := range 3 {
		g.Go(func() {
			for i := range hs {
				_, err := r.Cancel.Cancel(t.Context(), hs[(i*7+k*20)%n].ID, why)
				if err != nil && protocol.CodeOf(err) != protocol.CodeInvalidTransition {
					t.Error(err)
				}
			}
		})
	}
	g.Wait()
	r.Ack(t, hs...)
	settled(t, r)
	for state, want := range map[string]string{"succeeded": "task.succeeded", "cancelled": "task.cancelled"} {
		if k := r.Count(t, `SELECT count(*) FROM tasks t WHERE state = $1 AND 1 <> (SELECT count(*) FROM event_log e WHERE e.task_id = t.id
			AND e.type IN ('task.succeeded', 'task.cancelled') AND e.type = $2)`, state, want); k != 0 {
			t.Errorf("%d tasks are %s with other final events", k, state)
		}
	}
	if k := r.Count(t, "SELECT count(*) FROM tasks WHERE state IN ('succeeded', 'cancelled')"); k != n {
		t.Errorf("%d of %d tasks have ended", k, n)
	}
	testkit.VerifyLog(t, r.Stores)
}

// A cancelled task whose entry was lost with Redis is not dispatched again, and
// its tombstone comes back.
func TestCancelAndFlush(t *testing.T) {
	t.Parallel()
	r := rig(t)
	ids := r.Enqueue(t, testkit.Requests(3, "t")...)
	hs := r.Fetch(t, "w", 3)
	for _, id := range ids {
		mustCancel(t, r, id)
	}
	tell(t, r)
	if err := r.Raw.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	wantTombstones(t, r, 3, 0)
	tell(t, r)
	wantTombstones(t, r, 3, 3)
	if err := r.Reconcile.Pass(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	// A worker that was paused meanwhile says that it is done.
	if _, err := r.Client.CreateGroup(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators); err != nil {
		t.Fatal(err)
	}
	r.Report(t, succeed(hs[0]))
	settled(t, r)
	events(t, r, hs[0].ID, "task.created task.cancelled task.transition_rejected")
	events(t, r, hs[1].ID, "task.created task.cancelled")
	testkit.VerifyEvents(t, r.Stores)
}
