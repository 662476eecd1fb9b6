package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/testkit"
)

// readsAll are the statements that may read all live tasks, all finished ones or
// the whole log, and why.
var readsAll = map[string]string{
	"CountTasks":          "a person asks for the counts",
	"CountLive":           "live tasks, out of two indexes; the alerts' round waits a hundred times as long as it took",
	"Cancellable":         "a person cancels by a filter",
	"BelowFloor":          "once after Postgres was restored from a backup, in pages",
	"SetLost":             "once after Postgres was restored from a backup",
	"SearchAllEvents":     "a person searches, after CountEventsBetween has bounded it",
	"CountEventsBetween":  "bounded by its limit",
	"VerifyEventsBetween": "verify",
	"VerifyIDs":           "verify",
	"VerifyIDsCreated":    "verify",
	"FinishedOfDays":      "retention, in pages of a partition",
	"WorkflowTasks":       "a graph's tasks",
	"ListTasks":           "one bounded look",
	"WatchEvents":         "one bounded look",
	"RecentlyEnded":       "bounded by its limit",
	"RecentlyEnqueued":    "bounded by its limit",
	"VerifyTasks":         "verify",
	"VerifyRuns":          "verify",
	"VerifyEffectUsers":   "verify",
	"WorkflowState":       "a person looks at a graph",
	"WaitingFor":          "an index of what is in Redis, while the table is empty",
}

// statements are the texts of the program's queries by name.
func statements(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("dbsqlc/*.sql.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	out := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?s)const \\w+ = `-- name: (\\w+) :\\w+\n(.*?)`").FindAllStringSubmatch(string(b), -1) {
			out[m[1]] = m[2]
		}
	}
	return out
}

var parameter = regexp.MustCompile(`\$(\d+)`)

// explain prepares a statement as a Store's connection has it, and returns its plan.
func explain(t *testing.T, c *pgx.Conn, name, sql string) (plan map[string]any) {
	t.Helper()
	n := 0
	for _, m := range parameter.FindAllStringSubmatch(sql, -1) {
		i, _ := strconv.Atoi(m[1])
		n = max(n, i)
	}
	args := ""
	if n > 0 {
		args = "(" + strings.Repeat("NULL, ", n-1) + "NULL)"
	}
	if get[int](t, c, "SELECT count(*) FROM pg_prepared_statements WHERE name = $1", name) == 0 {
		exec(t, c, fmt.Sprintf("PREPARE %q AS %s", name, strings.TrimSuffix(strings.TrimSpace(sql), ";")))
	}
	var text []byte
	if err := c.QueryRow(t.Context(), fmt.Sprintf("EXPLAIN (FORMAT JSON, COSTS OFF) EXECUTE %q%s", name, args), pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var doc []map[string]any
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	return doc[0]["Plan"].(map[string]any)
}

var large = regexp.MustCompile(`^(tasks_live|tasks_finished.*|event_log.*)$`)

// scans are the nodes of a plan that read a large table, or an index of one, from
// end to end. limited: whoever reads the node stops after some rows.
func scans(node map[string]any, leads map[string]string, limited bool) (out []string) {
	kind, _ := node["Node Type"].(string)
	relation, _ := node["Relation Name"].(string)
	plans, _ := node["Plans"].([]any)
	switch kind {
	case "Limit":
		limited = true
	case "Sort", "Aggregate", "Hash", "ModifyTable", "CTE Scan", "Recursive Union":
		limited = false
	case "Seq Scan":
		if large.MatchString(relation) {
			out = append(out, kind+" on "+relation)
		}
	case "Index Scan", "Index Only Scan", "Bitmap Heap Scan":
		index, _ := node["Index Name"].(string)
		cond, _ := node["Index Cond"].(string)
		_, recheck := node["Recheck Cond"]
		// A condition that leaves out an index' first column reads all of it.
		found := recheck || strings.Contains(strings.ReplaceAll(cond, "ROW", ""), "("+leads[index])
		if large.MatchString(relation) && !found && !limited {
			out = append(out, fmt.Sprintf("%s on %s with %s by %q", kind, relation, index, cond))
		}
	}
	for _, p := range plans {
		p := p.(map[string]any)
		_, sub := p["Subplan Name"]
		out = append(out, scans(p, leads, limited && !sub)...)
	}
	return out
}

// firstColumns are those of all indexes, as plans show them.
func firstColumns(t *testing.T, c *pgx.Conn) map[string]string {
	t.Helper()
	rows, err := c.Query(t.Context(), "SELECT c.relname, pg_get_indexdef(i.indexrelid, 1, false) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	var name, column string
	if _, err := pgx.ForEachRow(rows, []any{&name, &column}, func() error { out[name] = column; return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// history makes a database with so many finished and live tasks and their events,
// in so many partitions of a day.
func history(t *testing.T, days, finished, live int) *pgx.Conn {
	t.Helper()
	url := testkit.Database(t)
	owner := connect(t, url, "", nil)
	exec(t, owner, "DROP TABLE "+get[string](t, owner, "SELECT string_agg(part::text, ', ') FROM dated_partitions"))
	for first := 0; first < days; first += 50 { // each holds the locks of what it makes
		exec(t, owner, `SELECT penstock_ensure_partition(parent, (now() AT TIME ZONE 'UTC')::date + 2 - ago, 1)
			FROM (VALUES ('tasks_finished'), ('event_log')) p(parent), generate_series($1::int, $2::int) ago`, first, min(first+50, days)-1)
	}
	exec(t, owner, `CREATE TEMP TABLE g AS SELECT n, at, (substr(penstock_uuid_floor(at)::text, 1, 14) || '7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id
		FROM generate_series(1, $1::int + $2::int) n, LATERAL (SELECT now() - (($1::int + $2::int - n) / greatest($1::int + $2::int, 1)::float * $3::int) * interval '1 day' AS at) m`, finished, live, days-3)
	exec(t, owner, `INSERT INTO tasks_finished (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, idempotency_scope, given, trace_id, payload, created_at, updated_at, finished_at)
		SELECT id, 't', 'q' || n % 10, 'x', 'succeeded', 3, 'now', 1, 't', 0, 'tr', '1', at, at, at FROM g WHERE n <= $1::int ORDER BY n`, finished)
	exec(t, owner, `INSERT INTO tasks_live (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, idempotency_scope, given, trace_id, payload, created_at, updated_at, due_at, expires_at)
		SELECT id, 't', 'q' || n % 10, 'x', 'queued', 3, 'now', 1, 't', 0, 'tr', '1', at, at, CASE WHEN n % 50 > 0 THEN at END, CASE WHEN n % 2 = 0 THEN now() + interval '1 day' END FROM g WHERE n > $1::int ORDER BY n`, finished)
	exec(t, owner, `INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
		SELECT id, 1, 'task.created', 'queued', 1, 1, 'api', 't', at FROM g ORDER BY n`)
	exec(t, owner, "ANALYZE")
	return asStore(t, url)
}

// asStore connects as a Store does.
func asStore(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(cfg.RuntimeParams, store.Session())
	c, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	exec(t, c, "SET ROLE penstock_app")
	return c
}

// TestPlansAreFlat: no statement of the program reads a table from end to end whose
// size follows what waits or what is finished, but for those that are known to:
// neither by a plan for full tables nor by one that was made while they were empty,
// and is kept while they grow.
func TestPlansAreFlat(t *testing.T) {
	t.Parallel()
	finished, live := 20_000, 2_000
	if os.Getenv("PENSTOCK_TEST_FULL") == "1" {
		finished, live = 1_000_000, 100_000
	}
	all := statements(t)
	for what, c := range map[string]*pgx.Conn{"full": history(t, 100, finished, live), "empty": history(t, 20, 0, 0), "new": asStore(t, testkit.Database(t))} {
		leads := firstColumns(t, c)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			found := scans(explain(t, c, name, all[name]), leads, false)
			if len(found) > 0 && readsAll[name] == "" {
				t.Errorf("%s, where tables are %s: %s", name, what, found[0])
			}
		}
	}
	for name := range readsAll {
		if all[name] == "" {
			t.Errorf("there is no statement %s", name)
		}
	}
}

// pipelineStatements are those that run for each batch of tasks, and once a second.
var pipelineStatements = []string{
	"InsertTasks", "LockTasks", "SaveTasks", "SendTasks", "FinishTasks", "InsertEvents", "LockDue", "Payloads", "InsertOutbox", "DeleteOutbox",
	"DueQueues", "LiveQueues", "Candidates", "CandidatesAmong", "CurrentDeliveries", "QueueWaits", "RunningDeadlines", "ExpiringWaiting", "ExpiringDispatched",
	"LockHeartbeats", "SaveHeartbeats", "LockOrphanedOutbox", "OutboxAfterIDs", "OwnOutbox", "TouchInstance", "GetEpoch", "NextScheduleWait", "LockDueSchedules",
	"EndedDoubts", "LockUntoldTombstones", "LockNextBatch", "NextBatchWait", "CountSettlements",
}

// TestStatementsHoldFewLocks: with the partitions that retention makes no statement
// locks more than 64 relations, once it is planned; and those of the pipeline lock the same few, however
// many partitions there are.
func TestStatementsHoldFewLocks(t *testing.T) {
	t.Parallel()
	once := func(c *pgx.Conn, name, sql string) int {
		t.Helper()
		exec(t, c, "BEGIN")
		defer exec(t, c, "ROLLBACK")
		explain(t, c, name, sql)
		return get[int](t, c, "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation NOT IN (SELECT oid FROM pg_class WHERE relname LIKE 'pg\\_%')")
	}
	// The fewest of some times: to make the plan, the first time and after each
	// analyze, takes the locks of all indexes.
	locks := func(c *pgx.Conn, name, sql string) int {
		t.Helper()
		n := 1 << 20
		for range 4 {
			n = min(n, once(c, name, sql))
		}
		return n
	}
	all := statements(t)
	few, many := history(t, 18, 1000, 100), history(t, 100, 1000, 100)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if n := locks(few, name, all[name]); n > 64 {
			t.Errorf("%s locks %d relations", name, n)
		}
	}
	for _, name := range pipelineStatements {
		if all[name] == "" {
			t.Errorf("there is no statement %s", name)
		} else if n := locks(many, name, all[name]); n > 24 {
			t.Errorf("%s locks %d relations where there are 100 partitions", name, n)
		}
	}
}
