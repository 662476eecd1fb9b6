package api_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// secret is in every payload; no error text may hold it.
const secret = "s3cr3t"

func ptr[T any](v T) *T { return &v }

// badRequests are requests that protobuf can carry, by the field that is wrong.
func badRequests() map[string]struct {
	field string
	req   *penstockv1.EnqueueRequest
} {
	type c = struct {
		field string
		req   *penstockv1.EnqueueRequest
	}
	out := map[string]c{}
	add := func(name, field string, r *penstockv1.EnqueueRequest) {
		if r.Type == "" && field != "type" {
			r.Type = "x"
		}
		if r.Payload == nil {
			r.Payload = []byte(`"` + secret + `"`)
		}
		out[name] = c{field, r}
	}
	long := strings.Repeat("k", 10_000)
	add("type empty", "type", &penstockv1.EnqueueRequest{})
	add("type too long", "type", &penstockv1.EnqueueRequest{Type: strings.Repeat("t", 129)})
	for _, s := range []string{"a b", "ä", "a\x00", "a\n", "a\\b", "a*"} {
		add("type "+s, "type", &penstockv1.EnqueueRequest{Type: s})
	}
	for name, p := range map[string]string{
		"not JSON": secret, "two values": `"` + secret + `" 1`, "cut off": `{"a":"` + secret + `"`, "blank": " ", "trailing comma": `["` + secret + `",]`,
		"single quotes": `'` + secret + `'`, "NaN": "NaN", "leading zero": "01", "raw NUL": "\"" + secret + "\x00\"", "raw newline": "\"" + secret + "\n\"",
		"NUL escape": `{"a":"` + secret + `\u0000"}`, "NUL key": `{"\u0000":"` + secret + `"}`, "NUL after backslash": `"` + secret + `\\\u0000"`,
		"too deep": strings.Repeat("[", 65) + strings.Repeat("]", 65), "way too deep": strings.Repeat("[", 100_000),
		"too deep objects": strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65),
		"invalid UTF-8":    "\"" + secret + "\xff\"", "surrogate bytes": "\"\xed\xa0\x80\"", "BOM": "\xef\xbb\xbf1",
		"one byte too large": `"` + strings.Repeat("a", 256*1024-1) + `"`,
	} {
		add("payload "+name, "payload", &penstockv1.EnqueueRequest{Payload: []byte(p)})
	}
	for _, n := range []int32{0, -1, math.MinInt32} {
		add(fmt.Sprint("timeout ", n), "timeout_ms", &penstockv1.EnqueueRequest{TimeoutMs: &n})
	}
	for _, n := range []int32{-1, 1001, math.MaxInt32, math.MinInt32} {
		add(fmt.Sprint("max_retries ", n), "max_retries", &penstockv1.EnqueueRequest{MaxRetries: &n})
	}
	for _, n := range []int64{-1, math.MinInt64, math.MaxInt64, (5*365*24*time.Hour + time.Millisecond).Milliseconds()} {
		add(fmt.Sprint("delay ", n), "delay_ms", &penstockv1.EnqueueRequest{ScheduleType: "delay", DelayMs: n})
	}
	add("delay without its type", "delay_ms", &penstockv1.EnqueueRequest{DelayMs: 5})
	add("delay with at", "delay_ms", &penstockv1.EnqueueRequest{ScheduleType: "at", ScheduledAt: timestamppb.Now(), DelayMs: 5})
	for name, at := range map[string]*timestamppb.Timestamp{
		"year 1": {Seconds: -62135596800}, "year 1 and a bit": {Seconds: -62135596800, Nanos: 1}, "1969": {Seconds: -1},
		"year 9999": {Seconds: 253402300799}, "year 10000": {Seconds: 253402300800}, "too far ahead": timestamppb.New(time.Now().Add(5*365*24*time.Hour + time.Hour)),
		"min": {Seconds: math.MinInt64}, "max": {Seconds: math.MaxInt64}, "bad nanos": {Seconds: 2e9, Nanos: -1}, "big nanos": {Seconds: 1.5e9, Nanos: math.MaxInt32},
	} {
		add("scheduled_at "+name, "scheduled_at", &penstockv1.EnqueueRequest{ScheduleType: "at", ScheduledAt: at})
	}
	add("scheduled_at missing", "scheduled_at", &penstockv1.EnqueueRequest{ScheduleType: "at"})
	add("scheduled_at with now", "scheduled_at", &penstockv1.EnqueueRequest{ScheduleType: "now", ScheduledAt: timestamppb.Now()})
	add("scheduled_at zero with now", "scheduled_at", &penstockv1.EnqueueRequest{ScheduledAt: &timestamppb.Timestamp{Seconds: -62135596800}})
	add("scheduled_at with delay", "scheduled_at", &penstockv1.EnqueueRequest{ScheduleType: "delay", DelayMs: 1, ScheduledAt: timestamppb.Now()})
	for _, s := range []string{"AT", "cron", "now ", long, "\x01"} {
		add("schedule_type "+s[:min(len(s), 9)], "schedule_type", &penstockv1.EnqueueRequest{ScheduleType: s, ScheduledAt: timestamppb.Now()})
	}
	for _, s := range []string{strings.Repeat("n", 65), long, "a b", "a/b", "a:b", "ü", "a\x00"} {
		add("tenant "+s[:min(len(s), 70)], "tenant", &penstockv1.EnqueueRequest{Tenant: s})
		add("queue "+s[:min(len(s), 70)], "queue", &penstockv1.EnqueueRequest{Queue: s})
	}
	for _, s := range []string{strings.Repeat("n", 256), long, "a\x00", "a\nb", "a\x7f", "a\u0085b", "\u009b31m"} {
		short := s[:min(len(s), 300)]
		add("task_id "+short, "task_id", &penstockv1.EnqueueRequest{TaskId: s})
		add("key "+short, "idempotency_key", &penstockv1.EnqueueRequest{IdempotencyKey: s})
		add("scope "+short, "idempotency_scope", &penstockv1.EnqueueRequest{IdempotencyScope: s, IdempotencyKey: "k"})
		add("trace "+short, "trace_id", &penstockv1.EnqueueRequest{TraceId: s})
	}
	policy := func(name, field string, p *penstockv1.RetryPolicy) {
		add("policy "+name, "retry_policy."+field, &penstockv1.EnqueueRequest{RetryPolicy: p})
	}
	policy("strategy", "strategy", &penstockv1.RetryPolicy{Strategy: long})
	for _, n := range []int64{0, -1, math.MinInt64, math.MaxInt64} {
		policy(fmt.Sprint("base ", n), "base_ms", &penstockv1.RetryPolicy{BaseMs: &n})
		policy(fmt.Sprint("max ", n), "max_backoff_ms", &penstockv1.RetryPolicy{MaxBackoffMs: &n})
		policy(fmt.Sprint("schedule ", n), "schedule_ms", &penstockv1.RetryPolicy{Strategy: "schedule", ScheduleMs: []int64{1, n}})
		if n != 0 {
			policy(fmt.Sprint("jitter ", n), "jitter_max_ms", &penstockv1.RetryPolicy{JitterMaxMs: &n})
		}
	}
	policy("max below base", "max_backoff_ms", &penstockv1.RetryPolicy{BaseMs: ptr(int64(10)), MaxBackoffMs: ptr(int64(9))})
	policy("schedule empty", "schedule_ms", &penstockv1.RetryPolicy{Strategy: "schedule"})
	policy("schedule long", "schedule_ms", &penstockv1.RetryPolicy{Strategy: "schedule", ScheduleMs: make([]int64, 101)})
	policy("schedule of fixed", "schedule_ms", &penstockv1.RetryPolicy{Strategy: "fixed", ScheduleMs: []int64{1}})
	return out
}

// TestBadInputRPC: every bad request is refused the same way over Connect and
// gRPC, alone and in a batch, and leaves nothing behind.
func TestBadInputRPC(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	before := e.stored(t)
	for name, c := range badRequests() {
		_, err1 := e.rpc.Enqueue(t.Context(), connect.NewRequest(c.req))
		_, err2 := e.grpc.Enqueue(t.Context(), connect.NewRequest(c.req))
		for _, err := range []error{err1, err2} {
			if err == nil {
				t.Errorf("%s: accepted", name)
				continue
			}
			text := refusedRPC(t, err, connect.CodeInvalidArgument, protocol.CodeInputInvalid, c.field)
			if t.Failed() {
				t.Fatalf("case %q: %v", name, err)
			}
			if strings.Contains(text, secret) || len(text) > 1500 {
				t.Errorf("%s: error text leaks the payload or is too long (%d): %.400q", name, len(text), text)
			}
		}
	}
	if after := e.stored(t); after != before {
		t.Errorf("stored %s, was %s", after, before)
	}
}

// TestBadItemsDoNotSink: all bad requests in one batch with good ones between.
func TestBadItemsDoNotSink(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	req := &penstockv1.EnqueueBatchRequest{}
	var want []string
	good := 0
	for _, c := range badRequests() {
		req.Tasks = append(req.Tasks, c.req, &penstockv1.EnqueueRequest{Type: "x", ScheduleType: "delay", DelayMs: later, IdempotencyKey: fmt.Sprint(good)})
		want = append(want, c.field, "")
		good++
	}
	res, err := e.grpc.EnqueueBatch(t.Context(), connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Msg.Results) != len(want) {
		t.Fatalf("%d results for %d items", len(res.Msg.Results), len(want))
	}
	for i, r := range res.Msg.Results {
		switch {
		case want[i] == "" && (r.Error != nil || r.Task.GetState() != "pending"):
			t.Errorf("good item %d: %v", i, r)
		case want[i] != "" && (r.Error.GetCode() != string(protocol.CodeInputInvalid) || r.Error.Field != want[i] || r.Task != nil):
			t.Errorf("item %d, want field %s: %v", i, want[i], r.Error)
		}
	}
	c := e.conn(t)
	for table, n := range map[string]int{"tasks": good, "event_log": good, "idempotency_keys": good} {
		if got := scan[int](t, c, "SELECT count(*) FROM "+table); got != n {
			t.Errorf("%s has %d rows, want %d", table, got, n)
		}
	}
}

// TestBadInputREST: what only JSON over HTTP can get wrong.
func TestBadInputREST(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	before := e.stored(t)
	s := `"payload":"` + secret + `"`
	for _, c := range []struct{ body, field string }{
		{`{"type":"x",` + s + `,"nope":1}`, "nope"},
		{`{"type":"x",` + s + `,"retry_policy":{"nope":1}}`, "retry_policy.nope"},
		{`{"type":"x",` + s + `,"retry_policy":"often"}`, "retry_policy"},
		{`{"type":"x",` + s + `,"type":"y"}`, "type"},
		{`{"type":7,` + s + `}`, "type"},
		{`{"type":{` + s + `}}`, "type"},
		{`{"type":[{` + s + `}]}`, "type"},
		{`{"type":"x",` + s + `,"timeout_ms":2147483648}`, "timeout_ms"},
		{`{"type":"x",` + s + `,"timeout_ms":1.5}`, "timeout_ms"},
		{`{"type":"x",` + s + `,"timeout_ms":-1}`, "timeout_ms"},
		{`{"type":"x",` + s + `,"max_retries":1e99}`, "max_retries"},
		{`{"type":"x",` + s + `,"max_retries":true}`, "max_retries"},
		{`{"type":"x",` + s + `,"schedule_type":"delay","delay_ms":9223372036854775808}`, "delay_ms"},
		{`{"type":"x",` + s + `,"schedule_type":"at","scheduled_at":"2026-02-25T12:00:00"}`, "scheduled_at"},
		{`{"type":"x",` + s + `,"schedule_type":"at","scheduled_at":"2026-02-25"}`, "scheduled_at"},
		{`{"type":"x",` + s + `,"schedule_type":"at","scheduled_at":1772020800}`, "scheduled_at"},
		{`{"type":"x",` + s + `,"schedule_type":"at","scheduled_at":"2026-02-30T12:00:00Z"}`, "scheduled_at"},
		{`{"type":"x",` + s + `,"schedule_type":"at","scheduled_at":"0001-01-01T00:00:00Z"}`, "scheduled_at"},
		{`{"type":"x",` + s + `,"schedule_type":"at","scheduled_at":"10000-01-01T00:00:00Z"}`, "scheduled_at"},
		{`{"type":"x",` + s + `,"schedule_type":"at","scheduled_at":"9999-12-31T23:59:59Z"}`, "scheduled_at"},
		{`{"type":"x",` + s + `,"schedule_type":"at"}`, "scheduled_at"},
		{`{"type":"x","payload":{"a":"` + secret + `\u0000"}}`, "payload"},
		{`{"type":"x","payload":` + secret + `}`, "payload"},
		{`{"type":"x","payload":"` + secret + "\x01" + `"}`, "payload"},
		{`{"type":"x","payload":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + `}`, "payload"},
		{`{"type":"x","payload":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`, "payload"},
		{`{"type":"x","payload":"` + strings.Repeat("a", 256*1024-1) + `"}`, "payload"},
		{`{"type":"x","task_id":"a\u0000"}`, "task_id"},
		{`{"type":"` + "\xff" + `"}`, ""},
		{`["` + secret + `"]`, ""},
		{`"` + secret + `"`, ""},
		{`{"type":"x",` + s, ""},
		{``, ""},
	} {
		p := e.post(t, "/api/v1/tasks", c.body).refused(t, http.StatusBadRequest, protocol.CodeInputInvalid, c.field)
		if strings.Contains(p.Detail, secret) || len(p.Detail) > 600 {
			t.Errorf("%.100q: detail leaks the payload or is too long: %.700s", c.body, p.Detail)
		}
		if t.Failed() {
			t.Fatalf("case %.200q", c.body)
		}
	}
	for _, c := range []struct{ body, field string }{
		{`{"tasks":[]}`, "tasks"},
		{`{}`, "tasks"},
		{`{"tasks":[` + strings.Repeat(`{"type":"x"},`, 1000) + `{"type":"x"}]}`, "tasks"},
		{`{"tasks":[{"type":"x",` + s + `},{"type":"x","nope":1}]}`, "tasks[1].nope"},
		{`{"tasks":[{"type":"x",` + s + `,"retry_policy":{"base_ms":"many"}}]}`, "tasks[0].retry_policy.base_ms"},
		{`{"tasks":{"type":"x",` + s + `}}`, "tasks"},
		{`{"tasks":["what"]}`, "tasks[0]"},
		{`{"tasks":[[{` + s + `}]]}`, "tasks[0]"},
		{`{"tasks":[{"type":"x",` + s + `}],"ids_only":{` + s + `}}`, "ids_only"},
		{`{"nope":[{` + s + `}]}`, "nope"},
	} {
		p := e.post(t, "/api/v1/tasks/batch", c.body).refused(t, http.StatusBadRequest, protocol.CodeInputInvalid, c.field)
		if strings.Contains(p.Detail, secret) {
			t.Errorf("%.100q: detail leaks the payload: %.700s", c.body, p.Detail)
		}
		if t.Failed() {
			t.Fatalf("case %.200q", c.body)
		}
	}
	if p := e.do(t, "POST", "/api/v1/tasks", "text/plain", `{"type":"x"}`).problem(t); p.Status != http.StatusUnsupportedMediaType {
		t.Errorf("%+v", p)
	}
	if after := e.stored(t); after != before {
		t.Errorf("stored %s, was %s", after, before)
	}
}

// TestOversizeMessage: a message over the transport's limit is refused with a
// status of its own.
func TestOversizeMessage(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	before := e.stored(t)
	big := `"` + strings.Repeat("a", 5<<20) + `"`
	e.post(t, "/api/v1/tasks", `{"type":"x","payload":`+big+`}`).refused(t, http.StatusRequestEntityTooLarge, protocol.CodeInputInvalid, "")
	for _, c := range []interface{ code() connect.Code }{rpcEnqueue{t, e, false, big}, rpcEnqueue{t, e, true, big}} {
		if got := c.code(); got != connect.CodeResourceExhausted {
			t.Errorf("%T: code %s", c, got)
		}
	}
	if after := e.stored(t); after != before {
		t.Errorf("stored %s, was %s", after, before)
	}
}

type rpcEnqueue struct {
	t       *testing.T
	e       *env
	grpc    bool
	payload string
}

func (r rpcEnqueue) code() connect.Code {
	c := r.e.rpc
	if r.grpc {
		c = r.e.grpc
	}
	_, err := c.Enqueue(r.t.Context(), connect.NewRequest(&penstockv1.EnqueueRequest{Type: "x", Payload: []byte(r.payload)}))
	return connect.CodeOf(err)
}

// TestBoundaries: what is just inside the bounds is accepted and comes back
// byte for byte.
func TestBoundaries(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	full := `"` + strings.Repeat("a", 256*1024-2) + `"`
	for _, p := range []string{
		full, `"\\u0000"`, `{"a":"\\\\u0000"}`, strings.Repeat("[", 64) + strings.Repeat("]", 64), `1e400`, `-0.0`, `12345678901234567890`,
		`"\ud83d\ude00"`, "\"\u2028 \U0001F600 ü\"", ` { "b" : 1 , "a" : [ ] } `, `"\u0001"`, `{"a":1,"a":2}`, `null`, `"` + "\x7f" + `"`,
	} {
		got := e.enqueue(t, &penstockv1.EnqueueRequest{Payload: []byte(p), ScheduleType: "delay", DelayMs: later})
		res, err := e.grpc.GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: got.TaskId}))
		if err != nil || string(res.Msg.Task.Payload) != p || string(got.Payload) != p {
			t.Errorf("payload %.60q: %.60q, %v", p, res.Msg.GetTask().GetPayload(), err)
		}
		r := e.get(t, "/api/v1/tasks/"+got.TaskId)
		if !json.Valid([]byte(r.body)) || !strings.Contains(r.body, strings.TrimSpace(p)) {
			t.Errorf("REST answer for %.60q: %.400s", p, r.body)
		}
	}
	for _, r := range []*penstockv1.EnqueueRequest{
		{Type: strings.Repeat("t", 128)}, {Type: "a.b_c-d:e/F9"}, {TaskId: strings.Repeat("i", 255)}, {TaskId: "任务 1/2?#%"},
		{IdempotencyKey: strings.Repeat("k", 255), IdempotencyScope: strings.Repeat("s", 255)}, {Tenant: strings.Repeat("t", 64), Queue: strings.Repeat("q", 64)},
		{TimeoutMs: ptr(int32(1))}, {TimeoutMs: ptr(int32(math.MaxInt32))}, {MaxRetries: ptr(int32(0))}, {MaxRetries: ptr(int32(1000))},
		{ScheduleType: "at", ScheduledAt: &timestamppb.Timestamp{}}, {ScheduleType: "at", ScheduledAt: timestamppb.New(time.Now().Add(5*365*24*time.Hour - time.Minute))},
		{ScheduleType: "delay", DelayMs: (5 * 365 * 24 * time.Hour).Milliseconds()}, {ScheduleType: "delay"},
		{RetryPolicy: &penstockv1.RetryPolicy{}}, {RetryPolicy: &penstockv1.RetryPolicy{Strategy: "schedule", ScheduleMs: []int64{1, 365 * 24 * 3600 * 1000}}},
	} {
		r.Payload = []byte("1")
		got := e.enqueue(t, r)
		res, err := e.rpc.GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: got.TaskId, Tenant: r.Tenant}))
		if err != nil || res.Msg.Task.TaskId != got.TaskId || r.TaskId != "" && got.TaskId != r.TaskId {
			t.Errorf("%v: %v", r, err)
		}
	}
}
