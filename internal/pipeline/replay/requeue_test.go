package replay_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A requeue makes a new task, linked both ways, and leaves the original as it
// is but for an event.
func TestRequeue(t *testing.T) {
	t.Parallel()
	r := rig(t)
	retries := int32(0)
	original := r.Enqueue(t, &enqueue.Request{
		TaskID: "report-7", Type: "report", Payload: json.RawMessage(`{"x":  1.50}`), IdempotencyKey: "key-7", IdempotencyScope: "reports",
		Tenant: "acme", TraceID: "trace-7", MaxRetries: &retries,
	})[0]
	dlq := kill(t, r, "printer on fire", original)[0]
	before := r.Row(t, original)

	got, err := r.Replay.Requeue(t.Context(), []protocol.ID{dlq}, replay.RequeueOptions{Principal: "alice", Reason: "printer was extinguished"})
	if err != nil || len(got) != 1 || got[0].Err != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	if after := r.Row(t, original); after != before && (after.State != before.State || after.Attempt != before.Attempt || after.Delivery != before.Delivery || after.Code != before.Code || after.Reason != before.Reason) {
		t.Errorf("the original changed from %+v to %+v", before, after)
	}
	held := succeedAll(t, r, 1)[0]
	if held.ID != got[0].Task || string(held.Payload) != `{"x":  1.50}` || held.IdempotencyKey != "key-7" || held.Tenant != "acme" || held.TraceID != "trace-7" || held.Attempt != 1 || held.MaxRetries != 0 {
		t.Errorf("the worker got %+v", held.TaskEntry)
	}
	r.WaitState(t, protocol.StateSucceeded, got[0].Task)
	for what, sql := range map[string]string{
		"event on the original": `SELECT count(*) FROM event_log WHERE task_id = $1 AND type = 'dlq.requeued' AND previous_status = 'failed' AND status = 'failed' AND actor = 'user:alice'
			AND reason = 'printer was extinguished' AND data->>'task_id' = (SELECT task_id::text FROM dlq_requeues WHERE n = 1) AND (data->>'n')::int = 1 AND data->'diff' IS NULL`,
		"first event of the new task": `SELECT count(*) FROM event_log e JOIN tasks n ON n.id = e.task_id JOIN dlq_items d ON d.dlq_id = n.origin_dlq_id
			WHERE d.task_id = $1 AND e.seq = 1 AND e.type = 'task.created' AND e.data->>'origin_task_id' = 'report-7' AND e.data->>'origin_dlq_id' = d.dlq_id::text`,
		"the item": `SELECT count(*) FROM dlq_items d JOIN dlq_requeues q USING (dlq_id) JOIN tasks n ON n.id = q.task_id AND n.origin_dlq_id = d.dlq_id
			WHERE d.task_id = $1 AND d.status = 'requeued' AND d.requeues = 1 AND d.settled_at IS NOT NULL AND q.principal = 'alice' AND n.idempotency_key IS NULL AND n.idempotency_scope = 'reports'`,
	} {
		if n := r.Count(t, sql, pgid.ID(original)); n != 1 {
			t.Errorf("%s: %d rows", what, n)
		}
	}

	// Once more only if asked for.
	again, err := r.Replay.Requeue(t.Context(), []protocol.ID{dlq}, replay.RequeueOptions{})
	if err != nil || code(again[0].Err) != protocol.CodeInvalidTransition || !strings.Contains(again[0].Err.Error(), got[0].Task.String()) {
		t.Errorf("%+v, %v; want a conflict that names the task", again, err)
	}
	if again, err = r.Replay.Requeue(t.Context(), []protocol.ID{dlq}, replay.RequeueOptions{Again: true}); err != nil || again[0].Err != nil {
		t.Fatalf("%+v, %v", again, err)
	}
	if n := r.Count(t, "SELECT count(*) FROM dlq_requeues WHERE n = 2 AND principal = 'anonymous'"); n != 1 {
		t.Errorf("%d second requeues", n)
	}
	if held := succeedAll(t, r, 1)[0]; held.IdempotencyKey != "key-7" {
		t.Errorf("the third task's handler sees key %s", held.IdempotencyKey)
	}
	testkit.VerifyLog(t, r.Stores)
}

// The key that effects are remembered under survives several generations.
func TestRequeueOfARequeuedTask(t *testing.T) {
	t.Parallel()
	r := rig(t)
	first := r.Enqueue(t, testkit.Requests(1, "x")...)[0]
	task := first
	for range 3 {
		got, err := r.Replay.Requeue(t.Context(), kill(t, r, "no", task), replay.RequeueOptions{})
		if err != nil || got[0].Err != nil {
			t.Fatalf("%+v, %v", got, err)
		}
		task = got[0].Task
	}
	if held := succeedAll(t, r, 1)[0]; held.IdempotencyKey != first.String() {
		t.Errorf("key %s, want the first task's id %s", held.IdempotencyKey, first)
	}
	testkit.VerifyLog(t, r.Stores)
}

func TestRequeueRefusals(t *testing.T) {
	t.Parallel()
	r, stop := stoppable(t)
	ids := dead(t, r, 2, "x", "no")
	entry := protocol.Garbage("stream:task", "1-1", map[string]any{"a": "b"}, errForeign, r.Env.Now)
	if err := r.DeadLetter.Keep(t.Context(), []*protocol.DeadLetter{entry}); err != nil {
		t.Fatal(err)
	}
	unknown := protocol.DLQID(protocol.ID{15: 9})
	got, err := r.Replay.Requeue(t.Context(), []protocol.ID{ids[0], unknown, entry.DLQID, ids[0], ids[1]}, replay.RequeueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []protocol.Code{"", protocol.CodeNotFound, protocol.CodeInputInvalid, protocol.CodeInputInvalid, ""}
	for i, g := range got {
		if code(g.Err) != want[i] || (g.Err == nil) == g.Task.IsZero() {
			t.Errorf("item %d: %+v, want code %q", i, g, want[i])
		}
	}
	if _, err := r.Replay.Requeue(t.Context(), nil, replay.RequeueOptions{}); code(err) != protocol.CodeInputInvalid {
		t.Errorf("no ids: %v", err)
	}
	if _, err := r.Replay.Requeue(t.Context(), ids, replay.RequeueOptions{Reason: strings.Repeat("x", 1001)}); code(err) != protocol.CodeInputInvalid {
		t.Errorf("long reason: %v", err)
	}

	// Given up, but not yet in stream:dlq, and nobody puts it there.
	stop()
	if _, err := r.DB.Exec(t.Context(), "UPDATE dlq_items SET recorded_at = NULL, status = 'open', settled_at = NULL WHERE dlq_id = $1", pgid.ID(ids[1])); err != nil {
		t.Fatal(err)
	}
	if got, err = r.Replay.Requeue(t.Context(), ids[1:], replay.RequeueOptions{}); err != nil || code(got[0].Err) != protocol.CodeInvalidTransition {
		t.Errorf("not recorded: %+v, %v", got, err)
	}
}

// Twenty callers requeue the same dead letters at once: each is requeued once.
func TestRequeueRace(t *testing.T) {
	t.Parallel()
	r := rig(t)
	ids := dead(t, r, 10, "x", "no")
	done := make(chan int, 20)
	for range cap(done) {
		go func() {
			n := 0
			got, err := r.Replay.Requeue(t.Context(), ids, replay.RequeueOptions{})
			if err != nil {
				t.Error(err)
			}
			for _, g := range got {
				if g.Err == nil {
					n++
				}
			}
			done <- n
		}()
	}
	total := 0
	for range cap(done) {
		total += <-done
	}
	if n := r.Count(t, "SELECT count(*) FROM tasks WHERE origin_dlq_id IS NOT NULL"); n != len(ids) || total != n {
		t.Errorf("%d tasks, %d successes, want %d", n, total, len(ids))
	}
	succeedAll(t, r, len(ids))
	testkit.VerifyLog(t, r.Stores)
}

func TestEdit(t *testing.T) {
	t.Parallel()
	r := rig(t)
	dlq := dead(t, r, 1, "mail", "no such user")[0]
	diff, err := r.Replay.Edit(t.Context(), dlq, []byte(`{"n": 0.10, "to": "a@example.com", "cc": []}`), 0, "alice", "typo")
	if err != nil {
		t.Fatal(err)
	}
	if want := `[{"op":"add","path":"/cc","to":[]},{"op":"replace","path":"/n","from":0,"to":0.10},{"op":"replace","path":"/to","from":"nobody","to":"a@example.com"}]`; string(diff) != want {
		t.Errorf("difference %s, want %s", diff, want)
	}
	if _, err := r.Replay.Edit(t.Context(), dlq, []byte(`{}`), 0, "bob", ""); code(err) != protocol.CodeInvalidTransition {
		t.Errorf("an edit of revision 0 over revision 1: %v", err)
	}
	for _, payload := range []string{"", "{", `"` + strings.Repeat("x", 300_000) + `"`, `"\u0000"`, strings.Repeat("[", 70) + strings.Repeat("]", 70)} {
		if _, err := r.Replay.Edit(t.Context(), dlq, []byte(payload), 1, "alice", ""); code(err) != protocol.CodeInputInvalid {
			t.Errorf("payload %.20s: %v", payload, err)
		}
	}
	if _, err := r.Replay.Edit(t.Context(), protocol.DLQID(protocol.ID{}), []byte(`{}`), 0, "", ""); code(err) != protocol.CodeNotFound {
		t.Errorf("unknown: %v", err)
	}
	got, err := r.Replay.Requeue(t.Context(), []protocol.ID{dlq}, replay.RequeueOptions{Principal: "alice"})
	if err != nil || got[0].Err != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	if held := succeedAll(t, r, 1)[0]; string(held.Payload) != `{"n": 0.10, "to": "a@example.com", "cc": []}` {
		t.Errorf("the worker got %s", held.Payload)
	}
	got, err = r.Replay.Requeue(t.Context(), []protocol.ID{dlq}, replay.RequeueOptions{Again: true, Original: true})
	if err != nil || got[0].Err != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	if held := succeedAll(t, r, 1)[0]; string(held.Payload) != `{"n": 0, "to": "nobody"}` {
		t.Errorf("the worker got %s, want the original", held.Payload)
	}
	if n := r.Count(t, `SELECT count(*) FROM event_log WHERE type = 'dlq.requeued' AND ((data->>'revision')::int = 1 AND data->'diff'->1->>'path' = '/n'
		OR (data->>'revision')::int = 0 AND data->'diff' IS NULL)`); n != 2 {
		t.Errorf("%d requeue events tell what was sent", n)
	}
	if n := r.Count(t, "SELECT count(*) FROM dlq_items d JOIN dlq_edits e USING (dlq_id) WHERE d.payload::text = '{\"n\": 0, \"to\": \"nobody\"}' AND e.principal = 'alice' AND e.reason = 'typo' AND d.revision = 1"); n != 1 {
		t.Errorf("the original or the edit is not kept")
	}
	testkit.VerifyLog(t, r.Stores)
}
