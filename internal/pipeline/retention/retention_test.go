package retention_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/pipeline/retention"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

func janitor(t *testing.T, r *testkit.Rig, grace time.Duration, queues func(context.Context) ([]string, error)) *retention.Janitor {
	t.Helper()
	return retention.New(retention.Options{Store: r.Store, Redis: r.Client, Trim: time.Hour, Grace: grace, Queues: queues, Log: testkit.Log(t)})
}

func onlyDefault(context.Context) ([]string, error) { return []string{protocol.DefaultQueue}, nil }

// finished puts n entries through the stream: added, fetched, acknowledged.
func finished(t *testing.T, r *testkit.Rig, n int) {
	t.Helper()
	values := make([][]any, n)
	for i := range values {
		e := protocol.TaskEntry{ID: protocol.ID(uuid.Must(uuid.NewV7())), Type: "t", Payload: []byte("{}"), Attempt: 1, Delivery: 1, Timeout: time.Minute, EnqueuedAt: time.Now()}
		values[i] = e.Values()
	}
	for _, a := range r.Client.Add(t.Context(), protocol.StreamTask, values) {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	r.Ack(t, r.Fetch(t, "w", n)...)
}

func length(t *testing.T, r *testkit.Rig) int64 {
	t.Helper()
	return r.Raw.XLen(t.Context(), protocol.StreamTask).Val()
}

// A batch is committed, added, run and acknowledged, and its reply is lost, all
// while the janitor is at work: its entries must still be there to be looked
// up.
func TestTrimSparesABatchThatIsOpenedMeanwhile(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	finished(t, r, 5)
	j := janitor(t, r, -time.Hour, func(context.Context) ([]string, error) { // no grace at all
		after, err := r.Client.LastID(t.Context(), protocol.StreamTask)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.DB.Exec(t.Context(), "INSERT INTO dispatch_outbox (owner, queue, after_id, task_ids, deliveries) VALUES ($1, 'default', $2, '{}', '{}')",
			pgid.ID(r.Instance), after); err != nil {
			t.Fatal(err)
		}
		finished(t, r, 5)
		return onlyDefault(t.Context())
	})
	if err := j.TrimStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := length(t, r); n != 6 { // the last of the first five is where the batch starts
		t.Errorf("%d entries left, want the 5 of the open batch and the one before", n)
	}
}

func TestTrimRespectsTheGrace(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	finished(t, r, 5)
	if err := janitor(t, r, time.Hour, onlyDefault).TrimStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := length(t, r); n != 5 {
		t.Errorf("%d entries left of 5 within the grace", n)
	}
	if err := janitor(t, r, -time.Hour, onlyDefault).TrimStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := length(t, r); n != 1 {
		t.Errorf("%d entries left after the grace, want the last delivered", n)
	}
}

// A queue whose key is not a stream, and one that has none, do not keep the
// others from being trimmed.
func TestTrimGoesOnAfterAQueueInTrouble(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	finished(t, r, 5)
	if err := r.Raw.Set(t.Context(), protocol.TaskStream("bad"), "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	err := janitor(t, r, -time.Hour, func(context.Context) ([]string, error) {
		return []string{"bad", "missing", protocol.DefaultQueue}, nil
	}).TrimStreams(t.Context())
	if err == nil {
		t.Error("the trouble is not reported")
	}
	if n := length(t, r); n != 1 {
		t.Errorf("%d entries left, want 1", n)
	}
}

func TestPartitionsAndInstances(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	if _, err := r.DB.Exec(t.Context(), `INSERT INTO instances (id, host, pid, seen_at) VALUES
		(gen_random_uuid(), 'long dead', 1, now() - interval '2 hours'), (gen_random_uuid(), 'dead', 1, now() - interval '1 minute'),
		($1, 'long dead, with an open batch', 1, now() - interval '2 hours')`, pgid.ID(r.Instance)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.DB.Exec(t.Context(), "INSERT INTO dispatch_outbox (owner, queue, after_id, task_ids, deliveries) VALUES ($1, 'default', '0-0', '{}', '{}')",
		pgid.ID(r.Instance)); err != nil {
		t.Fatal(err)
	}
	var parts string
	if err := r.DB.QueryRow(t.Context(), "SELECT string_agg(part::text, ', ') FROM dated_partitions").Scan(&parts); err != nil {
		t.Fatal(err)
	}
	if _, err := r.DB.Exec(t.Context(), "DROP TABLE "+parts); err != nil {
		t.Fatal(err)
	}
	j := janitor(t, r, time.Hour, onlyDefault)
	for range 2 {
		if err := errors.Join(j.Partitions(t.Context()), r.Store.PruneInstances(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.Count(t, "SELECT count(*) FROM instances"); n != 2 {
		t.Errorf("%d instances left, want 2", n)
	}
	for _, table := range []string{"tasks_finished", "event_log"} {
		for ahead := -1; ahead <= 2; ahead++ {
			if n := r.Count(t, `SELECT count(*) FROM dated_partitions, (SELECT (now() AT TIME ZONE 'UTC')::date + $2::int AS day) d
				WHERE parent = $1 AND day >= first_day AND day < next_day`, table, ahead); n != 1 {
				t.Errorf("%s has %d partitions of today%+d", table, n, ahead)
			}
		}
	}
}
