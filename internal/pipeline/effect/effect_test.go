package effect_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/pipeline/effect"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

type rig struct {
	*testkit.Rig
	*effect.Stage
}

func setup(t *testing.T) rig {
	t.Helper()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	return rig{r, effect.New(effect.Options{Store: r.Store, Waiting: r.Approval, Wake: r.Dispatch.Wake, Log: testkit.Log(t)})}
}

// fetched enqueues n tasks and has a worker fetch them.
func (r rig) fetched(t *testing.T, n int) []testkit.Held {
	t.Helper()
	r.Enqueue(t, testkit.Requests(n, "t")...)
	return r.Fetch(t, "hand", n)
}

// keyOf is the key of the effects of a task without an idempotency key.
func keyOf(h testkit.Held) string { return protocol.LedgerKey(protocol.KeyOfTask, h.TaskID) }

func token() protocol.ID { return protocol.ID(uuid.New()) }

func holder(h testkit.Held) protocol.EffectHolder {
	return protocol.EffectHolder{TaskID: h.ID, Delivery: h.Delivery, WorkerID: h.Consumer}
}

func reservation(h testkit.Held, name string) *effect.Reservation {
	return &effect.Reservation{EffectHolder: holder(h), MessageID: h.MessageID, Name: name, Token: token()}
}

// reserve makes a reservation and checks what comes of it.
func (r rig) reserve(t *testing.T, q *effect.Reservation, want protocol.EffectVerdict) *effect.Answer {
	t.Helper()
	a, err := r.Reserve(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if a.Verdict != want {
		t.Fatalf("the reservation comes to %s, want %s", a.Verdict, want)
	}
	return a
}

// lose ends the execution of a task as the reclaimer would, and fetches the next.
func (r rig) lose(t *testing.T, h testkit.Held) testkit.Held {
	t.Helper()
	err := r.Store.Decide(t.Context(), []protocol.ID{h.ID}, func(now time.Time, ts map[protocol.ID]*store.Locked) ([]*store.Locked, []*protocol.Event) {
		env := r.Env
		env.Now = now
		events, ok := ts[h.ID].Lost(env, protocol.ActorReclaimer, "lost", nil)
		if !ok {
			t.Errorf("task is %s", ts[h.ID].State)
		}
		return []*store.Locked{ts[h.ID]}, events
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Dispatch.Wake(time.Now())
	return r.Fetch(t, "other", 1)[0]
}

func TestDoneOnceStaysDone(t *testing.T) {
	t.Parallel()
	r := setup(t)
	h := r.fetched(t, 1)[0]
	q := reservation(h, "charge")
	if a := r.reserve(t, q, protocol.EffectGranted); a.Scope != "default" || a.Key != keyOf(h) {
		t.Errorf("key %+v", a.ID)
	}
	r.reserve(t, q, protocol.EffectGranted) // the reply was lost
	r.reserve(t, reservation(h, "charge"), protocol.EffectBusy)
	r.reserve(t, reservation(h, "mail"), protocol.EffectGranted)
	// The claim was applied with the reservation; the worker's own comes late.
	if row := r.Row(t, h.ID); row.State != protocol.StateRunning || row.Delivery != 1 {
		t.Fatalf("%+v", row)
	}
	r.Report(t, h.Outcome(protocol.OutcomeClaimed))
	for range 2 { // the reply was lost
		if err := r.Complete(t.Context(), holder(h), "charge", q.Token, []byte(`{"receipt": 7}`), ""); err != nil {
			t.Fatal(err)
		}
	}
	next := r.lose(t, h)
	if a := r.reserve(t, reservation(next, "charge"), protocol.EffectKnown); string(a.Effect.Result) != `{"receipt": 7}` {
		t.Errorf("result %s", a.Effect.Result)
	}
	r.reserve(t, reservation(next, "mail"), protocol.EffectInDoubt)
	r.Report(t, next.Outcome(protocol.OutcomeSucceeded))
	r.WaitState(t, protocol.StateSucceeded, h.ID)
	if n := r.Count(t, "SELECT count(*) FROM event_log WHERE task_id = $1 AND type = 'task.claimed'", uuid.UUID(h.ID)); n != 2 {
		t.Errorf("%d claims, want 2", n)
	}
	r.Ack(t, h, next)
	testkit.VerifyLog(t, r.Stores)
}

// A reservation that is asked for again, since its reply came too late, is as new
// as that: its effect may begin only now, so it does not count as in doubt at once
// when its execution is replaced.
func TestAskedAgainIsNewAgain(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Stage = effect.New(effect.Options{Store: r.Store, DoubtAfter: time.Minute, Log: testkit.Log(t)})
	h := r.fetched(t, 1)[0]
	q := reservation(h, "charge")
	r.reserve(t, q, protocol.EffectGranted)
	if _, err := r.DB.Exec(t.Context(), "UPDATE effects SET reserved_at = reserved_at - interval '1 hour'"); err != nil {
		t.Fatal(err)
	}
	r.reserve(t, q, protocol.EffectGranted)
	next := r.lose(t, h)
	r.reserve(t, reservation(next, "charge"), protocol.EffectBusy)
}

// Whoever is not the current execution gets nothing, and changes nothing.
func TestOnlyTheCurrentExecutionReserves(t *testing.T) {
	t.Parallel()
	r := setup(t)
	hs := r.fetched(t, 3)
	old := hs[0]
	r.reserve(t, reservation(old, "x"), protocol.EffectGranted)
	next := r.lose(t, old)
	ended := hs[1]
	r.Report(t, ended.Outcome(protocol.OutcomeSucceeded))
	r.WaitState(t, protocol.StateSucceeded, ended.ID)
	ahead := hs[2]
	ahead.Delivery = 9
	nobody := hs[2]
	task := *nobody.TaskEntry
	task.ID = token()
	nobody.TaskEntry = &task
	events := r.Count(t, "SELECT count(*) FROM event_log")
	for name, c := range map[string]struct {
		h    testkit.Held
		code protocol.Code
	}{
		"superseded": {old, protocol.CodeInvalidTransition}, "ended": {ended, protocol.CodeInvalidTransition},
		"ahead": {ahead, protocol.CodeInvalidTransition}, "no task": {nobody, protocol.CodeNotFound},
	} {
		if a, err := r.Reserve(t.Context(), reservation(c.h, "y")); protocol.CodeOf(err) != c.code {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	if n := r.Count(t, "SELECT count(*) FROM effects WHERE name = 'y'"); n != 0 {
		t.Errorf("%d effects stored", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM event_log"); n != events {
		t.Errorf("%d events, there were %d", n, events)
	}
	if err := r.Complete(t.Context(), holder(next), "z", token(), nil, ""); protocol.CodeOf(err) != protocol.CodeNotFound {
		t.Errorf("completed what nobody reserved: %v", err)
	}
}

// One of 200 calls at the same moment gets the effect: of one execution, and of as
// many tasks that share a key, over two replicas.
func TestConcurrentReservations(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const n = 200
	stages := []*effect.Stage{r.Stage, effect.New(effect.Options{Store: r.Stores.Store(t), Log: testkit.Log(t)})}
	count := func(q func(i int) *effect.Reservation) map[protocol.EffectVerdict]int {
		var wg sync.WaitGroup
		var mu sync.Mutex
		got := map[protocol.EffectVerdict]int{}
		for i := range n {
			wg.Go(func() {
				a, err := stages[i%2].Reserve(t.Context(), q(i))
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
					return
				}
				got[a.Verdict]++
			})
		}
		wg.Wait()
		return got
	}
	hs := r.fetched(t, n)
	if _, err := r.DB.Exec(t.Context(), "UPDATE tasks SET effect_key = 'shared'"); err != nil {
		t.Fatal(err)
	}
	want := map[protocol.EffectVerdict]int{protocol.EffectGranted: 1, protocol.EffectBusy: n - 1}
	if got := count(func(i int) *effect.Reservation { return reservation(hs[i], "a") }); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("of many tasks: %v", got)
	}
	if got := count(func(int) *effect.Reservation { return reservation(hs[0], "b") }); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("of one execution: %v", got)
	}
	same := reservation(hs[0], "c")
	if got := count(func(int) *effect.Reservation { return same }); got[protocol.EffectGranted] != n {
		t.Errorf("one call repeated: %v", got)
	}
	if runs := r.Count(t, "SELECT sum(runs) FROM effects"); runs != 3 {
		t.Errorf("%d runs of 3 effects", runs)
	}
	for _, h := range hs {
		r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
	}
	r.Ack(t, hs...)
	testkit.VerifyLog(t, r.Stores)
}

// A worker that was paused completes after its effect was found in doubt.
func TestLateCompletion(t *testing.T) {
	t.Parallel()
	r := setup(t)
	h := r.fetched(t, 1)[0]
	q := reservation(h, "charge")
	r.reserve(t, q, protocol.EffectGranted)
	next := r.lose(t, h)
	a := r.reserve(t, reservation(next, "charge"), protocol.EffectInDoubt)
	if a.Effect.Holder.Delivery != 1 || a.Effect.Token != q.Token {
		t.Errorf("in doubt by %+v", a.Effect.Holder)
	}
	if err := r.Complete(t.Context(), holder(h), "charge", q.Token, []byte("1"), ""); err != nil {
		t.Fatalf("what happened is refused: %v", err)
	}
	r.reserve(t, reservation(next, "charge"), protocol.EffectKnown)
	// Another one is run again meanwhile: that is a conflict, and it is kept.
	q = reservation(next, "mail")
	r.reserve(t, q, protocol.EffectGranted)
	last := r.lose(t, next)
	again := reservation(last, "mail")
	again.Judgement = &protocol.EffectJudgement{Token: q.Token, Resolution: protocol.ResolvedRunAgain}
	r.reserve(t, again, protocol.EffectGranted)
	if err := r.Complete(t.Context(), holder(next), "mail", q.Token, []byte("1"), ""); protocol.CodeOf(err) != protocol.CodeInvalidTransition {
		t.Errorf("a replaced reservation completes: %v", err)
	}
	if n := r.Count(t, "SELECT conflicts FROM effects WHERE name = 'mail' AND state = 'reserved' AND resolution = 'run_again'"); n != 1 {
		t.Errorf("%d conflicts", n)
	}
}

func TestReleaseAndRunAgain(t *testing.T) {
	t.Parallel()
	r := setup(t)
	h := r.fetched(t, 1)[0]
	q := reservation(h, "charge")
	r.reserve(t, q, protocol.EffectGranted)
	for range 2 {
		if err := r.Release(t.Context(), holder(h), "charge", q.Token); err != nil {
			t.Fatal(err)
		}
	}
	q2 := reservation(h, "charge")
	r.reserve(t, q2, protocol.EffectGranted)
	if err := r.Release(t.Context(), holder(h), "charge", q.Token); protocol.CodeOf(err) != protocol.CodeInvalidTransition {
		t.Errorf("released by another's token: %v", err)
	}
	r.reserve(t, reservation(h, "charge"), protocol.EffectBusy)
}

// A requeued dead letter sees what the first task did.
func TestRequeuedTaskSeesTheResult(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Start(t, r.DeadLetter.Run)
	h := r.fetched(t, 1)[0]
	q, m := reservation(h, "charge"), reservation(h, "mail")
	r.reserve(t, q, protocol.EffectGranted)
	r.reserve(t, m, protocol.EffectGranted)
	if err := r.Complete(t.Context(), holder(h), "charge", q.Token, []byte(`"r-1"`), ""); err != nil {
		t.Fatal(err)
	}
	o := h.Outcome(protocol.OutcomeFailed)
	o.Code, o.Error = protocol.CodeExecutionFailed, "after the charge"
	r.Report(t, o)
	r.Ack(t, h)
	r.WaitState(t, protocol.StateFailed, h.ID)
	res, err := r.Replay.Requeue(t.Context(), []protocol.ID{protocol.DLQID(h.ID)}, replay.RequeueOptions{Principal: "ada"})
	if err != nil || res[0].Err != nil {
		t.Fatal(err, res)
	}
	next := r.Fetch(t, "other", 1)[0]
	if next.ID == h.ID {
		t.Fatal("no new task")
	}
	if a := r.reserve(t, reservation(next, "charge"), protocol.EffectKnown); string(a.Effect.Result) != `"r-1"` || a.Key != keyOf(h) {
		t.Errorf("%+v %s", a.ID, a.Effect.Result)
	}
	r.reserve(t, reservation(next, "mail"), protocol.EffectInDoubt)
}

func TestResolve(t *testing.T) {
	t.Parallel()
	r := setup(t)
	h := r.fetched(t, 1)[0]
	for _, name := range []string{"a", "b"} {
		r.reserve(t, reservation(h, name), protocol.EffectGranted)
	}
	resolution := func(name string, as protocol.EffectResolution, by string) *effect.Resolution {
		return &effect.Resolution{ID: effect.ID{Scope: "default", Key: keyOf(h), Name: name}, As: as, Result: []byte("5"), Principal: by, Reason: "looked"}
	}
	if _, err := r.Resolve(t.Context(), resolution("a", protocol.ResolvedDone, "ada")); protocol.CodeOf(err) != protocol.CodeInvalidTransition || !strings.Contains(err.Error(), "running") {
		t.Errorf("resolved under the hands of its execution: %v", err)
	}
	next := r.lose(t, h)
	for _, by := range []string{"", "anonymous"} {
		if _, err := r.Resolve(t.Context(), resolution("a", protocol.ResolvedDone, by)); !errors.Is(err, effect.ErrNobody) {
			t.Errorf("by %q: %v", by, err)
		}
	}
	if _, err := r.Resolve(t.Context(), resolution("c", protocol.ResolvedDone, "ada")); protocol.CodeOf(err) != protocol.CodeNotFound {
		t.Errorf("resolved what is not there: %v", err)
	}
	for i := range 2 {
		for name, as := range map[string]protocol.EffectResolution{"a": protocol.ResolvedDone, "b": protocol.ResolvedNotDone} {
			if res, err := r.Resolve(t.Context(), resolution(name, as, "ada")); err != nil || res.Already != (i == 1) {
				t.Errorf("%s as %s: %+v, %v", name, as, res, err)
			}
		}
	}
	if _, err := r.Resolve(t.Context(), resolution("a", protocol.ResolvedNotDone, "bob")); protocol.CodeOf(err) != protocol.CodeInvalidTransition {
		t.Errorf("a done effect was undone: %v", err)
	}
	if a := r.reserve(t, reservation(next, "a"), protocol.EffectKnown); string(a.Effect.Result) != "5" || a.Effect.ResolvedBy != "ada" {
		t.Errorf("%+v", a.Effect)
	}
	if a := r.reserve(t, reservation(next, "b"), protocol.EffectGranted); a.Effect.Runs != 2 || len(a.Effect.History) != 1 {
		t.Errorf("%+v", a.Effect)
	}
}

// The database itself refuses what must not be.
func TestConstraints(t *testing.T) {
	t.Parallel()
	r := setup(t)
	h := r.fetched(t, 1)[0]
	r.reserve(t, reservation(h, "a"), protocol.EffectGranted)
	for _, sql := range []string{
		"UPDATE effects SET state = 'done'", "UPDATE effects SET result = '1'", "UPDATE effects SET name = repeat('x', 129)", "UPDATE effects SET users = '{}'",
		"UPDATE effects SET resolution = 'done', resolved_at = now()", "UPDATE effects SET resolution = 'not_done', resolved_by = 'anonymous', resolved_at = now()",
		"UPDATE effects SET resolution = 'run_again'", "INSERT INTO effects SELECT * FROM effects", "UPDATE effects SET key = 'x'",
	} {
		if _, err := r.DB.Exec(t.Context(), sql); !store.HasCode(err, "23514") && !store.HasCode(err, "23505") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	tx, err := r.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE penstock_app"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "DELETE FROM effects"); !store.HasCode(err, "42501") {
		t.Errorf("the application can delete effects: %v", err)
	}
}
