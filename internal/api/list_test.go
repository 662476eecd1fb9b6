package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// TestListPaging: pages are complete, without repeats, newest first, though
// all tasks of a batch have the same created_at.
func TestListPaging(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const n = 137
	req := &penstockv1.EnqueueBatchRequest{}
	for i := range n {
		r := pending()
		if i%2 == 0 {
			r.TaskId = fmt.Sprint("n", i) // sorts elsewhere than UUIDv7s
		}
		req.Tasks = append(req.Tasks, r)
	}
	res, err := e.rpc.EnqueueBatch(t.Context(), connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, r := range res.Msg.Results {
		want[r.TaskId] = true
	}
	if times := scan[int](t, e.conn(t), "SELECT count(DISTINCT created_at) FROM tasks"); times != 1 {
		t.Fatalf("%d created_at, the test needs equal ones", times)
	}
	for _, size := range []int32{1, 10, n - 1, n, n + 1, 1000} {
		got := map[string]bool{}
		token, pages := "", 0
		for {
			res, err := e.rpc.ListTasks(t.Context(), connect.NewRequest(&penstockv1.ListTasksRequest{PageSize: size, PageToken: token}))
			if err != nil {
				t.Fatal(err)
			}
			pages++
			for _, task := range res.Msg.Tasks {
				if got[task.TaskId] || !want[task.TaskId] {
					t.Fatalf("size %d: %s came twice or from nowhere", size, task.TaskId)
				}
				if len(task.Payload) != 0 {
					t.Errorf("a listed task has its payload")
				}
				got[task.TaskId] = true
			}
			if token = res.Msg.NextPageToken; token == "" {
				break
			}
		}
		if len(got) != n || pages != (n+int(size)-1)/int(size) {
			t.Errorf("size %d: %d tasks on %d pages", size, len(got), pages)
		}
	}
}

func TestListFiltersAndCounts(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	start := time.Now().Add(-time.Minute)
	mk := func(tenant, queue, typ string, hold bool) string {
		r := &penstockv1.EnqueueRequest{Tenant: tenant, Queue: queue, Type: typ}
		if hold {
			r.ScheduleType, r.DelayMs = "delay", later
		}
		return e.enqueue(t, r).TaskId
	}
	a, b, c, d := mk("t1", "q1", "x", true), mk("t1", "q2", "y", true), mk("t2", "q1", "x", false), mk("", "", "y", false)
	now := timestamppb.New(time.Now().Add(time.Minute))
	for name, f := range map[string]struct {
		req  *penstockv1.ListTasksRequest
		want []string
	}{
		"all": {&penstockv1.ListTasksRequest{}, []string{d, c, b, a}}, "tenant": {&penstockv1.ListTasksRequest{Tenant: "t1"}, []string{b, a}},
		"default tenant": {&penstockv1.ListTasksRequest{Tenant: "default"}, []string{d}}, "queue": {&penstockv1.ListTasksRequest{Queue: "q1"}, []string{c, a}},
		"type": {&penstockv1.ListTasksRequest{Type: "y"}, []string{d, b}}, "state": {&penstockv1.ListTasksRequest{States: []string{"pending"}}, []string{b, a}},
		"states": {&penstockv1.ListTasksRequest{States: []string{"queued", "succeeded"}}, []string{d, c}}, "none": {&penstockv1.ListTasksRequest{Tenant: "nobody"}, nil},
		"several": {&penstockv1.ListTasksRequest{Tenant: "t1", Type: "x", Queue: "q1", States: []string{"pending"}}, []string{a}},
		"after":   {&penstockv1.ListTasksRequest{CreatedAfter: now}, nil}, "before": {&penstockv1.ListTasksRequest{CreatedBefore: timestamppb.New(start)}, nil},
		"between":       {&penstockv1.ListTasksRequest{CreatedAfter: timestamppb.New(start), CreatedBefore: now, Type: "x"}, []string{c, a}},
		"whole history": {&penstockv1.ListTasksRequest{CreatedAfter: &timestamppb.Timestamp{Seconds: -62135596800}, CreatedBefore: &timestamppb.Timestamp{Seconds: 253402300799}}, []string{d, c, b, a}},
	} {
		res, err := e.rpc.ListTasks(t.Context(), connect.NewRequest(f.req))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, task := range res.Msg.Tasks {
			got = append(got, task.TaskId)
		}
		if !slices.Equal(got, f.want) {
			t.Errorf("%s: %v, want %v", name, got, f.want)
		}
	}
	for _, f := range []struct {
		req  *penstockv1.CountTasksRequest
		want string
	}{
		{&penstockv1.CountTasksRequest{}, "pending 2 queued 2 "}, {&penstockv1.CountTasksRequest{Tenant: "t1"}, "pending 2 "}, {&penstockv1.CountTasksRequest{Queue: "q1"}, "pending 1 queued 1 "},
		{&penstockv1.CountTasksRequest{Type: "y", Tenant: "default"}, "queued 1 "}, {&penstockv1.CountTasksRequest{Type: "z"}, ""},
	} {
		res, err := e.rpc.CountTasks(t.Context(), connect.NewRequest(f.req))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, n := range res.Msg.Counts {
			got += fmt.Sprintf("%s %d ", n.State, n.Count)
		}
		if got != f.want {
			t.Errorf("count %v: %q, want %q", f.req, got, f.want)
		}
	}
}

func TestListEventsPaging(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.enqueue(t, pending()).TaskId
	c := e.conn(t)
	const n = 25
	if _, err := c.Exec(t.Context(), `INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, actor, trace_id, occurred_at)
		SELECT $1::uuid, s, 'task.progress', 'pending', 'pending', 1, 1, 'worker', 't', now() FROM generate_series(2, $2::int) s`, id, n); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int32{1, 7, n - 1, n, n + 1, 0} {
		var seqs []int32
		for after := int32(0); ; {
			res, err := e.grpc.ListEvents(t.Context(), connect.NewRequest(&penstockv1.ListEventsRequest{TaskId: id, AfterSeq: after, PageSize: size}))
			if err != nil {
				t.Fatal(err)
			}
			for _, ev := range res.Msg.Events {
				seqs = append(seqs, ev.Seq)
				if ev.TaskId != id || ev.RunId != id+":1" || ev.EventId != fmt.Sprintf("evt_%s_%d", id, ev.Seq) || ev.IdempotencyKey != id {
					t.Errorf("%v", ev)
				}
			}
			if after = res.Msg.NextAfterSeq; after == 0 {
				break
			}
		}
		for i, s := range seqs {
			if int(s) != i+1 {
				t.Fatalf("size %d: %v", size, seqs)
			}
		}
		if len(seqs) != n {
			t.Errorf("size %d: %d events", size, len(seqs))
		}
	}
}

// TestCreatePayloadOfTheContract: the create request and the answer to its
// repetition, as the scheduling contract shows them.
func TestCreatePayloadOfTheContract(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const body = `{
  "task_id": "task_20260225_0001",
  "type": "notify",
  "schedule_type": "at",
  "scheduled_at": "2026-02-25T12:00:00Z",
  "timeout_ms": 30000,
  "max_retries": 2,
  "idempotency_key": "order_1001",
  "idempotency_scope": "tenant_a",
  "payload": {
    "channel": "dingtalk",
    "request_id": "req-1"
  }
}`
	for i, hit := range []bool{false, true} {
		r := e.post(t, "/api/v1/tasks", body)
		if r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		got := object(t, r.body)
		task, _ := got["task"].(map[string]any)
		if got["idempotent_hit"] != hit || len(got) != 2 {
			t.Errorf("answer %d: %s", i, r.body)
		}
		want := map[string]string{
			"task_id": `task_20260225_0001`, "schedule_type": `at`, "attempt": `1`, "max_retries": `2`, "timeout_ms": `30000`, "idempotency_key": `order_1001`,
			"last_error_code": `<nil>`, "last_error_reason": `<nil>`, "started_at": `<nil>`, "finished_at": `<nil>`, "state": `queued`, "scheduled_at": "2026-02-25T12:00:00Z",
			"idempotency_scope": "tenant_a", "retry_count": "0", "next_retry_at": `<nil>`, "result": `<nil>`,
		}
		for name, value := range want {
			v, ok := task[name]
			if !ok || fmt.Sprint(v) != value {
				t.Errorf("answer %d: %s is %v (present: %v), want %s", i, name, v, ok, value)
			}
			if _, isText := v.(string); isText && (value == "1" || value == "2" || value == "30000" || value == "0") {
				t.Errorf("answer %d: %s is a string", i, name)
			}
		}
		for _, name := range []string{"created_at", "updated_at"} {
			s, _ := task[name].(string)
			if _, err := time.Parse(time.RFC3339Nano, s); err != nil || !strings.HasSuffix(s, "Z") {
				t.Errorf("answer %d: %s is %q", i, name, s)
			}
		}
	}
	e.post(t, "/api/v1/tasks", strings.Replace(body, "req-1", "req-2", 1)).refused(t, 409, "TASK_DUPLICATE", "payload")
	header := e.do(t, "POST", "/api/v1/tasks", "application/json", `{"type":"x"}`, "Idempotency-Key", `"from a header"`)
	again := e.do(t, "POST", "/api/v1/tasks", "application/json", `{"type":"x","idempotency_key":"from a header"}`)
	if object(t, header.body)["idempotent_hit"] != false || object(t, again.body)["idempotent_hit"] != true {
		t.Errorf("the header's key: %s, %s", header.body, again.body)
	}
	if n := scan[int](t, e.conn(t), "SELECT count(*) FROM event_log WHERE type = 'task.created'"); n != 2 {
		t.Errorf("%d created events, want 2", n)
	}
}
