package verify

import (
	"context"
	"fmt"
	"strconv"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// CheckEffect: a side effect is held by an execution of a task with its key that
// was claimed once and no later than the task's last, only tasks with its key were
// given it, and what was resolved as done is done.
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
			object := effectObject(e.Scope, e.Key, e.Name)
			task := protocol.ID(e.TaskID).String()
			r.object(CheckEffect, object, "key of task "+task, text(e.Scope)+" "+text(e.Key), text(e.TaskScope)+" "+text(e.TaskKey))
			r.object(CheckEffect, object, "claims of its delivery "+strconv.FormatInt(e.Delivery, 10), "1", strconv.FormatInt(e.Claims, 10))
			if e.Delivery > e.TaskDelivery {
				r.object(CheckEffect, object, "delivery", "at most "+strconv.FormatInt(e.TaskDelivery, 10), strconv.FormatInt(e.Delivery, 10))
			}
		}
		if len(rows) < pageTasks {
			return r.sweepEffectUsers(ctx)
		}
	}
}

func effectObject(scope, key, name string) string {
	return fmt.Sprintf("effect %s of key %s in scope %s", text(name), text(key), text(scope))
}

// sweepEffectUsers checks the ledger against the other tasks that were given what
// it holds, and against what was said of it: nothing undoes what is done.
func (r *run) sweepEffectUsers(ctx context.Context) error {
	p := dbsqlc.VerifyEffectUsersParams{MaxRows: pageTasks}
	for {
		rows, err := r.Store.VerifyEffectUsers(ctx, p)
		if err != nil {
			return err
		}
		for _, e := range rows {
			p.AfterScope, p.AfterKey, p.AfterName = e.Scope, e.Key, e.Name
			object := effectObject(e.Scope, e.Key, e.Name)
			r.object(CheckEffect, object, "users with another key", "0", strconv.FormatInt(e.Strangers, 10))
			switch protocol.EffectResolution(e.Resolution) {
			case protocol.ResolvedDone, protocol.CheckedDone:
				r.object(CheckEffect, object, "state after "+e.Resolution, string(protocol.EffectDone), e.State)
			}
		}
		if len(rows) < pageTasks {
			return nil
		}
	}
}
