package api_test

import (
	"bufio"
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/api"
	"github.com/penstock-dev/penstock/internal/testkit"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// manyTasks stores n finished tasks of tenant t by SQL, a millisecond apart, all
// but the oldest, which is of tenant rare; and returns that one's id.
func manyTasks(t *testing.T, c *pgx.Conn, n int) (oldest string) {
	t.Helper()
	for _, sql := range []string{
		`CREATE TEMP TABLE g AS SELECT n, at, (substr(penstock_uuid_floor(at)::text, 1, 14) || '7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id
			FROM generate_series(1, $1::int) n, LATERAL (SELECT now() - interval '10 minutes' + n * interval '1 ms' AS at) m`,
		`INSERT INTO tasks (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, idempotency_scope, given, trace_id, payload, created_at, updated_at, started_at, finished_at,
			worker_id, last_error_code, last_error_reason, attempt)
			SELECT id, CASE n WHEN 1 THEN 'rare' ELSE 't' END, 'q', 'x', 'cancelled', 3, 'now', 1, 't', 0, 'tr', '1', at, at, at, at + CASE n WHEN 1 THEN interval '2 s' ELSE interval '1 s' END,
				CASE n WHEN 1 THEN 'w1' ELSE 'w2' END, CASE n WHEN 1 THEN 'TASK_RETRY_EXHAUSTED' ELSE 'TASK_CANCELLED' END, CASE n WHEN 1 THEN 'TASK_TIMEOUT: No answer from HOST' ELSE 'by hand' END, 1
			FROM g ORDER BY n`,
	} {
		args := []any{n}
		if !strings.Contains(sql, "$1") {
			args = nil
		}
		if _, err := c.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	return scan[string](t, c, "SELECT id::text FROM g WHERE n = 1")
}

// TestListTasksBounded: a filter that admits one task of many, or none, answers in
// calls that each look at so many and say how far they got.
func TestListTasksBounded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const n = api.LookRows + 10_000
	oldest := manyTasks(t, e.conn(t), n)
	for name, f := range map[string]struct {
		req  *penstockv1.ListTasksRequest
		want []string
	}{
		"tenant":       {&penstockv1.ListTasksRequest{Tenant: "rare"}, []string{oldest}},
		"nobody":       {&penstockv1.ListTasksRequest{Tenant: "nobody"}, nil},
		"worker":       {&penstockv1.ListTasksRequest{WorkerId: "w1"}, []string{oldest}},
		"code":         {&penstockv1.ListTasksRequest{ErrorCode: "TASK_RETRY_EXHAUSTED"}, []string{oldest}},
		"cause":        {&penstockv1.ListTasksRequest{ErrorCode: "TASK_TIMEOUT"}, []string{oldest}},
		"not a code":   {&penstockv1.ListTasksRequest{ErrorCode: "TASK"}, nil},
		"error":        {&penstockv1.ListTasksRequest{Error: "answer from host"}, []string{oldest}},
		"longer":       {&penstockv1.ListTasksRequest{MinDurationMs: 1001}, []string{oldest}},
		"at least":     {&penstockv1.ListTasksRequest{MinDurationMs: 2000}, []string{oldest}},
		"longer still": {&penstockv1.ListTasksRequest{MinDurationMs: 2001}, nil},
		"shorter":      {&penstockv1.ListTasksRequest{MaxDurationMs: 1000}, nil},
		"states":       {&penstockv1.ListTasksRequest{States: []string{"queued", "failed"}}, nil},
	} {
		f.req.PageSize = 10
		var got []string
		var until time.Time
		calls := 0
		for {
			res, err := e.rpc.ListTasks(t.Context(), connect.NewRequest(f.req))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			calls++
			for _, task := range res.Msg.Tasks {
				got = append(got, task.TaskId)
			}
			if f.req.PageToken = res.Msg.NextPageToken; f.req.PageToken == "" {
				break
			}
			at := res.Msg.SearchedUntil
			if len(res.Msg.Tasks) != 0 || at == nil || !until.IsZero() && !at.AsTime().Before(until) {
				t.Fatalf("%s, call %d: %d tasks, searched until %v after %v", name, calls, len(res.Msg.Tasks), at, until)
			}
			until = at.AsTime()
		}
		if !slices.Equal(got, f.want) || calls != 2 {
			t.Errorf("%s: %v in %d calls, want %v in 2", name, got, calls, f.want)
		}
	}
	// A full page is not short, wherever it ends.
	res, err := e.rpc.ListTasks(t.Context(), connect.NewRequest(&penstockv1.ListTasksRequest{Tenant: "t", PageSize: 1000}))
	if err != nil || len(res.Msg.Tasks) != 1000 || res.Msg.NextPageToken == "" || res.Msg.SearchedUntil != nil {
		t.Errorf("a full page: %d tasks, searched until %v, %v", len(res.Msg.GetTasks()), res.Msg.GetSearchedUntil(), err)
	}
}

// TestListTasksDurationOfRunning: a running task's duration counts until now.
func TestListTasksDurationOfRunning(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.enqueue(t, &penstockv1.EnqueueRequest{ScheduleType: "delay", DelayMs: later}).TaskId
	if _, err := e.conn(t).Exec(t.Context(), "UPDATE tasks SET state = 'running', due_at = NULL, started_at = now() - interval '1 hour' WHERE id = $1", id); err != nil {
		t.Fatal(err)
	}
	for least, want := range map[int64]int{3_599_000: 1, 2 * 3_600_000: 0} {
		res, err := e.rpc.ListTasks(t.Context(), connect.NewRequest(&penstockv1.ListTasksRequest{MinDurationMs: least}))
		if err != nil || len(res.Msg.Tasks) != want {
			t.Errorf("at least %d ms: %v, %v; want %d", least, res, err, want)
		}
	}
	for field, r := range map[string]*penstockv1.ListTasksRequest{
		"min_duration_ms": {MinDurationMs: -1}, "max_duration_ms": {MinDurationMs: 5, MaxDurationMs: 5}, "error": {Error: strings.Repeat("e", 256)}, "worker_id": {WorkerId: "a\x00"}, "error_code": {ErrorCode: "\n"},
	} {
		_, err := e.rpc.ListTasks(t.Context(), connect.NewRequest(r))
		refusedRPC(t, err, connect.CodeInvalidArgument, "TASK_INPUT_INVALID", field)
	}
}

// TestWatchMovesPastWhatItLeavesOut: a watch whose filter admits little tells where
// it is, so that who resumes does not read the same again; one task's events come
// at once, however long the log is.
func TestWatchMovesPastWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	c := e.conn(t)
	oldest := manyTasks(t, c, 25_000)
	if _, err := c.Exec(t.Context(), `INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
		SELECT id, 1, 'task.created', 'queued', 1, 1, 'api', 't', at FROM g ORDER BY n`); err != nil {
		t.Fatal(err)
	}
	var last string
	if err := c.QueryRow(t.Context(), `INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, actor, trace_id, occurred_at)
		SELECT id, 2, 'task.cancelled', 'queued', 'cancelled', 1, 1, 'api', 't', at FROM g WHERE n = 1 RETURNING 'evt_' || task_id || '_2'`).Scan(&last); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the events are below every open transaction", func() (bool, string) {
		return scan[bool](t, c, "SELECT max(xid::text::bigint) < pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM event_log"), ""
	})
	for name, r := range map[string]*penstockv1.WatchEventsRequest{"type": {Types: []string{"task.cancelled"}}, "tenant and type": {Tenant: "rare", Types: []string{"task.cancelled"}}} {
		r.Position = "earliest"
		w := watch(t, e.rpc, r)
		var passed []string
		for {
			m := w.response(t)
			if len(m.Events) > 0 {
				if len(m.Events) != 1 || m.Events[0].EventId != last {
					t.Errorf("%s: %v, want %s", name, m.Events, last)
				}
				break
			}
			if slices.Contains(passed, m.Position) {
				t.Fatalf("%s: position %s again", name, m.Position)
			}
			passed = append(passed, m.Position)
		}
		if len(passed) < 2 {
			t.Fatalf("%s: %d positions before the event, want one for each look", name, len(passed))
		}
		// From the last one on, one look is left.
		r.Position = passed[len(passed)-1]
		again := watch(t, e.grpc, r)
		if m := again.response(t); len(m.Events) != 1 || m.Events[0].EventId != last {
			t.Errorf("%s, resumed: %v, want the event at once", name, m)
		}
	}
	one := watch(t, e.rpc, &penstockv1.WatchEventsRequest{Position: "earliest", TaskId: oldest, Tenant: "rare"})
	if m := one.response(t); len(m.Events) != 2 || m.Events[1].EventId != last {
		t.Errorf("one task: %v, want its two events at once", m)
	}
	if _, err := c.Exec(t.Context(), `INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
		VALUES ($1, 3, 'dlq.requeued', 'cancelled', 1, 1, 'api', 't', now())`, oldest); err != nil {
		t.Fatal(err)
	}
	if got := one.next(t, 1); got[0] != strings.TrimSuffix(last, "2")+"3" {
		t.Errorf("one task: %v, want its third event", got)
	}
}

// TestWatchSSEMoves: the id of server-sent events moves, too.
func TestWatchSSEMoves(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	c := e.conn(t)
	manyTasks(t, c, 25_000)
	if _, err := c.Exec(t.Context(), `INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
		SELECT id, 1, 'task.created', 'queued', 1, 1, 'api', 't', at FROM g ORDER BY n`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.orch.URL+"/api/v1/events/watch?position=earliest&types=task.failed", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	ids := map[string]bool{}
	for s := bufio.NewScanner(res.Body); len(ids) < 3 && s.Scan(); {
		if p, ok := strings.CutPrefix(s.Text(), "id: "); ok {
			ids[p] = true
		}
	}
	if len(ids) < 3 {
		t.Errorf("%d positions, want the first and one for each look", len(ids))
	}
}
