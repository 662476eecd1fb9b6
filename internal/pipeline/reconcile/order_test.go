package reconcile_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/pipeline/reconcile"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// journey is a healthy task on its way: in the outbox, undelivered, pending,
// reported and acknowledged, and, if it failed, dispatched once more.
type journey struct {
	id   protocol.ID
	at   int
	held testkit.Held
	kind protocol.OutcomeKind
	long bool // its claim is reported on its own
}

// last is the place where the journey ends.
func (j *journey) last() int {
	if j.kind == protocol.OutcomeFailed {
		return 4
	}
	return 3
}

func (j *journey) step(t *testing.T, r *testkit.Rig) {
	t.Helper()
	switch j.at {
	case 0:
		add(t, r, j.id, 1)
		exec(t, r, "DELETE FROM dispatch_outbox WHERE task_ids[1] = $1", j.id)
	case 1:
		j.held = r.Fetch(t, "w", 1)[0]
		if j.long {
			r.Report(t, j.held.Outcome(protocol.OutcomeClaimed))
		}
	case 2:
		o := j.held.Outcome(j.kind)
		o.Retryable, o.Delay = true, time.Hour
		r.Report(t, o)
		r.Ack(t, j.held)
	case 3:
		testkit.Eventually(t, "the failure is applied", func() (bool, string) {
			row := r.Row(t, j.id)
			return row.Delivery == 2, fmt.Sprint(row)
		})
		exec(t, r, "UPDATE tasks SET due_at = NULL WHERE id = $1", j.id)
		add(t, r, j.id, 2)
		r.Fetch(t, "w2", 1)
	}
	j.at++
}

// A pass meets a task that moves on, at any pace, while the pass reads. However
// the two interleave, the task is healthy and is left alone. (Model check,
// violations 1 and 1b, and every other interleaving of this kind.)
func TestPassNeverOverrulesATaskThatMoves(t *testing.T) {
	t.Parallel()
	readings := []string{"candidates", "undelivered", "pending", "outcomes"}
	for variant, kind := range map[string]protocol.OutcomeKind{
		"succeeds": protocol.OutcomeSucceeded, "fails": protocol.OutcomeFailed, "fails again": protocol.OutcomeFailed,
		"long, succeeds": protocol.OutcomeSucceeded, "long, fails": protocol.OutcomeFailed,
	} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			r := rig(t)
			n := 0
			newJourney := func() *journey {
				j := &journey{id: dispatched(t, r), kind: kind, long: strings.HasPrefix(variant, "long")}
				if variant == "fails again" { // its state is the same before and after
					exec(t, r, "UPDATE tasks SET state = 'retrying', next_retry_at = now() WHERE id = $1", j.id)
				}
				open(t, r, j.id)
				return j
			}
			last := newJourney().last()
			for start := range last + 1 {
				for moves := range paces(len(readings), last-start) {
					n++
					j := newJourney()
					for range start {
						j.step(t, r)
					}
					meet(t, r, j, moves, len(readings))
					if t.Failed() {
						t.Fatalf("started at place %d, moves %v: %s", start, moves, testkit.EventTypes(t, r.Stores, j.id))
					}
				}
			}
			t.Logf("%d interleavings", n)
		})
	}
}

// meet runs a pass over the task and a lost one, and moves the task on after
// each of the pass' readings.
func meet(t *testing.T, r *testkit.Rig, j *journey, moves []int, readings int) {
	t.Helper()
	lost := dispatched(t, r) // keeps the pass going to its end
	calls := 0
	reconcile.After(r.Reconcile, func(string) {
		for range moves[calls] {
			j.step(t, r)
		}
		calls++
	})
	pass(t, r, j.id, lost)
	if calls != readings {
		t.Errorf("the pass made %d readings, want %d", calls, readings)
	}
	if row := r.Row(t, lost); row.Delivery != 2 || !row.Due {
		t.Errorf("the lost task: %+v", row)
	}
	for j.at < j.last() {
		j.step(t, r)
	}
	if n := r.Count(t, `SELECT count(*) FROM event_log WHERE task_id = $1
		AND type IN ('task.redispatched', 'task.interrupted', 'task.transition_rejected')`, j.id[:]); n != 0 {
		t.Errorf("%d events that no healthy task has", n)
	}
}

// paces yields all ways to make at most total moves at k moments.
func paces(k, total int) func(yield func([]int) bool) {
	return func(yield func([]int) bool) {
		moves := make([]int, k)
		var rec func(i, left int) bool
		rec = func(i, left int) bool {
			if i == k {
				return yield(moves)
			}
			for m := range left + 1 {
				moves[i] = m
				if !rec(i+1, left-m) {
					return false
				}
			}
			moves[i] = 0
			return true
		}
		rec(0, total)
	}
}

// The entry is gone, acknowledged and trimmed, and the honest outcome is still
// in stream:result: the pass waits for it (violation 4: a batch that is resolved
// late must not cost its tasks their outcomes).
func TestPassWaitsForOutcomes(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, short(s))
	id := dispatched(t, r)
	add(t, r, id, 1)
	h := r.Fetch(t, "w", 1)[0]
	r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
	r.Ack(t, h)
	if err := r.Raw.XTrimMaxLen(t.Context(), protocol.StreamTask, 0).Err(); err != nil {
		t.Fatal(err)
	}
	reached := make(chan struct{})
	reconcile.After(r.Reconcile, func(reading string) {
		if reading == "pending" {
			close(reached)
		}
	})
	done := make(chan error, 1)
	go func() { done <- r.Reconcile.Pass(context.WithoutCancel(t.Context()), []protocol.ID{id}) }()
	<-reached
	select {
	case err := <-done:
		t.Fatalf("the pass did not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	r.Start(t, r.Results.Run)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	events(t, r, id, "task.created", "task.claimed", "task.succeeded")
	testkit.VerifyLog(t, s)
}

// Healthy tasks in every legal place at once, and one that is nowhere.
func TestHealthyPlaces(t *testing.T) {
	t.Parallel()
	r := rig(t)
	names := []string{"waiting in Postgres", "in the outbox", "undelivered", "pending", "running", "retrying and waiting", "retrying and dispatched"}
	ids := make([]protocol.ID, len(names))
	for i := range ids {
		ids[i] = dispatched(t, r)
	}
	exec(t, r, "UPDATE tasks SET due_at = now() WHERE id = $1", ids[0])
	open(t, r, ids[1])
	for _, i := range []int{3, 4, 5, 6} {
		add(t, r, ids[i], 1)
	}
	hs := r.Fetch(t, "w", 4)
	retry := func(h testkit.Held) *protocol.Outcome {
		o := h.Outcome(protocol.OutcomeFailed)
		o.Retryable, o.Delay = true, time.Hour
		return o
	}
	r.Report(t, hs[1].Outcome(protocol.OutcomeClaimed), retry(hs[2]), retry(hs[3]))
	r.Ack(t, hs[2], hs[3])
	add(t, r, ids[2], 1)
	r.WaitState(t, protocol.StateRetrying, ids[5], ids[6])
	r.WaitState(t, protocol.StateRunning, ids[4])
	exec(t, r, "UPDATE tasks SET due_at = NULL WHERE id = $1", ids[6])
	add(t, r, ids[6], 2)
	lost := dispatched(t, r)
	before := make([]testkit.Row, len(ids))
	for i, id := range ids {
		before[i] = r.Row(t, id)
	}
	for range 3 {
		if err := r.Reconcile.Pass(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range ids {
		if after := r.Row(t, id); fmt.Sprint(deref(after)) != fmt.Sprint(deref(before[i])) {
			t.Errorf("%s: changed from %+v to %+v", names[i], before[i], after)
		}
	}
	events(t, r, lost, "task.created", "task.redispatched")
	if row := r.Row(t, lost); row.Delivery != 2 || !row.Due || row.State != protocol.StateQueued || row.Attempt != 1 {
		t.Errorf("the lost one: %+v", row)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// deref makes rows comparable as text.
func deref(r testkit.Row) [2]any {
	at := time.Time{}
	if r.NextRetryAt != nil {
		at = *r.NextRetryAt
	}
	r.NextRetryAt, r.FinishedAt = nil, nil
	return [2]any{r, at}
}
