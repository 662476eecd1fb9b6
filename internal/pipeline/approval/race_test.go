package approval_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/pipeline/cancel"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func cancelBy(name string) cancel.Reason {
	return cancel.Reason{Principal: name, Text: "changed my mind"}
}

// Approvals, rejections and a cancellation of one request at once, on two
// replicas: one of them decides.
func TestConcurrentDecisionsAreOne(t *testing.T) {
	t.Parallel()
	stores := testkit.NewStores(t)
	a, b := testkit.NewRig(t, stores, testConfig(stores)), testkit.NewRig(t, stores, testConfig(stores))
	save(t, a, refunds(2))
	for round := range 40 {
		id := a.Enqueue(t, refund(5000))[0]
		req := one(t, a, id)
		approve(t, a, req, bob, approval.Decision{})
		var wg sync.WaitGroup
		var mu sync.Mutex
		ended := 0
		do := func(fn func() (decided bool)) {
			wg.Go(func() {
				if fn() {
					mu.Lock()
					ended++
					mu.Unlock()
				}
			})
		}
		for i, r := range []*testkit.Rig{a, b} {
			do(func() bool {
				d, err := r.Approval.Approve(t.Context(), req, carol, "yes")
				return err == nil && d.Released
			})
			do(func() bool {
				d, err := r.Approval.Reject(t.Context(), req, approver(fmt.Sprintf("dave%d", i)), "no")
				return err == nil && !d.Already
			})
			do(func() bool {
				already, err := r.Cancel.Cancel(t.Context(), id, cancelBy("alice"))
				return err == nil && !already
			})
		}
		wg.Wait()
		if n := a.Count(t, `SELECT count(*) FROM event_log WHERE task_id = $1 AND type = 'approval.approved' AND previous_status <> status`, pgid.ID(id)) +
			a.Count(t, `SELECT count(*) FROM event_log WHERE task_id = $1 AND type = 'approval.rejected'`, pgid.ID(id)) +
			a.Count(t, `SELECT count(*) FROM event_log WHERE task_id = $1 AND type = 'task.cancelled' AND previous_status = 'waiting_approval'`, pgid.ID(id)); n != 1 {
			t.Fatalf("round %d: %d decisions in the log, want 1: %s", round, n, events(t, a, id))
		}
		if n := a.Count(t, `SELECT count(*) FROM approvals WHERE task_id = $1 AND status = 'pending'`, pgid.ID(id)); n != 0 {
			t.Fatalf("round %d: the request is still pending", round)
		}
		if ended == 0 {
			t.Fatalf("round %d: nobody was told that they decided", round)
		}
	}
	testkit.VerifyEvents(t, a.Stores)
}

// One person on many connections is one person.
func TestOnePersonAtOnceCountsOnce(t *testing.T) {
	t.Parallel()
	stores := testkit.NewStores(t)
	a, b := testkit.NewRig(t, stores, testConfig(stores)), testkit.NewRig(t, stores, testConfig(stores))
	save(t, a, refunds(2))
	for range 20 {
		id := a.Enqueue(t, refund(5000))[0]
		req := one(t, a, id)
		var wg sync.WaitGroup
		for i, name := range []string{"bob", "BOB", "Bob", "bOb", "bob", "boB"} {
			r := []*testkit.Rig{a, b}[i%2]
			wg.Go(func() {
				if _, err := r.Approval.Approve(t.Context(), req, approver(name), ""); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		wg.Wait()
		wantState(t, a, id, protocol.StateWaitingApproval)
		if n := a.Count(t, `SELECT count(*) FROM approval_votes WHERE approval_id = $1`, pgid.ID(req)); n != 1 {
			t.Fatalf("%d votes, want 1", n)
		}
	}
	testkit.VerifyEvents(t, a.Stores)
}

// A rule that was saved on one replica counts for everything that another one is
// asked to store after that.
func TestARuleCountsOnEveryReplicaAtOnce(t *testing.T) {
	t.Parallel()
	stores := testkit.NewStores(t)
	a, b := testkit.NewRig(t, stores, testConfig(stores)), testkit.NewRig(t, stores, testConfig(stores))
	for i := range 30 {
		b.Enqueue(t, testkit.Requests(1, kind(i))...) // knows the rules before the change
		save(t, a, guard.Rule{Name: fmt.Sprintf("r%d", i), Expression: fmt.Sprintf("task.type == %q", kind(i))})
		for _, key := range []string{"", "k"} {
			req := testkit.Requests(1, kind(i))[0]
			if key != "" {
				req.IdempotencyKey = fmt.Sprintf("%s%d", key, i)
			}
			id := b.Enqueue(t, req)[0]
			wantState(t, b, id, protocol.StateWaitingApproval)
		}
	}
}

// While rules change, no task passes that was enqueued after the answer, none is
// stored twice, and none is lost.
func TestEnqueueWhileRulesChange(t *testing.T) {
	t.Parallel()
	stores := testkit.NewStores(t)
	a, b := testkit.NewRig(t, stores, testConfig(stores)), testkit.NewRig(t, stores, testConfig(stores))
	var wg sync.WaitGroup
	const n = 60
	wg.Go(func() {
		for i := range 10 {
			rule := guard.Rule{Name: "r", Expression: fmt.Sprintf(`task.type == "x" && task.payload.n > %d`, i)}
			rule.Enabled = true
			if _, _, err := a.Approval.SaveRule(t.Context(), rule, nil, "root"); err != nil {
				t.Errorf("save: %v", err)
			}
		}
	})
	for g := range 3 {
		r := []*testkit.Rig{a, b, b}[g]
		wg.Go(func() {
			for i := range n {
				_, err := r.Enqueuer.Enqueue(t.Context(), &enqueue.Request{Type: "x", Payload: []byte(`{"n": 100}`), IdempotencyKey: fmt.Sprintf("%d-%d", g, i), RequestedBy: "alice"})
				if err != nil {
					t.Errorf("enqueue: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if got := a.Count(t, `SELECT count(*) FROM tasks`); got != 3*n {
		t.Errorf("%d tasks, want %d", got, 3*n)
	}
	if got := a.Count(t, `SELECT count(*) FROM tasks t WHERE state = 'waiting_approval' AND (SELECT count(*) FROM approvals a WHERE a.task_id = t.id AND a.status = 'pending') <> 1`); got != 0 {
		t.Errorf("%d waiting tasks have no request or several", got)
	}
	id := a.Enqueue(t, &enqueue.Request{Type: "x", Payload: []byte(`{"n": 100}`)})[0]
	wantState(t, a, id, protocol.StateWaitingApproval)
}
