package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// A search that finds little in a large log ends soon all the same, with what it
// has found, and goes on where it stopped.
func TestSearchEventsBounded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	start := time.Now().Add(-3 * time.Hour).Truncate(time.Second)
	sql := e.stores.SQL(t)
	const id = "01900000-0000-7000-8000-000000000001"
	// One event each 20 ms for 25 minutes, and in the middle a burst of 22,000 at
	// one moment; the last one is the only end.
	if _, err := sql.Exec(t.Context(), `
		INSERT INTO tasks (id, tenant, queue, type, state, attempt, max_retries, delivery, interruptions, event_seq, schedule_type, timeout_ms,
			idempotency_scope, given, trace_id, payload, created_at, updated_at, finished_at)
		VALUES ($1, 'default', 'q', 'x', 'succeeded', 1, 1, 1, 0, 97000, 'now', 1, 'default', 0, 'trace-run-' || $1::uuid || ':1-x', '{}', $2, $2, $2)`, id, start); err != nil {
		t.Fatal(err)
	}
	if _, err := sql.Exec(t.Context(), `
		INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, actor, trace_id, occurred_at)
		SELECT $1, n, CASE n WHEN 97000 THEN 'task.succeeded' ELSE 'task.progress' END, 'running', 'running', 1, 1, 'worker', 'trace',
			$2::timestamptz + interval '20 ms' * CASE WHEN n < 40000 THEN n WHEN n < 62000 THEN 40000 ELSE n - 22000 END
		FROM generate_series(1, 97000) n`, id, start); err != nil {
		t.Fatal(err)
	}
	req := &penstockv1.SearchEventsRequest{Types: []string{"task.succeeded"}, Since: timestamppb.New(start.AddDate(-1, 0, 0))}
	var found, calls, empty int
	for {
		began := time.Now()
		res, err := e.rpc.SearchEvents(t.Context(), connect.NewRequest(req))
		if err != nil {
			t.Fatal(err)
		}
		calls++
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("call %d took %s", calls, took)
		}
		if found += len(res.Msg.Events); len(res.Msg.Events) == 0 {
			empty++
		}
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			break
		}
	}
	if found != 1 || empty == 0 || calls > 100 {
		t.Errorf("%d events in %d calls, %d of them empty; want one event, in more than one call", found, calls, empty)
	}
	// The burst in pages: each of its events once.
	seen, last := 0, int32(0)
	req = &penstockv1.SearchEventsRequest{Since: timestamppb.New(start.Add(800 * time.Second)), Until: timestamppb.New(start.Add(800*time.Second + time.Millisecond)), PageSize: 1000}
	for {
		res, err := e.rpc.SearchEvents(t.Context(), connect.NewRequest(req))
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range res.Msg.Events {
			if ev.Seq <= last {
				t.Fatalf("event %d follows %d", ev.Seq, last)
			}
			last = ev.Seq
		}
		seen += len(res.Msg.Events)
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			break
		}
	}
	if seen != 22_001 {
		t.Errorf("the burst has %d events, want 22,001", seen)
	}
}
