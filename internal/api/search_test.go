package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// searched has tasks of two tenants that were retried twice each.
func searched(t *testing.T) (e *env, ids []string) {
	t.Helper()
	e = newEnv(t)
	e.stores.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		worker.Handle(w, task.Define[struct{}]("flaky"), func(_ context.Context, j *task.Job[struct{}]) error {
			if j.Attempt < 3 {
				return errors.New("not yet")
			}
			return nil
		})
	})
	for i, r := range []*penstockv1.EnqueueRequest{{TraceId: "shared trace"}, {TraceId: "shared trace", Tenant: "other"}, {}, {TaskId: "named", TraceId: "trace-run-mine"}} {
		r.Type, r.Payload = "flaky", []byte("{}")
		res, err := e.rpc.Enqueue(t.Context(), connect.NewRequest(r))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, res.Msg.Task.TaskId)
		testkit.Eventually(t, fmt.Sprintf("task %d succeeds", i), func() (bool, string) {
			w, err := e.rpc.WaitTask(t.Context(), connect.NewRequest(&penstockv1.WaitTaskRequest{TaskId: ids[i], Tenant: r.Tenant}))
			if err != nil {
				return false, err.Error()
			}
			return w.Msg.Task.State == string(protocol.StateSucceeded), w.Msg.Task.State
		})
	}
	return e, ids
}

// search reads all pages.
func (e *env) search(t *testing.T, r *penstockv1.SearchEventsRequest) (out []*penstockv1.Event) {
	t.Helper()
	for {
		res, err := e.grpc.SearchEvents(t.Context(), connect.NewRequest(r))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, res.Msg.Events...)
		if r.PageToken = res.Msg.NextPageToken; r.PageToken == "" {
			return out
		}
	}
}

// tasksOf lists the tasks that events are about, in the order of ids.
func tasksOf(events []*penstockv1.Event, ids []string) string {
	var out []string
	for i, id := range ids {
		if slices.ContainsFunc(events, func(e *penstockv1.Event) bool { return e.TaskId == id }) {
			out = append(out, fmt.Sprint(i))
		}
	}
	return strings.Join(out, " ")
}

func TestSearchEvents(t *testing.T) {
	t.Parallel()
	e, ids := searched(t)
	first := e.search(t, &penstockv1.SearchEventsRequest{WorkflowId: ids[0]})
	middle := first[len(first)/2].OccurredAt
	for _, tt := range []struct {
		name string
		req  *penstockv1.SearchEventsRequest
		want string
	}{
		{"everything of the last day", &penstockv1.SearchEventsRequest{}, "0 1 2 3"},
		{"a tenant", &penstockv1.SearchEventsRequest{Tenant: "other"}, "1"},
		{"a workflow", &penstockv1.SearchEventsRequest{WorkflowId: ids[2]}, "2"},
		{"a workflow by name", &penstockv1.SearchEventsRequest{WorkflowId: "named"}, "3"},
		{"a workflow of another tenant, by its UUID", &penstockv1.SearchEventsRequest{WorkflowId: ids[1], Tenant: "other"}, "1"},
		{"a workflow of anybody, by its UUID", &penstockv1.SearchEventsRequest{WorkflowId: ids[1]}, "1"},
		{"a trace", &penstockv1.SearchEventsRequest{TraceId: "shared trace"}, "0 1"},
		{"a trace of a tenant", &penstockv1.SearchEventsRequest{TraceId: "shared trace", Tenant: "other"}, "1"},
		{"a trace within a workflow", &penstockv1.SearchEventsRequest{TraceId: "shared trace", WorkflowId: ids[0]}, "0"},
		{"a trace that was made", &penstockv1.SearchEventsRequest{TraceId: e.search(t, &penstockv1.SearchEventsRequest{WorkflowId: ids[2]})[0].TraceId}, "2"},
		{"a trace that only looks as if it were made", &penstockv1.SearchEventsRequest{TraceId: "trace-run-mine"}, "3"},
		{"no trace", &penstockv1.SearchEventsRequest{TraceId: "shared"}, ""},
		{"before", &penstockv1.SearchEventsRequest{Until: first[0].OccurredAt}, ""},
		{"until the middle of the first", &penstockv1.SearchEventsRequest{Until: middle}, "0"},
		{"after", &penstockv1.SearchEventsRequest{Since: timestamppb.New(time.Now().Add(time.Hour))}, ""},
	} {
		if got := tasksOf(e.search(t, tt.req), ids); got != tt.want {
			t.Errorf("%s: tasks %q, want %q", tt.name, got, tt.want)
		}
	}
	if got := e.search(t, &penstockv1.SearchEventsRequest{Types: []string{"task.retry_scheduled", "task.succeeded"}}); len(got) != 4*3 {
		t.Errorf("%d retries and successes, want 12", len(got))
	}
	for _, ev := range e.search(t, &penstockv1.SearchEventsRequest{WorkflowId: ids[0], Attempt: 2}) {
		if ev.Attempt != 2 || ev.TaskId != ids[0] || ev.RunId != ids[0]+":2" {
			t.Errorf("attempt 2 has %v", ev)
		}
	}
}

// Pages of any size give each event once, in order of time.
func TestSearchEventsPages(t *testing.T) {
	t.Parallel()
	e, ids := searched(t)
	all := e.search(t, &penstockv1.SearchEventsRequest{PageSize: 1000})
	if len(all) < 4*7 || tasksOf(all, ids) != "0 1 2 3" {
		t.Fatalf("%d events", len(all))
	}
	if !slices.IsSortedFunc(all, func(a, b *penstockv1.Event) int { return a.OccurredAt.AsTime().Compare(b.OccurredAt.AsTime()) }) {
		t.Error("not in order of time")
	}
	for _, size := range []int32{1, 2, 5} {
		got := e.search(t, &penstockv1.SearchEventsRequest{PageSize: size})
		if !slices.EqualFunc(got, all, func(a, b *penstockv1.Event) bool { return a.EventId == b.EventId }) {
			t.Errorf("pages of %d: %d events, want %d", size, len(got), len(all))
		}
	}
	got := e.search(t, &penstockv1.SearchEventsRequest{WorkflowId: ids[3], PageSize: 3})
	if len(got) < 7 || slices.ContainsFunc(got, func(e *penstockv1.Event) bool { return e.TaskId != "named" }) {
		t.Errorf("pages of a workflow: %d events", len(got))
	}
}

func TestListEventsFilters(t *testing.T) {
	t.Parallel()
	e, ids := searched(t)
	list := func(r *penstockv1.ListEventsRequest) (types, attempts string) {
		res, err := e.rpc.ListEvents(t.Context(), connect.NewRequest(r))
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range res.Msg.Events {
			types += strings.TrimPrefix(ev.Type, "task.") + " "
			attempts += fmt.Sprint(ev.Attempt) + " "
		}
		return types, attempts
	}
	if types, attempts := list(&penstockv1.ListEventsRequest{TaskId: ids[0], Attempt: 2}); types != "retry_scheduled claimed " || attempts != "2 2 " {
		t.Errorf("attempt 2: %s", types)
	}
	if types, _ := list(&penstockv1.ListEventsRequest{TaskId: ids[0], RunId: ids[0] + ":3"}); types != "retry_scheduled claimed succeeded " {
		t.Errorf("run 3: %s", types)
	}
	if types, _ := list(&penstockv1.ListEventsRequest{TaskId: "named", RunId: "named:1", Types: []string{"task.claimed"}}); types != "claimed " {
		t.Errorf("claims of run 1: %s", types)
	}
	if types, attempts := list(&penstockv1.ListEventsRequest{TaskId: ids[0], Types: []string{"task.retry_scheduled"}}); types != "retry_scheduled retry_scheduled " || attempts != "2 3 " {
		t.Errorf("retries: %s in attempts %s", types, attempts)
	}
}

// The state events are the projection of the log.
func TestListStateEvents(t *testing.T) {
	t.Parallel()
	e, ids := searched(t)
	for _, id := range []string{ids[0], "named"} {
		res, err := e.rpc.ListStateEvents(t.Context(), connect.NewRequest(&penstockv1.ListStateEventsRequest{TaskId: id}))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ev := range res.Msg.Events {
			p := ev.Payload
			got = append(got, fmt.Sprintf("%s>%s %d %s", p.FromState, p.ToState, p.Attempt, p.ReasonCode))
			if ev.Type != "task_state_changed" || ev.Source != "gateway.scheduler" || ev.SessionKey != "scheduler:default" || !strings.HasPrefix(ev.EventId, "evt_") || p.TaskId != id {
				t.Errorf("event %v", ev)
			}
		}
		want := []string{
			">ready 1 ", "ready>running 1 ", "running>ready 2 TASK_EXECUTION_FAILED", "ready>running 2 ", "running>ready 3 TASK_EXECUTION_FAILED", "ready>running 3 ", "running>succeeded 3 ",
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %q\nwant %q", id, got, want)
		}
	}
}

func TestGetWorkflow(t *testing.T) {
	t.Parallel()
	e, ids := searched(t)
	for _, id := range []string{ids[0], "named"} {
		res, err := e.rpc.GetWorkflow(t.Context(), connect.NewRequest(&penstockv1.GetWorkflowRequest{WorkflowId: id}))
		if err != nil {
			t.Fatal(err)
		}
		w := res.Msg
		last := e.search(t, &penstockv1.SearchEventsRequest{WorkflowId: id, Types: []string{"task.retry_scheduled"}, Attempt: 3})
		if w.Status != "succeeded" || w.Tasks != 1 || w.OpenTasks != 0 || w.RetryContext.CurrentAttempt != 3 || len(last) != 1 || w.RetryContext.LastBackoff != last[0].BackoffDelayMs.GetValue() {
			t.Errorf("%s: %v, last retry %v", id, w, last)
		}
	}
}

// What is wrong with a request is told with the field, and the workflow that is
// not there is not found.
func TestSearchRefusals(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	now := timestamppb.Now()
	search := func(r *penstockv1.SearchEventsRequest) error {
		_, err := e.rpc.SearchEvents(t.Context(), connect.NewRequest(r))
		return err
	}
	list := func(r *penstockv1.ListEventsRequest) error {
		r.TaskId = protocol.NameID("a", "b").String()
		_, err := e.rpc.ListEvents(t.Context(), connect.NewRequest(r))
		return err
	}
	workflow := func(id string) error {
		_, err := e.rpc.GetWorkflow(t.Context(), connect.NewRequest(&penstockv1.GetWorkflowRequest{WorkflowId: id}))
		return err
	}
	long := strings.Repeat("x", 256)
	for _, tt := range []struct {
		field string
		err   error
	}{
		{"page_size", search(&penstockv1.SearchEventsRequest{PageSize: 1001})}, {"page_size", search(&penstockv1.SearchEventsRequest{PageSize: -1})},
		{"types", search(&penstockv1.SearchEventsRequest{Types: []string{"task.nonsense"}})}, {"attempt", search(&penstockv1.SearchEventsRequest{Attempt: -1})},
		{"tenant", search(&penstockv1.SearchEventsRequest{Tenant: long})}, {"workflow_id", search(&penstockv1.SearchEventsRequest{WorkflowId: long})},
		{"trace_id", search(&penstockv1.SearchEventsRequest{TraceId: "a\x00b"})}, {"until", search(&penstockv1.SearchEventsRequest{Since: now, Until: now})},
		{"since", search(&penstockv1.SearchEventsRequest{Since: &timestamppb.Timestamp{Seconds: 1 << 60}})},
		{"types", list(&penstockv1.ListEventsRequest{Types: []string{""}})}, {"attempt", list(&penstockv1.ListEventsRequest{Attempt: -1})},
		{"run_id", list(&penstockv1.ListEventsRequest{RunId: "x"})}, {"run_id", list(&penstockv1.ListEventsRequest{RunId: "x:0"})},
		{"run_id", list(&penstockv1.ListEventsRequest{RunId: ":1"})}, {"run_id", list(&penstockv1.ListEventsRequest{RunId: "x:+1"})},
		{"run_id", list(&penstockv1.ListEventsRequest{RunId: "x:"})}, {"run_id", list(&penstockv1.ListEventsRequest{RunId: "x:1", Attempt: 1})},
		{"workflow_id", workflow("")}, {"workflow_id", workflow(long)},
	} {
		if info := rpc.InfoOf(tt.err); connect.CodeOf(tt.err) != connect.CodeInvalidArgument || info == nil || info.Field != tt.field {
			t.Errorf("%s: %v", tt.field, tt.err)
		}
	}
	for _, bad := range forged() {
		if err := search(&penstockv1.SearchEventsRequest{PageToken: bad}); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("page token %.40s: %v", bad, err)
		}
	}
	for _, id := range []string{"nothing", protocol.NameID("a", "b").String()} {
		if err := workflow(id); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("workflow %s: %v", id, err)
		}
		if err := search(&penstockv1.SearchEventsRequest{WorkflowId: id}); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("events of workflow %s: %v", id, err)
		}
	}
}
