package client

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// Schedules is the generated client of the orchestrator that answered last for
// recurring schedules.
func (c *Client) Schedules() penstockv1connect.ScheduleServiceClient {
	return c.server(c.current.Load()).schedules
}

// Reschedule gives a task of a tenant ("": "default") another time and returns
// it; a time that is over means at once. Its state stays. reason is at most
// 1,024 bytes; it is kept in the event log. The same time again changes nothing.
// The error is a *protocol.Error with TASK_INVALID_TRANSITION if the task is due,
// running or over, TASK_NOT_FOUND if there is none, TASK_INPUT_INVALID if the
// time is zero or out of bounds.
func (c *Client) Reschedule(ctx context.Context, tenant, taskID string, at time.Time, reason string) (*Task, error) {
	if at.IsZero() {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "scheduled_at", "is the zero time")
	}
	if err := checkText([2]string{"tenant", tenant}, [2]string{"task_id", taskID}, [2]string{"reason", reason}); err != nil {
		return nil, err
	}
	m := &penstockv1.RescheduleTaskRequest{TaskId: taskID, Tenant: tenant, ScheduleType: "at", ScheduledAt: timestamppb.New(at), Reason: reason}
	res, err := retry(ctx, c, func(ctx context.Context, s penstockv1connect.TaskServiceClient) (*connect.Response[penstockv1.RescheduleTaskResponse], error) {
		return s.RescheduleTask(ctx, connect.NewRequest(m))
	})
	if err != nil {
		return nil, fromConnect(err)
	}
	return res.Msg.Task, nil
}
