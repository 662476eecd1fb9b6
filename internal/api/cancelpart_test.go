package api_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/api"
	"github.com/penstock-dev/penstock/internal/pipeline/cancel"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// failing cancels some tasks and fails then.
type failing int

func (f failing) Cancel(context.Context, protocol.ID, cancel.Reason) (bool, error) {
	return false, errors.New("lost")
}

func (f failing) CancelAll(context.Context, cancel.Filter, cancel.Reason, int, bool) (int, bool, error) {
	return int(f), true, errors.New("lost")
}

// A caller learns how many tasks a call cancelled that failed half way.
func TestCancelTasksThatFailsHalfWay(t *testing.T) {
	t.Parallel()
	call := func(n int) (*connect.Response[penstockv1.CancelTasksResponse], error) {
		waits := api.NewWaits(nil, time.Hour, slog.New(slog.DiscardHandler))
		s := api.New(t.Context(), nil, failing(n), nil, nil, nil, waits, func(context.Context) string { return "" })
		return s.CancelTasks(t.Context(), connect.NewRequest(&penstockv1.CancelTasksRequest{AllTasks: true}))
	}
	if res, err := call(3); err != nil || res.Msg.Cancelled != 3 || !res.Msg.More {
		t.Errorf("%v, %v, want 3 and that there may be more", res, err)
	}
	if _, err := call(0); err == nil {
		t.Error("the error of a call that cancelled nothing is lost")
	}
}
