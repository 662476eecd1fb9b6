package dispatch_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/worker"
)

// crashed leaves what an orchestrator leaves that dies after committing a batch
// of n tasks and adding the first added of its entries: the tasks, their outbox
// row, and its sign of life of that age.
func crashed(t *testing.T, r *testkit.Rig, n, added int, seen string) []protocol.ID {
	t.Helper()
	ctx := t.Context()
	owner := protocol.ID(uuid.Must(uuid.NewV7()))
	after, err := r.Client.LastID(ctx, protocol.StreamTask)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]protocol.ID, n)
	deliveries := make([]int64, n)
	for i := range ids {
		ids[i], deliveries[i] = protocol.ID(uuid.Must(uuid.NewV7())), 1
	}
	insert := func(tx pgx.Tx) error { // in one transaction, as an orchestrator does
		for _, sql := range []string{
			`INSERT INTO tasks (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, idempotency_scope, given, trace_id, payload)
				SELECT unnest($1::uuid[]), 'default', 'default', 't', 'queued', 3, 'now', 60000, 'default', 0, 'x', '{}'`,
			`INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
				SELECT unnest($1::uuid[]), 1, 'task.created', 'queued', 1, 1, 'api', 'x', now()`,
		} {
			if _, err := tx.Exec(ctx, sql, pgid.Slice(ids)); err != nil {
				return err
			}
		}
		if seen != "" {
			if _, err := tx.Exec(ctx, "INSERT INTO instances (id, host, pid, seen_at) VALUES ($1, 'h', 1, now() + $2::interval)", pgid.ID(owner), seen); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "INSERT INTO dispatch_outbox (owner, queue, after_id, task_ids, deliveries) VALUES ($1, 'default', $2, $3, $4)",
			pgid.ID(owner), after, pgid.Slice(ids), deliveries)
		return err
	}
	if err := pgx.BeginFunc(ctx, r.DB, insert); err != nil {
		t.Fatal(err)
	}
	var values [][]any
	for _, id := range ids[:added] {
		values = append(values, (&protocol.TaskEntry{
			ID: id, TaskID: id.String(), Type: "t", Payload: []byte("{}"), Attempt: 1, Delivery: 1, MaxRetries: 3, Timeout: time.Minute, EnqueuedAt: time.Now(),
		}).Values())
	}
	for _, a := range r.Client.Add(ctx, protocol.StreamTask, values) {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	return ids
}

func takeoverConfig(s testkit.Stores) config.Orchestrator {
	cfg := s.Config()
	cfg.Retention.TrimGrace = noTrim
	cfg.Recovery.ReconcileInterval = time.Hour // only the takeover finds them
	return cfg
}

// A batch of a dead orchestrator is finished by another one as soon as its sign
// of life has expired, whether its entries had been added or not.
func TestOrphanedBatchIsTakenOver(t *testing.T) {
	t.Parallel()
	const n = 10
	for name, added := range map[string]int{"added": n, "not added": 0, "partly added": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testkit.NewStores(t)
			cfg := takeoverConfig(s)
			r := testkit.NewRig(t, s, cfg)
			testkit.StartOrchestrator(t, cfg)
			start := time.Now()
			ids := crashed(t, r, n, added, "0s")
			var y tally
			startWorker(t, s, &y, worker.Options{})
			y.wait(t, added, testkit.Deadline)
			testkit.Eventually(t, "the outbox row is gone", func() (bool, string) {
				rows := r.Count(t, "SELECT count(*) FROM dispatch_outbox")
				return rows == 0, fmt.Sprint(rows)
			})
			took := time.Since(start)
			if ttl := cfg.Recovery.InstanceTTL; took < ttl*9/10 || took > ttl+5*time.Second {
				t.Errorf("taken over after %s, the owner's time to live is %s", took, ttl)
			}
			y.wait(t, n, testkit.Deadline)
			testkit.VerifyLog(t, s)
			y.once(t, n)
			noneTwice(t, r, protocol.StreamTask)
			for i, id := range ids {
				want := "task.created task.claimed task.succeeded"
				if i >= added {
					want = "task.created task.redispatched task.claimed task.succeeded"
				}
				if got := testkit.EventTypes(t, s, id); got != want {
					t.Errorf("task %d: %s, want %s", i, got, want)
				}
			}
		})
	}
}

// Several replicas take over several batches at once, of an owner that never
// showed a sign of life; a living owner's batch is left alone.
func TestTakeoverIsShared(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := takeoverConfig(s)
	r := testkit.NewRig(t, s, cfg)
	alive := crashed(t, r, 5, 0, "1 hour")
	for i := range 30 {
		crashed(t, r, 10, i%11, "")
	}
	for range 3 {
		testkit.StartOrchestrator(t, cfg)
	}
	var y tally
	startWorker(t, s, &y, worker.Options{})
	y.wait(t, 300, testkit.Deadline)
	for _, id := range alive {
		if row := r.Row(t, id); row.State != protocol.StateQueued || row.Delivery != 1 || row.Due {
			t.Errorf("task of a living owner: %+v", row)
		}
	}
	if n := r.Count(t, "SELECT count(*) FROM dispatch_outbox WHERE owner IN (SELECT id FROM instances WHERE host = 'h')"); n != 1 {
		t.Errorf("%d outbox rows left, want that of the living owner", n)
	}
	if _, err := r.DB.Exec(t.Context(), "UPDATE instances SET seen_at = now() - interval '1 hour' WHERE host = 'h'"); err != nil {
		t.Fatal(err)
	}
	y.wait(t, 305, testkit.Deadline)
	testkit.VerifyLog(t, s)
	y.once(t, 305)
	noneTwice(t, r, protocol.StreamTask)
}

// Entries that a dead orchestrator added and a worker has finished are not
// trimmed before the batch is resolved, however old they are: else they would
// look as if they had never been added.
func TestOpenBatchIsNotTrimmed(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := takeoverConfig(s)
	cfg.Retention.TrimGrace, cfg.Retention.TrimInterval = time.Millisecond, 10*time.Millisecond
	r := testkit.NewRig(t, s, cfg)
	testkit.StartOrchestrator(t, cfg)
	ids := crashed(t, r, 10, 10, "1 hour")
	var y tally
	startWorker(t, s, &y, worker.Options{})
	y.wait(t, 10, testkit.Deadline)
	r.WaitState(t, protocol.StateSucceeded, ids...)
	if n := r.Raw.XLen(t.Context(), protocol.StreamTask).Val(); n != 10 {
		t.Errorf("%d entries left of an open batch of 10", n)
	}
	if _, err := r.DB.Exec(t.Context(), "DELETE FROM instances WHERE host = 'h'"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the resolved batch is trimmed", func() (bool, string) {
		n := r.Raw.XLen(t.Context(), protocol.StreamTask).Val()
		return n == 1, fmt.Sprint(n)
	})
	testkit.VerifyLog(t, s)
	y.once(t, 10)
}

// A clean stop under load leaves nothing for others to take over.
func TestCleanStopLeavesNoOutbox(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := takeoverConfig(s)
	cfg.Dispatch.MaxBatch = 20
	r := testkit.NewRig(t, s, cfg)
	for range 5 {
		stop := r.Start(t, func(c context.Context) error { return testkit.NewRig(t, s, cfg).Dispatch.Run(c) })
		before := r.Raw.XLen(t.Context(), protocol.StreamTask).Val()
		if _, err := r.DB.Exec(t.Context(), `WITH x AS (INSERT INTO tasks (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, due_at,
			idempotency_scope, given, trace_id, payload)
			SELECT gen_random_uuid(), 'default', 'default', 't', 'queued', 3, 'now', 1000, now(), 'default', 0, 'x', '{}' FROM generate_series(1, 400) RETURNING id)
			INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
			SELECT id, 1, 'task.created', 'queued', 1, 1, 'api', 'x', now() FROM x`); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "dispatch is under way", func() (bool, string) {
			n := r.Raw.XLen(t.Context(), protocol.StreamTask).Val()
			return n > before, fmt.Sprint(n)
		})
		stop()
		if n := r.Count(t, "SELECT count(*) FROM dispatch_outbox"); n != 0 {
			t.Errorf("%d outbox rows left after a clean stop", n)
		}
		if n := r.Count(t, "SELECT count(*) FROM instances"); n != 0 {
			t.Errorf("%d instances left after a clean stop", n)
		}
	}
	testkit.VerifyEvents(t, s)
}

// An orchestrator that stands still between its commit and its XADD adds nothing
// once another one has taken its batch over; and what is still its own it adds,
// however late.
func TestALateSenderAddsNothingThatWasTakenOver(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := takeoverConfig(s)
	r := testkit.NewRig(t, s, cfg)
	id := crashed(t, r, 1, 0, "1 hour")[0]
	var row int64
	if err := r.DB.QueryRow(t.Context(), "SELECT id FROM dispatch_outbox").Scan(&row); err != nil {
		t.Fatal(err)
	}
	entry := &protocol.TaskEntry{
		ID: id, TaskID: id.String(), Type: "t", Payload: []byte("{}"), Attempt: 1, Delivery: 1, MaxRetries: 3, Timeout: time.Minute, EnqueuedAt: time.Now(),
	}
	send := func(began time.Time) int64 {
		t.Helper()
		r.Dispatch.Send(t.Context(), began, row, "default", []*protocol.TaskEntry{entry})
		n, err := r.Raw.XLen(t.Context(), protocol.StreamTask).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	long := time.Now().Add(-time.Hour)
	if n := send(long); n != 1 {
		t.Errorf("%d entries of a batch that nobody took over, want 1", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM dispatch_outbox WHERE created_at > now() - interval '1 minute'"); n != 1 {
		t.Error("the batch was not renewed")
	}
	if _, err := r.DB.Exec(t.Context(), "DELETE FROM dispatch_outbox"); err != nil { // as whoever takes it over
		t.Fatal(err)
	}
	if n := send(long); n != 1 {
		t.Errorf("%d entries after the batch was taken over, want no more than 1", n)
	}
}

// What was renewed is not taken over, though its owner shows no sign of life.
func TestRenewedBatchIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := takeoverConfig(s)
	r := testkit.NewRig(t, s, cfg)
	crashed(t, r, 1, 0, "-1 hour")
	young := crashed(t, r, 1, 0, "-1 hour")[0]
	if _, err := r.DB.Exec(t.Context(), "UPDATE dispatch_outbox SET created_at = now() + CASE WHEN $1 = ANY(task_ids) THEN interval '1 hour' ELSE interval '-1 hour' END", pgid.ID(young)); err != nil {
		t.Fatal(err)
	}
	testkit.StartOrchestrator(t, cfg)
	testkit.Eventually(t, "the old batch is taken over", func() (bool, string) {
		rows := r.Count(t, "SELECT count(*) FROM dispatch_outbox")
		return rows == 1, fmt.Sprint(rows)
	})
	if row := r.Row(t, young); row.State != protocol.StateQueued || row.Delivery != 1 {
		t.Errorf("the task of the renewed batch: %+v", row)
	}
}
