package cancel_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/pipeline/cancel"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func all() cancel.Filter { return cancel.Filter{Tenant: protocol.DefaultTenant, All: true} }

func changed() []*store.Locked { return nil }

func TestFilterIsChecked(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, calm(s))
	for field, f := range map[string]cancel.Filter{
		"all_tasks": {Tenant: "default", CreatedAfter: time.Now()},
		"states":    {Tenant: "default", States: []protocol.State{"queued", "succeeded"}},
	} {
		if _, _, err := r.Cancel.CancelAll(t.Context(), f, why, 0, false); protocol.CodeOf(err) != protocol.CodeInputInvalid || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: %v, want one about %s", f, err, field)
		}
	}
	for _, n := range []int{-1, cancel.MaxTasks + 1} {
		if _, _, err := r.Cancel.CancelAll(t.Context(), all(), why, n, false); protocol.CodeOf(err) != protocol.CodeInputInvalid {
			t.Errorf("max_tasks %d: %v", n, err)
		}
	}
}

// Only what meets every field is cancelled, oldest first.
func TestFilterAdmits(t *testing.T) {
	t.Parallel()
	r := rig(t)
	first := r.Enqueue(t, requests(2, func(q *enqueue.Request) { q.Queue = "mail"; later(q) })...)
	second := r.Enqueue(t, requests(2, func(q *enqueue.Request) { q.Queue = "mail" })...)
	r.Enqueue(t, requests(2, func(q *enqueue.Request) { q.Queue = "other" })...)
	r.Enqueue(t, requests(2, func(q *enqueue.Request) { q.Queue, q.Tenant = "mail", "else" })...)
	mail := cancel.Filter{Tenant: "default", Queue: "mail", Type: "t"}
	run := func(f cancel.Filter, limit int, dry bool, n int, more bool) {
		t.Helper()
		if got, rest, err := r.Cancel.CancelAll(t.Context(), f, why, limit, dry); got != n || rest != more || err != nil {
			t.Errorf("%+v: %d and more %t, %v, want %d and %t", f, got, rest, err, n, more)
		}
	}
	run(mail, 3, true, 3, true)
	run(mail, 0, true, 4, false)
	mail.States = []protocol.State{protocol.StateQueued}
	run(mail, 0, true, 2, false)
	mail.States = nil
	mail.CreatedBefore = time.Now().Add(-time.Hour)
	run(mail, 0, false, 0, false)
	mail.CreatedBefore = time.Now().Add(time.Hour)
	run(mail, 3, false, 3, true)
	r.WaitState(t, protocol.StateCancelled, first...)
	run(mail, 3, false, 1, false)
	r.WaitState(t, protocol.StateCancelled, second...)
	run(cancel.Filter{Tenant: "default", Type: "u"}, 0, false, 0, false)
	if n := r.Count(t, "SELECT count(*) FROM tasks WHERE state <> 'cancelled'"); n != 4 {
		t.Errorf("%d tasks are left, want 4", n)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// Many tasks in mixed states, while a worker goes on.
func TestFilterOfManyTasks(t *testing.T) {
	t.Parallel()
	r := rig(t)
	const n = 5000
	r.Enqueue(t, requests(n/5, later)...)
	r.Enqueue(t, testkit.Requests(n-n/5, "t")...)
	hs := r.Fetch(t, "w", n/5)
	for i, h := range hs {
		switch {
		case i%4 == 0:
			r.Report(t, h.Outcome(protocol.OutcomeClaimed))
		case i%4 == 1:
			failure := h.Outcome(protocol.OutcomeFailed)
			failure.Retryable, failure.Delay = true, time.Hour
			r.Report(t, failure)
		case i%4 == 2:
			r.Report(t, succeed(h))
		}
	}
	settled(t, r)
	done := n / 5 / 4
	total := 0
	for more := true; more; {
		k, rest, err := r.Cancel.CancelAll(t.Context(), all(), why, 2000, false)
		if err != nil {
			t.Fatal(err)
		}
		total, more = total+k, rest
	}
	if total != n-done {
		t.Errorf("%d cancelled, want %d", total, n-done)
	}
	if k := r.Count(t, "SELECT count(*) FROM tasks WHERE state = 'cancelled'"); k != n-done {
		t.Errorf("%d tasks are cancelled, want %d", k, n-done)
	}
	tell(t, r)
	waiting := n/5 + done // in Postgres: scheduled and retrying
	wantTombstones(t, r, n-done-waiting, n-done-waiting)
	r.Ack(t, hs...)
	rest := r.Fetch(t, "w", n-n/5-len(hs))
	for _, h := range rest {
		r.Report(t, skipped(h))
	}
	r.Ack(t, rest...)
	settled(t, r)
	sent(t, r)
	age(t, r)
	remove(t, r, n-done-waiting)
	testkit.VerifyLog(t, r.Stores)
}
