package enqueue_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

const ms = time.Millisecond

// perType has a type that never retries, one with a schedule and a linear one.
func perType(c *config.Orchestrator) {
	c.Retry.Strategy, c.Retry.Base, c.Retry.MaxBackoff, c.Retry.JitterMax = "fixed", 3*ms, 30*ms, 0
	c.Types = map[string]config.Type{
		"once":         {MaxRetries: ptr(0)},
		"list.of:some": {Strategy: ptr("schedule"), Schedule: []time.Duration{10 * ms, 20 * ms, 30 * ms}, MaxRetries: ptr(5)},
		"linear":       {Strategy: ptr("linear"), Base: ptr(4 * ms), MaxBackoff: ptr(10 * ms), JitterMax: ptr(2 * ms), Timeout: ptr(7 * time.Second)},
	}
}

// retry is what a task.retry_scheduled event says.
type retry struct {
	delay int64
	data  protocol.RetryData
}

// retries reads the retries of a task.
func (e *env) retries(t *testing.T, taskID string) (out []retry) {
	t.Helper()
	rows, err := e.db.Query(t.Context(), "SELECT backoff_delay_ms, data FROM event_log WHERE task_id = $1::uuid AND type = 'task.retry_scheduled' ORDER BY seq", taskID)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var r retry
		var data []byte
		if err := rows.Scan(&r.delay, &data); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &r.data); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRetriesByType: a type's settings apply to its tasks from the first
// failure to the dead letter, and an override changes only what it names.
func TestRetriesByType(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1, perType)
	e.StartWorker(t, worker.Options{Concurrency: 8}, func(w *worker.Worker) {
		for _, typ := range []string{"once", "list.of:some", "linear", "unlisted"} {
			w.HandleRaw(typ, func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, errors.New("no luck") })
		}
	})
	policy := func(strategy protocol.Strategy, base, limit, jitter int64, list ...int64) protocol.RetryPolicy {
		return protocol.RetryPolicy{Strategy: strategy, BaseMS: base, MaxBackoffMS: limit, JitterMaxMS: jitter, ScheduleMS: list}
	}
	for name, tt := range map[string]struct {
		typ        string
		override   *penstockv1.RetryPolicy
		maxRetries *int32
		policy     protocol.RetryPolicy
		delays     []int64 // without jitter
		stored     bool
	}{
		"max_retries 0":        {"once", nil, nil, protocol.RetryPolicy{}, nil, false},
		"own max_retries":      {"once", nil, ptr(int32(1)), policy("fixed", 3, 30, 0), []int64{3}, false},
		"schedule":             {"list.of:some", nil, nil, policy("schedule", 3, 30, 0, 10, 20, 30), []int64{10, 20, 30, 30, 30}, false},
		"linear":               {"linear", nil, nil, policy("linear", 4, 10, 2), []int64{4, 8, 10}, false},
		"unlisted":             {"unlisted", nil, nil, policy("fixed", 3, 30, 0), []int64{3, 3, 3}, false},
		"own base":             {"linear", &penstockv1.RetryPolicy{BaseMs: ptr(int64(2))}, nil, policy("linear", 2, 10, 2), []int64{2, 4, 6}, true},
		"own base above max":   {"linear", &penstockv1.RetryPolicy{BaseMs: ptr(int64(12))}, nil, policy("linear", 12, 12, 2), []int64{12, 12, 12}, true},
		"own strategy":         {"list.of:some", &penstockv1.RetryPolicy{Strategy: "exponential"}, nil, policy("exponential", 3, 30, 0), []int64{3, 6, 12, 24, 30}, true},
		"own list":             {"list.of:some", &penstockv1.RetryPolicy{ScheduleMs: []int64{1}}, ptr(int32(2)), policy("schedule", 3, 30, 0, 1), []int64{1, 1}, true},
		"own jitter":           {"list.of:some", &penstockv1.RetryPolicy{JitterMaxMs: ptr(int64(5))}, ptr(int32(1)), policy("schedule", 3, 30, 5, 10, 20, 30), []int64{10}, true},
		"none of its own":      {"linear", &penstockv1.RetryPolicy{}, nil, policy("linear", 4, 10, 2), []int64{4, 8, 10}, true},
		"own schedule, linear": {"linear", &penstockv1.RetryPolicy{Strategy: "schedule", ScheduleMs: []int64{7, 1}}, nil, policy("schedule", 4, 10, 2, 7, 1), []int64{7, 1, 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			res, err := e.enqueue(t, &penstockv1.EnqueueRequest{Type: tt.typ, Payload: []byte("1"), RetryPolicy: tt.override, MaxRetries: tt.maxRetries})
			if err != nil {
				t.Fatal(err)
			}
			id := res.Task.TaskId
			if got := res.Task.MaxRetries; int(got) != len(tt.delays) {
				t.Errorf("max_retries = %d, want %d", got, len(tt.delays))
			}
			if p := res.Task.RetryPolicy; (p != nil) != tt.stored || p != nil && (p.Strategy != string(tt.policy.Strategy) || *p.BaseMs != tt.policy.BaseMS ||
				*p.MaxBackoffMs != tt.policy.MaxBackoffMS || *p.JitterMaxMs != tt.policy.JitterMaxMS) {
				t.Errorf("stored policy %v, want %+v", p, tt.policy)
			}
			if want := map[bool]int32{true: 7000, false: 300_000}[tt.typ == "linear"]; res.Task.TimeoutMs != want {
				t.Errorf("timeout_ms = %d, want %d", res.Task.TimeoutMs, want)
			}
			var failed *penstockv1.Task
			testkit.Eventually(t, "the task fails", func() (bool, string) {
				got, err := e.orch[0].GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: id}))
				if err != nil {
					return false, err.Error()
				}
				failed = got.Msg.Task
				return failed.State == "failed", failed.State
			})
			if failed.LastErrorCode.GetValue() != string(protocol.CodeRetryExhausted) || int(failed.Attempt) != 1+len(tt.delays) {
				t.Errorf("failed with %s at attempt %d", failed.LastErrorCode.GetValue(), failed.Attempt)
			}
			all := e.retries(t, id)
			if len(all) != len(tt.delays) {
				t.Fatalf("%d retries, want %d", len(all), len(tt.delays))
			}
			for i, r := range all {
				if r.data.DelaySource != protocol.DelayFromPolicy || r.data.Policy == nil || !reflect.DeepEqual(*r.data.Policy, tt.policy) {
					t.Errorf("retry %d: %+v, want policy %+v", i+1, r.data, tt.policy)
				}
				if r.delay-r.data.JitterMS != tt.delays[i] || r.data.JitterMS < 0 || r.data.JitterMS > tt.policy.JitterMaxMS {
					t.Errorf("retry %d after %d ms, %d of them jitter; want %d and at most %d", i+1, r.delay, r.data.JitterMS, tt.delays[i], tt.policy.JitterMaxMS)
				}
			}
		})
	}
}

// TestHeartbeatTimeoutByType: a type's heartbeat timeout is stored with its tasks,
// and is not what the caller gave: a repeat is a hit even after it was changed.
func TestHeartbeatTimeoutByType(t *testing.T) {
	t.Parallel()
	limit := time.Minute
	e := newEnv(t, 1, func(c *config.Orchestrator) { c.Types = map[string]config.Type{"slow": {HeartbeatTimeout: ptr(limit)}} })
	slow := func(key string, own *int32) *penstockv1.EnqueueRequest {
		return &penstockv1.EnqueueRequest{Type: "slow", Payload: []byte("1"), IdempotencyKey: key, HeartbeatTimeoutMs: own}
	}
	for key, own := range map[string]*int32{"type's": nil, "own": ptr(int32(5))} {
		want := int32(limit.Milliseconds())
		if own != nil {
			want = *own
		}
		if res, err := e.enqueue(t, slow(key, own)); err != nil || res.Task.HeartbeatTimeoutMs != want {
			t.Fatalf("%s: %v, %v", key, res, err)
		}
		if res, err := e.enqueue(t, slow(key, own)); err != nil || !res.IdempotentHit {
			t.Errorf("%s again: %v, %v", key, res, err)
		}
		other := ptr(int32(limit.Milliseconds()))
		if _, err := e.enqueue(t, slow(key, other)); rpc.InfoOf(err).GetField() != "heartbeat_timeout_ms" {
			t.Errorf("%s with %d ms: %v, want a duplicate", key, *other, err)
		}
	}
	if _, err := e.db.Exec(t.Context(), "UPDATE tasks SET heartbeat_timeout_ms = 7"); err != nil { // as if stored before the type's was changed
		t.Fatal(err)
	}
	if res, err := e.enqueue(t, slow("type's", nil)); err != nil || !res.IdempotentHit || res.Task.HeartbeatTimeoutMs != 7 {
		t.Errorf("after a change: %v, %v", res, err)
	}
	if res, err := e.enqueue(t, &penstockv1.EnqueueRequest{Type: "other", Payload: []byte("1")}); err != nil || res.Task.HeartbeatTimeoutMs != 0 {
		t.Errorf("another type: %v, %v", res, err)
	}
}

// TestPolicyOfTheDay: a task without an override follows the configuration at
// the time of its failure; one with an override keeps what it was given.
func TestPolicyOfTheDay(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Types = map[string]config.Type{"x": {Base: ptr(20 * ms), JitterMax: ptr(time.Duration(0))}}
	before := testkit.NewRig(t, s, cfg)
	before.StartDispatch(t)
	reqs := testkit.Requests(2, "x")
	reqs[1].Policy = &enqueue.PolicyOverride{Strategy: "fixed"}
	ids := before.Enqueue(t, reqs...)
	var failed []*protocol.Outcome
	for _, h := range before.Fetch(t, "worker", 2) {
		o := h.Outcome(protocol.OutcomeFailed)
		o.Retryable, o.Error = true, "no luck"
		failed = append(failed, o)
	}
	cfg.Types = map[string]config.Type{"x": {Strategy: ptr("schedule"), Schedule: []time.Duration{time.Hour}, JitterMax: ptr(time.Duration(0))}}
	after := testkit.NewRig(t, s, cfg)
	after.Start(t, after.Results.Run)
	after.Report(t, failed...)
	for i, want := range []int64{time.Hour.Milliseconds(), 20} {
		testkit.Eventually(t, "a retry", func() (bool, string) {
			n := after.Count(t, "SELECT count(*) FROM event_log WHERE task_id = $1::uuid AND type = 'task.retry_scheduled'", ids[i].String())
			return n == 1, ""
		})
		if n := after.Count(t, "SELECT backoff_delay_ms::int FROM event_log WHERE task_id = $1::uuid AND type = 'task.retry_scheduled'", ids[i].String()); int64(n) != want {
			t.Errorf("task %d: delay %d ms, want %d", i, n, want)
		}
	}
}

const mailSchema = `{"type": "object", "required": ["to"], "additionalProperties": false,
"properties": {"to": {"type": "array", "items": {"type": "string", "pattern": "@"}}, "n": {"type": "integer"}}}`

// TestSchemaByType: a payload that does not follow its type's schema is refused
// alone, in a batch without harm to the others, and stores nothing.
func TestSchemaByType(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mail.json")
	if err := os.WriteFile(path, []byte(mailSchema), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newEnv(t, 1, func(c *config.Orchestrator) { c.Types = map[string]config.Type{"email.send": {Schema: path}} })
	mail := func(p string) *penstockv1.EnqueueRequest {
		return req(payload(p), func(r *penstockv1.EnqueueRequest) { r.Type = "email.send" })
	}
	wants := map[string]string{
		`{}`:                                  `at /: lacks "to"`,
		``:                                    "at /: want object, got null",
		`{"to": ["s3cr3t"]}`:                  "at /to/0: want the pattern @",
		`{"to": [], "cc": [], "n": "s3cr3t"}`: `at /: has members that are not allowed: "cc"; at /n: want integer, got string`,
	}
	for p, want := range wants {
		res := e.batch(t, mail(p), mail(`{"to": ["a@b"], "n": 1}`), req(payload(p)))
		if short(res[0]) != "TASK_INPUT_INVALID payload" || short(res[1]) != "new" || short(res[2]) != "new" {
			t.Errorf("%s: %s, %s, %s", p, short(res[0]), short(res[1]), short(res[2]))
		}
		if msg := res[0].Error.GetMessage(); !strings.Contains(msg, want) || strings.Contains(msg, "s3cr3t") || res[0].Error.GetRetryable() {
			t.Errorf("%s: %q, want %q", p, msg, want)
		}
		if _, err := e.enqueue(t, mail(p)); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", p, err, want)
		}
	}
	e.wantCounts(t, 2*len(wants), 0)
}

// TestBadSchemaStopsTheStart: an orchestrator does not start on a schema that
// can't be used, and names its key.
func TestBadSchemaStopsTheStart(t *testing.T) {
	t.Parallel()
	cfg := config.DefaultOrchestrator()
	cfg.Postgres.URL, cfg.Redis.URL = "postgres://127.0.0.1:1/x", "redis://127.0.0.1:1"
	cfg.Types = map[string]config.Type{"a.b": {Schema: filepath.Join(t.TempDir(), "none.json")}}
	_, err := app.NewOrchestrator(t.Context(), cfg, testkit.Log(t))
	if err == nil || !strings.Contains(err.Error(), `types["a.b"].schema: open `) {
		t.Errorf("%v", err)
	}
}
