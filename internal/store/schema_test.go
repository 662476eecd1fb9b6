package store_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// columns of a legal pending task, as SQL.
func columns(id string) map[string]string {
	return map[string]string{
		"id": "'" + id + "'", "tenant": "'t'", "queue": "'q'", "type": "'x'", "state": "'pending'", "max_retries": "3", "schedule_type": "'now'", "timeout_ms": "1",
		"idempotency_scope": "'t'", "given": "0", "trace_id": "'tr'", "payload": "'1'", "due_at": "now()",
	}
}

func insertSQL(cols map[string]string) string {
	var names, values []string
	for n, v := range cols {
		names, values = append(names, n), append(values, v)
	}
	return fmt.Sprintf("INSERT INTO tasks (%s) VALUES (%s)", strings.Join(names, ", "), strings.Join(values, ", "))
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// idOf is a UUIDv7 of a moment.
func idOf(at time.Time) string {
	u := uuid.Must(uuid.NewV7())
	ms := at.UnixMilli()
	for i := range 6 {
		u[i] = byte(ms >> (40 - 8*i))
	}
	return u.String()
}

func insertTask(t *testing.T, c *pgx.Conn, id string) {
	t.Helper()
	exec(t, c, insertSQL(columns(id)))
	exec(t, c, "INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at) VALUES ($1, 1, 'task.created', 'pending', 1, 1, 'api', 't', now())", id)
}

// TestRoleCannotChangeHistory: what the application role must not do.
func TestRoleCannotChangeHistory(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	app := connect(t, url, "penstock_app", nil)
	id, name := newID(), protocol.NameID("t", "n").String()
	insertTask(t, app, id)
	insertTask(t, app, name)
	insertTask(t, app, idOf(time.Now().AddDate(3, 0, 0)))
	exec(t, app, "UPDATE tasks SET trace_id = 'new' WHERE id = $1", id)
	var parts []string
	rows, err := app.Query(t.Context(), "SELECT relname FROM pg_class WHERE (relname LIKE 'event_log%' OR relname LIKE 'tasks%') AND relkind IN ('r', 'p') ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var p string
		if err := rows.Scan(&p); err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	if len(parts) < 9 { // what is finished, and the log, each with its default and named partition and one of days
		t.Fatalf("only %d tables: %v", len(parts), parts)
	}
	for _, p := range parts {
		statements := []string{"TRUNCATE " + p, "DROP TABLE " + p, "ALTER TABLE " + p + " ADD COLUMN a int"}
		if p != "tasks_live" { // what has ended is moved out of it
			statements = append(statements, "DELETE FROM "+p)
		}
		if p != "tasks" && p != "tasks_live" && p != "tasks_finished" {
			statements = append(statements, "UPDATE "+p+" SET trace_id = 'x'")
		}
		for _, s := range statements {
			if _, err := app.Exec(t.Context(), s); err == nil {
				t.Errorf("the application role may: %s", s)
			} else if code, _ := sqlState(err); code != "42501" {
				t.Errorf("%s: %v", s, err)
			}
		}
	}
	for _, s := range []string{
		"DELETE FROM dlq_items", "UPDATE deployment SET seed = ''", "UPDATE event_horizon SET xid = '1'", "DELETE FROM goose_db_version", "CREATE TABLE mine (a int)",
		"INSERT INTO deployment DEFAULT VALUES", "ALTER TABLE event_log DISABLE TRIGGER ALL",
		"UPDATE key_reuse SET since = NULL", "DELETE FROM key_reuse", "ALTER TABLE idempotency_keys DISABLE TRIGGER ALL",
	} {
		if _, err := app.Exec(t.Context(), s); err == nil {
			t.Errorf("the application role may: %s", s)
		} else if code, _ := sqlState(err); code != "42501" {
			t.Errorf("%s: %v", s, err)
		}
	}
	if n := get[int](t, app, "SELECT count(*) FROM event_log"); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
}

// TestChecks: rows that no legal task has are refused by the database itself.
func TestChecks(t *testing.T) {
	t.Parallel()
	c := connect(t, testkit.Database(t), "penstock_app", nil)
	try := func(change map[string]string) (code, constraint string) {
		cols := columns(newID())
		for k, v := range change {
			cols[k] = v
		}
		_, err := c.Exec(t.Context(), insertSQL(cols))
		return sqlState(err)
	}
	type m = map[string]string
	for _, state := range protocol.States() {
		retrying, terminal := state == protocol.StateRetrying, state.Terminal()
		waits := state == protocol.StatePending || state == protocol.StateQueued || state == protocol.StateRetrying || state == protocol.StateInterrupted
		for bits := range 8 {
			row := m{"state": "'" + string(state) + "'", "next_retry_at": "NULL", "finished_at": "NULL", "due_at": "NULL"}
			next, finished, due := bits&1 != 0, bits&2 != 0, bits&4 != 0
			for col, set := range map[string]bool{"next_retry_at": next, "finished_at": finished, "due_at": due} {
				if set {
					row[col] = "now()"
				}
			}
			legal := next == retrying && finished == terminal && (!due || waits)
			code, constraint := try(row)
			if legal && code != "" || !legal && (code != "23514" || !strings.HasPrefix(constraint, "tasks_")) {
				t.Errorf("%s, next_retry_at %v, finished_at %v, due_at %v: %q %s, legal: %v", state, next, finished, due, code, constraint, legal)
			}
		}
	}
	for constraint, rows := range map[string][]m{
		"":              {{"state": "'ready'", "due_at": "NULL"}, {"state": "''", "due_at": "NULL"}, {"state": "'PENDING'", "due_at": "NULL"}}, // no partition takes it
		"tasks_attempt": {{"attempt": "0"}, {"attempt": "-1"}, {"attempt": "5"}, {"max_retries": "0", "attempt": "2"}},
	} {
		for _, row := range rows {
			if code, got := try(row); code != "23514" || got != constraint {
				t.Errorf("%v: %q %s, want %s", row, code, got, constraint)
			}
		}
	}
	if code, _ := try(m{"max_retries": "-1"}); code != "23514" {
		t.Errorf("max_retries -1: %q", code)
	}
	for _, row := range []m{{"attempt": "4"}, {"max_retries": "0"}, {"max_retries": "1000", "attempt": "1001"}} {
		if code, constraint := try(row); code != "" {
			t.Errorf("%v: %q %s", row, code, constraint)
		}
	}
	for col := range columns("") {
		if code, _ := try(m{col: "NULL"}); col != "due_at" && code != "23502" && code != "23514" {
			t.Errorf("%s NULL: %q", col, code)
		}
	}
	id := newID()
	insertTask(t, c, id)
	_, err := c.Exec(t.Context(), "INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at) VALUES ($1, 1, 'x', 'x', 1, 1, 'x', 'x', now())", id)
	if code, _ := sqlState(err); code != "23505" {
		t.Errorf("a second event with the same seq: %v", err)
	}
}

// TestPartitions: where rows go, and that a missing partition fails nothing.
func TestPartitions(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	var notices []string
	c := connect(t, url, "penstock_app", &notices)
	now := time.Now().UTC()
	part := func(table, id string) string {
		col := map[string]string{"tasks": "id", "event_log": "task_id"}[table]
		return get[string](t, c, "SELECT tableoid::regclass::text FROM "+table+" WHERE "+col+" = $1", id)
	}
	days := func(from time.Time, n int) string {
		return from.Format("20060102_") + from.AddDate(0, 0, n).Format("20060102")
	}
	end := func(id string) {
		t.Helper()
		exec(t, c, "UPDATE tasks SET state = 'succeeded', due_at = NULL, finished_at = now() WHERE id = $1", id)
	}
	midnight := now.Truncate(24 * time.Hour)
	far := midnight.AddDate(0, 0, 30)
	first := days(midnight.AddDate(0, 0, -1), 4)
	for _, r := range []struct{ id, suffix string }{
		{idOf(now), first}, {idOf(midnight.AddDate(0, 0, -1)), first}, {idOf(midnight.AddDate(0, 0, 3).Add(-time.Millisecond)), first},
		{idOf(midnight.AddDate(0, 0, 3)), "default"}, {idOf(far), "default"}, {idOf(now.AddDate(-5, 0, 0)), "default"}, {protocol.NameID("t", "n").String(), "named"},
	} {
		insertTask(t, c, r.id)
		if a, b := part("tasks", r.id), part("event_log", r.id); a != "tasks_live" || b != "event_log_"+r.suffix {
			t.Errorf("%s is in %s and %s, want tasks_live and %s", r.id, a, b, r.suffix)
		}
		end(r.id)
		if a := part("tasks", r.id); a != "tasks_finished_"+r.suffix {
			t.Errorf("finished, %s is in %s, want %s", r.id, a, r.suffix)
		}
	}
	ensure := func(c *pgx.Conn, day time.Time, n int) int {
		t.Helper()
		return get[int](t, c, "SELECT sum(penstock_ensure_partition(parent, $1::date, $2::int)) FROM (VALUES ('tasks_finished'), ('event_log')) p(parent)", day, n)
	}
	if n := ensure(c, now, 2); n != 0 {
		t.Errorf("made %d partitions that were there", n)
	}
	// The default partition holds rows of one of these days: it is left out,
	// with a warning, and inserting goes on.
	if n := ensure(c, far.AddDate(0, 0, -1), 1) + ensure(c, far, 1) + ensure(c, far.AddDate(0, 0, 1), 3); n != 4 || len(notices) != 2 || !strings.Contains(notices[0], far.Format("20060102")) {
		t.Errorf("made %d partitions around an occupied day, want 4; warnings %q", n, notices)
	}
	// One that begins before another ends where that begins.
	if n := ensure(c, far.AddDate(0, 0, -5), 100); n != 2 {
		t.Errorf("made %d partitions before others, want 2", n)
	}
	for ahead, want := range map[int]string{-2: days(far.AddDate(0, 0, -5), 4), -1: days(far.AddDate(0, 0, -1), 1), 0: "default", 3: days(far.AddDate(0, 0, 1), 3)} {
		id := idOf(far.AddDate(0, 0, ahead).Add(time.Hour))
		insertTask(t, c, id)
		end(id)
		if got := part("tasks", id); got != "tasks_finished_"+want {
			t.Errorf("day %+d is in %s, want %s", ahead, got, want)
		}
	}
	// A made partition has the checks, the default values and the indexes.
	_, err := c.Exec(t.Context(), insertSQL(map[string]string{
		"id": "'" + idOf(far.AddDate(0, 0, 1)) + "'", "tenant": "'t'", "queue": "'q'", "type": "'x'", "state": "'succeeded'", "max_retries": "3", "schedule_type": "'now'",
		"timeout_ms": "1", "idempotency_scope": "'t'", "given": "0", "trace_id": "'tr'", "payload": "'1'",
	}))
	if code, constraint := sqlState(err); code != "23514" || constraint != "tasks_finished_at" {
		t.Errorf("a new partition takes an illegal row: %v", err)
	}
	if n := get[int](t, c, "SELECT count(*) FROM pg_indexes WHERE tablename = 'tasks_finished_"+days(far.AddDate(0, 0, 1), 3)+"'"); n < 4 {
		t.Errorf("a new partition has %d indexes", n)
	}
	if _, err := c.Exec(t.Context(), "SELECT penstock_ensure_partition('event_log', '2030-01-01', 4000)"); err == nil {
		t.Error("a partition of ten years was made")
	}
	// Concurrently, while others insert.
	from := midnight.AddDate(0, 0, 60)
	var wg sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for i := range 6 {
		c := connect(t, url, "penstock_app", nil)
		wg.Go(func() {
			if i%2 == 0 {
				for ahead := range 5 {
					n := ensure(c, from.AddDate(0, 0, ahead), 1)
					mu.Lock()
					total += n
					mu.Unlock()
				}
				return
			}
			for range 50 {
				insertTask(t, c, newID())
			}
		})
	}
	wg.Wait()
	if total != 10 {
		t.Errorf("three callers made %d partitions, want 10 between them", total)
	}
}
