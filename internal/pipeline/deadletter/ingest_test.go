package deadletter_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// kept waits until stream:dlq is acknowledged to its end.
func kept(t *testing.T, r *testkit.Rig) {
	t.Helper()
	testkit.Eventually(t, "stream:dlq is acknowledged", func() (bool, string) {
		i, err := r.Client.Info(t.Context(), protocol.StreamDLQ, protocol.GroupOrchestrators)
		return err == nil && i.Undelivered+i.Pending == 0, fmt.Sprintf("%+v, %v", i, err)
	})
}

// Whatever strangers write into stream:dlq is acknowledged, stays in the
// stream, and is kept in Postgres with all its fields.
func TestForeignEntriesInTheDLQ(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Start(t, r.DeadLetter.RunIngest)
	letter := protocol.DeadLetter{
		DLQID: protocol.DLQID(protocol.ID{1}), TaskID: "mine", Type: "tool", Payload: []byte(`{"a":1}`), Error: "their reason", FailedAt: time.Now(),
	}
	values := [][]any{
		{"hello", "world"},
		{"v", "1", "dlq_id", "not an id"},
		{"\x00\xff", "\x80"},
		{"v", "1", "failed_at", "never", "error", strings.Repeat("x", 1<<20)},
		{"task_id", "42", "tool_name", "t", "payload", "{}", "error", "boom", "retry_count", "3", "failed_at", "2024-01-01T00:00:00Z"},
		letter.Values(),
	}
	for _, a := range r.Client.Append(t.Context(), protocol.StreamDLQ, values) {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	kept(t, r)
	if n := r.Count(t, "SELECT count(*) FROM dlq_items WHERE task_id IS NULL AND recorded_at IS NOT NULL AND raw IS NOT NULL"); n != len(values) {
		t.Errorf("%d kept, want %d", n, len(values))
	}
	for what, sql := range map[string]string{
		"task_id": "raw->>'task_id' = '42'", "retry_count": "raw->>'retry_count' = '3'", "payload": "raw->>'payload' = '{\"a\":1}' AND error = 'their reason'",
	} {
		if n := r.Count(t, "SELECT count(*) FROM dlq_items WHERE "+sql); n != 1 {
			t.Errorf("%s of a foreign dead letter is lost", what)
		}
	}
	if n := len(letters(t, r)); n != len(values) {
		t.Errorf("%d entries in stream:dlq, want %d: they stay", n, len(values))
	}
}

// What an orchestrator read and did not live to keep is kept by another one.
func TestStrandedDeadLettersAreTakenOver(t *testing.T) {
	t.Parallel()
	r := rig(t)
	values := [][]any{{"hello", "1"}, {"hello", "2"}, {"hello", "3"}}
	for _, a := range r.Client.Append(t.Context(), protocol.StreamDLQ, values) {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	es, err := r.Client.ReadNow(t.Context(), protocol.StreamDLQ, protocol.GroupOrchestrators, "dead", 10)
	if err != nil || len(es) != len(values) {
		t.Fatalf("%d entries, %v", len(es), err)
	}
	if err := r.Raw.XDel(t.Context(), protocol.StreamDLQ, es[1].ID).Err(); err != nil { // a ghost
		t.Fatal(err)
	}
	r.Start(t, r.DeadLetter.RunIngest)
	kept(t, r)
	if n := r.Count(t, "SELECT count(*) FROM dlq_items"); n != 2 {
		t.Errorf("%d kept, want 2", n)
	}
}

// stream:dlq loses its group: what is in it is read again, and kept once.
func TestDLQGroupLost(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Start(t, r.DeadLetter.RunIngest)
	put := func(v string) {
		t.Helper()
		if a := r.Client.Append(t.Context(), protocol.StreamDLQ, [][]any{{"hello", v}})[0]; a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	put("1")
	kept(t, r)
	if err := r.Raw.XGroupDestroy(t.Context(), protocol.StreamDLQ, protocol.GroupOrchestrators).Err(); err != nil {
		t.Fatal(err)
	}
	put("2")
	kept(t, r)
	if n := r.Count(t, "SELECT count(*) FROM dlq_items"); n != 2 {
		t.Errorf("%d kept, want 2", n)
	}
}

// Garbage put into stream:task by hand never stops the workers: it is
// acknowledged, and arrives in Postgres as dead letters without a task.
func TestGarbageInTheTaskStream(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	r := testkit.NewRig(t, s, s.Config())
	s.StartWorker(t, worker.Options{Concurrency: 3}, func(w *worker.Worker) {
		w.HandleRaw("t", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	whole := protocol.TaskEntry{ID: protocol.DLQID(protocol.ID{9}), Type: "t", Payload: []byte("{}"), Attempt: 1, Delivery: 1, Timeout: time.Second, EnqueuedAt: time.Now()}
	with := func(field string, v any) []any {
		out := whole.Values()
		for i := 0; i < len(out); i += 2 {
			if out[i] == field {
				out[i+1] = v
			}
		}
		return out
	}
	garbage := [][]any{
		{"hello", "world"}, {"\x00", "\xff"}, {"v", "1", "junk", strings.Repeat("x", 9<<20)}, {"v", "1"},
		with("v", "0"), with("id", "7"), with("tool_name", ""), with("payload", ""), with("delivery", "many"),
		with("timeout_ms", "-1"), with("enqueued_at", "x"), with("payload", "a\x00b"), with("tool_name", "\xff"),
	}
	c := testkit.Client(t, o.URL)
	const n = 60
	for i := range n {
		if a := r.Client.Add(t.Context(), protocol.StreamTask, garbage[i%len(garbage):i%len(garbage)+1])[0]; a.Err != nil {
			t.Fatal(a.Err)
		}
		if _, err := c.EnqueueTask(t.Context(), &task.Request{Type: "t", Payload: json.RawMessage(`{}`)}); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "all real tasks are done", func() (bool, string) {
		done := r.Count(t, "SELECT count(*) FROM tasks WHERE state = 'succeeded'")
		return done == n, fmt.Sprint(done)
	})
	testkit.VerifyLog(t, s)
	if got := r.Count(t, "SELECT count(*) FROM dlq_items WHERE task_id IS NULL AND stream = 'stream:task' AND raw IS NOT NULL"); got != n {
		t.Errorf("%d dead letters, want %d", got, n)
	}
}

// A stranger's entry can't take the id that a task's own dead letter will have.
func TestStrangersDoNotChooseIDs(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Start(t, r.DeadLetter.RunIngest)
	r.Start(t, r.DeadLetter.Run)
	id := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	for _, chosen := range []protocol.ID{protocol.DLQID(id), id} {
		letter := protocol.DeadLetter{DLQID: chosen, TaskID: "mine", Error: "theirs", FailedAt: time.Now()}
		if a := r.Client.Append(t.Context(), protocol.StreamDLQ, [][]any{letter.Values()})[0]; a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	kept(t, r)
	held := r.Fetch(t, "worker-1", 1)
	r.Report(t, held[0].Outcome(protocol.OutcomeFailed))
	r.Ack(t, held...)
	r.WaitState(t, protocol.StateFailed, id)
	if n := r.Count(t, "SELECT count(*) FROM dlq_items WHERE task_id IS NULL AND get_byte(uuid_send(dlq_id), 0) = 253 AND error = 'theirs'"); n != 2 {
		t.Errorf("%d foreign dead letters under ids of their own, want 2", n)
	}
	testkit.VerifyLog(t, r.Stores)
}
