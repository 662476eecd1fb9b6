package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/reconcile"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// all is a rig with every stage running but the reconciler.
func all(t *testing.T, s testkit.Stores) *testkit.Rig {
	t.Helper()
	r := testkit.NewRig(t, s, short(s))
	r.Start(t, r.Results.Run)
	r.Start(t, r.DeadLetter.Run)
	r.Start(t, r.DeadLetter.RunIngest)
	r.StartDispatch(t)
	return r
}

func round(t *testing.T, r *testkit.Rig) {
	t.Helper()
	if err := r.Reconcile.Round(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// complete waits until Redis is known to be complete.
func complete(t *testing.T, r *testkit.Rig) {
	t.Helper()
	testkit.Eventually(t, "all that was lost is rebuilt", func() (bool, string) {
		id := r.Raw.HGet(t.Context(), "penstock:epoch", "id").Val()
		var n int
		err := r.DB.QueryRow(t.Context(), "SELECT count(*) FROM redis_epoch WHERE lost IS NULL AND id::text = $1 AND confirmed > 0", id).Scan(&n)
		return err == nil && n == 1, fmt.Sprint(id, err)
	})
}

// told are the events of the alert in order, each "found kind" or "rebuilt kind
// redispatched+interrupted+dead letters".
func told(t *testing.T, r *testkit.Rig) (out []string) {
	t.Helper()
	rows, err := r.DB.Query(t.Context(), "SELECT data::text FROM event_log WHERE task_id = $1 ORDER BY seq", pgid.ID(protocol.AlertID(protocol.AlertRedisLost, "")))
	if err != nil {
		t.Fatal(err)
	}
	datas, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range datas {
		var a protocol.AlertData
		if err := json.Unmarshal([]byte(d), &a); err != nil || a.Redis == nil {
			t.Fatalf("%s: %v", d, err)
		}
		if !a.Redis.Complete {
			out = append(out, "found "+a.Redis.Found)
			continue
		}
		out = append(out, fmt.Sprintf("rebuilt %s %d+%d+%d", a.Redis.Found, a.Redis.Redispatched, a.Redis.Interrupted, a.Redis.DeadLetters))
	}
	return out
}

// history gives Redis a past: a task that succeeded at its second attempt, a
// dead letter of a task and one of an entry that is no task.
func history(t *testing.T, r *testkit.Rig) {
	t.Helper()
	ids := r.Enqueue(t, testkit.Requests(2, "t")...)
	hs := r.Fetch(t, "w", 2)
	for _, h := range hs {
		o := h.Outcome(protocol.OutcomeFailed)
		o.Error, o.Retryable, o.Delay = "no", h.ID == ids[0], 0
		r.Report(t, o)
		r.Ack(t, h)
	}
	h := r.Fetch(t, "w", 1)[0]
	r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
	r.Ack(t, h)
	if a := r.Client.Append(t.Context(), protocol.StreamResult, [][]any{{"hello", "world"}})[0]; a.Err != nil {
		t.Fatal(a.Err)
	}
	r.WaitState(t, protocol.StateSucceeded, ids[0])
	r.WaitState(t, protocol.StateFailed, ids[1])
	testkit.Eventually(t, "the garbage is kept", func() (bool, string) {
		n := r.Count(t, "SELECT count(*) FROM dlq_items WHERE recorded_at IS NOT NULL")
		return n == 2, fmt.Sprint(n)
	})
}

func startWorker(t *testing.T, s testkit.Stores) {
	t.Helper()
	s.StartWorker(t, worker.Options{Concurrency: 10, VisibilityTimeout: visibility}, func(w *worker.Worker) {
		w.HandleRaw("t", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
}

// once checks that every task ended once, and that each dead letter has so many
// entries in stream:dlq; 0: any number, but none is missing.
func once(t *testing.T, r *testkit.Rig, entries int) {
	t.Helper()
	if n := r.Count(t, `SELECT count(*) FROM (SELECT t.id FROM tasks t LEFT JOIN event_log e ON e.task_id = t.id AND e.type IN ('task.succeeded', 'task.failed', 'task.cancelled')
		GROUP BY t.id HAVING count(e.seq) <> 1) x`); n != 0 {
		t.Errorf("%d tasks did not end exactly once", n)
	}
	count := map[any]int{}
	for _, m := range r.Raw.XRange(t.Context(), protocol.StreamDLQ, "-", "+").Val() {
		count[m.Values[protocol.FieldDLQID]]++
	}
	for id, n := range count {
		if n != entries && entries > 0 {
			t.Errorf("dead letter %v has %d entries, want %d", id, n, entries)
		}
	}
	if want := r.Count(t, "SELECT count(*) FROM dlq_items"); len(count) != want {
		t.Errorf("%d dead letters in stream:dlq, %d in Postgres", len(count), want)
	}
	testkit.VerifyLog(t, r.Stores)
}

// Each way to lose something is found, reported, and made good for.
func TestLosses(t *testing.T) {
	t.Parallel()
	del := func(key string) func(t *testing.T, r *testkit.Rig) error {
		return func(t *testing.T, r *testkit.Rig) error { return r.Raw.Del(t.Context(), key).Err() }
	}
	destroy := func(stream, group string) func(t *testing.T, r *testkit.Rig) error {
		return func(t *testing.T, r *testkit.Rig) error {
			return r.Raw.XGroupDestroy(t.Context(), stream, group).Err()
		}
	}
	for name, tt := range map[string]struct {
		lose  func(t *testing.T, r *testkit.Rig) error
		found string
		// counts that the last event must tell
		redispatched, interrupted, letters int
	}{
		"FLUSHDB":               {func(t *testing.T, r *testkit.Rig) error { return r.Raw.FlushDB(t.Context()).Err() }, "epoch_missing", 4, 1, 2},
		"DEL stream:task":       {del(protocol.StreamTask), "group_missing", 4, 1, 0},
		"group of stream:task":  {destroy(protocol.StreamTask, protocol.GroupWorkers), "group_missing", 4, 1, 0},
		"DEL stream:dlq":        {del(protocol.StreamDLQ), "group_missing", 0, 0, 2},
		"group of stream:dlq":   {destroy(protocol.StreamDLQ, protocol.GroupOrchestrators), "group_missing", 0, 0, 0},
		"DEL stream:result":     {del(protocol.StreamResult), "group_missing", 0, 0, 0},
		"group of the outcomes": {destroy(protocol.StreamResult, protocol.GroupOrchestrators), "group_missing", 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testkit.NewStores(t)
			r := all(t, s)
			history(t, r)
			r.Start(t, r.Reconcile.Run)
			complete(t, r)
			ids := r.Enqueue(t, testkit.Requests(5, "t")...)
			held := r.Fetch(t, "w", 2)
			r.Report(t, held[0].Outcome(protocol.OutcomeClaimed))
			r.WaitState(t, protocol.StateRunning, held[0].ID)
			if err := tt.lose(t, r); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the loss is reported and rebuilt", func() (bool, string) {
				got := told(t, r)
				return len(got) >= 2, fmt.Sprint(got)
			})
			complete(t, r)
			got := told(t, r)
			want := []string{"found " + tt.found, fmt.Sprintf("rebuilt %s %d+%d+%d", tt.found, tt.redispatched, tt.interrupted, tt.letters)}
			if !slices.Equal(got, want) {
				t.Errorf("told %q, want %q", got, want)
			}
			if row := r.Row(t, held[0].ID); row.Interruptions != 0 {
				t.Errorf("what Redis lost counts as an interruption: %+v", row)
			}
			if n := r.Count(t, "SELECT count(*) FROM alerts WHERE firing"); n != 0 {
				t.Errorf("%d alerts are firing after the rebuild", n)
			}
			if tt.redispatched == 0 { // their leases are there
				for _, h := range held {
					r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
				}
				r.Ack(t, held...)
			}
			startWorker(t, s)
			r.WaitState(t, protocol.StateSucceeded, ids...)
			if n := r.Count(t, "SELECT count(*) FROM event_log WHERE type = 'task.transition_rejected'"); n != 0 {
				t.Errorf("%d outcomes that were read again count as refused", n)
			}
			entries := 1
			if strings.HasSuffix(name, "outcomes") {
				entries = 0 // the entry that is no outcome was read again, and so written again
			}
			once(t, r, entries)
		})
	}
}

// What a Redis without data is called does not depend on who looks first: not
// on whether another orchestrator has begun its new epoch already.
func TestAnEpochThatAnotherBegan(t *testing.T) {
	t.Parallel()
	r := all(t, testkit.NewStores(t))
	round(t, r)
	complete(t, r)
	old := r.Raw.HGet(t.Context(), "penstock:epoch", "id").Val()
	if err := r.Raw.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Client.BeginEpoch(t.Context(), r.Store.Deployment().ID.String(), uuid.NewString(), old); err != nil {
		t.Fatal(err)
	}
	round(t, r)
	complete(t, r)
	if got := told(t, r); len(got) != 2 || got[0] != "found epoch_missing" {
		t.Errorf("told %q", got)
	}
}

// Two orchestrators rebuild at once, and Redis loses everything once more in the
// middle.
func TestFlushInMidRebuild(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r, second := all(t, s), testkit.NewRig(t, s, short(s))
	history(t, r)
	round(t, r)
	complete(t, r)
	var armed atomic.Bool
	reconcile.After(r.Reconcile, func(string) {
		if armed.CompareAndSwap(true, false) {
			if err := r.Raw.FlushDB(context.WithoutCancel(t.Context())).Err(); err != nil {
				t.Error(err)
			}
		}
	})
	ids := r.Enqueue(t, testkit.Requests(20, "t")...)
	if err := r.Raw.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	armed.Store(true)
	errs := make(chan error, 1)
	go func() { errs <- second.Reconcile.Round(context.WithoutCancel(t.Context())) }()
	first := r.Reconcile.Round(t.Context())
	t.Logf("the rounds that met it: %v; %v", first, <-errs)
	if armed.Load() {
		t.Fatal("Redis was not flushed in the middle")
	}
	r.Start(t, second.Reconcile.Run)
	r.Start(t, r.Reconcile.Run)
	complete(t, r)
	startWorker(t, s)
	r.WaitState(t, protocol.StateSucceeded, ids...)
	got := told(t, r)
	for i, e := range got {
		if want := []string{"found", "rebuilt"}[i%2]; !strings.HasPrefix(e, want) {
			t.Errorf("event %d tells %q", i, e)
		}
	}
	once(t, r, 1)
}

// Several orchestrators put the same dead letters back at once.
func TestDeadLettersArePutBackOnce(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := all(t, s)
	history(t, r)
	if err := r.Raw.Del(t.Context(), protocol.StreamDLQ).Err(); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 5)
	for range cap(errs) {
		go func() {
			_, err := r.DeadLetter.PutBack(context.WithoutCancel(t.Context()))
			errs <- err
		}()
	}
	var err error
	for range cap(errs) {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		t.Fatal(err)
	}
	once(t, r, 1)
}

// later is a request for a task that is due in an hour.
func later() *enqueue.Request {
	q := testkit.Requests(1, "t")[0]
	q.ScheduleType, q.DelayMS = "delay", time.Hour.Milliseconds()
	return q
}

// Redis went back to before a generation that an orchestrator has seen and that
// nobody has confirmed yet: that is a loss, too.
func TestWentBackToBeforeWhatWasSeen(t *testing.T) {
	t.Parallel()
	r := all(t, testkit.NewStores(t))
	for range 3 {
		round(t, r)
	}
	complete(t, r)
	if _, err := r.DB.Exec(t.Context(), "UPDATE redis_epoch SET confirmed = 1"); err != nil {
		t.Fatal(err)
	}
	if err := r.Raw.HSet(t.Context(), "penstock:epoch", "generation", 1).Err(); err != nil {
		t.Fatal(err)
	}
	round(t, r)
	complete(t, r)
	if got := told(t, r); len(got) != 2 || got[0] != "found generation_behind" {
		t.Errorf("told %q", got)
	}
}
