package effect_test

import (
	"errors"
	"testing"

	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/pipeline/effect"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// one enqueues a task and has a worker fetch it.
func (r rig) one(t *testing.T, req enqueue.Request) testkit.Held {
	t.Helper()
	req.Type, req.Payload = "t", []byte("{}")
	r.Enqueue(t, &req)
	return r.Fetch(t, "hand", 1)[0]
}

// requeued fails a task for good and returns what its dead letter is requeued as.
func (r rig) requeued(t *testing.T, h testkit.Held, by string) testkit.Held {
	t.Helper()
	o := h.Outcome(protocol.OutcomeFailed)
	o.Code, o.Error = protocol.CodeExecutionFailed, "no"
	r.Report(t, o)
	r.Ack(t, h)
	r.WaitState(t, protocol.StateFailed, h.ID)
	res, err := r.Replay.Requeue(t.Context(), []protocol.ID{protocol.DLQID(h.ID)}, replay.RequeueOptions{Principal: by})
	if err != nil || res[0].Err != nil {
		t.Fatal(err, res)
	}
	return r.Fetch(t, "hand", 1)[0]
}

// A task's id and another's idempotency key may be spelled alike, over any number
// of requeues: they are not the same key.
func TestKeysAndIDsAreKeptApart(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Start(t, r.DeadLetter.Run)
	keyed := r.one(t, enqueue.Request{IdempotencyKey: "order-17"})
	named := r.one(t, enqueue.Request{TaskID: "order-17"})
	for range 3 {
		if keyed.IdempotencyKey != "order-17" || named.IdempotencyKey != "order-17" || keyed.KeyOwn || !named.KeyOwn {
			t.Fatalf("handlers see %+v and %+v", keyed.TaskEntry, named.TaskEntry)
		}
		keyed, named = r.requeued(t, keyed, "zoe"), r.requeued(t, named, "zoe")
	}
	for i, h := range []testkit.Held{keyed, named} {
		q := reservation(h, "http")
		a := r.reserve(t, q, protocol.EffectGranted)
		if want := []string{"k:order-17", "t:order-17"}[i]; a.Key != want {
			t.Errorf("key %s, want %s", a.Key, want)
		}
		if err := r.Complete(t.Context(), holder(h), "http", q.Token, []byte("1"), ""); err != nil {
			t.Fatal(err)
		}
		r.reserve(t, reservation(r.requeued(t, h, "zoe"), "http"), protocol.EffectKnown)
	}
}

// The scope is that of keys: a task without one has its tenant's ids.
func TestScopesOfKeys(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, c := range []struct {
		enqueue.Request
		scope, key string
	}{
		{enqueue.Request{TaskID: "a", IdempotencyScope: "s"}, "default", "t:a"},
		{enqueue.Request{TaskID: "a", IdempotencyScope: "s", Tenant: "ada"}, "ada", "t:a"},
		{enqueue.Request{IdempotencyKey: "a", IdempotencyScope: "s2"}, "s2", "k:a"},
		{enqueue.Request{IdempotencyKey: "a"}, "default", "k:a"},
	} {
		h := r.one(t, c.Request)
		if h.IdempotencyScope != c.scope {
			t.Errorf("the handler is told scope %s, want %s", h.IdempotencyScope, c.scope)
		}
		if a := r.reserve(t, reservation(h, "http"), protocol.EffectGranted); a.Scope != c.scope || a.Key != c.key {
			t.Errorf("key %+v, want %s %s", a.ID, c.scope, c.key)
		}
	}
}

// Whoever had a hand in a task of the effect does not say what became of it, also
// where no task waits.
func TestRequestersDoNotResolve(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Start(t, r.DeadLetter.Run)
	h := r.one(t, enqueue.Request{IdempotencyKey: "k", RequestedBy: "Bob"})
	r.reserve(t, reservation(h, "charge"), protocol.EffectGranted)
	r.requeued(t, h, "zoe") // which has not asked for the effect
	answer := func(by string) error {
		_, err := r.Resolve(t.Context(), &effect.Resolution{ID: effect.ID{Scope: "default", Key: "k:k", Name: "charge"}, As: protocol.ResolvedNotDone, Principal: by, Reason: "so I say"})
		return err
	}
	for _, by := range []string{"bob", "BOB", "zoe"} {
		if err := answer(by); !errors.Is(err, effect.ErrRequester) {
			t.Errorf("%s: %v", by, err)
		}
	}
	if n := r.Count(t, "SELECT count(*) FROM effects WHERE state = 'reserved'"); n != 1 {
		t.Error("it is resolved")
	}
	if err := answer("ada"); err != nil {
		t.Error(err)
	}
}

// asks ends an execution that found an effect in doubt, and returns the outcome.
func (r rig) asks(t *testing.T, h testkit.Held, ref string) {
	t.Helper()
	o := h.Outcome(protocol.OutcomeApprovalNeeded)
	o.Approval = []byte(`{"kind":"effect","name":"effect:charge","required":2,"approvers":["mallory"],"effect":` + ref + `}`)
	r.Report(t, o)
	r.Ack(t, h)
}

const ownRef = `{"scope":"default","key":"k","name":"charge"}`

// A question about another task's effect is a permanent failure; one about an own
// effect goes to those who may resolve it, whoever the handler names.
func TestOnlyOwnEffectsAreAskedAbout(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Start(t, r.DeadLetter.Run)
	for i, ref := range []string{`{"scope":"other","key":"k0","name":"charge"}`, `{"scope":"default","key":"x","name":"charge"}`, `{"scope":"default","key":"k2","key_kind":"task","name":"charge"}`} {
		h := r.one(t, enqueue.Request{IdempotencyKey: "k" + string(rune('0'+i))})
		r.asks(t, h, ref)
		r.WaitState(t, protocol.StateFailed, h.ID)
		if row := r.Row(t, h.ID); row.Code != string(protocol.CodeInputInvalid) || row.Attempt != 1 {
			t.Errorf("%s: %+v", ref, row)
		}
	}
	if n := r.Count(t, "SELECT count(*) FROM approvals"); n != 0 {
		t.Errorf("%d requests are stored", n)
	}
	h := r.one(t, enqueue.Request{IdempotencyKey: "k"})
	r.reserve(t, reservation(h, "charge"), protocol.EffectGranted)
	next := r.lose(t, h)
	r.asks(t, next, ownRef)
	r.WaitState(t, protocol.StateWaitingApproval, h.ID)
	if n := r.Count(t, "SELECT count(*) FROM approvals WHERE required = 1 AND approvers = '{role:approver,role:operator}' AND effect_key = 'k:k'"); n != 1 {
		t.Error("the request is not that of those who may resolve")
	}
	testkit.VerifyEvents(t, r.Stores)
}

// waiting is a task that waits for a doubt, and the reservation that is in doubt.
func (r rig) waiting(t *testing.T) (lost testkit.Held, q *effect.Reservation) {
	t.Helper()
	lost = r.one(t, enqueue.Request{IdempotencyKey: "k", RequestedBy: "bob"})
	q = reservation(lost, "charge")
	r.reserve(t, q, protocol.EffectGranted)
	next := r.lose(t, lost)
	r.reserve(t, reservation(next, "charge"), protocol.EffectInDoubt)
	r.asks(t, next, ownRef)
	r.WaitState(t, protocol.StateWaitingApproval, lost.ID)
	return lost, q
}

// A task does not wait for a doubt that is none any more: its run tells, late, what
// came of it.
func TestALateReportReleases(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(r rig, h testkit.Held, q *effect.Reservation) error{
		"done": func(r rig, h testkit.Held, q *effect.Reservation) error {
			return r.Complete(t.Context(), holder(h), "charge", q.Token, []byte("1"), "")
		},
		"not done": func(r rig, h testkit.Held, q *effect.Reservation) error {
			return r.Release(t.Context(), holder(h), "charge", q.Token)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			h, q := r.waiting(t)
			if err := tell(r, h, q); err != nil {
				t.Fatal(err)
			}
			if n := r.Count(t, "SELECT count(*) FROM approvals WHERE status = 'withdrawn'"); n != 1 {
				t.Error("the request is not withdrawn")
			}
			next := r.Fetch(t, "third", 1)[0]
			r.reserve(t, reservation(next, "charge"), map[string]protocol.EffectVerdict{"done": protocol.EffectKnown, "not done": protocol.EffectGranted}[name])
			r.Report(t, next.Outcome(protocol.OutcomeSucceeded))
			r.Ack(t, h, next)
			r.WaitState(t, protocol.StateSucceeded, h.ID)
			testkit.VerifyLog(t, r.Stores)
		})
	}
}

// It was resolved before the question arrived: nobody will be asked.
func TestAQuestionThatComesLate(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Start(t, r.Approval.Run)
	h := r.one(t, enqueue.Request{IdempotencyKey: "k", RequestedBy: "bob"})
	r.reserve(t, reservation(h, "charge"), protocol.EffectGranted)
	next := r.lose(t, h)
	r.reserve(t, reservation(next, "charge"), protocol.EffectInDoubt)
	res, err := r.Resolve(t.Context(), &effect.Resolution{ID: effect.ID{Scope: "default", Key: "k:k", Name: "charge"}, As: protocol.ResolvedDone, Result: []byte("5"), Principal: "ada", Reason: "looked"})
	if err != nil || len(res.Released) != 0 {
		t.Fatal(res, err)
	}
	r.asks(t, next, ownRef)
	last := r.Fetch(t, "third", 1)[0]
	r.reserve(t, reservation(last, "charge"), protocol.EffectKnown)
	if n := r.Count(t, "SELECT count(*) FROM event_log WHERE actor = 'effects' AND type = 'approval.approved' AND data->>'principal' IS NULL"); n != 1 {
		t.Errorf("%d events of the release, want 1", n)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// An approval has that reservation run again which people were asked about, and
// none that was made since, nor one that is being run.
func TestAnApprovalFreesWhatItWasAskedAbout(t *testing.T) {
	t.Parallel()
	ada := approval.Person{Principal: "ada", Roles: []string{"operator"}}
	for name, c := range map[string]struct {
		change string // of the effect before the approval
		want   string
	}{
		"that one":        {"", "free"},
		"a later one":     {"UPDATE effects SET reserved_at = clock_timestamp()", "reserved"},
		"one that is run": {"UPDATE effects SET task_id = b.id, delivery = b.delivery, users = users || b.id FROM tasks b WHERE b.idempotency_key = 'busy'", "reserved"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.waiting(t)
			busy := r.one(t, enqueue.Request{IdempotencyKey: "busy"})
			r.reserve(t, reservation(busy, "other"), protocol.EffectGranted) // and so runs
			if c.change != "" {
				if _, err := r.DB.Exec(t.Context(), c.change+map[bool]string{true: " WHERE", false: " AND"}[name == "a later one"]+" effects.name = 'charge'"); err != nil {
					t.Fatal(err)
				}
			}
			var id protocol.ID
			if err := r.DB.QueryRow(t.Context(), "SELECT id FROM approvals").Scan((*[16]byte)(&id)); err != nil {
				t.Fatal(err)
			}
			d, err := r.Approval.Approve(t.Context(), id, ada, "again")
			if err != nil || !d.Released {
				t.Fatal(d, err)
			}
			var state string
			if err := r.DB.QueryRow(t.Context(), "SELECT state FROM effects WHERE name = 'charge'").Scan(&state); err != nil || state != c.want {
				t.Errorf("the effect is %s, want %s (%v)", state, c.want, err)
			}
		})
	}
}

// Who had a hand in any task behind an effect decides about it by no way: bob may
// neither resolve it, nor approve the question of his own task, nor that of
// carol's, which would release his.
func TestRequestersDoNotApproveForEachOther(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Start(t, r.DeadLetter.Run)
	h := r.one(t, enqueue.Request{IdempotencyKey: "order", RequestedBy: "alice"})
	r.reserve(t, reservation(h, "charge"), protocol.EffectGranted)
	o := h.Outcome(protocol.OutcomeFailed)
	o.Code, o.Error = protocol.CodeExecutionFailed, "no"
	r.Report(t, o)
	r.Ack(t, h)
	r.WaitState(t, protocol.StateFailed, h.ID)
	requeued := func(by string) (question protocol.ID) {
		res, err := r.Replay.Requeue(t.Context(), []protocol.ID{protocol.DLQID(h.ID)}, replay.RequeueOptions{Principal: by, Again: true})
		if err != nil || res[0].Err != nil {
			t.Fatal(err, res)
		}
		n := r.Fetch(t, "hand", 1)[0]
		r.reserve(t, reservation(n, "charge"), protocol.EffectInDoubt)
		o := n.Outcome(protocol.OutcomeApprovalNeeded)
		o.Approval = []byte(`{"kind":"effect","name":"effect:charge","effect":{"scope":"default","key":"order","name":"charge"}}`)
		r.Report(t, o)
		r.Ack(t, n)
		r.WaitState(t, protocol.StateWaitingApproval, n.ID)
		var id pgid.ID
		if err := r.DB.QueryRow(t.Context(), "SELECT id FROM approvals WHERE task_id = $1 AND status = 'pending'", pgid.ID(n.ID)).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return protocol.ID(id)
	}
	questions := []protocol.ID{requeued("bob"), requeued("carol")}
	for _, by := range []string{"bob", "Carol", "alice"} {
		for i, q := range questions {
			if d, err := r.Approval.Approve(t.Context(), q, approval.Person{Principal: by, Roles: []string{"operator"}}, "x"); !errors.Is(err, approval.ErrRequester) {
				t.Errorf("%s approves question %d: %+v, %v", by, i, d, err)
			}
		}
	}
	if n := r.Count(t, "SELECT count(*) FROM effects WHERE state = 'reserved'"); n != 1 {
		t.Errorf("%d effects are still in doubt, want 1", n)
	}
	if d, err := r.Approval.Approve(t.Context(), questions[0], approval.Person{Principal: "dave", Roles: []string{"operator"}}, "the bank knows nothing"); err != nil || !d.Released {
		t.Errorf("dave, who had no hand in it: %+v, %v", d, err)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// The history of an effect that people free again and again is bounded.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	r := setup(t)
	h := r.one(t, enqueue.Request{IdempotencyKey: "order", RequestedBy: "alice"})
	r.reserve(t, reservation(h, "charge"), protocol.EffectGranted)
	for range 30 {
		if err := r.Store.FreeEffect(t.Context(), dbsqlc.FreeEffectParams{Scope: "default", Key: "k:order", Name: "charge", ResolvedBy: "bob", Reason: "x"}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.DB.Exec(t.Context(), "UPDATE effects SET state = 'reserved'"); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.Count(t, "SELECT json_array_length(history) FROM effects"); n != 20 {
		t.Errorf("%d lines of history, want 20", n)
	}
}
