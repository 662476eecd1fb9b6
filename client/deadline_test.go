package client_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/testkit"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// quick answers that the deadline passed before it does at the caller.
type quick struct {
	penstockv1connect.UnimplementedTaskServiceHandler
}

func (quick) WaitTask(context.Context, *connect.Request[penstockv1.WaitTaskRequest]) (*connect.Response[penstockv1.WaitTaskResponse], error) {
	return nil, connect.NewError(connect.CodeDeadlineExceeded, errors.New("too late"))
}

func (quick) GetTask(context.Context, *connect.Request[penstockv1.GetTaskRequest]) (*connect.Response[penstockv1.GetTaskResponse], error) {
	return nil, connect.NewError(connect.CodeDeadlineExceeded, errors.New("too late"))
}

func TestDeadlineToldByTheServer(t *testing.T) {
	t.Parallel()
	_, h := penstockv1connect.NewTaskServiceHandler(quick{})
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c := testkit.Client(t, s.URL)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.Wait(ctx, "", "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	if _, err := c.Get(ctx, "", "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("get: %v", err)
	}
}
