package api_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// A caller that waits for a task is answered as soon as it is cancelled.
func TestCancelEndsWait(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	if _, err := e.rpc.Enqueue(ctx, connect.NewRequest(&penstockv1.EnqueueRequest{TaskId: "a", Type: "t"})); err != nil {
		t.Fatal(err)
	}
	done := make(chan *penstockv1.WaitTaskResponse, 1)
	go func() {
		res, err := e.grpc.WaitTask(context.WithoutCancel(ctx), connect.NewRequest(&penstockv1.WaitTaskRequest{TaskId: "a", TimeoutMs: int32(testkit.Deadline.Milliseconds())}))
		if err != nil {
			t.Error(err)
			done <- nil
			return
		}
		done <- res.Msg
	}()
	res, err := e.rpc.CancelTask(ctx, connect.NewRequest(&penstockv1.CancelTaskRequest{TaskId: "a", Reason: "why"}))
	if err != nil || res.Msg.AlreadyCancelled || res.Msg.Task.State != "cancelled" || res.Msg.Task.LastErrorReason.GetValue() != "why" {
		t.Fatalf("%v, %v", res, err)
	}
	if w := <-done; w == nil || !w.Done || w.Task.State != "cancelled" {
		t.Errorf("wait: %v", w)
	}
	res, err = e.grpc.CancelTask(ctx, connect.NewRequest(&penstockv1.CancelTaskRequest{TaskId: "a"}))
	if err != nil || !res.Msg.AlreadyCancelled || res.Msg.Task.LastErrorReason.GetValue() != "why" {
		t.Errorf("again: %v, %v", res, err)
	}
	if _, err := e.rpc.CancelTask(ctx, connect.NewRequest(&penstockv1.CancelTaskRequest{TaskId: "b"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("no task: %v", err)
	}
	if _, err := e.rpc.CancelTask(ctx, connect.NewRequest(&penstockv1.CancelTaskRequest{TaskId: "a", Tenant: "else"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("another tenant's task: %v", err)
	}
	testkit.VerifyEvents(t, e.stores)
}

func TestCancelTasksRPC(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	for range 3 {
		if _, err := e.rpc.Enqueue(ctx, connect.NewRequest(&penstockv1.EnqueueRequest{Type: "t", Queue: "mail", ExpiresAt: timestamppb.New(time.Now().Add(time.Hour))})); err != nil {
			t.Fatal(err)
		}
	}
	for field, m := range map[string]*penstockv1.CancelTasksRequest{
		"all_tasks":      {},
		"states":         {States: []string{"dlq_pending"}},
		"max_tasks":      {AllTasks: true, MaxTasks: 10_001},
		"reason":         {AllTasks: true, Reason: strings.Repeat("x", 1025)},
		"queue":          {Queue: strings.Repeat("q", 256)},
		"created_before": {CreatedBefore: &timestamppb.Timestamp{Seconds: 1 << 60}},
	} {
		_, err := e.rpc.CancelTasks(ctx, connect.NewRequest(m))
		if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), field) {
			t.Errorf("%v: %v, want one about %s", m, err, field)
		}
	}
	call := func(m *penstockv1.CancelTasksRequest, n int32, more bool) {
		t.Helper()
		res, err := e.grpc.CancelTasks(ctx, connect.NewRequest(m))
		if err != nil || res.Msg.Cancelled != n || res.Msg.More != more {
			t.Errorf("%v: %v, %v, want %d and %t", m, res, err, n, more)
		}
	}
	call(&penstockv1.CancelTasksRequest{Queue: "mail", DryRun: true, MaxTasks: 2}, 2, true)
	call(&penstockv1.CancelTasksRequest{Queue: "mail", MaxTasks: 2}, 2, true)
	call(&penstockv1.CancelTasksRequest{AllTasks: true, Tenant: "else"}, 0, false)
	call(&penstockv1.CancelTasksRequest{AllTasks: true}, 1, false)
	res, err := e.rpc.ListTasks(ctx, connect.NewRequest(&penstockv1.ListTasksRequest{States: []string{string(protocol.StateCancelled)}}))
	if err != nil || len(res.Msg.Tasks) != 3 || res.Msg.Tasks[0].ExpiresAt == nil {
		t.Errorf("list: %v, %v", res, err)
	}
	testkit.VerifyEvents(t, e.stores)
}
