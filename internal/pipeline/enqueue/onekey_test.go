package enqueue_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
	"github.com/penstock-dev/penstock/task"
)

// A key is one task's within its scope, whatever the type. Who uses one for two
// types is told by every way in: which task has it, of which type, in what the
// request differs, and what to do. What is proposed works.
func TestOneKeyForTwoTypes(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	c := testkit.Client(t, o.URL)
	tasks := penstockv1connect.NewTaskServiceClient(http.DefaultClient, o.URL)
	var first *penstockv1.Task
	testkit.Eventually(t, "the first task is enqueued", func() (bool, string) {
		res, err := tasks.Enqueue(t.Context(), connect.NewRequest(&penstockv1.EnqueueRequest{Type: "order.charge", Payload: []byte(`{"cents":1}`), IdempotencyKey: "order-42"}))
		if err != nil {
			return false, err.Error()
		}
		first = res.Msg.Task
		return true, ""
	})
	ship := func(scope string) *penstockv1.EnqueueRequest {
		return &penstockv1.EnqueueRequest{Type: "order.ship", Payload: []byte(`{"to":"here"}`), IdempotencyKey: "order-42", IdempotencyScope: scope}
	}
	type answer struct{ code, field, message, id string }
	of := func(code, field, message string) answer { return answer{code, field, message, ""} }
	rpcError := func(err error) answer {
		info := rpc.InfoOf(err)
		return of(info.GetCode(), info.GetField(), info.GetMessage())
	}
	ways := map[string]func(scope string) answer{
		"RPC": func(scope string) answer {
			res, err := tasks.Enqueue(t.Context(), connect.NewRequest(ship(scope)))
			if err != nil {
				return rpcError(err)
			}
			return answer{id: res.Msg.Task.TaskId}
		},
		"batch": func(scope string) answer {
			res, err := tasks.EnqueueBatch(t.Context(), connect.NewRequest(&penstockv1.EnqueueBatchRequest{Tasks: []*penstockv1.EnqueueRequest{ship(scope), {Type: "x"}}}))
			if err != nil {
				return rpcError(err)
			}
			if e := res.Msg.Results[0].Error; e != nil {
				return of(e.Code, e.Field, e.Message)
			}
			return answer{id: res.Msg.Results[0].TaskId}
		},
		"graph": func(scope string) answer {
			a, b := ship(scope), &penstockv1.EnqueueRequest{Type: "x", DependsOn: []*penstockv1.Dependency{{Name: "ship"}}}
			a.Name = "ship"
			res, err := tasks.EnqueueBatch(t.Context(), connect.NewRequest(&penstockv1.EnqueueBatchRequest{Tasks: []*penstockv1.EnqueueRequest{a, b}}))
			if err != nil {
				got := rpcError(err)
				got.field = strings.TrimPrefix(got.field, "tasks[0].")
				return got
			}
			return answer{id: res.Msg.Results[0].TaskId}
		},
		"REST": func(scope string) answer {
			var r struct {
				Code, Field, Detail string
				Task                struct {
					ID string `json:"task_id"`
				}
			}
			body := `{"type":"order.ship","payload":{"to":"here"},"idempotency_key":"order-42","idempotency_scope":"` + scope + `"}`
			if status := post(t, o.URL+"/api/v1/tasks", body, &r); r.Code != "" && status != http.StatusConflict {
				t.Errorf("status %d", status)
			}
			return answer{r.Code, r.Field, r.Detail, r.Task.ID}
		},
		"Go SDK": func(scope string) answer {
			type to struct {
				To string `json:"to"`
			}
			res, err := task.Define[to]("order.ship").Enqueue(t.Context(), c, to{"here"}, task.Key("order-42"), task.Scope(scope))
			if e := new(protocol.Error); errors.As(err, &e) {
				return of(string(e.Code), e.Field, e.Message)
			} else if err != nil {
				return answer{message: err.Error()}
			}
			return answer{id: res.TaskID}
		},
	}
	shipped := map[string]bool{}
	for name, way := range ways {
		got := way("")
		if got.code != string(protocol.CodeDuplicate) || got.field != "type" || got.id != "" {
			t.Errorf("%s: %+v, want TASK_DUPLICATE of type", name, got)
			continue
		}
		for _, part := range []string{`"order.ship"`, first.TaskId, `"order.charge"`, "payload differs too", `idempotency_key "order-42" in the scope "default"`, "another key", `another idempotency_scope, such as "default/order.ship"`} {
			if !strings.Contains(got.message, part) {
				t.Errorf("%s: the error does not tell %s: %s", name, part, got.message)
			}
		}
		if strings.Contains(got.message, "here") || strings.Contains(got.message, "cents") {
			t.Errorf("%s: the error tells of payloads: %s", name, got.message)
		}
		got = way("default/order.ship")
		if got.code != "" || got.id == "" {
			t.Errorf("%s, in the scope that was proposed: %+v", name, got)
		}
		shipped[got.id] = true
	}
	if len(shipped) != 1 || shipped[first.TaskId] {
		t.Errorf("the second type's key made the tasks %v, want one", shipped)
	}
	var n int
	if err := s.SQL(t).QueryRow(t.Context(), "SELECT count(*) FROM tasks WHERE idempotency_key = 'order-42'").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d tasks have the key, %v; want 2", n, err)
	}
}

// Of another tenant's task, which has the id that was asked for, nothing is told
// but that it is there.
func TestAConflictTellsNothingOfStrangers(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	first := e.must(t, req(func(r *penstockv1.EnqueueRequest) { r.Type = "their.secret" }, id("0198c0de-0000-7000-8000-000000000000")), false)
	_, err := e.enqueue(t, req(id(first.TaskId)))
	if info := rpc.InfoOf(err); info.GetField() != "type" || !strings.Contains(info.GetMessage(), "their.secret") {
		t.Errorf("the own tenant is told %v", info)
	}
	recent := newUUID(t)
	e.must(t, req(func(r *penstockv1.EnqueueRequest) { r.Type, r.Tenant = "their.secret", "them" }, id(recent)), false)
	_, err = e.enqueue(t, req(id(recent)))
	if info := rpc.InfoOf(err); info.GetCode() != string(protocol.CodeDuplicate) || info.GetField() != "tenant" || strings.Contains(info.GetMessage(), "secret") {
		t.Errorf("a stranger is told %v", info)
	}
}

func newUUID(t *testing.T) string {
	t.Helper()
	u, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	return u.String()
}
