package reconcile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// kept are the tables that a backup has.
var kept = []string{"tasks", "event_log", "dlq_items", "dispatch_outbox", "idempotency_keys", "alerts", "redis_epoch",
	"approvals", "approval_votes", "task_dependencies", "dependency_settlements"}

func sql(t *testing.T, r *testkit.Rig, text string) {
	t.Helper()
	if _, err := r.DB.Exec(t.Context(), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// backUp copies the rows aside; the returned function puts them back.
func backUp(t *testing.T, r *testkit.Rig) (restore func()) {
	t.Helper()
	columns := map[string]string{}
	for _, table := range kept {
		rows, err := r.DB.Query(t.Context(), "SELECT column_name::text FROM information_schema.columns WHERE table_schema = 'public' AND table_name = $1 AND is_generated = 'NEVER' ORDER BY ordinal_position", table)
		if err != nil {
			t.Fatal(err)
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(names) == 0 {
			t.Fatalf("columns of %s: %v, %v", table, names, err)
		}
		columns[table] = strings.Join(names, ", ")
		sql(t, r, fmt.Sprintf("CREATE TABLE backup_%s AS SELECT %s FROM %s", table, columns[table], table))
	}
	return func() {
		t.Helper()
		var b strings.Builder
		b.WriteString("BEGIN; TRUNCATE " + strings.Join(kept, ", ") + " CASCADE;")
		for _, table := range kept {
			fmt.Fprintf(&b, "INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM backup_%s;", table, columns[table], columns[table], table)
		}
		sql(t, r, b.String()+"COMMIT")
	}
}

// Postgres is restored from before what Redis holds. Whatever became of its
// tasks since is void; nothing that Redis holds of it counts any more.
func TestPostgresRestored(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := all(t, s)
	history(t, r)
	round(t, r)
	complete(t, r)
	ids := r.Enqueue(t, testkit.Requests(4, "t")...)
	scheduled := r.Enqueue(t, later())[0]
	byID := map[protocol.ID]testkit.Held{}
	for _, h := range r.Fetch(t, "w", 4) {
		byID[h.ID] = h
	}
	queued, running, retrying, finished := ids[0], ids[1], ids[2], ids[3]
	r.Report(t, byID[running].Outcome(protocol.OutcomeClaimed))
	o := byID[retrying].Outcome(protocol.OutcomeFailed)
	o.Retryable, o.Delay, o.Error = true, 1500*time.Millisecond, "no"
	r.Report(t, o)
	r.Ack(t, byID[retrying])
	r.WaitState(t, protocol.StateRunning, running)
	r.WaitState(t, protocol.StateRetrying, retrying)
	restore := backUp(t, r)

	// The future that will be forgotten.
	fail := byID[queued].Outcome(protocol.OutcomeFailed)
	fail.Retryable, fail.Delay, fail.Error = true, 0, "no"
	r.Report(t, fail, byID[finished].Outcome(protocol.OutcomeSucceeded))
	r.Ack(t, byID[queued], byID[finished])
	r.WaitState(t, protocol.StateSucceeded, finished)
	again := r.Fetch(t, "w", 2) // the second deliveries of two tasks
	unknown := r.Enqueue(t, testkit.Requests(3, "t")...)
	for range 3 {
		round(t, r)
	}
	testkit.Eventually(t, "no dispatch is open", func() (bool, string) {
		n := r.Count(t, "SELECT count(*) FROM dispatch_outbox")
		return n == 0, fmt.Sprint(n)
	})
	restore()
	if n := r.Count(t, "SELECT count(*) FROM tasks WHERE id = ANY($1::uuid[])", pgid.Slice(unknown)); n != 0 {
		t.Fatalf("%d tasks were not forgotten", n)
	}

	round(t, r)
	complete(t, r)
	got := told(t, r)
	if len(got) != 2 || got[0] != "found postgres_restored" || got[1] != "rebuilt postgres_restored 3+1+0" {
		t.Errorf("told %q", got)
	}
	for _, id := range ids {
		if row := r.Row(t, id); row.Delivery < protocol.RestoredJump || row.Interruptions != 0 {
			t.Errorf("task %s: %+v", id, row)
		}
	}
	if row := r.Row(t, scheduled); row.State != protocol.StatePending || row.Delivery < protocol.RestoredJump || !row.Due {
		t.Errorf("the task that is not due: %+v", row)
	}
	for _, m := range r.Raw.XRange(t.Context(), protocol.StreamTask, "-", "+").Val() {
		if p, _ := protocol.PairOf(m.Values); slices.Contains(unknown, p.ID) {
			t.Errorf("entry %s of a task that Postgres does not know is still to be run", m.ID)
		}
	}
	// What the forgotten future did counts no more.
	r.Report(t, again[0].Outcome(protocol.OutcomeSucceeded), again[1].Outcome(protocol.OutcomeSucceeded), byID[running].Outcome(protocol.OutcomeSucceeded))
	r.Ack(t, again...)
	r.Ack(t, byID[running])
	startWorker(t, s)
	r.WaitState(t, protocol.StateSucceeded, ids...)
	for _, h := range again {
		testkit.Eventually(t, "the outcome of a forgotten delivery is refused once", func() (bool, string) {
			n := r.Count(t, "SELECT count(*) FROM event_log WHERE task_id = $1 AND type = 'task.transition_rejected'", h.ID[:])
			return n == 1, fmt.Sprint(h.ID, n)
		})
	}
	sql(t, r, fmt.Sprintf("UPDATE tasks SET due_at = now() WHERE id = '%s'", scheduled))
	r.WaitState(t, protocol.StateSucceeded, scheduled)
	once(t, r, 1)
	// It is over: nothing is raised again.
	round(t, r)
	if n := r.Count(t, "SELECT count(*) FROM redis_epoch WHERE floor IS NULL AND lost IS NULL"); n != 1 {
		t.Error("the restore is not over")
	}
	if got := told(t, r); len(got) != 2 {
		t.Errorf("told %q", got)
	}
}

// The cluster or the timeline of Postgres is another one: it may have lost its
// last commits.
func TestPostgresPromoted(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := all(t, s)
	round(t, r)
	complete(t, r)
	if n := r.Count(t, "SELECT count(*) FROM redis_epoch WHERE cluster ~ '^[0-9]+/[0-9A-F]{8}$'"); n != 1 {
		t.Fatal("the cluster and its timeline are not noted")
	}
	id := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	sql(t, r, "UPDATE redis_epoch SET cluster = '7/00000001'")
	round(t, r)
	complete(t, r)
	if got := told(t, r); len(got) != 2 || got[0] != "found postgres_restored" {
		t.Errorf("told %q", got)
	}
	startWorker(t, s)
	r.WaitState(t, protocol.StateSucceeded, id)
	if row := r.Row(t, id); row.Delivery < protocol.RestoredJump {
		t.Errorf("%+v", row)
	}
	once(t, r, 1)
}

// One backup is restored twice: what was dispatched after the first time has no
// delivery of the second.
func TestOneBackupIsRestoredTwice(t *testing.T) {
	t.Parallel()
	r := all(t, testkit.NewStores(t))
	round(t, r)
	complete(t, r)
	id := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	r.Fetch(t, "w", 1)
	restore := backUp(t, r)
	var last int64
	for range 2 {
		for range 3 { // a future that is forgotten
			round(t, r)
		}
		restore()
		round(t, r)
		complete(t, r)
		h := r.Fetch(t, "w", 1)[0]
		if h.ID != id || h.Delivery <= last {
			t.Fatalf("task %s comes as delivery %d, after %d", h.ID, h.Delivery, last)
		}
		last = h.Delivery
	}
}
