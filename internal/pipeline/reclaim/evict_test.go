package reclaim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/pipeline/reclaim"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// An evicted worker's tasks are interrupted long before its leases lapse, with who
// said so and why; what it has reported counts, what it reports later does not.
func TestEvict(t *testing.T) {
	t.Parallel()
	r := rigWith(t, testkit.NewStores(t), time.Hour)
	ids := r.Enqueue(t, testkit.Requests(4, "t")...)
	dead := r.Fetch(t, "dead", 3)
	other := r.Fetch(t, "other", 1)
	done, running, queued := dead[0], dead[1], dead[2]
	r.Report(t, running.Outcome(protocol.OutcomeClaimed), succeed(done)) // neither is acknowledged
	r.WaitState(t, protocol.StateRunning, running.ID)
	got, err := r.Reclaim.Evict(t.Context(), reclaim.Eviction{Worker: "dead", Principal: "alice", Reason: "the rack burns", Force: true})
	if err != nil || got != (reclaim.Evicted{Reclaimed: 2, Entries: 3}) {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, h := range []testkit.Held{running, queued} {
		if row := r.Row(t, h.ID); row.Delivery != 2 || row.Interruptions != 1 {
			t.Errorf("%s: %+v", h.ID, row)
		}
		for _, typ := range []protocol.EventType{protocol.EventReclaimed, protocol.EventInterrupted} {
			if n := r.Count(t, `SELECT count(*)::int FROM event_log WHERE task_id = $1 AND type = $2 AND actor = 'user:alice' AND worker_id = 'dead'
				AND reason = 'its worker was evicted: the rack burns' AND message_id = $3`, h.ID[:], typ, h.MessageID); n != 1 {
				t.Errorf("%s has %d such events %s; it has %s", h.ID, n, typ, testkit.EventTypes(t, r.Stores, h.ID))
			}
		}
	}
	if row := r.Row(t, done.ID); row.State != protocol.StateSucceeded || row.Delivery != 1 {
		t.Errorf("the one that was reported: %+v", row)
	}
	if row := r.Row(t, other[0].ID); row.State != protocol.StateQueued || row.Delivery != 1 {
		t.Errorf("another worker's: %+v", row)
	}
	// The worker lives after all: what it says is refused, and the tasks run once more.
	r.Report(t, succeed(running), succeed(queued))
	finish(t, r, 2)
	r.Report(t, succeed(other[0]))
	r.Ack(t, other...)
	r.WaitState(t, protocol.StateSucceeded, ids...)
	testkit.VerifyLog(t, r.Stores)
	if again, err := r.Reclaim.Evict(t.Context(), reclaim.Eviction{Worker: "dead", Reason: "once more", Force: true}); err != nil || again != (reclaim.Evicted{}) {
		t.Errorf("a second time: %+v, %v", again, err)
	}
}

// Consumers of any name can be evicted, more than a page of entries at a time, and
// garbage that they held is kept.
func TestEvictAnyName(t *testing.T) {
	t.Parallel()
	r := rigWith(t, testkit.NewStores(t), time.Hour)
	names := map[string]string{"\xff\xfe": `"\xff\xfe"`, "nul\x00nul": `"nul\x00nul"`, "two\nlines": "two\nlines", `"quoted"`: `"\"quoted\""`, "plain": "plain"}
	const each = 40
	ids := r.Enqueue(t, testkit.Requests(each*len(names), "t")...)
	for name := range names {
		r.Fetch(t, name, each)
	}
	for name, given := range names {
		got, err := r.Reclaim.Evict(t.Context(), reclaim.Eviction{Worker: given, Reason: "gone", Force: true})
		if err != nil || got != (reclaim.Evicted{Reclaimed: each, Entries: each}) {
			t.Errorf("%q as %s: %+v, %v", name, given, got, err)
		}
	}
	finish(t, r, len(ids))
	r.WaitState(t, protocol.StateSucceeded, ids...)
	testkit.VerifyLog(t, r.Stores)
	if err := r.Raw.Do(t.Context(), "XADD", protocol.StreamTask, "*", "hello", "world").Err(); err != nil {
		t.Fatal(err)
	}
	if err := r.Raw.Do(t.Context(), "XREADGROUP", "GROUP", protocol.GroupWorkers, "plain", "COUNT", 1, "STREAMS", protocol.StreamTask, ">").Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Reclaim.Evict(t.Context(), reclaim.Eviction{Worker: "plain", Reason: "gone", Force: true}); err != nil || got != (reclaim.Evicted{Entries: 1}) {
		t.Errorf("garbage: %+v, %v", got, err)
	}
	if n := r.Count(t, "SELECT count(*)::int FROM dlq_items WHERE task_id IS NULL"); n != 1 {
		t.Errorf("%d entries are kept, want 1", n)
	}
}

// One that is evidently alive, or that there is not, is left alone.
func TestEvictRefuses(t *testing.T) {
	t.Parallel()
	r := rigWith(t, testkit.NewStores(t), time.Hour)
	ids := r.Enqueue(t, testkit.Requests(2, "t")...)
	r.Fetch(t, "beating", 1)
	r.Fetch(t, "mute", 1)
	if _, err := r.DB.Exec(t.Context(), `INSERT INTO workers (id, host, pid, version, queues, concurrency, running, stuck, interval_ms)
		VALUES ('beating', 'h', 1, 'v', '{default}', 1, 1, 0, 3600000)`); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		e     reclaim.Eviction
		code  protocol.Code
		field string
		says  string
	}{
		{reclaim.Eviction{Worker: "beating", Reason: "r"}, protocol.CodeInvalidTransition, "worker_id", "has sent a heartbeat"},
		{reclaim.Eviction{Worker: "nobody", Reason: "r", Force: true}, protocol.CodeNotFound, "worker_id", `no worker is called "nobody"`},
		{reclaim.Eviction{Reason: "r"}, protocol.CodeInputInvalid, "worker_id", "0 bytes"},
		{reclaim.Eviction{Worker: `""`, Reason: "r"}, protocol.CodeInputInvalid, "worker_id", "0 bytes"},
		{reclaim.Eviction{Worker: `"\q"`, Reason: "r"}, protocol.CodeInputInvalid, "worker_id", "no name with escapes"},
		{reclaim.Eviction{Worker: strings.Repeat("x", 4097), Reason: "r"}, protocol.CodeInputInvalid, "worker_id", "4097 bytes"},
		{reclaim.Eviction{Worker: "beating", Force: true}, protocol.CodeInputInvalid, "reason", "0 bytes"},
		{reclaim.Eviction{Worker: "beating", Reason: strings.Repeat("x", 1025)}, protocol.CodeInputInvalid, "reason", "1025 bytes"},
		{reclaim.Eviction{Worker: "beating", Reason: "a\x00"}, protocol.CodeInputInvalid, "reason", "can't be stored"},
	} {
		_, err := r.Reclaim.Evict(t.Context(), tt.e)
		if protocol.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.field+": ") || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%.80q: %v", tt.e.Worker, err)
		}
	}
	for _, id := range ids {
		if row := r.Row(t, id); row.State != protocol.StateQueued || row.Delivery != 1 {
			t.Errorf("%s was touched: %+v", id, row)
		}
	}
	// One without heartbeats is alive while it asks Redis for work, and can be
	// evicted soon after.
	asked := false
	testkit.Eventually(t, "it is refused while it asks", func() (bool, string) {
		if err := r.Raw.Do(t.Context(), "XREADGROUP", "GROUP", protocol.GroupWorkers, "mute", "COUNT", 1, "STREAMS", protocol.StreamTask, "0").Err(); err != nil {
			return false, err.Error()
		}
		_, err := r.Reclaim.Evict(t.Context(), reclaim.Eviction{Worker: "mute", Reason: "r"})
		asked = protocol.CodeOf(err) == protocol.CodeInvalidTransition && strings.Contains(err.Error(), "has asked Redis")
		return asked || err == nil, ""
	})
	if !asked { // slower than a worker is taken for alive
		t.Log("the machine was too slow to see the refusal")
	}
	testkit.Eventually(t, "it is evicted", func() (bool, string) {
		got, err := r.Reclaim.Evict(t.Context(), reclaim.Eviction{Worker: "mute", Reason: "r"})
		return err == nil && (got.Reclaimed == 1 || !asked), ""
	})
}
