package verify

import (
	"context"
	"fmt"
	"strconv"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// sweepApprovals checks that every request to decide that is pending is about a
// task that waits for it, and that every approved one is backed by as many
// different people as it needs, none of whom had a hand in the task.
func (r *run) sweepApprovals(ctx context.Context) error {
	var after pgid.ID
	for {
		rows, err := r.Store.VerifyApprovals(ctx, after, pageTasks)
		if err != nil {
			return err
		}
		for _, a := range rows {
			after = a.ID
			object := fmt.Sprintf("approval request %s of task %s", protocol.ID(a.ID), protocol.ID(a.TaskID))
			if a.Status == "pending" {
				r.object(CheckApproval, object, "state of the task", string(protocol.StateWaitingApproval), orNone(a.TaskFound, a.State))
			}
			if a.People != a.Votes {
				r.object(CheckApproval, object, "votes", strconv.FormatInt(a.People, 10)+" of people who may decide", strconv.FormatInt(a.Votes, 10))
			}
			if a.Status == "approved" && a.People < int64(a.Required) && a.Kind != protocol.ApprovalEffect {
				r.object(CheckApproval, object, "people", fmt.Sprintf("at least %d", a.Required), strconv.FormatInt(a.People, 10))
			}
		}
		if len(rows) < pageTasks {
			return r.sweepWaiting(ctx)
		}
	}
}

// sweepWaiting checks that every task that waits for approval is asked about.
func (r *run) sweepWaiting(ctx context.Context) error {
	var after pgid.ID
	for {
		rows, err := r.Store.VerifyWaiting(ctx, after, pageTasks)
		if err != nil {
			return err
		}
		for _, t := range rows {
			after = t.ID
			if t.Pending == 0 {
				r.report(subject{protocol.ID(t.ID), store.Deref(t.Name)}.of(Difference{
					Check: CheckApproval, Field: "pending requests", Expected: "at least 1", Found: "0",
				}))
			}
		}
		if len(rows) < pageTasks {
			return nil
		}
	}
}

func orNone(found bool, s string) string {
	if !found {
		return none
	}
	return s
}
