package enqueue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

type change = func(*penstockv1.EnqueueRequest)

func payload(s string) change { return func(r *penstockv1.EnqueueRequest) { r.Payload = []byte(s) } }
func id(s string) change      { return func(r *penstockv1.EnqueueRequest) { r.TaskId = s } }
func key(s string) change     { return func(r *penstockv1.EnqueueRequest) { r.IdempotencyKey = s } }
func scope(s string) change   { return func(r *penstockv1.EnqueueRequest) { r.IdempotencyScope = s } }
func ptr[T any](v T) *T       { return &v }

const base = `{"a":[1,{"b":"ü/"}],"big":12345678901234567890,"f":1}`

// equal are spellings of one payload; different are not.
var (
	equal     = []string{base, " {\n\"big\": 12345678901234567890 ,\t\"f\":1, \"a\":[ 1 , {\"b\":\"\\u00fc\\/\"} ] } "}
	different = []string{strings.Replace(base, "890", "891", 1), strings.Replace(base, `"f":1`, `"f":1.0`, 1), strings.Replace(base, `"f":1`, `"f":"1"`, 1), `null`, `{}`}
)

// TestRepeat: the same request again, by its task id or by its key, is a hit;
// every field that the caller gave differently is named.
func TestRepeat(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	at := timestamppb.New(time.Now().Add(time.Hour))
	for name, same := range map[string]change{"task_id": id("order-1"), "uuid": id(uuid.Must(uuid.NewV7()).String()), "key": key("order-1"), "scoped key": func(r *penstockv1.EnqueueRequest) {
		r.IdempotencyKey, r.IdempotencyScope = "order-1", "my scope"
	}} {
		original := req(same, payload(base))
		first := e.must(t, original, false)
		for i, p := range equal {
			again := e.must(t, req(same, payload(p)), true)
			if again.TaskId != first.TaskId || string(again.Payload) != base || again.CreatedAt.AsTime() != first.CreatedAt.AsTime() {
				t.Errorf("%s, spelling %d: %v, want %v", name, i, again, first)
			}
		}
		res, err := e.orch[1].Enqueue(t.Context(), connect.NewRequest(original))
		if err != nil || !res.Msg.IdempotentHit || res.Msg.Task.TaskId != first.TaskId {
			t.Errorf("%s on another orchestrator: %v, %v", name, res, err)
		}
		for _, p := range different {
			e.duplicate(t, req(same, payload(p)), "payload")
		}
		for field, c := range map[string]change{
			"type":          func(r *penstockv1.EnqueueRequest) { r.Type = "y" },
			"schedule_type": func(r *penstockv1.EnqueueRequest) { r.ScheduleType, r.DelayMs, r.ScheduledAt = "at", 0, at },
			"delay_ms":      func(r *penstockv1.EnqueueRequest) { r.DelayMs++ },
			"timeout_ms":    func(r *penstockv1.EnqueueRequest) { r.TimeoutMs = ptr(first.TimeoutMs) }, // given, though the default
			"max_retries":   func(r *penstockv1.EnqueueRequest) { r.MaxRetries = ptr(first.MaxRetries) },
			"queue":         func(r *penstockv1.EnqueueRequest) { r.Queue = "another" },
			"retry_policy":  func(r *penstockv1.EnqueueRequest) { r.RetryPolicy = &penstockv1.RetryPolicy{Strategy: "fixed"} },
		} {
			e.duplicate(t, req(same, payload(base), c), field)
		}
	}
	e.wantCounts(t, 4, 2)
}

func TestRepeatGivenBounds(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	at := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	r := &penstockv1.EnqueueRequest{
		Type: "x", TaskId: "a", ScheduleType: "at", ScheduledAt: timestamppb.New(at.Add(999 * time.Nanosecond)), TimeoutMs: ptr(int32(5000)), MaxRetries: ptr(int32(0)),
	}
	e.must(t, r, false)
	e.must(t, r, true)
	for field, c := range map[string]change{
		"timeout_ms":   func(r *penstockv1.EnqueueRequest) { r.TimeoutMs = nil },
		"max_retries":  func(r *penstockv1.EnqueueRequest) { r.MaxRetries = ptr(int32(1)) },
		"scheduled_at": func(r *penstockv1.EnqueueRequest) { r.ScheduledAt = timestamppb.New(at.Add(time.Millisecond)) },
	} {
		other := proto.Clone(r).(*penstockv1.EnqueueRequest)
		c(other)
		e.duplicate(t, other, field)
	}
	e.duplicate(t, &penstockv1.EnqueueRequest{Type: "x", TaskId: "a", TimeoutMs: ptr(int32(5000)), MaxRetries: ptr(int32(0))}, "schedule_type")
	e.wantCounts(t, 1, 0)
}

// TestRepeatGivenPolicy: what the caller gave of the retry policy counts, and what
// comes from the type does not.
func TestRepeatGivenPolicy(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	with := func(p *penstockv1.RetryPolicy) *penstockv1.EnqueueRequest {
		return &penstockv1.EnqueueRequest{Type: "x", TaskId: "a", RetryPolicy: p}
	}
	e.must(t, with(&penstockv1.RetryPolicy{Strategy: "fixed", BaseMs: ptr(int64(70_000))}), false)
	e.must(t, with(&penstockv1.RetryPolicy{Strategy: "fixed", BaseMs: ptr(int64(70_000))}), true)
	if _, err := e.db.Exec(t.Context(), `UPDATE tasks SET retry_policy = jsonb_set(retry_policy::jsonb, '{jitter_max_ms}', '7')::json`); err != nil {
		t.Fatal(err)
	}
	e.must(t, with(&penstockv1.RetryPolicy{Strategy: "fixed", BaseMs: ptr(int64(70_000))}), true) // the type's jitter was another then
	for name, p := range map[string]*penstockv1.RetryPolicy{
		"none": nil, "another base": {Strategy: "fixed", BaseMs: ptr(int64(70_001))}, "another strategy": {Strategy: "linear", BaseMs: ptr(int64(70_000))},
		"a largest delay": {Strategy: "fixed", BaseMs: ptr(int64(70_000)), MaxBackoffMs: ptr(int64(80_000))}, "a schedule": {Strategy: "schedule", ScheduleMs: []int64{1}},
	} {
		t.Log(name)
		e.duplicate(t, with(p), "retry_policy")
	}
	e.wantCounts(t, 1, 0)
}

// TestKeysAndIDs: what counts when a request has both, or the other's.
func TestKeysAndIDs(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	a := e.must(t, req(id("a"), key("k")), false)
	if got := e.must(t, req(id("b"), key("k")), true); got.TaskId != "a" {
		t.Errorf("key of an existing task with a new id: %v", got)
	}
	e.duplicate(t, req(id("b"), key("k"), payload("2")), "payload")
	e.duplicate(t, req(id("a"), key("k2")), "idempotency_key")
	e.duplicate(t, req(id("a")), "idempotency_key")
	e.duplicate(t, req(id("a"), key("k"), scope("other")), "idempotency_scope")
	e.wantCounts(t, 1, 1)
	// The refused key is free.
	if got := e.must(t, req(key("k2")), false); got.TaskId == a.TaskId {
		t.Errorf("key k2 belongs to %v", got)
	}
	e.must(t, req(id("c")), false)
	e.duplicate(t, req(id("c"), key("k3")), "idempotency_key")
	// Scopes are apart; the default one is the tenant.
	e.must(t, req(key("k"), scope("s1")), false)
	e.must(t, req(key("k"), scope("s2")), false)
	e.must(t, req(key("k"), scope("default")), true)
	tenant := func(r *penstockv1.EnqueueRequest) { r.Tenant = "t2" }
	e.must(t, req(key("k"), tenant), false)
	e.must(t, req(key("k"), tenant), true)
	// Names are apart by tenant.
	e.must(t, req(id("c"), tenant), false)
	e.wantCounts(t, 7, 5)
}

// TestWithinOneBatch: items of a batch see those before them.
func TestWithinOneBatch(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	e.must(t, req(id("old"), key("oldkey")), false)
	u := uuid.Must(uuid.NewV7()).String()
	dup := string(protocol.CodeDuplicate)
	steps := []struct {
		req      *penstockv1.EnqueueRequest
		want, id string
	}{
		{req(id("a")), "new", "a"},
		{req(id("a")), "hit", "a"},
		{req(id("a"), payload("2")), dup + " payload", ""},
		{req(id("b"), key("kb")), "new", "b"},
		{req(id("b"), key("kb")), "hit", "b"},
		{req(id("b"), key("kb2")), dup + " idempotency_key", ""},
		{req(id("b")), dup + " idempotency_key", ""},
		{req(id("b2"), key("kb")), "hit", "b"},
		{req(key("kb"), payload("2")), dup + " payload", ""},
		{req(id("c")), "new", "c"},
		{req(id("c"), key("kc")), dup + " idempotency_key", ""},
		{req(id("d"), key("oldkey")), "hit", "old"},
		{req(id("d"), payload("4")), "new", "d"}, // the key's task answered for the first d
		{req(id("old"), key("kold")), dup + " idempotency_key", ""},
		{req(id("e"), key("kold")), "new", "e"},
		{req(id(u)), "new", u},
		{req(id(u)), "hit", u},
		{req(id(u), payload("3")), dup + " payload", ""},
		{req(), "new", ""},
		{req(), "new", ""},
		{&penstockv1.EnqueueRequest{}, string(protocol.CodeInputInvalid) + " type", ""},
	}
	var rs []*penstockv1.EnqueueRequest
	for _, s := range steps {
		rs = append(rs, s.req)
	}
	for i, r := range e.batch(t, rs...) {
		if short(r) != steps[i].want || r.Error == nil && (r.TaskId != r.Task.TaskId || steps[i].id != "" && r.TaskId != steps[i].id) {
			t.Errorf("item %d (%s %s): %s %s, want %s %s", i, rs[i].TaskId, rs[i].IdempotencyKey, short(r), r.TaskId, steps[i].want, steps[i].id)
		}
	}
	e.wantCounts(t, 9, 3)
}

// TestFirstOfEqualsWins: of items with one id, the first is stored, however
// many there are and in whatever order their ids sort.
func TestFirstOfEqualsWins(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	const ids, copies = 150, 4
	var rs []*penstockv1.EnqueueRequest
	for c := range copies {
		for i := range ids {
			rs = append(rs, req(id(fmt.Sprint("n", i)), payload(fmt.Sprint(c))))
		}
	}
	for i, r := range e.batch(t, rs...) {
		want := "new"
		if i >= ids {
			want = string(protocol.CodeDuplicate) + " payload"
		}
		if short(r) != want {
			t.Fatalf("item %d: %s, want %s", i, short(r), want)
		}
	}
	if n := e.count(t, "tasks WHERE payload::text <> '0'"); n != 0 {
		t.Errorf("%d tasks have the payload of a later item", n)
	}
	e.wantCounts(t, ids, 0)
}

// TestOldUUID: a UUIDv7 that is too old to be used as it is names a task of
// its tenant, unless it is a repeat of an old request.
func TestOldUUID(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	old := func() string {
		u := uuid.Must(uuid.NewV7())
		ms := time.Now().Add(-25 * time.Hour).UnixMilli()
		for i := range 6 {
			u[i] = byte(ms >> (40 - 8*i))
		}
		return u.String()
	}
	fresh := old()
	got := e.must(t, req(id(fresh)), false)
	if got.TaskId != fresh || e.count(t, "tasks WHERE name = $1", fresh) != 1 {
		t.Errorf("a new task with an old UUID: %v", got)
	}
	e.must(t, req(id(fresh)), true)
	e.duplicate(t, req(id(fresh), payload("2")), "payload")
	// A task from 25 h ago, stored under its UUID then.
	stored := old()
	recent := uuid.Must(uuid.NewV7()).String()
	e.must(t, req(id(recent), key("its key")), false)
	for _, sql := range []string{
		"INSERT INTO tasks SELECT (jsonb_populate_record(t, jsonb_build_object('id', $2::text))).* FROM tasks t WHERE id = $1::uuid",
		"INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at) SELECT $2::text::uuid, 1, 'task.created', status, 1, 1, actor, trace_id, occurred_at FROM event_log WHERE task_id = $1::uuid",
		"UPDATE idempotency_keys SET task_id = $2::text::uuid WHERE task_id = $1::uuid",
		"DELETE FROM event_log WHERE task_id = $1::uuid AND $2::text <> ''",
		"DELETE FROM tasks WHERE id = $1::uuid AND $2::text <> ''",
	} {
		if _, err := e.db.Exec(t.Context(), sql, recent, stored); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	if got := e.must(t, req(id(stored), key("its key")), true); got.TaskId != stored {
		t.Errorf("repeat of an old request: %v", got)
	}
	e.duplicate(t, req(id(stored), key("its key"), payload("2")), "payload")
	e.duplicate(t, req(id(stored)), "idempotency_key")
	e.duplicate(t, req(id(stored), key("another key")), "idempotency_key")
	e.wantCounts(t, 2, 1)
	e.must(t, req(key("another key")), false)
	for _, taskID := range []string{fresh, stored} {
		res, err := e.orch[0].GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: taskID}))
		if err != nil || res.Msg.Task.TaskId != taskID {
			t.Errorf("get %s: %v, %v", taskID, res, err)
		}
	}
}
