package deadletter_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// failures are handlers by the type of task that they fail.
var failures = map[string]func(raw *task.Raw) error{
	"always":    func(*task.Raw) error { return errors.New("no luck") },
	"permanent": func(*task.Raw) error { return task.Permanent(errors.New("never")) },
	"panics":    func(*task.Raw) error { panic("oh") },
	"third": func(raw *task.Raw) error {
		if raw.Attempt < 3 {
			return task.RetryAfter(30*time.Millisecond, errors.New("later"))
		}
		return nil
	},
	"snoozes": func(raw *task.Raw) error {
		if raw.Delivery < 4 {
			return task.Snooze(5 * time.Millisecond)
		}
		return nil
	},
}

// Failing tasks, end to end: attempts, delays, and the dead letter of the one
// that never succeeds (task queue protocol, acceptance 2).
func TestFailingTasks(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	r := testkit.NewRig(t, s, s.Config())
	var mu sync.Mutex
	keys := map[string][]string{}
	note := func(raw *task.Raw) {
		mu.Lock()
		defer mu.Unlock()
		keys[raw.Type] = append(keys[raw.Type], strings.TrimPrefix(raw.ExecutionKey(), raw.TaskID))
	}
	s.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		for typ, h := range failures {
			w.HandleRaw(typ, func(_ context.Context, raw *task.Raw) (json.RawMessage, error) {
				note(raw)
				return nil, h(raw)
			})
		}
	})
	c := testkit.Client(t, o.URL)
	ids := map[string]protocol.ID{}
	for typ := range failures {
		e, err := c.EnqueueTask(t.Context(), &task.Request{Type: typ, Payload: json.RawMessage(`{"n":1}`)})
		if err != nil {
			t.Fatal(err)
		}
		if ids[typ], err = protocol.ParseID(e.TaskID); err != nil {
			t.Fatal(err)
		}
	}
	r.WaitState(t, protocol.StateFailed, ids["always"], ids["permanent"], ids["panics"])
	r.WaitState(t, protocol.StateSucceeded, ids["third"], ids["snoozes"])
	testkit.VerifyLog(t, s)
	for typ, want := range map[string]struct {
		attempt int
		code    protocol.Code
		reason  string
		keys    []string
	}{
		"always":    {4, protocol.CodeRetryExhausted, "TASK_EXECUTION_FAILED: no luck", []string{":0", ":1", ":2", ":3"}},
		"permanent": {1, protocol.CodeExecutionFailed, "never", []string{":0"}},
		"panics":    {4, protocol.CodeRetryExhausted, "panic: oh", []string{":0", ":1", ":2", ":3"}},
		"third":     {3, protocol.CodeExecutionFailed, "later", []string{":0", ":1", ":2"}},
		"snoozes":   {1, "", "", []string{":0", ":0", ":0", ":0"}},
	} {
		row := r.Row(t, ids[typ])
		if row.Attempt != want.attempt || row.Code != string(want.code) || !strings.Contains(row.Reason, want.reason) || !slices.Equal(keys[typ], want.keys) {
			t.Errorf("%s: %+v, executions %v; want %+v", typ, row, keys[typ], want)
		}
	}
	round := []string{"task.claimed", "task.retry_scheduled"}
	events(t, r, ids["always"], slices.Concat([]string{"task.created"}, round, round, round, []string{"task.claimed", "task.dlq", "task.dlq", "task.failed"})...)
	checkBackoff(t, r, ids["always"], "policy", func(int) (lo, hi int64) { return 10, 55 })
	checkBackoff(t, r, ids["third"], "retry_after", func(int) (lo, hi int64) { return 30, 30 })
	checkBackoff(t, r, ids["snoozes"], "snooze", func(int) (lo, hi int64) { return 5, 5 })
	checkLetter(t, r, ids["always"])
}

func checkLetter(t *testing.T, r *testkit.Rig, id protocol.ID) {
	t.Helper()
	for _, l := range letters(t, r) {
		if l["task_id"] == id.String() && (l["retry_count"] != "3" || l["payload"] != `{"n":1}` || l["error_code"] != "TASK_RETRY_EXHAUSTED") {
			t.Errorf("dead letter: %v", l)
		}
	}
}

// checkBackoff checks the events of a task's retries: source and size of the
// delay, next_retry_at from it, and that no execution began before.
func checkBackoff(t *testing.T, r *testkit.Rig, id protocol.ID, source string, bounds func(retry int) (lo, hi int64)) {
	t.Helper()
	rows, err := r.DB.Query(t.Context(), `SELECT e.retry_count, e.backoff_delay_ms, e.data->>'delay_source', e.next_retry_at, e.occurred_at,
		(SELECT min(c.occurred_at) FROM event_log c WHERE c.task_id = e.task_id AND c.seq > e.seq AND c.type = 'task.claimed')
		FROM event_log e WHERE e.task_id = $1 AND e.type = 'task.retry_scheduled' ORDER BY e.seq`, pgid.ID(id))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		var retry int
		var delay int64
		var src string
		var next, at, claimed time.Time
		if err := rows.Scan(&retry, &delay, &src, &next, &at, &claimed); err != nil {
			t.Fatal(err)
		}
		n++
		lo, hi := bounds(retry)
		wait := next.Sub(at)
		if src != source || delay < lo || delay > hi || wait.Round(time.Millisecond) != time.Duration(delay)*time.Millisecond {
			t.Errorf("retry %d: source %s, delay %d ms, next_retry_at %s after the event; want %s, %d to %d ms", retry, src, delay, wait, source, lo, hi)
		}
		if claimed.Before(next) {
			t.Errorf("retry %d began %s before next_retry_at", retry, next.Sub(claimed))
		}
	}
	if n == 0 {
		t.Errorf("no retries of %s", id)
	}
}
