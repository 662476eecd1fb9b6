package reconcile_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// Entries vanish from Redis by a stranger's hand. Their tasks are dispatched
// again under the next delivery; no other task is touched.
func TestLostEntriesAreDispatchedAgain(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, r *testkit.Rig, hs []testkit.Held){
		"XACK by a stranger": func(t *testing.T, r *testkit.Rig, hs []testkit.Held) { r.Ack(t, hs...) },
		"DEL": func(t *testing.T, r *testkit.Rig, _ []testkit.Held) {
			if err := r.Raw.Del(t.Context(), protocol.StreamTask).Err(); err != nil {
				t.Fatal(err)
			}
		},
		"group destroyed": func(t *testing.T, r *testkit.Rig, _ []testkit.Held) {
			if err := r.Raw.XGroupDestroy(t.Context(), protocol.StreamTask, protocol.GroupWorkers).Err(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig(t)
			done := dispatched(t, r)
			add(t, r, done, 1)
			h := r.Fetch(t, "w", 1)[0]
			r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
			r.Ack(t, h)
			r.WaitState(t, protocol.StateSucceeded, done)
			ids := []protocol.ID{dispatched(t, r), dispatched(t, r)}
			add(t, r, ids[0], 1)
			add(t, r, ids[1], 1)
			waiting := dispatched(t, r)
			if _, err := r.DB.Exec(t.Context(), "UPDATE tasks SET due_at = now() + interval '1 hour' WHERE id = $1", waiting[:]); err != nil {
				t.Fatal(err)
			}
			lose(t, r, r.Fetch(t, "w", 2))
			if err := r.Reconcile.Pass(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				if row := r.Row(t, id); row.State != protocol.StateQueued || row.Delivery != 2 || !row.Due || row.Attempt != 1 || row.Interruptions != 0 {
					t.Errorf("%+v", row)
				}
				events(t, r, id, "task.created", "task.redispatched")
			}
			events(t, r, done, "task.created", "task.claimed", "task.succeeded")
			events(t, r, waiting, "task.created")
			// Nothing of the old stream is handed out again.
			r.StartDispatch(t)
			for _, h := range r.Fetch(t, "w2", 2) {
				if h.Delivery != 2 {
					t.Errorf("task %s comes as delivery %d", h.ID, h.Delivery)
				}
				r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
				r.Ack(t, h)
			}
			r.WaitState(t, protocol.StateSucceeded, ids...)
			testkit.VerifyEvents(t, r.Stores)
		})
	}
}

// A running task whose entry is gone is given a visibility timeout: its handler
// may be about to finish.
func TestRunningAndAbsent(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := short(s)
	cfg.Recovery.ReconcileInterval = 30 * time.Millisecond
	r := testkit.NewRig(t, s, cfg)
	r.Start(t, r.Results.Run)
	ids := []protocol.ID{dispatched(t, r), dispatched(t, r)}
	add(t, r, ids[0], 1)
	add(t, r, ids[1], 1)
	hs := r.Fetch(t, "w", 2)
	r.Report(t, hs[0].Outcome(protocol.OutcomeClaimed), hs[1].Outcome(protocol.OutcomeClaimed))
	r.WaitState(t, protocol.StateRunning, ids...)
	start := time.Now()
	r.Ack(t, hs...) // by a stranger
	r.Start(t, r.Reconcile.Run)
	testkit.Eventually(t, "some passes are made", func() (bool, string) { return time.Since(start) > visibility/3, "" })
	r.Report(t, hs[1].Outcome(protocol.OutcomeSucceeded)) // its handler finishes in time
	r.WaitState(t, protocol.StateInterrupted, ids[0])
	if took := time.Since(start); took < visibility {
		t.Errorf("interrupted after %s, the visibility timeout is %s", took, visibility)
	}
	events(t, r, ids[0], "task.created", "task.claimed", "task.interrupted")
	events(t, r, ids[1], "task.created", "task.claimed", "task.succeeded")
	if row := r.Row(t, ids[0]); row.Delivery != 2 || !row.Due || row.Interruptions != 1 {
		t.Errorf("%+v", row)
	}
	testkit.VerifyEvents(t, s)
}

// Redis forgets everything under load. Every task is finished in the end, with
// one terminal event.
func TestFlushAllUnderLoad(t *testing.T) {
	t.Parallel()
	stack := devtest.Stack(t, devstack.Options{Redis: true})
	s := testkit.Stores{PostgresURL: testkit.Database(t), RedisURL: stack.RedisURL}
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout = 2 * time.Second
	cfg.Recovery.ReconcileInterval = 500 * time.Millisecond
	cfg.Dispatch.Window = 200
	o := testkit.StartOrchestrator(t, cfg)
	testkit.StartOrchestrator(t, cfg)
	c := testkit.Client(t, o.URL)
	var runs atomic.Int32
	s.StartWorker(t, worker.Options{Concurrency: 20, VisibilityTimeout: cfg.Recovery.VisibilityTimeout}, func(w *worker.Worker) {
		w.HandleRaw("t", func(context.Context, *task.Raw) (json.RawMessage, error) {
			runs.Add(1)
			<-time.After(2 * time.Millisecond) // the work
			return nil, nil
		})
	})
	const n = 1500
	rs := make([]*task.Request, n)
	for i := range rs {
		rs[i] = &task.Request{Type: "t", Payload: json.RawMessage(`{}`)}
	}
	out, err := c.EnqueueMany(t.Context(), rs)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range out {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	raw, db := s.Redis(t), s.SQL(t)
	for i := range 2 {
		testkit.Eventually(t, "some are done", func() (bool, string) { return int(runs.Load()) > (i+1)*n/4, "" })
		if err := raw.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "all are done", func() (bool, string) {
		var left int
		err := db.QueryRow(t.Context(), "SELECT count(*) FROM tasks WHERE state <> 'succeeded'").Scan(&left)
		b, _ := json.Marshal(left)
		return err == nil && left == 0, string(b)
	})
	t.Logf("%d tasks, %d executions", n, runs.Load())
	testkit.VerifyLog(t, s)
}
