// Package wiretest follows docs/protocol.md word for word: a worker made of
// plain Redis commands, without any of Penstock's packages.
package wiretest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// hand is a worker that sends the commands of the document.
type hand struct {
	t *testing.T
	c *redis.Client
}

func (h *hand) do(args ...any) any {
	h.t.Helper()
	v, err := h.c.Do(h.t.Context(), args...).Result()
	if err != nil {
		h.t.Fatalf("%v: %v", args, err)
	}
	return v
}

// fetch is step 2: it returns the entry's id and fields.
func (h *hand) fetch() (id string, fields map[string]string) {
	h.t.Helper()
	var entry []any
	testkit.Eventually(h.t, "an entry in stream:task", func() (bool, string) {
		v, err := h.c.Do(h.t.Context(), "XREADGROUP", "GROUP", "cg:workers", "hand-1", "COUNT", 1, "BLOCK", 1000, "STREAMS", "stream:task", ">").Result()
		if err != nil {
			return false, err.Error()
		}
		for _, stream := range v.(map[any]any) {
			entry = stream.([]any)[0].([]any)
		}
		return true, ""
	})
	fields = map[string]string{}
	kv := entry[1].([]any)
	for i := 0; i < len(kv); i += 2 {
		fields[kv[i].(string)] = kv[i+1].(string)
	}
	return entry[0].(string), fields
}

func TestWorkerByHand(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	c := testkit.Client(t, o.URL)
	opt, err := redis.ParseURL(s.RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	h := &hand{t: t, c: redis.NewClient(opt)}
	t.Cleanup(func() { _ = h.c.Close() })

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.EnqueueTask(ctx, &task.Request{TaskID: "order-7", Type: "by.hand", Payload: []byte(`{"n":7}`), Key: "k-7"}); err != nil {
		t.Fatal(err)
	}

	// First execution: fails and asks for a delay.
	id, f := h.fetch()
	for field, want := range map[string]string{
		"v": "1", "task_id": "order-7", "tool_name": "by.hand", "payload": `{"n":7}`, "tenant": "default", "attempt": "1",
		"max_retries": "3", "delivery": "1", "timeout_ms": "300000", "idempotency_key": "k-7",
	} {
		if f[field] != want {
			t.Errorf("field %s is %q, want %q", field, f[field], want)
		}
	}
	for _, field := range []string{"id", "trace_id", "enqueued_at"} {
		if f[field] == "" {
			t.Errorf("field %s is empty", field)
		}
	}
	h.do("XADD", "stream:result", "*", "v", "1", "id", f["id"], "delivery", f["delivery"], "kind", "failed",
		"worker_id", "hand-1", "message_id", id, "error_code", "TASK_EXECUTION_FAILED", "error", "not today", "retryable", "1", "delay_ms", "5")
	h.do("XACK", "stream:task", "cg:workers", id)

	// Second one: claims, renews its lease, succeeds; the outcome is added twice.
	id, f = h.fetch()
	if f["attempt"] != "2" || f["delivery"] != "2" {
		t.Errorf("second entry has attempt %s and delivery %s, want 2 and 2", f["attempt"], f["delivery"])
	}
	h.do("XADD", "stream:result", "*", "v", "1", "id", f["id"], "delivery", f["delivery"], "kind", "claimed", "worker_id", "hand-1", "message_id", id, "started_at", time.Now().UnixMilli())
	testkit.Eventually(t, "state running", func() (bool, string) {
		got, err := c.Get(ctx, "", "order-7")
		if err != nil {
			return false, err.Error()
		}
		return got.State == "running", got.State
	})
	owner := h.do("XPENDING", "stream:task", "cg:workers", id, id, 1).([]any)[0].([]any)[1]
	if owner != "hand-1" {
		t.Errorf("entry belongs to %v", owner)
	}
	h.do("XCLAIM", "stream:task", "cg:workers", "hand-1", 0, id, "JUSTID")
	for range 2 {
		h.do("XADD", "stream:result", "*", "v", "1", "id", f["id"], "delivery", f["delivery"], "kind", "succeeded", "worker_id", "hand-1",
			"message_id", id, "result", `{"ok":true}`, "some_later_field", "ignored")
	}
	h.do("XACK", "stream:task", "cg:workers", id)

	got, err := c.Wait(ctx, "", "order-7")
	if err != nil {
		t.Fatal(err)
	}
	if got.State != "succeeded" || string(got.Result) != `{"ok":true}` || got.Attempt != 2 || got.WorkerId != "hand-1" {
		t.Errorf("task ended as %s, result %s, attempt %d, worker %s", got.State, got.Result, got.Attempt, got.WorkerId)
	}
	h.do("XGROUP", "DELCONSUMER", "stream:task", "cg:workers", "hand-1")
	testkit.VerifyLog(t, s)
}
