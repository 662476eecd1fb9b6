package cli

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// TestEnqueueWaits: the exit code and what is printed say how the task ended.
func TestEnqueueWaits(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	s.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("ok", func(_ context.Context, r *task.Raw) (json.RawMessage, error) { return r.Payload, nil })
		w.HandleRaw("null", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
		w.HandleRaw("bad", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, errors.New("no such customer") })
	})
	orch := func(args ...string) ran {
		t.Helper()
		return run(t, Orchestrator(), "", append(args, "--server", o.URL)...)
	}
	testkit.Eventually(t, "ready", func() (bool, string) {
		r := orch("task", "count")
		return r.code == 0, r.err
	})
	r := orch("enqueue", "ok", `{"n": 1.50}`, "--id", "one", "--wait", "--tenant", "acme")
	if want(t, "succeeds", r, ExitOK); r.out != "{\"n\": 1.50}\n" || r.err != "one\n" {
		t.Errorf("succeeds: out %q, err %q", r.out, r.err)
	}
	if r = orch("enqueue", "null", "--wait"); r.code != ExitOK || r.out != "null\n" {
		t.Errorf("without a result: %+v", r)
	}
	r = orch("enqueue", "ok", "1", "--wait", "-o", "json")
	if m := decode(t, r.out); r.code != ExitOK || m["state"] != "succeeded" || m["result"] != 1.0 {
		t.Errorf("as JSON: %+v", r)
	}
	r = orch("enqueue", "bad", "--id", "two", "--wait", "--max-retries", "1", "--retry-base", "1ms", "--retry-jitter", "0s")
	if want(t, "fails", r, ExitFailed, "task two is failed", "no such customer"); r.out != "" {
		t.Errorf("fails: %q", r.out)
	}
	r = orch("enqueue", "bad", "--wait", "--max-retries", "0", "-o", "json")
	if m := decode(t, r.out); r.code != ExitFailed || m["state"] != "failed" {
		t.Errorf("fails, as JSON: %+v", r)
	}
	want(t, "takes longer", orch("enqueue", "ok", "--delay", "1h", "--wait", "--wait-timeout", "300ms"), ExitNotFinished, "is not finished after 300ms")
	want(t, "not waiting", orch("enqueue", "ok", "--wait-timeout", "1s"), ExitUsage, "--wait")
	want(t, "no time", orch("enqueue", "ok", "--wait", "--wait-timeout", "0s"), ExitUsage, "--wait-timeout")
}

// TestEnqueueFlags: what the RPC takes, the command takes.
func TestEnqueueFlags(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	orch := func(args ...string) ran {
		t.Helper()
		return run(t, Orchestrator(), "", append(args, "--server", o.URL)...)
	}
	testkit.Eventually(t, "ready", func() (bool, string) {
		r := orch("task", "count")
		return r.code == 0, r.err
	})
	for _, id := range []string{"a,1", "b"} {
		want(t, "enqueue "+id, orch("enqueue", "x", "--id", id, "--delay", "1h"), ExitOK)
	}
	want(t, "with dependencies", orch("enqueue", "x", "--id", "c", "--depends-on", "a,1", "--depends-on", "b", "--on-dependency-failure", "run"), ExitOK)
	m := decode(t, orch("task", "get", "c", "-o", "json").out)
	if m["open_dependencies"] != 2.0 || m["on_dependency_failure"] != "run" || m["state"] != "pending" {
		t.Errorf("dependencies: %v", m)
	}
	want(t, "no such task", orch("enqueue", "x", "--depends-on", "nobody"), ExitNotFound, "depends_on", "nobody")
	want(t, "an empty one", orch("enqueue", "x", "--depends-on", ""), ExitUsage, "--depends-on")
	want(t, "a bad condition", orch("enqueue", "x", "--depends-on", "b", "--on-dependency-failure", "stop"), ExitUsage, "on_dependency_failure")

	for name, c := range map[string]struct {
		flags string
		want  map[string]any
	}{
		"exponential": {
			"--retry-strategy exponential --retry-base 2s --retry-max-backoff 1m --retry-jitter 500ms",
			map[string]any{"strategy": "exponential", "base_ms": 2000.0, "max_backoff_ms": 60_000.0, "jitter_max_ms": 500.0},
		},
		"fixed": {"--retry-strategy fixed --retry-base 3s --retry-jitter 0s", map[string]any{"strategy": "fixed", "base_ms": 3000.0, "jitter_max_ms": 0.0}},
		"schedule": {
			"--retry-schedule 1m,5m --retry-schedule 15m",
			map[string]any{"strategy": "schedule", "schedule_ms": []any{60_000.0, 300_000.0, 900_000.0}},
		},
	} {
		want(t, name, orch(append(strings.Fields("enqueue x --delay 1h --max-retries 7 --id "+name), strings.Fields(c.flags)...)...), ExitOK)
		m := decode(t, orch("task", "get", name, "-o", "json").out)
		policy, _ := m["retry_policy"].(map[string]any)
		for k, v := range c.want {
			if list, ok := v.([]any); ok {
				got, _ := policy[k].([]any)
				if len(got) != len(list) || got[0] != list[0] || got[len(got)-1] != list[len(list)-1] {
					t.Errorf("%s: %s is %v, want %v", name, k, policy[k], v)
				}
			} else if policy[k] != v {
				t.Errorf("%s: %s is %v, want %v", name, k, policy[k], v)
			}
		}
		if m["max_retries"] != 7.0 {
			t.Errorf("%s: %v retries", name, m["max_retries"])
		}
	}
	want(t, "no such strategy", orch("enqueue", "x", "--retry-strategy", "random"), ExitUsage, "strategy")
	want(t, "a negative base", orch("enqueue", "x", "--retry-base", "-1s"), ExitUsage, "base_ms")
	want(t, "less than a millisecond", orch("enqueue", "x", "--retry-jitter", "10us"), ExitUsage, "--retry-jitter", "whole milliseconds")
	want(t, "an empty schedule", orch("enqueue", "x", "--retry-strategy", "schedule"), ExitUsage, "schedule")
}
