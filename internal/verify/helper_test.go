package verify_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// run verifies with the rights of the application.
func run(t testing.TB, s testkit.Stores, o verify.Options) (verify.Summary, []verify.Difference) {
	t.Helper()
	var mu sync.Mutex
	var found []verify.Difference
	o.Store, o.Redis = s.Store(t), s.Streams(t)
	o.Report = func(d verify.Difference) {
		mu.Lock()
		defer mu.Unlock()
		found = append(found, d)
	}
	sum, err := verify.Run(t.Context(), o)
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	if int(sum.Differences) != len(found) {
		t.Errorf("%d differences counted, %d reported", sum.Differences, len(found))
	}
	return sum, found
}

// clean verifies and expects nothing.
func clean(t testing.TB, s testkit.Stores, o verify.Options) verify.Summary {
	t.Helper()
	sum, found := run(t, s, o)
	for _, d := range found {
		t.Errorf("%s  %s", d.Check, d)
	}
	return sum
}

// brief names the checks and tasks of differences, sorted, each once.
func brief(found []verify.Difference, names map[string]string) string {
	var out []string
	for _, d := range found {
		about := d.Object
		if d.ID != "" {
			about = d.ID
		}
		for id, name := range names {
			about = strings.ReplaceAll(about, id, name)
		}
		out = append(out, fmt.Sprintf("%s %s", d.Check, about))
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ", ")
}

// world holds a task in every situation that a healthy system knows. Nothing of
// it runs.
type world struct {
	*testkit.Rig
	replay *replay.Stage
	ids    map[string]protocol.ID
	held   map[string]testkit.Held
	stop   func() // ends the loops
	// garbage is a dead letter that is about no task.
	garbage protocol.ID
}

// names are the tasks' names by their ids, for brief.
func (w *world) names() map[string]string {
	out := map[string]string{w.garbage.String(): "garbage"}
	for name, id := range w.ids {
		out[id.String()] = name
		out[protocol.DLQID(id).String()] = "dlq-" + name
	}
	return out
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Retry.JitterMax = 0
	w := &world{Rig: testkit.NewRig(t, s, cfg), ids: map[string]protocol.ID{}, held: map[string]testkit.Held{}}
	w.replay = replay.New(replay.Options{
		Store: w.Store, Redis: w.Client, Wake: func(time.Time) {}, Log: testkit.Log(t), ProposalTTL: time.Hour, DraftTTL: time.Hour,
		CheckPayload: func(_ string, p []byte) ([]byte, error) { return p, nil },
	})
	results, dispatch := w.Start(t, w.Results.Run), w.StartDispatch(t)
	w.stop = func() { dispatch(); results() }
	w.finished(t)
	w.dead(t)
	w.live(t)
	return w
}

// enqueue stores a task and keeps its id under a name.
func (w *world) enqueue(t *testing.T, name string, r enqueue.Request) protocol.ID {
	t.Helper()
	if r.Type == "" {
		r.Type = "t"
	}
	r.Payload = []byte(`{}`)
	w.ids[name] = w.Enqueue(t, &r)[0]
	return w.ids[name]
}

// fetch takes the next entry, which must be the named task's.
func (w *world) fetch(t *testing.T, name string) testkit.Held {
	t.Helper()
	h := w.Fetch(t, "w", 1)[0]
	if h.ID != w.ids[name] {
		t.Fatalf("fetched task %s, want %s (%s)", h.ID, w.ids[name], name)
	}
	w.held[name] = h
	return h
}

// finish reports how an execution ended, and waits for the task's next state.
func (w *world) finish(t *testing.T, name string, state protocol.State, kind protocol.OutcomeKind, set func(o *protocol.Outcome)) {
	t.Helper()
	h := w.fetch(t, name)
	o := h.Outcome(kind)
	if kind == protocol.OutcomeFailed {
		o.Code, o.Error, o.Retryable = protocol.CodeExecutionFailed, "no luck", true
	}
	if set != nil {
		set(o)
	}
	w.Report(t, o)
	w.Ack(t, h)
	w.WaitState(t, state, h.ID)
}

func (w *world) finished(t *testing.T) {
	t.Helper()
	w.enqueue(t, "done", enqueue.Request{IdempotencyKey: "k-done"})
	w.finish(t, "done", protocol.StateSucceeded, protocol.OutcomeSucceeded, func(o *protocol.Outcome) { o.Result = []byte(`{"n":1}`) })
	w.enqueue(t, "retried", enqueue.Request{TaskID: "order-17"})
	w.finish(t, "retried", protocol.StateRetrying, protocol.OutcomeFailed, nil)
	w.finish(t, "retried", protocol.StateSucceeded, protocol.OutcomeSucceeded, nil)
	w.enqueue(t, "tried", enqueue.Request{})
	w.finish(t, "tried", protocol.StateRetrying, protocol.OutcomeSnoozed, func(o *protocol.Outcome) { o.Delay = time.Millisecond })
	w.finish(t, "tried", protocol.StateRetrying, protocol.OutcomeFailed, func(o *protocol.Outcome) { o.Delay = 2 * time.Millisecond })
	h := w.fetch(t, "tried")
	w.lose(t, "tried")
	w.fetch(t, "tried")
	w.Report(t, h.Outcome(protocol.OutcomeSucceeded)) // too late: refused
	w.Report(t, w.held["tried"].Outcome(protocol.OutcomeSucceeded))
	w.Ack(t, w.held["tried"])
	w.WaitState(t, protocol.StateSucceeded, h.ID)
}

// lose takes a task from its worker as a reclaimer does.
func (w *world) lose(t *testing.T, name string) {
	t.Helper()
	h := w.held[name]
	w.Decide(t, h.ID, func(task *protocol.Task, env protocol.Env) []*protocol.Event {
		events, _ := task.Lost(env, protocol.ActorReclaimer, "idle", &protocol.ReclaimData{OriginalConsumer: "w", NewConsumer: "o", MessageID: h.MessageID})
		return events
	})
	w.Ack(t, h)
	w.Rig.Dispatch.Wake(time.Now())
}

func (w *world) dead(t *testing.T) {
	t.Helper()
	for _, name := range []string{"dead", "requeued", "discarded", "edited"} {
		w.enqueue(t, name, enqueue.Request{})
		w.finish(t, name, protocol.StateDLQPending, protocol.OutcomeFailed, func(o *protocol.Outcome) { o.Retryable = false })
	}
	w.enqueue(t, "exhausted", enqueue.Request{MaxRetries: new(int32)})
	w.finish(t, "exhausted", protocol.StateDLQPending, protocol.OutcomeFailed, nil)
	if _, err := w.DeadLetter.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	dlq := func(name string) []protocol.ID { return []protocol.ID{protocol.DLQID(w.ids[name])} }
	out, err := w.replay.Requeue(t.Context(), dlq("requeued"), replay.RequeueOptions{Principal: "ann"})
	if err != nil || out[0].Err != nil {
		t.Fatal(err, out)
	}
	w.ids["again"] = out[0].Task
	w.Rig.Dispatch.Wake(time.Now())
	w.finish(t, "again", protocol.StateSucceeded, protocol.OutcomeSucceeded, nil)
	if _, err := w.replay.Edit(t.Context(), dlq("edited")[0], []byte(`{"n":2}`), 0, "ann", "typo"); err != nil {
		t.Fatal(err)
	}
	w.batches(t, dlq("edited"), dlq("discarded"))
	w.finish(t, "from-batch", protocol.StateSucceeded, protocol.OutcomeSucceeded, nil)
	garbage := protocol.Garbage(protocol.StreamTask, "7-0", map[string]any{"x": "y"}, fmt.Errorf("no task"), time.Now())
	w.garbage = garbage.DLQID
	if err := w.DeadLetter.Keep(t.Context(), []*protocol.DeadLetter{garbage}); err != nil {
		t.Fatal(err)
	}
}

// batches requeues and discards dead letters by batches.
func (w *world) batches(t *testing.T, requeue, discard []protocol.ID) {
	t.Helper()
	b, err := w.replay.Create(t.Context(), replay.BatchRequest{IDs: requeue, Principal: "ann", Reason: "fixed"})
	if err != nil {
		t.Fatal(err)
	}
	d, err := w.replay.Propose(t.Context(), replay.BatchRequest{IDs: discard, Principal: "ann", Reason: "hopeless"})
	if err == nil {
		_, err = w.replay.Confirm(t.Context(), protocol.ID(d.ID), "bob", d.Digest)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.ids["batch"], w.ids["discard-batch"] = protocol.ID(b.ID), protocol.ID(d.ID)
	testkit.Eventually(t, "the batches are done", func() (bool, string) {
		if _, err := w.replay.Step(context.WithoutCancel(t.Context())); err != nil {
			return false, err.Error()
		}
		n := w.Count(t, "SELECT count(*) FROM dlq_batches WHERE status <> 'finished'")
		return n == 0, fmt.Sprint(n)
	})
	var id [16]byte
	if err := w.DB.QueryRow(t.Context(), "SELECT task_id FROM dlq_requeues WHERE dlq_id = $1", requeue[0][:]).Scan(&id); err != nil {
		t.Fatal(err)
	}
	w.ids["from-batch"] = id
	w.Rig.Dispatch.Wake(time.Now())
}

// live leaves a task in each place where a live one may be.
func (w *world) live(t *testing.T) {
	t.Helper()
	hour := int64(time.Hour / time.Millisecond)
	w.enqueue(t, "scheduled", enqueue.Request{ScheduleType: "delay", DelayMS: hour})
	own := protocol.RetryPolicy{Strategy: protocol.StrategyFixed, BaseMS: hour, MaxBackoffMS: hour, JitterMaxMS: 1_000_000_000}
	w.enqueue(t, "retrying", enqueue.Request{Policy: enqueue.OverrideAll(own)})
	w.finish(t, "retrying", protocol.StateRetrying, protocol.OutcomeFailed, nil)
	w.enqueue(t, "running", enqueue.Request{})
	w.Report(t, w.fetch(t, "running").Outcome(protocol.OutcomeClaimed))
	w.WaitState(t, protocol.StateRunning, w.ids["running"])
	for _, name := range []string{"reported", "taken", "retrying again"} {
		w.enqueue(t, name, enqueue.Request{})
		if name == "retrying again" {
			w.finish(t, name, protocol.StateRetrying, protocol.OutcomeSnoozed, func(o *protocol.Outcome) { o.Delay = 0 })
		}
		w.fetch(t, name)
	}
	w.enqueue(t, "held", enqueue.Request{TaskID: "held one", IdempotencyKey: "k-held"})
	w.fetch(t, "held")
	w.enqueue(t, "queued", enqueue.Request{})
	w.enqueue(t, "queued elsewhere", enqueue.Request{Queue: "q2"})
	testkit.Eventually(t, "the outbox is empty", func() (bool, string) {
		n := w.Count(t, "SELECT count(*) FROM dispatch_outbox")
		return n == 0, fmt.Sprint(n)
	})
	w.stop()
	// Outcomes that nobody applies: one fetched, one not.
	w.Report(t, w.held["taken"].Outcome(protocol.OutcomeSucceeded))
	if _, err := w.Client.ReadNow(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators, "gone", 10); err != nil {
		t.Fatal(err)
	}
	w.Report(t, w.held["reported"].Outcome(protocol.OutcomeFailed))
	w.Ack(t, w.held["taken"], w.held["reported"])
	w.Exec(t, "INSERT INTO tasks (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, idempotency_scope, given, trace_id, payload) "+
		"SELECT '01900000-0000-7000-8000-000000000001', tenant, queue, type, 'queued', 3, 'now', timeout_ms, idempotency_scope, given, trace_id, '{}' FROM tasks WHERE id = $1", w.ids["queued"])
	out, err := protocol.ParseID("01900000-0000-7000-8000-000000000001")
	if err != nil {
		t.Fatal(err)
	}
	w.ids["in the outbox"] = out
	w.Exec(t, "INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at) "+
		"SELECT id, 1, 'task.created', 'queued', 1, 1, 'api', trace_id, created_at FROM tasks WHERE id = $1", out)
	w.Exec(t, "INSERT INTO dispatch_outbox (owner, queue, after_id, task_ids, deliveries) VALUES ($1, 'default', '0-0', ARRAY[$1]::uuid[], '{1}')", out)
}

// Exec runs a statement about one task, as the owner of the database.
func (w *world) Exec(t *testing.T, sql string, id protocol.ID) {
	t.Helper()
	tag, err := w.DB.Exec(t.Context(), sql, id[:])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if tag.RowsAffected() == 0 && !strings.HasPrefix(sql, "ALTER") {
		t.Fatalf("%s: no row", sql)
	}
}

// Decide applies a decision of package protocol to a task.
func (w *world) Decide(t *testing.T, id protocol.ID, fn func(task *protocol.Task, env protocol.Env) []*protocol.Event) {
	t.Helper()
	err := w.Store.Decide(t.Context(), []protocol.ID{id}, decision(w.Env, fn))
	if err != nil {
		t.Fatal(err)
	}
}
