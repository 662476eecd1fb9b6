package store_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// The database's words are the package's, for every state and vocabulary.
func TestViewWords(t *testing.T) {
	t.Parallel()
	c := connect(t, testkit.Database(t), "penstock_app", nil)
	states := append(protocol.States(), "", "ready", "Running")
	for _, v := range []protocol.Vocabulary{protocol.VocabularyB2, protocol.VocabularyMEN, protocol.VocabularyP3C, protocol.VocabularyTQP, "cobol"} {
		for _, s := range states {
			got := get[*string](t, c, "SELECT penstock_word($1, $2)", string(v), string(s))
			want := v.Project(s, "")
			if got == nil && want != "" || got != nil && *got != want {
				t.Errorf("%s: %q is %v in the database, %q in package protocol", v, s, got, want)
			}
		}
	}
	for _, typ := range protocol.EventTypes() {
		id := newID()
		exec(t, c, insertSQL(columns(id)))
		exec(t, c, "INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at) VALUES ($1, 1, $2, 'pending', 1, 1, 'api', 't', now())", id, string(typ))
		if got := get[string](t, c, "SELECT event_type FROM workflow_events WHERE workflow_id = $1", id); got != protocol.AsterType(typ) {
			t.Errorf("%s is %q in the view, %q in package protocol", typ, got, protocol.AsterType(typ))
		}
	}
}

// The database's cause of a failure is the package's, and dead letters are found by
// it in an index.
func TestCauses(t *testing.T) {
	t.Parallel()
	c := connect(t, testkit.Database(t), "penstock_app", nil)
	for _, code := range []protocol.Code{protocol.CodeRetryExhausted, protocol.CodeTimeout, ""} {
		for _, reason := range []string{
			"TASK_TIMEOUT: slow", "TASK_TIMEOUT: ", "TASK_TIMEOUT:", "MINE: a: b", "two words: x", "", ": x", strings.Repeat("x", 100) + ": y", strings.Repeat("x", 101) + ": y",
			"é: x", "a\n: x", "TASK_TIMEOUT: a\nb: c", strings.Repeat("long ", 1000),
		} {
			want, _ := protocol.Cause(code, reason)
			if got := get[string](t, c, "SELECT penstock_cause($1, $2)", string(code), reason); got != string(want) {
				t.Errorf("%s %q: %q in the database, %q in package protocol", code, reason, got, want)
			}
		}
	}
	exec(t, c, "SET enable_seqscan = off")
	plan := get[string](t, c, `EXPLAIN (FORMAT json) SELECT d.dlq_id FROM dlq_items d WHERE penstock_cause(d.error_code, d.error) = 'TASK_TIMEOUT'
		OR 'TASK_TIMEOUT' = 'TASK_RETRY_EXHAUSTED' AND d.error_code = 'TASK_RETRY_EXHAUSTED' ORDER BY d.failed_at DESC, d.dlq_id DESC LIMIT 10`)
	if !strings.Contains(plan, "dlq_items_cause") || strings.Contains(plan, `"Sort"`) {
		t.Errorf("%s", plan)
	}
}

// The columns of the documents are there, under their names.
func TestViewColumns(t *testing.T) {
	t.Parallel()
	c := connect(t, testkit.Database(t), "penstock_app", nil)
	for view, want := range map[string]string{
		"jobs":            "job_id tenant_id job_type status retry_count idempotency_key trace_id error_code payload_json created_at updated_at",
		"task_runs":       "run_id task_id attempt run_status idempotency_key next_retry_at error_code started_at finished_at trace_id",
		"run_events":      "event_id event_type payload trace_id occurred_at",
		"workflow_events": "workflow_id sequence event_type attempt_number backoff_delay_ms failure_reason payload timestamp",
		"workflow_state":  "workflow_id status retry_context",
	} {
		rows, err := c.Query(t.Context(), "SELECT attname::text FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0", view)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, col := range strings.Fields(want) {
			if !slices.Contains(got, col) {
				t.Errorf("%s has no column %s: %v", view, col, got)
			}
		}
		if _, err := c.Exec(t.Context(), "DELETE FROM "+view); err == nil {
			t.Errorf("the application role may delete from %s", view)
		}
	}
}

// fewPartitions is a database without partitions for days: each of hundreds of
// queries would be planned for all of them.
func fewPartitions(t *testing.T) *pgx.Conn {
	t.Helper()
	c := connect(t, testkit.Database(t), "", nil)
	rows, err := c.Query(t.Context(), `SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent IN ('tasks_finished'::regclass, 'event_log'::regclass)`)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if !strings.HasSuffix(p, "_named") && !strings.HasSuffix(p, "_default") {
			exec(t, c, "DROP TABLE "+p)
		}
	}
	return c
}

// Whatever happens to a task, the views show what the projections of package
// protocol say.
func TestViewsOfRandomHistories(t *testing.T) {
	t.Parallel()
	c := fewPartitions(t)
	var graph []*story
	rapid.Check(t, func(rt *rapid.T) {
		s := newStory(rt)
		if rapid.IntRange(0, 3).Draw(rt, "graph") == 0 {
			id := "019c945a-c800-7000-8000-000000000001"
			s.graph = &id
			graph = append(graph, s)
		}
		for range rapid.IntRange(0, 40).Draw(rt, "steps") {
			s.step(rt)
		}
		if rapid.Bool().Draw(rt, "cut") {
			s.cut(rt, rapid.IntRange(1, len(s.events)).Draw(rt, "events"))
		}
		s.store(t, c)
		wantJob(t, rt, c, s)
		wantRuns(t, rt, c, s)
		wantRunEvents(t, rt, c, s)
		if s.graph == nil {
			wantWorkflow(t, rt, c, s.task.ID.String(), s)
		}
	})
	if len(graph) > 0 {
		wantWorkflow(t, t, c, *graph[0].graph, graph...)
	}
	wantNoBreach(t, c)
}

// A life that reaches every state, seen after each of its events.
func TestViewsOfEveryState(t *testing.T) {
	t.Parallel()
	c := fewPartitions(t)
	seen := map[protocol.State]bool{}
	for _, steps := range [][]string{
		{"dispatch", "claim", "fail", "claim", "lost", "dispatch", "claim", "fail", "redispatch", "claim", "fail", "claim", "fail", "claim", "fail", "bury"},
		{"dispatch", "claim", "lost", "dispatch", "claim", "lost", "dispatch", "claim", "lost", "bury"}, // given up from interrupted
		{"dispatch", "claim", "snooze", "claim", "ok"},
		{"dispatch", "claim", "approval", "cancel"},
	} {
		for n := 1; ; n++ {
			s := bornStory(protocol.StatePending)
			for _, step := range steps {
				s.tell(t, step)
			}
			if n > len(s.events) {
				break
			}
			s.cut(t, n)
			seen[s.task.State] = true
			s.store(t, c)
			wantJob(t, t, c, s)
			wantRuns(t, t, c, s)
			wantRunEvents(t, t, c, s)
			wantWorkflow(t, t, c, s.task.ID.String(), s)
		}
	}
	for _, state := range protocol.States() {
		if !seen[state] {
			t.Errorf("no story is ever %s", state)
		}
	}
	wantNoBreach(t, c)
}

// wantNoBreach: no constraint of P3C is broken anywhere.
func wantNoBreach(t *testing.T, c *pgx.Conn) {
	t.Helper()
	for what, sql := range map[string]string{
		"a run twice":                "SELECT count(*) FROM (SELECT FROM task_runs GROUP BY task_id, attempt HAVING count(*) > 1) x",
		"a key twice":                "SELECT count(*) FROM (SELECT FROM task_runs GROUP BY idempotency_key HAVING count(*) > 1) x",
		"a run without status":       "SELECT count(*) FROM task_runs WHERE run_status IS NULL",
		"a wrong next_retry_at":      "SELECT count(*) FROM task_runs WHERE (run_status = 'retry_scheduled') <> (next_retry_at IS NOT NULL)",
		"an attempt below 1":         "SELECT count(*) FROM task_runs WHERE attempt < 1",
		"a workflow sequence twice":  "SELECT count(*) FROM (SELECT FROM workflow_events GROUP BY workflow_id, sequence HAVING count(*) > 1) x",
		"a job with a foreign state": "SELECT count(*) FROM jobs WHERE status NOT IN ('queued', 'running', 'retrying', 'succeeded', 'dlq_pending', 'dlq_recorded', 'failed', 'cancelled')",
	} {
		if n := get[int](t, c, sql); n != 0 {
			t.Errorf("%s: %d times", what, n)
		}
	}
}

type failer interface {
	Fatalf(format string, args ...any)
}

func wantJob(t testing.TB, f failer, c *pgx.Conn, s *story) {
	key := s.task.ID.String()
	if s.name != nil {
		key = *s.name
	}
	if s.key != nil {
		key = *s.key
	}
	code := ""
	if s.task.State != protocol.StateSucceeded {
		code = protocol.VocabularyB2.Code(s.task.Code)
	}
	want := fmt.Sprintf("x default %s %d %s %s %q", protocol.VocabularyB2.Project(s.task.State, ""), s.task.Attempt-1, key, s.task.TraceID, code)
	var typ, tenant, status, gotKey, trace, gotCode string
	var retries int
	err := c.QueryRow(t.Context(), `SELECT job_type, tenant_id, status, retry_count, idempotency_key, trace_id, COALESCE(error_code, '') FROM jobs WHERE job_id = $1`, s.task.ID.String()).
		Scan(&typ, &tenant, &status, &retries, &gotKey, &trace, &gotCode)
	if err != nil {
		f.Fatalf("job %s: %v", s.task.ID, err)
	}
	if got := fmt.Sprintf("%s %s %s %d %s %s %q", typ, tenant, status, retries, gotKey, trace, gotCode); got != want {
		f.Fatalf("job\n got %s\nwant %s", got, want)
	}
}

func clock(at *time.Time) string {
	if at == nil || at.IsZero() {
		return "-"
	}
	return at.UTC().Format("15:04:05.000")
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func wantRuns(t testing.TB, f failer, c *pgx.Conn, s *story) {
	var want, got []string
	for _, r := range protocol.Runs(s.events) {
		want = append(want, fmt.Sprintf("%s %s %d %s %s next %s created %s started %s finished %s %s %q by %q", protocol.RunID(r.TaskID, r.Attempt), r.TaskID, r.Attempt, r.Status,
			protocol.ExecutionKey(r.TaskID, r.Attempt), clock(&r.NextRetryAt), clock(&r.CreatedAt), clock(&r.StartedAt), clock(&r.FinishedAt), r.Code, r.Reason, r.WorkerID))
	}
	rows, err := c.Query(t.Context(), `SELECT run_id, task_id::text, attempt, run_status, idempotency_key, next_retry_at, created_at, started_at, finished_at, error_code, reason, worker_id
		FROM task_runs WHERE task_id = $1 ORDER BY attempt`, s.task.ID.String())
	if err != nil {
		f.Fatalf("runs: %v", err)
	}
	for rows.Next() {
		var run, task, status, key string
		var attempt int
		var next, created, started, finished *time.Time
		var code, reason, worker *string
		if err := rows.Scan(&run, &task, &attempt, &status, &key, &next, &created, &started, &finished, &code, &reason, &worker); err != nil {
			f.Fatalf("runs: %v", err)
		}
		got = append(got, fmt.Sprintf("%s %s %d %s %s next %s created %s started %s finished %s %s %q by %q", run, task, attempt, status, key, clock(next), clock(created), clock(started),
			clock(finished), deref(code), deref(reason), deref(worker)))
	}
	if !slices.Equal(got, want) {
		f.Fatalf("runs of %v:\n got %s\nwant %s", statesOf(s.events), strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

func statesOf(events []*protocol.Event) []protocol.State {
	out := make([]protocol.State, len(events))
	for i, e := range events {
		out[i] = e.To
	}
	return out
}

// wantRunEvents compares with the moves that P3C's words show; the payload has
// the nine fields of the document, and no other.
func wantRunEvents(t testing.TB, f failer, c *pgx.Conn, s *story) {
	rows, err := c.Query(t.Context(), "SELECT event_type, payload FROM run_events WHERE task_id = $1 ORDER BY seq", s.task.ID.String())
	if err != nil {
		f.Fatalf("run events: %v", err)
	}
	var got [][2]string
	for rows.Next() {
		var typ string
		var payload map[string]json.RawMessage
		if err := rows.Scan(&typ, &payload); err != nil {
			f.Fatalf("run events: %v", err)
		}
		var names []string
		for n := range payload {
			names = append(names, n)
		}
		slices.Sort(names)
		if want := "actor attempt error_code idempotency_key next_retry_at previous_status run_id status task_id"; typ != protocol.P3CEvent || strings.Join(names, " ") != want {
			f.Fatalf("%s has %v, want %s", typ, names, want)
		}
		var before, now *string
		_ = json.Unmarshal(payload["previous_status"], &before)
		_ = json.Unmarshal(payload["status"], &now)
		if (deref(now) == "retry_scheduled") != (string(payload["next_retry_at"]) != "null") {
			f.Fatalf("status %s with next_retry_at %s", deref(now), payload["next_retry_at"])
		}
		got = append(got, [2]string{deref(before), deref(now)})
	}
	if want := protocol.VocabularyP3C.Moves(statesOf(s.events)); !slices.Equal(got, want) {
		f.Fatalf("run events of %v:\n got %v\nwant %v", statesOf(s.events), got, want)
	}
}
