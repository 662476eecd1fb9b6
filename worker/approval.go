package worker

import (
	"context"

	"github.com/penstock-dev/penstock/task"
)

// RequireApproval is task.RequireApproval: the grant if people have approved name
// for the task whose handler has the context ctx, else an error that the handler
// returns to wait for them.
func RequireApproval(ctx context.Context, name string, opts ...task.ApprovalOption) (*task.Grant, error) {
	return task.RequireApproval(ctx, name, opts...)
}
