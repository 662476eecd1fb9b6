package protocol

import (
	"maps"
	"reflect"
	"testing"
	"time"
)

// fields makes an entry of the given fields; "\xff" stands for a missing one.
func fields(pairs ...string) map[string]any {
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "\xff" {
			m[pairs[i]] = pairs[i+1]
		}
	}
	return m
}

// checkFuzzed: what is refused is refused with an *Error that names a field;
// what is read is the same after it was written and read again.
func checkFuzzed[E interface{ Values() []any }](t *testing.T, values map[string]any, decode func(map[string]any) (E, error)) {
	t.Helper()
	before := maps.Clone(values)
	one, err := decode(values)
	if !maps.Equal(before, values) {
		t.Fatal("the entry was changed")
	}
	if err != nil {
		e, ok := err.(*Error)
		if !ok || e.Field == "" {
			t.Fatalf("error %v names no field", err)
		}
		wantFault(t, err, e.Field)
		return
	}
	written := wire(one.Values())
	two, err := decode(written)
	if err != nil {
		t.Fatalf("%+v can't be read again: %v", one, err)
	}
	if !reflect.DeepEqual(one, two) || !maps.Equal(written, wire(two.Values())) {
		t.Fatalf("%+v came back as %+v", one, two)
	}
}

func FuzzDecodeTask(f *testing.F) {
	f.Add("1", testID(1).String(), "", "mail", "{}", "", "1", "3", "1", "300000", "", "", "1772020800000", "")
	f.Add("1", testID(2).String(), "order-1001", "mail", `{"a":"é"}`, "t", "01", "+3", "4611686018427387904", "1", "key", "trace", "0", "later")
	f.Add("2", "\xff", "\xff", "\xff", "\xff", "\xff", "-1", "x", "", "0", "\xff", "\xff", "99999999999999999999", "\xff")
	f.Fuzz(func(t *testing.T, v, id, taskID, typ, payload, tenant, attempt, maxRetries, delivery, timeout, key, trace, enqueued, later string) {
		checkFuzzed(t, fields("v", v, "id", id, "task_id", taskID, "tool_name", typ, "payload", payload, "tenant", tenant, "attempt", attempt,
			"max_retries", maxRetries, "delivery", delivery, "timeout_ms", timeout, "idempotency_key", key, "trace_id", trace,
			"enqueued_at", enqueued, "a later field", later), DecodeTask)
	})
}

func FuzzDecodeOutcome(f *testing.F) {
	for _, kind := range OutcomeKinds() {
		f.Add("1", testID(1).String(), "1", string(kind), "w", "1-0", "1772020800000", "1772020801000", "{}", "TASK_TIMEOUT", "slow", "1", "1000")
	}
	f.Add("1", testID(1).String(), "01", "failed", "\xff", "\xff", "00", "-0", "\xff", "\xff", "caf\xe9\x00", "true", "+0")
	f.Fuzz(func(t *testing.T, v, id, delivery, kind, worker, message, started, finished, result, code, text, retryable, delay string) {
		values := fields("v", v, "id", id, "delivery", delivery, "kind", kind, "worker_id", worker, "message_id", message, "started_at", started,
			"finished_at", finished, "result", result, "error_code", code, "error", text, "retryable", retryable, "delay_ms", delay)
		checkFuzzed(t, values, DecodeOutcome)
		// What can be read can be decided.
		if o, err := DecodeOutcome(values); err == nil {
			for _, state := range []State{StateQueued, StateRunning, StateRetrying, StateSucceeded} {
				task := &Task{ID: o.ID, State: state, Attempt: 1, Delivery: o.Delivery, MaxRetries: 1, Policy: DefaultRetryPolicy()}
				if _, verdict := task.ApplyOutcome(o, testEnv()); verdict.String() == "" {
					t.Fatal("no verdict")
				}
			}
		}
	})
}

func FuzzDecodeDeadLetter(f *testing.F) {
	f.Add("1", testID(1).String(), testID(2).String(), "order-1001", "mail", "t", "{}", "TASK_TIMEOUT", "slow", "3", "2026-02-25T12:00:00Z", "stream:task", "1-0", `{"a":"b"}`)
	f.Add("1", testID(1).String(), "\xff", "\xff", "\xff", "\xff", "\xff", "\xff", "caf\xe9\x00", "0", "0000-01-01T00:00:00+01:00", "\xff", "1-0", "null")
	f.Add("1", testID(1).String(), ID{}.String(), "", "", "", "", "", "", "03", "2026-02-25T12:00:00,123456789123+23:59", "", "", `{"<":"\ud800"}`)
	f.Fuzz(func(t *testing.T, v, dlqID, id, taskID, typ, tenant, payload, code, text, retryCount, failedAt, stream, message, raw string) {
		values := fields("v", v, "dlq_id", dlqID, "id", id, "task_id", taskID, "tool_name", typ, "tenant", tenant, "payload", payload,
			"error_code", code, "error", text, "retry_count", retryCount, "failed_at", failedAt, "stream", stream, "message_id", message, "raw", raw)
		checkFuzzed(t, values, DecodeDeadLetter)
		// Whatever it is, it can be kept as garbage.
		l := Garbage("stream:dlq", "1-0", values, errCause, time.UnixMilli(1).UTC())
		if _, err := DecodeDeadLetter(wire(l.Values())); err != nil {
			t.Fatalf("the dead letter of garbage: %v", err)
		}
	})
}
