package client

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// CancelTask ends a task of a tenant ("": "default") for good and returns it. If
// it waits it never starts; if it runs, its handler's context is cancelled
// within a second (cause task.ErrCancelled), and whatever that returns changes
// nothing. reason is at most 1,024 bytes; it is kept in the event log. Cancelling
// a cancelled task again succeeds. The error is a *protocol.Error with
// TASK_INVALID_TRANSITION if the task has ended in another way or was given up,
// TASK_NOT_FOUND if there is none.
func (c *Client) CancelTask(ctx context.Context, tenant, taskID, reason string) (*Task, error) {
	if err := checkText([2]string{"tenant", tenant}, [2]string{"task_id", taskID}, [2]string{"reason", reason}); err != nil {
		return nil, err
	}
	res, err := retry(ctx, c, func(ctx context.Context, s penstockv1connect.TaskServiceClient) (*connect.Response[penstockv1.CancelTaskResponse], error) {
		return s.CancelTask(ctx, connect.NewRequest(&penstockv1.CancelTaskRequest{TaskId: taskID, Tenant: tenant, Reason: reason}))
	})
	if err != nil {
		return nil, fromConnect(err)
	}
	return res.Msg.Task, nil
}

// CancelFilter admits tasks that meet every field that is set.
type CancelFilter struct {
	// Tenant is whose tasks; "": "default".
	Tenant      string
	Queue, Type string
	// States are of pending, waiting_approval, queued, running, retrying and
	// interrupted; none: all of these.
	States                      []string
	CreatedAfter, CreatedBefore time.Time
	// All admits every task of the tenant. Without it, one of Queue, Type, States
	// and CreatedBefore must be set.
	All bool
}

// cancelPage is how many tasks one call cancels.
const cancelPage = 1000

// CancelTasks ends all tasks that the filter admits, as CancelTask does, and
// returns how many. It does not stop before the filter admits none, so tasks
// that are enqueued meanwhile are cancelled, too, unless CreatedBefore is set.
// After an error some may have been cancelled: n counts those of calls that were
// answered. To cancel the rest, call it again.
func (c *Client) CancelTasks(ctx context.Context, f CancelFilter, reason string) (n int, err error) {
	fields := [][2]string{{"tenant", f.Tenant}, {"queue", f.Queue}, {"type", f.Type}, {"reason", reason}}
	for _, s := range f.States {
		fields = append(fields, [2]string{"states", s})
	}
	if err := checkText(fields...); err != nil {
		return 0, err
	}
	m := &penstockv1.CancelTasksRequest{
		Tenant: f.Tenant, Queue: f.Queue, Type: f.Type, States: f.States, AllTasks: f.All, Reason: reason, MaxTasks: cancelPage,
	}
	if !f.CreatedAfter.IsZero() {
		m.CreatedAfter = timestamppb.New(f.CreatedAfter)
	}
	if !f.CreatedBefore.IsZero() {
		m.CreatedBefore = timestamppb.New(f.CreatedBefore)
	}
	for {
		res, err := retry(ctx, c, func(ctx context.Context, s penstockv1connect.TaskServiceClient) (*connect.Response[penstockv1.CancelTasksResponse], error) {
			return s.CancelTasks(ctx, connect.NewRequest(m))
		})
		if err != nil {
			return n, fromConnect(err)
		}
		n += int(res.Msg.Cancelled)
		if !res.Msg.More {
			return n, nil
		}
	}
}
