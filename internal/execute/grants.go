package execute

import (
	"context"
	"encoding/json"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// WithApprovals returns the context of an execution whose entry tells of
// approvals: a JSON array. What can't be read counts for nothing: the handler asks
// again then.
func WithApprovals(ctx context.Context, approvals []byte) context.Context {
	var list []protocol.Grant
	if len(approvals) == 0 || json.Unmarshal(approvals, &list) != nil {
		list = nil
	}
	grants := make([]task.Grant, len(list))
	for i, g := range list {
		grants[i] = task.Grant{ApprovalID: g.ApprovalID, Kind: g.Kind, Name: g.Name, ApprovedBy: g.ApprovedBy, Reasons: g.Reasons, At: g.At}
	}
	return task.WithApprovals(ctx, grants)
}
