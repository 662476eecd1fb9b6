package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

const (
	menPayload = `{"channel":"dingtalk","request_id":"req-1","big":12345678901234567890}`
	menBody    = `{"task_id":"task_20260225_0001","type":"notify","schedule_type":"at",` +
		`"scheduled_at":"2026-02-25T12:00:00Z","timeout_ms":30000,"max_retries":2,` +
		`"idempotency_key":"order_1001","idempotency_scope":"tenant_a","payload":` + menPayload + `}`
)

// echo answers an enqueue with the task as it was asked for.
func echo(_ context.Context, r *penstockv1.EnqueueRequest) (*penstockv1.EnqueueResponse, error) {
	return &penstockv1.EnqueueResponse{Task: &penstockv1.Task{
		TaskId: r.GetTaskId(), Type: r.GetType(), ScheduledAt: r.GetScheduledAt(), TimeoutMs: r.GetTimeoutMs(),
		IdempotencyKey: r.GetIdempotencyKey(), IdempotencyScope: r.GetIdempotencyScope(),
		Payload: r.GetPayload(), Delivery: 1 << 40,
	}}, nil
}

func TestRESTEnqueue(t *testing.T) {
	var got *penstockv1.EnqueueRequest
	s := serve(t, &fakeService{enqueue: func(ctx context.Context, r *penstockv1.EnqueueRequest) (*penstockv1.EnqueueResponse, error) {
		got = r
		return echo(ctx, r)
	}}, Options{})
	for _, contentType := range []string{"application/json", "application/json;charset=UTF-8", "Application/JSON; charset=utf-8"} {
		r := s.do("POST", "/api/v1/tasks", menBody, "Content-Type: "+contentType)
		if r.status != http.StatusOK {
			t.Fatalf("%d %s", r.status, r.body)
		}
		if string(got.GetPayload()) != menPayload {
			t.Errorf("payload %s", got.GetPayload())
		}
		if got.GetScheduledAt().GetSeconds() != 1772020800 || got.GetTimeoutMs() != 30000 || got.GetMaxRetries() != 2 ||
			got.GetIdempotencyKey() != "order_1001" || got.GetIdempotencyScope() != "tenant_a" {
			t.Errorf("%v", got)
		}
		if !strings.Contains(r.body, `"payload":`+menPayload) {
			t.Errorf("payload is not verbatim in %s", r.body)
		}
		task := object(t, r.body)["task"].(map[string]any)
		if task["timeout_ms"] != json.Number("30000") || task["delivery"] != json.Number("1099511627776") {
			t.Errorf("%v, %v", task["timeout_ms"], task["delivery"])
		}
		for _, name := range []string{"last_error_code", "started_at", "result", "retry_policy"} {
			if value, ok := task[name]; !ok || value != nil {
				t.Errorf("%s is %v, %v", name, value, ok)
			}
		}
		if r.header.Get("Content-Type") != "application/json" {
			t.Error(r.header)
		}
	}
}

func TestRESTEveryMethod(t *testing.T) {
	seen := map[string]string{}
	note := func(name string, m proto.Message) {
		b, _ := MarshalJSON(nil, m)
		seen[name] = string(b)
	}
	svc := &fakeService{
		batch: func(_ context.Context, r *penstockv1.EnqueueBatchRequest) (*penstockv1.EnqueueBatchResponse, error) {
			note("batch", r)
			return &penstockv1.EnqueueBatchResponse{Results: []*penstockv1.EnqueueResult{{TaskId: "a"}}}, nil
		},
		get: func(_ context.Context, r *penstockv1.GetTaskRequest) (*penstockv1.GetTaskResponse, error) {
			note("get", r)
			return &penstockv1.GetTaskResponse{Task: &penstockv1.Task{Payload: []byte(menPayload)}}, nil
		},
		list: func(_ context.Context, r *penstockv1.ListTasksRequest) (*penstockv1.ListTasksResponse, error) {
			note("list", r)
			return &penstockv1.ListTasksResponse{NextPageToken: "n"}, nil
		},
		count: func(_ context.Context, r *penstockv1.CountTasksRequest) (*penstockv1.CountTasksResponse, error) {
			note("count", r)
			return &penstockv1.CountTasksResponse{Counts: []*penstockv1.StateCount{{State: "queued", Count: 5}}}, nil
		},
		queue: func(_ context.Context, r *penstockv1.GetQueueRequest) (*penstockv1.GetQueueResponse, error) {
			note("queue", r)
			return &penstockv1.GetQueueResponse{Queue: "q", Backlog: 7}, nil
		},
		wait: func(_ context.Context, r *penstockv1.WaitTaskRequest) (*penstockv1.WaitTaskResponse, error) {
			note("wait", r)
			return &penstockv1.WaitTaskResponse{Done: true}, nil
		},
		events: func(_ context.Context, r *penstockv1.ListEventsRequest) (*penstockv1.ListEventsResponse, error) {
			note("events", r)
			return &penstockv1.ListEventsResponse{Events: []*penstockv1.Event{{Data: []byte(`{"b":1,"a":2}`)}}}, nil
		},
	}
	s := serve(t, svc, Options{})
	for _, tc := range []struct{ name, method, path, body, request, response string }{
		{"batch", "POST", "/api/v1/tasks/batch", `{"tasks":[{"type":"x","payload":{"b": 1,"a":2}}]}`, `"payload":{"b": 1,"a":2}`, `"task_id":"a"`},
		{"get", "GET", "/api/v1/tasks/t1?tenant=a", "", `"task_id":"t1"`, `"payload":` + menPayload},
		{"list", "GET", "/api/v1/tasks?states=a&states=b&page_size=5&created_after=2026-01-01T00:00:00Z", "", `"states":["a","b"],"page_size":5`, `"next_page_token":"n"`},
		{"count", "GET", "/api/v1/task-counts?queue=q", "", `"queue":"q"`, `"count":5`},
		{"queue", "GET", "/api/v1/queues/q", "", `"queue":"q"`, `"backlog":7`},
		{"wait", "GET", "/api/v1/tasks/t1/wait?timeout_ms=9", "", `"timeout_ms":9`, `"done":true`},
		{"events", "GET", "/api/v1/tasks/t1/events?after_seq=4", "", `"after_seq":4`, `"data":{"b":1,"a":2}`},
	} {
		r := s.do(tc.method, tc.path, tc.body)
		if r.status != http.StatusOK || !strings.Contains(compact(r.body), tc.response) {
			t.Errorf("%s: %d %s", tc.name, r.status, r.body)
		}
		if !strings.Contains(compact(seen[tc.name]), compact(tc.request)) {
			t.Errorf("%s: request %s", tc.name, seen[tc.name])
		}
	}
}

// compact removes spaces; protojson puts some at random.
func compact(s string) string { return strings.ReplaceAll(s, " ", "") }

func TestRESTPathIDs(t *testing.T) {
	var got string
	svc := &fakeService{
		get: func(_ context.Context, r *penstockv1.GetTaskRequest) (*penstockv1.GetTaskResponse, error) {
			got = r.GetTaskId()
			return &penstockv1.GetTaskResponse{}, nil
		},
		events: func(_ context.Context, r *penstockv1.ListEventsRequest) (*penstockv1.ListEventsResponse, error) {
			got = r.GetTaskId()
			return &penstockv1.ListEventsResponse{}, nil
		},
	}
	s := serve(t, svc, Options{})
	for path, id := range map[string]string{
		"a%2Fb": "a/b", "a%2F%2Fb": "a//b", "a%20b": "a b", "a+b": "a+b", "%E4%BB%BB%E5%8A%A1": "任务", "order:1:x": "order:1:x",
		"a%3Ab": "a:b", "a%252Fb": "a%2Fb", "100%25": "100%", "batch": "batch", "%2E%2E": "..", "a;b=c": "a;b=c", "*": "*",
		"a%3Fb%23c": "a?b#c", "x:": "x:", "a%22b%5C": `a"b\`,
	} {
		for _, suffix := range []string{"", "/events"} {
			got = ""
			if r := s.do("GET", "/api/v1/tasks/"+path+suffix, ""); r.status != http.StatusOK || got != id {
				t.Errorf("%s%s: got %q, want %q: %d %s", path, suffix, got, id, r.status, r.body)
			}
		}
	}
	if r := s.do("GET", "/api/v1/tasks/%ff", ""); r.problem(t).Status != http.StatusBadRequest {
		t.Errorf("%v", r)
	}
}

func TestRESTBadRequests(t *testing.T) {
	svc := &fakeService{
		enqueue: func(context.Context, *penstockv1.EnqueueRequest) (*penstockv1.EnqueueResponse, error) {
			t.Error("the service was called")
			return nil, errors.New("called")
		},
		list: func(context.Context, *penstockv1.ListTasksRequest) (*penstockv1.ListTasksResponse, error) {
			t.Error("the service was called")
			return nil, errors.New("called")
		},
	}
	s := serve(t, svc, Options{})
	for _, tc := range []struct {
		method, path, body string
		header             string
		status             int
		code, field        string
	}{
		{"POST", "/api/v1/tasks", `{"nope":1}`, "", 400, "TASK_INPUT_INVALID", "nope"},
		{"POST", "/api/v1/tasks", `{"timeout_ms":"x"}`, "", 400, "TASK_INPUT_INVALID", "timeout_ms"},
		{"POST", "/api/v1/tasks", `{"type":`, "", 400, "TASK_INPUT_INVALID", "type"},
		{"POST", "/api/v1/tasks", ``, "", 400, "TASK_INPUT_INVALID", ""},
		{"POST", "/api/v1/tasks?type=x", `{}`, "", 400, "TASK_INPUT_INVALID", ""},
		{"POST", "/api/v1/tasks", `{}`, "Content-Type: text/plain", 415, "", ""},
		{"POST", "/api/v1/tasks", `{}`, "Content-Encoding: br", 415, "", ""},
		{"POST", "/api/v1/tasks", `{}`, `Idempotency-Key: "a`, 400, "TASK_INPUT_INVALID", "idempotency_key"},
		{"GET", "/api/v1/tasks?nope=1", "", "", 400, "TASK_INPUT_INVALID", "nope"},
		{"GET", "/api/v1/tasks?page_size=x", "", "", 400, "TASK_INPUT_INVALID", "page_size"},
		{"GET", "/api/v1/tasks?created_after=x", "", "", 400, "TASK_INPUT_INVALID", "created_after"},
		{"GET", "/api/v1/tasks?tenant=%zz", "", "", 400, "TASK_INPUT_INVALID", ""},
		{"GET", "/api/v1/tasks?tenant=a&tenant=b", "", "", 400, "TASK_INPUT_INVALID", "tenant"},
		{"GET", "/api/v1/tasks?tenant=%ff", "", "", 400, "TASK_INPUT_INVALID", ""},
		{"GET", "/api/v1/tasks", "{}", "", 400, "TASK_INPUT_INVALID", ""},
		{"DELETE", "/api/v1/tasks/x", "", "", 405, "", ""},
		{"GET", "/api/v1/nope", "", "", 404, "", ""},
		{"GET", "/nope", "", "", 404, "", ""},
		{"POST", "/penstock.v1.TaskService/Nope", "{}", "", 404, "", ""},
		{"POST", "/api/v1/events/watch", "{}", "", 405, "", ""},
		{"POST", "/readyz", "{}", "", 405, "", ""},
	} {
		var headers []string
		if tc.header != "" {
			headers = append(headers, tc.header)
		}
		r := s.do(tc.method, tc.path, tc.body, headers...)
		p := r.problem(t)
		if p.Status != tc.status || p.Code != tc.code || p.Field != tc.field || p.Retryable || p.Title == "" || p.Detail == "" {
			t.Errorf("%s %s %s: %s", tc.method, tc.path, tc.body, r.body)
		}
		if tc.status == 405 && r.header.Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", tc.method, tc.path)
		}
	}
	if logs := s.logs.String(); logs != "" {
		t.Errorf("bad requests are no errors of the server: %s", logs)
	}
}

func TestRESTErrors(t *testing.T) {
	var fail error
	s := serve(t, &fakeService{get: func(context.Context, *penstockv1.GetTaskRequest) (*penstockv1.GetTaskResponse, error) {
		return nil, fail
	}}, Options{})
	for _, tc := range []struct {
		err        error
		status     int
		typ, code  string
		retryable  bool
		retryAfter string
	}{
		{protocol.Errorf(protocol.CodeDuplicate, "type", "other fields"), 409, "urn:penstock:error:TASK_DUPLICATE", "TASK_DUPLICATE", false, ""},
		{fmt.Errorf("get: %w", protocol.Errorf(protocol.CodeNotFound, "", "no task")), 404, "urn:penstock:error:TASK_NOT_FOUND", "TASK_NOT_FOUND", false, ""},
		{protocol.Errorf(protocol.CodeInvalidTransition, "", "no"), 409, "urn:penstock:error:TASK_INVALID_TRANSITION", "TASK_INVALID_TRANSITION", false, ""},
		{Unavailable(errors.New("dial secret")), 503, "about:blank", "", true, "1"},
		{Overloaded(nil), 429, "about:blank", "", true, "1"},
		{context.DeadlineExceeded, 504, "about:blank", "", true, ""},
		{errors.New("secret"), 500, "about:blank", "", false, ""},
	} {
		fail = tc.err
		r := s.do("GET", "/api/v1/tasks/x", "")
		p := r.problem(t)
		if p.Status != tc.status || p.Type != tc.typ || p.Code != tc.code || p.Retryable != tc.retryable || r.header.Get("Retry-After") != tc.retryAfter {
			t.Errorf("%v: %s %v", tc.err, r.body, r.header)
		}
		if strings.Contains(r.body, "secret") {
			t.Errorf("leak: %s", r.body)
		}
	}
	logs := s.logs.String()
	if strings.Count(logs, "dial secret") != 1 || strings.Count(logs, "error=secret") != 1 ||
		!strings.Contains(logs, "procedure=/penstock.v1.TaskService/GetTask") {
		t.Errorf("logs: %s", logs)
	}
}

func TestRESTIdempotencyKey(t *testing.T) {
	s := serve(t, &fakeService{enqueue: echo}, Options{})
	for _, tc := range []struct {
		header, body string
		status       int
		key          string
	}{
		{`"order \"1\""`, `{}`, 200, `order "1"`},
		{`order-1001`, `{}`, 200, "order-1001"},
		{`"a"`, `{"idempotency_key":"a"}`, 200, "a"},
		{`"a"`, `{"idempotency_key":"b"}`, 400, ""},
	} {
		r := s.do("POST", "/api/v1/tasks", tc.body, "Idempotency-Key: "+tc.header)
		if r.status != tc.status {
			t.Errorf("%s %s: %d %s", tc.header, tc.body, r.status, r.body)
			continue
		}
		if tc.status != 200 {
			if p := r.problem(t); p.Field != "idempotency_key" || p.Code != "TASK_INPUT_INVALID" {
				t.Errorf("%s", r.body)
			}
			continue
		}
		if key := object(t, r.body)["task"].(map[string]any)["idempotency_key"]; key != tc.key {
			t.Errorf("%s: %v", tc.header, key)
		}
	}
}

func TestRESTTooLarge(t *testing.T) {
	const limit = 2000
	s := serve(t, &fakeService{enqueue: echo, batch: func(context.Context, *penstockv1.EnqueueBatchRequest) (*penstockv1.EnqueueBatchResponse, error) {
		return &penstockv1.EnqueueBatchResponse{}, nil
	}}, Options{MaxMessageBytes: limit, MaxBatchBytes: 2 * limit})
	body := func(size int) string {
		const head, tail = `{"payload":"`, `"}`
		return head + strings.Repeat("x", size-len(head)-len(tail)) + tail
	}
	// The client asks for gzip by itself and undoes it.
	if r := s.do("POST", "/api/v1/tasks", body(limit)); r.status != 200 || !strings.Contains(r.body, strings.Repeat("x", limit-14)) {
		t.Errorf("at the limit: %d %s", r.status, r.body)
	}
	over := s.do("POST", "/api/v1/tasks", body(limit+1))
	if p := over.problem(t); p.Status != 413 || p.Code != "TASK_INPUT_INVALID" || p.Retryable {
		t.Errorf("%s", over.body)
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/api/v1/tasks", io.MultiReader(strings.NewReader(body(limit+1))))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.http.Do(req) // chunked
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != 413 {
		t.Errorf("chunked: %d", resp.StatusCode)
	}
	if r := s.do("POST", "/api/v1/tasks/batch", `{"tasks":[`+body(limit+100)+`]}`); r.status != 200 {
		t.Errorf("batch: %d %s", r.status, r.body)
	}
}
