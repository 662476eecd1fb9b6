package verify

import (
	"context"
	"fmt"
	"strconv"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// CheckEffect: a side effect is held by an execution of a task with its key that
// was claimed, and that no later state of the task contradicts.
const CheckEffect Check = "effect"

// sweepEffects checks the ledger of side effects against the tasks that hold them.
// A task that is not there was removed by retention: it could be removed only once
// it could not run any more.
func (r *run) sweepEffects(ctx context.Context) error {
	var p dbsqlc.VerifyEffectsParams
	p.MaxRows = pageTasks
	for {
		rows, err := r.Store.VerifyEffects(ctx, p)
		if err != nil {
			return err
		}
		for _, e := range rows {
			p.AfterScope, p.AfterKey, p.AfterName = e.Scope, e.Key, e.Name
			if !e.TaskFound {
				continue
			}
			object := fmt.Sprintf("effect %s of key %s in scope %s", text(e.Name), text(e.Key), text(e.Scope))
			task := protocol.ID(e.TaskID).String()
			r.object(CheckEffect, object, "key of task "+task, text(e.Scope)+" "+text(e.Key), text(e.TaskScope)+" "+text(e.TaskKey))
			r.object(CheckEffect, object, "claims of its delivery "+strconv.FormatInt(e.Delivery, 10), "1", strconv.FormatInt(e.Claims, 10))
			if e.Delivery > e.TaskDelivery {
				r.object(CheckEffect, object, "delivery", "at most "+strconv.FormatInt(e.TaskDelivery, 10), strconv.FormatInt(e.Delivery, 10))
			}
		}
		if len(rows) < pageTasks {
			return nil
		}
	}
}
