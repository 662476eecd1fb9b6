package verify_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/pipeline/effect"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
)

// ledger is a system with a side-effect ledger.
type ledger struct {
	*testkit.Rig
	stage *effect.Stage
}

func newLedger(t *testing.T) *ledger {
	t.Helper()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	r.Start(t, r.DeadLetter.Run)
	return &ledger{r, effect.New(effect.Options{Store: r.Store, Log: testkit.Log(t)})}
}

func holderOf(h testkit.Held) protocol.EffectHolder {
	return protocol.EffectHolder{TaskID: h.ID, Delivery: h.Delivery, WorkerID: h.Consumer}
}

// reserve has an execution ask for an effect, with what it makes of a doubt, and
// returns the token.
func (l *ledger) reserve(t *testing.T, h testkit.Held, name string, j *protocol.EffectJudgement, want protocol.EffectVerdict) protocol.ID {
	t.Helper()
	token := protocol.ID(uuid.New())
	a, err := l.stage.Reserve(t.Context(), &effect.Reservation{EffectHolder: holderOf(h), MessageID: h.MessageID, Name: name, Token: token, Judgement: j})
	if err != nil || a.Verdict != want {
		t.Fatalf("%s: %+v, error %v, want %s", name, a, err, want)
	}
	return token
}

func (l *ledger) resolve(t *testing.T, key, name string, as protocol.EffectResolution) {
	t.Helper()
	r := &effect.Resolution{ID: effect.ID{Scope: "default", Key: key, Name: name}, As: as, Principal: "ada", Reason: "looked"}
	if as == protocol.ResolvedDone {
		r.Result = []byte("5")
	}
	if _, err := l.stage.Resolve(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

// lose ends an execution as the reclaimer does, and fetches the next one.
func (l *ledger) lose(t *testing.T, h testkit.Held) testkit.Held {
	t.Helper()
	err := l.Store.Decide(t.Context(), []protocol.ID{h.ID}, decision(l.Env, func(task *protocol.Task, env protocol.Env) []*protocol.Event {
		events, _ := task.Lost(env, protocol.ActorReclaimer, "lost", nil)
		return events
	}))
	if err != nil {
		t.Fatal(err)
	}
	l.Ack(t, h)
	l.Rig.Dispatch.Wake(time.Now())
	return l.Fetch(t, "w", 1)[0]
}

// judged are the effects that the first execution leaves in doubt, by what is made
// of them: each is named after it.
var judged = []protocol.EffectResolution{protocol.CheckedDone, protocol.CheckedNotDone, protocol.ResolvedRunAgain}

// fill leaves effects of one key in every state that the ledger knows, and some of
// a task that was requeued from another. It returns the key.
func (l *ledger) fill(t *testing.T) (key string) {
	t.Helper()
	l.Enqueue(t, &enqueue.Request{Type: "t", Payload: []byte("{}"), IdempotencyKey: "k"})
	h, tokens := l.Fetch(t, "w", 1)[0], map[string]protocol.ID{}
	names := []string{"done", "no result", "free", "doubt", "told late", "by a person: done", "by a person: not done"}
	for _, j := range judged {
		names = append(names, string(j))
	}
	for _, name := range names {
		tokens[name] = l.reserve(t, h, name, nil, protocol.EffectGranted)
	}
	for name, x := range map[string][2]string{"done": {`{"n": 1}`, ""}, "no result": {"", "too large"}} {
		if err := l.stage.Complete(t.Context(), holderOf(h), name, tokens[name], []byte(x[0]), x[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.stage.Release(t.Context(), holderOf(h), "free", tokens["free"]); err != nil {
		t.Fatal(err)
	}
	next := l.lose(t, h)
	if err := l.stage.Complete(t.Context(), holderOf(h), "told late", tokens["told late"], []byte("1"), ""); err != nil {
		t.Fatal(err)
	}
	l.resolve(t, "k:k", "by a person: done", protocol.ResolvedDone)
	l.resolve(t, "k:k", "by a person: not done", protocol.ResolvedNotDone)
	for _, j := range judged {
		want := protocol.EffectGranted
		if j == protocol.CheckedDone {
			want = protocol.EffectKnown
		}
		l.reserve(t, next, string(j), &protocol.EffectJudgement{Token: tokens[string(j)], Resolution: j, Result: []byte("2")}, want)
	}
	// A run whose reservation was replaced reports: the ledger notes a conflict.
	err := l.stage.Complete(t.Context(), holderOf(h), "run_again", tokens["run_again"], []byte("1"), "")
	if protocol.CodeOf(err) != protocol.CodeInvalidTransition {
		t.Fatalf("a conflict: %v", err)
	}
	l.reserve(t, next, "running", nil, protocol.EffectGranted)
	l.requeued(t)
	return "k:k"
}

// requeued has a task of its own key fail for good, and what it is requeued as use
// its effects: one known, one in doubt.
func (l *ledger) requeued(t *testing.T) {
	t.Helper()
	l.Enqueue(t, testkit.Requests(1, "t")...)
	h := l.Fetch(t, "w", 1)[0]
	token := l.reserve(t, h, "inherited", nil, protocol.EffectGranted)
	if err := l.stage.Complete(t.Context(), holderOf(h), "inherited", token, []byte("1"), ""); err != nil {
		t.Fatal(err)
	}
	doubt := l.reserve(t, h, "inherited doubt", nil, protocol.EffectGranted)
	o := h.Outcome(protocol.OutcomeFailed)
	o.Code, o.Error = protocol.CodeExecutionFailed, "no"
	l.Report(t, o)
	l.Ack(t, h)
	l.WaitState(t, protocol.StateFailed, h.ID)
	out, err := l.Replay.Requeue(t.Context(), []protocol.ID{protocol.DLQID(h.ID)}, replay.RequeueOptions{Principal: "ada"})
	if err != nil || out[0].Err != nil {
		t.Fatal(out, err)
	}
	next := l.Fetch(t, "w", 1)[0]
	l.reserve(t, next, "inherited", nil, protocol.EffectKnown)
	l.reserve(t, next, "inherited doubt", &protocol.EffectJudgement{Token: doubt, Resolution: protocol.ResolvedRunAgain}, protocol.EffectGranted)
}

// effectTampering breaks the effects that where selects: sql is what is set. want
// are the fields that differ, sorted.
type effectTampering struct{ where, set, want string }

var effectTamperings = map[string]effectTampering{
	"another key":         {"name = 'done'", "key = 'k:other'", "key of task, users with another key"},
	"an id, not a key":    {"name = 'free'", "key = 't:k'", "key of task, users with another key"},
	"another scope":       {"name = 'no result'", "scope = 'other'", "key of task, users with another key"},
	"a later delivery":    {"name = 'doubt'", "delivery = 99", "claims of its delivery, delivery"},
	"an unclaimed one":    {"name = 'inherited'", "delivery = 2", "claims of its delivery, delivery"},
	"another holder":      {"name = 'told late'", "task_id = $other, users = ARRAY[$other]", "claims of its delivery, key of task, users with another key"},
	"another user":        {"name = 'running'", "users = users || $other", "users with another key"},
	"done, then reserved": {"name = 'by a person: done'", "state = 'reserved', done_at = NULL, result = NULL", "state after done"},
	"found done, free":    {"name = 'check_done'", "state = 'free', done_at = NULL, result = NULL", "state after check_done"},
	// Retention has removed them: nothing is known of them any more.
	"a user that is gone":   {"name = 'inherited doubt'", "users = users || gen_random_uuid()", ""},
	"a holder that is gone": {"name = 'run_again'", "task_id = '01900000-0000-7000-8000-000000000001', users = users || '01900000-0000-7000-8000-000000000001'::uuid", ""},
}

// The ledger agrees with the log in every state that it knows, and what breaks
// that is found. What one row alone would show the table refuses: see
// TestConstraints of package effect.
func TestTamperedEffects(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.fill(t)
	// Reserved by nobody: it waits to be run.
	other := l.Enqueue(t, &enqueue.Request{Type: "t", Payload: []byte("{}"), ScheduleType: "delay", DelayMS: 3_600_000})[0]
	for state, want := range map[string]int{"reserved": 5, "done": 6, "free": 2} {
		if n := l.Count(t, "SELECT count(*) FROM effects WHERE state = $1", state); n != want {
			t.Errorf("%d effects are %s, want %d", n, state, want)
		}
	}
	clean(t, l.Stores, verify.Options{})
	var want []string
	for name, x := range effectTamperings {
		sql := "UPDATE effects SET " + strings.ReplaceAll(x.set, "$other", fmt.Sprintf("'%s'::uuid", other)) + " WHERE " + x.where
		if tag, err := l.DB.Exec(t.Context(), sql); err != nil || tag.RowsAffected() != 1 {
			t.Fatalf("%s: %v, %v", name, tag, err)
		}
		effectName := strings.Trim(strings.TrimPrefix(x.where, "name = "), "'")
		for f := range strings.SplitSeq(x.want, ", ") {
			if f != "" {
				want = append(want, effectName+": "+f)
			}
		}
	}
	if got := effectFields(t, l); !slices.Equal(got, sorted(want)) {
		t.Errorf("got  %q\nwant %q", got, sorted(want))
	}
}

// A claim that the log has lost, or tells twice, is found with the effects that
// were reserved under it.
func TestTamperedClaims(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	key := l.fill(t)
	task := pgid.ID(l.holder(t, key, "done"))
	exec := func(sql string) {
		t.Helper()
		if tag, err := l.DB.Exec(t.Context(), sql, task); err != nil || tag.RowsAffected() != 1 {
			t.Fatalf("%s: %v, %v", sql, tag, err)
		}
	}
	first, second := []string{}, []string{}
	for name, delivery := range l.deliveries(t, key) {
		if delivery == 1 {
			first = append(first, name+": claims of its delivery")
		} else {
			second = append(second, name+": claims of its delivery")
		}
	}
	if len(first) == 0 || len(second) == 0 {
		t.Fatalf("effects of the first delivery %q, of the next %q", first, second)
	}
	exec("UPDATE event_log SET type = 'task.heartbeat' WHERE task_id = $1 AND type = 'task.claimed' AND delivery = 1")
	if got := effectFields(t, l); !slices.Equal(got, sorted(first)) {
		t.Errorf("got  %q\nwant %q", got, sorted(first))
	}
	exec("UPDATE event_log SET type = 'task.claimed' WHERE task_id = $1 AND type = 'task.heartbeat'")
	clean(t, l.Stores, verify.Options{})
	exec(`INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, actor, trace_id, occurred_at)
		SELECT task_id, seq + 1, type, status, status, attempt, delivery, actor, trace_id, now() FROM event_log WHERE task_id = $1 AND type = 'task.claimed' AND delivery > 1`)
	if got := effectFields(t, l); !slices.Equal(got, sorted(second)) {
		t.Errorf("got  %q\nwant %q", got, sorted(second))
	}
}

func sorted(s []string) []string { slices.Sort(s); return s }

func (l *ledger) holder(t *testing.T, key, name string) (id protocol.ID) {
	t.Helper()
	if err := l.DB.QueryRow(t.Context(), "SELECT task_id FROM effects WHERE key = $1 AND name = $2", key, name).Scan((*[16]byte)(&id)); err != nil {
		t.Fatal(err)
	}
	return id
}

// deliveries tells by which delivery each effect of a key is held.
func (l *ledger) deliveries(t *testing.T, key string) map[string]int64 {
	t.Helper()
	rows, err := l.DB.Query(t.Context(), "SELECT name, delivery FROM effects WHERE key = $1", key)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	out := map[string]int64{}
	for rows.Next() {
		var name string
		var delivery int64
		if err := rows.Scan(&name, &delivery); err != nil {
			t.Fatal(err)
		}
		out[name] = delivery
	}
	return out
}

// effectFields verifies and tells what differs about effects, "name: field", sorted.
// Ids and numbers are left out of fields.
func effectFields(t *testing.T, l *ledger) (out []string) {
	t.Helper()
	_, found := run(t, l.Stores, verify.Options{})
	for _, d := range found {
		if d.Check != verify.CheckEffect {
			continue
		}
		name := strings.SplitN(d.Object, `"`, 3)[1]
		field := d.Field
		for _, f := range []string{"key of task", "claims of its delivery"} {
			if strings.HasPrefix(field, f) {
				field = f
			}
		}
		out = append(out, name+": "+field)
	}
	return sorted(out)
}
