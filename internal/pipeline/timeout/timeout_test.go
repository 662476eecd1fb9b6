package timeout_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/timeout"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// The task of a worker that says nothing is retried after timeout and grace,
// not before; what that worker says later is refused, and its old entry is only
// acknowledged.
func TestWorkerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Start(t, r.Timeout.Run)
	ids, silent := claimed(t, r, "silent", requests(3, 3)...)
	again := finish(t, r, 3)
	r.WaitState(t, protocol.StateSucceeded, ids...)
	for _, h := range again {
		if h.Attempt != 2 || h.Delivery != 2 {
			t.Errorf("run again in attempt %d as delivery %d, want 2 and 2", h.Attempt, h.Delivery)
		}
	}
	for _, id := range ids {
		events(t, r, id, "task.created", "task.claimed", "task.retry_scheduled", "task.claimed", "task.succeeded")
		var actor, worker, code, reason string
		var after float64
		err := r.DB.QueryRow(t.Context(), `SELECT e.actor, e.worker_id, e.error_code, e.reason, extract(epoch FROM e.occurred_at - c.occurred_at) FROM event_log e
			JOIN event_log c ON c.task_id = e.task_id AND c.seq = 2 WHERE e.task_id = $1 AND e.type = 'task.retry_scheduled'`, id[:]).
			Scan(&actor, &worker, &code, &reason, &after)
		if err != nil {
			t.Fatal(err)
		}
		const want = "start-to-close timeout: the worker did not answer within 400ms after the timeout of 300ms"
		if actor != protocol.ActorTimeout || worker != "silent" || code != "TASK_TIMEOUT" || reason != want {
			t.Errorf("event by %s about worker %s: %s %q", actor, worker, code, reason)
		}
		if after < (limit + grace).Seconds() {
			t.Errorf("timed out %.3f s after the claim, want at least %s", after, limit+grace)
		}
	}
	// The silent worker comes back.
	r.Report(t, succeed(silent[0]), silent[1].Outcome(protocol.OutcomeFailed), silent[1].Outcome(protocol.OutcomeClaimed))
	settled(t, r)
	events(t, r, ids[0], "task.created", "task.claimed", "task.retry_scheduled", "task.claimed", "task.succeeded", "task.transition_rejected")
	events(t, r, ids[1], "task.created", "task.claimed", "task.retry_scheduled", "task.claimed", "task.succeeded", "task.transition_rejected")
	testkit.VerifyEvents(t, r.Stores)
}

// The entry of the execution that was ended stays pending with the silent
// worker. Reconciling sees the new delivery, reclaiming only acknowledges the
// old one.
func TestOldEntryIsOnlyAcknowledged(t *testing.T) {
	t.Parallel()
	r := rig(t)
	ids, silent := claimed(t, r, "silent", requests(2, 3)...)
	age(t, r, ids...)
	look(t, r)
	next := r.Fetch(t, "healthy", 2)
	r.Report(t, next[0].Outcome(protocol.OutcomeClaimed)) // the other one is still retrying
	settled(t, r)
	if n := pending(t, r); n != 4 {
		t.Fatalf("%d entries are pending, want the old and the new ones", n)
	}
	if err := r.Reconcile.Pass(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, h := range silent {
		if err := r.Raw.Do(t.Context(), "XCLAIM", protocol.StreamTask, protocol.GroupWorkers, h.Consumer, 0, h.MessageID,
			"IDLE", (2 * time.Hour).Milliseconds(), "JUSTID").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Reclaim.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pending(t, r); n != 2 {
		t.Errorf("%d entries are pending, want the new ones", n)
	}
	for _, h := range next {
		r.Report(t, succeed(h))
	}
	r.Ack(t, next...)
	r.WaitState(t, protocol.StateSucceeded, ids...)
	for _, id := range ids {
		events(t, r, id, "task.created", "task.claimed", "task.retry_scheduled", "task.claimed", "task.succeeded")
		if row := r.Row(t, id); row.Interruptions != 0 || row.Delivery != 2 || row.Attempt != 2 {
			t.Errorf("%+v, want no interruption", row)
		}
	}
	testkit.VerifyLog(t, r.Stores)
}

func TestTimeoutsExhaustTheRetries(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Start(t, r.Timeout.Run)
	ids, first := claimed(t, r, "silent", requests(1, 1)...)
	second := r.Fetch(t, "silent", 1)
	r.Report(t, second[0].Outcome(protocol.OutcomeClaimed))
	r.WaitState(t, protocol.StateFailed, ids...)
	row := r.Row(t, ids[0])
	if row.Code != "TASK_RETRY_EXHAUSTED" || !strings.HasPrefix(row.Reason, "TASK_TIMEOUT: start-to-close timeout: the worker did not answer") || row.Attempt != 2 {
		t.Errorf("%+v", row)
	}
	if n := r.Count(t, "SELECT count(*) FROM dlq_items WHERE task_id = $1 AND error_code = 'TASK_RETRY_EXHAUSTED'", ids[0][:]); n != 1 {
		t.Errorf("%d dead letters, want 1", n)
	}
	for _, late := range []testkit.Held{first[0], second[0]} { // an older one is not recorded after a newer one
		r.Report(t, succeed(late))
		settled(t, r)
	}
	events(t, r, ids[0], "task.created", "task.claimed", "task.retry_scheduled", "task.claimed", "task.dlq", "task.dlq", "task.failed",
		"task.transition_rejected", "task.transition_rejected")
	testkit.VerifyEvents(t, r.Stores)
}

// What the worker managed to report counts: in stream:result before the
// decision, it is never overruled.
func TestOutcomeWinsOverTheBackstop(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, short(s))
	r.StartDispatch(t)
	stop := r.Start(t, r.Results.Run)
	ids, hs := claimed(t, r, "late", requests(3, 3)...)
	stop()
	failure := hs[1].Outcome(protocol.OutcomeFailed)
	failure.Error, failure.Retryable, failure.Delay = "boom", true, time.Hour
	r.Report(t, succeed(hs[0]), failure)
	age(t, r, ids...)
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := r.Timeout.Look(soon); !errors.Is(err, context.DeadlineExceeded) || r.Row(t, ids[2]).State != protocol.StateRunning {
		t.Fatalf("the backstop did not wait for the outcomes: %v, %+v", err, r.Row(t, ids[2]))
	}
	done := make(chan error, 1)
	go func() { _, err := r.Timeout.Look(t.Context()); done <- err }()
	r.Start(t, r.Results.Run)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	events(t, r, ids[0], "task.created", "task.claimed", "task.succeeded")
	events(t, r, ids[1], "task.created", "task.claimed", "task.retry_scheduled")
	events(t, r, ids[2], "task.created", "task.claimed", "task.retry_scheduled")
	if a, b := r.Row(t, ids[1]), r.Row(t, ids[2]); a.Code != "TASK_EXECUTION_FAILED" || b.Code != "TASK_TIMEOUT" {
		t.Errorf("codes %s and %s, want the worker's own and that of the backstop", a.Code, b.Code)
	}
	testkit.VerifyEvents(t, s)
}

// Any number of orchestrators look at once; each execution is ended once.
func TestReplicasEndAnExecutionOnce(t *testing.T) {
	t.Parallel()
	r := rig(t)
	ids, _ := claimed(t, r, "silent", append(requests(40, 3), requests(20, 0)...)...)
	age(t, r, ids...)
	var g sync.WaitGroup
	start := make(chan struct{})
	for range 3 {
		replica := testkit.NewRig(t, r.Stores, short(r.Stores))
		for range 2 {
			g.Go(func() {
				<-start
				if _, err := replica.Timeout.Look(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	close(start)
	g.Wait()
	r.WaitState(t, protocol.StateFailed, ids[40:]...) // their sweeps find what the others gave up
	if n := r.Count(t, "SELECT count(*) FROM event_log WHERE actor = 'timeout' AND type = 'task.retry_scheduled'"); n != 40 {
		t.Errorf("%d retries, want 40", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM event_log WHERE actor = 'timeout' AND type = 'task.dlq'"); n != 20 {
		t.Errorf("%d tasks given up, want 20", n)
	}
	finish(t, r, 40)
	r.WaitState(t, protocol.StateSucceeded, ids[:40]...)
	testkit.VerifyEvents(t, r.Stores)
}

// Only running tasks, and only those whose time is over, are concerned. Look
// says when to come back.
func TestNothingElseIsTouched(t *testing.T) {
	t.Parallel()
	r := rig(t)
	if next := look(t, r); next <= 0 {
		t.Errorf("with no task the next look is in %s", next)
	}
	long := int32(time.Minute.Milliseconds())
	running, _ := claimed(t, r, "busy", &enqueue.Request{Type: "t", Payload: json.RawMessage("1"), TimeoutMS: &long})
	queued := r.Enqueue(t, requests(1, 3)...)[0] // never fetched
	failed := r.Enqueue(t, requests(1, 0)...)[0]
	for _, h := range r.Fetch(t, "busy", 2) {
		if h.ID == failed {
			o := h.Outcome(protocol.OutcomeFailed)
			o.Error = "boom"
			r.Report(t, o)
		}
	}
	r.WaitState(t, protocol.StateFailed, failed)
	age(t, r, queued, failed)
	if next := look(t, r); next <= time.Minute-10*time.Second || next > time.Minute+grace+time.Second {
		t.Errorf("the next time is over in %s, want about %s", next, time.Minute+grace)
	}
	if n := r.Count(t, "SELECT count(*) FROM event_log WHERE actor = 'timeout'"); n != 0 {
		t.Errorf("%d events", n)
	}
	age(t, r, running...)
	look(t, r)
	events(t, r, running[0], "task.created", "task.claimed", "task.retry_scheduled")
	testkit.VerifyEvents(t, r.Stores)
}

// More executions than one transaction takes are ended in one look.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, short(s))
	const many = 1234
	if _, err := r.DB.Exec(t.Context(), `WITH x AS (INSERT INTO tasks (id, tenant, queue, type, state, max_retries, event_seq, schedule_type, timeout_ms,
		idempotency_scope, given, trace_id, payload, started_at)
		SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'default', 'default', 't', 'running', 3, 2, 'now', 1000, 'default', 0, 'x', '{}', now() - interval '1 hour'
		FROM generate_series(1, $1) i RETURNING id), y AS (
		INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
		SELECT id, 1, 'task.created', 'queued', 1, 1, 'api', 'x', now() FROM x)
		INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, actor, trace_id, occurred_at)
		SELECT id, 2, 'task.claimed', 'queued', 'running', 1, 1, 'worker', 'x', now() - interval '1 hour' FROM x`, many); err != nil {
		t.Fatal(err)
	}
	look(t, r)
	if n := r.Count(t, "SELECT count(*) FROM tasks WHERE state = 'retrying' AND attempt = 2 AND delivery = 2"); n != many {
		t.Errorf("%d of %d executions were ended", n, many)
	}
	testkit.VerifyEvents(t, s)
}

// While Redis is away workers can't answer. When it is back they get the grace
// once more.
func TestWorkersCatchUpAfterAnOutage(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	p := chaosproxy.Redis(t, s.RedisURL)
	direct := testkit.NewRig(t, s, short(s))
	direct.StartDispatch(t)
	direct.Start(t, direct.Results.Run)
	ids, hs := claimed(t, direct, "cut off", requests(2, 3)...)
	r := testkit.NewRig(t, testkit.Stores{PostgresURL: s.PostgresURL, RedisURL: p.URL}, short(s))
	noticed := make(chan string, 100)
	b := timeout.New(timeout.Options{
		Store: r.Store, Redis: r.Client, Grace: 3 * time.Second, Env: r.Env, Wake: func(time.Time) {}, Dead: func() {},
		Log: slog.New(slog.NewTextHandler(lines(noticed), nil)),
	})
	age(t, direct, ids...)
	p.Down(true)
	r.Start(t, b.Run)
	if line := receive(t, noticed); !strings.Contains(line, "timeouts wait until the stores are back") {
		t.Errorf("logged %s", line)
	}
	back := time.Now()
	p.Down(false)
	direct.Report(t, succeed(hs[0]))
	direct.WaitState(t, protocol.StateRetrying, ids[1])
	if took := time.Since(back); took < 2*time.Second {
		t.Errorf("an execution was ended %s after Redis was back, want the grace of 3 s", took)
	}
	events(t, direct, ids[0], "task.created", "task.claimed", "task.succeeded")
	testkit.VerifyEvents(t, s)
}

// Redis stands still, with its connections open, while the time of an execution
// and the grace end: its worker could not answer, and gets the grace once more. The
// backstop meets it at its start, or later.
func TestWorkersCatchUpAfterRedisStoodStill(t *testing.T) {
	t.Parallel()
	for _, later := range []bool{false, true} {
		t.Run(fmt.Sprintf("later %t", later), func(t *testing.T) {
			t.Parallel()
			s := testkit.NewStores(t)
			p := chaosproxy.Redis(t, s.RedisURL)
			direct := testkit.NewRig(t, s, short(s))
			direct.StartDispatch(t)
			direct.Start(t, direct.Results.Run)
			ids, hs := claimed(t, direct, "cut off", requests(3, 3)...)
			r := testkit.NewRig(t, testkit.Stores{PostgresURL: s.PostgresURL, RedisURL: p.URL}, short(s))
			b := timeout.New(timeout.Options{
				Store: r.Store, Redis: r.Client, Grace: 3 * time.Second, Env: r.Env, Wake: func(time.Time) {}, Dead: func() {}, Log: testkit.Log(t),
			})
			if later {
				age(t, direct, ids[2])
				r.Start(t, b.Run)
				direct.WaitState(t, protocol.StateRetrying, ids[2])
			}
			p.Hang(true)
			age(t, direct, ids[:2]...)
			hung := time.Now()
			if !later {
				r.Start(t, b.Run)
			}
			testkit.Eventually(t, "Redis stands still for long", func() (bool, string) { return time.Since(hung) > 3500*time.Millisecond, "" })
			back := time.Now()
			p.Hang(false)
			direct.Report(t, succeed(hs[0]))
			direct.WaitState(t, protocol.StateRetrying, ids[1])
			if took := time.Since(back); took < 2*time.Second {
				t.Errorf("an execution was ended %s after Redis went on, want the grace of 3 s", took)
			}
			events(t, direct, ids[0], "task.created", "task.claimed", "task.succeeded")
			testkit.VerifyEvents(t, s)
		})
	}
}

func receive(t *testing.T, c <-chan string) string {
	t.Helper()
	select {
	case s := <-c:
		return s
	case <-time.After(testkit.Deadline):
		t.Fatal("nothing was logged in time")
		return ""
	}
}

// lines sends what is written to it.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}
