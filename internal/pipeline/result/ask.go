package result

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// checkEffects makes permanent failures of questions about effects that are not
// the asking task's own, and completes the others with the kind of their key. What
// a task's effects are never changes, so that the same outcome always becomes the
// same.
func checkEffects(ctx context.Context, q *dbsqlc.Queries, outcomes []outcome) error {
	asked := map[int]*protocol.ApprovalRequest{}
	var ids []pgid.ID
	for i, o := range outcomes {
		if o.Kind != protocol.OutcomeApprovalNeeded {
			continue
		}
		if r, err := protocol.ParseApproval(o.Approval); err == nil && r.Effect != nil {
			asked[i], ids = r, append(ids, pgid.ID(o.ID))
		}
	}
	if len(asked) == 0 {
		return nil
	}
	rows, err := q.EffectKeys(ctx, ids)
	if err != nil {
		return fmt.Errorf("read the effect keys of %d tasks: %w", len(ids), err)
	}
	own := make(map[protocol.ID]*dbsqlc.EffectKeysRow, len(rows))
	for _, r := range rows {
		own[protocol.ID(r.ID)] = r
	}
	for i, r := range asked {
		o, k := outcomes[i].Outcome, own[outcomes[i].ID]
		if k == nil { // the task is gone
			continue
		}
		kind, key := protocol.ParseLedgerKey(k.Key)
		if e := r.Effect; e.Scope != k.Scope || e.Key != key || e.KeyKind != "" && e.KeyKind != kind {
			o.Kind, o.Code, o.Retryable, o.Approval = protocol.OutcomeFailed, protocol.CodeInputInvalid, false, nil
			o.Error = protocol.Text(fmt.Sprintf("the handler asked about effect %q of key %q in scope %q, which is not its task's: that has %s %q in scope %q",
				e.Name, e.Key, e.Scope, kind, key, k.Scope))
			continue
		}
		r.Effect.KeyKind = kind
		if o.Approval, err = json.Marshal(r); err != nil {
			return fmt.Errorf("task %s: what its handler asks: %w", o.ID, err)
		}
	}
	return nil
}

// asks makes the approval requests of those of a batch's events by which handlers
// ask people, and completes the events with the digest of what they ask about.
func asks(ctx context.Context, q *dbsqlc.Queries, events []*protocol.Event) ([]*store.Ask, error) {
	var asking []*protocol.Event
	var ids []protocol.ID
	for _, e := range events {
		if e.Type == protocol.EventApprovalRequested {
			asking, ids = append(asking, e), append(ids, e.TaskID)
		}
	}
	if len(asking) == 0 {
		return nil, nil
	}
	subjects, err := guard.Subjects(ctx, q, ids)
	if err != nil {
		return nil, err
	}
	out := make([]*store.Ask, len(asking))
	for i, e := range asking {
		var d protocol.ApprovalRequestedData
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return nil, fmt.Errorf("task %s: what its handler asks: %w", e.TaskID, err)
		}
		id, err := protocol.ParseID(d.ApprovalID)
		if err != nil {
			return nil, fmt.Errorf("task %s: what its handler asks: %w", e.TaskID, err)
		}
		out[i] = &store.Ask{
			ID: id, Task: e.TaskID, Kind: d.Kind, Name: d.Name, Digest: subjects[e.TaskID].Digest(d.Kind, d.Name, 0), Required: d.Required,
			Approvers: d.Approvers, Timeout: time.Duration(d.TimeoutMS) * time.Millisecond, Prompt: e.Reason, Effect: d.Effect,
		}
		if e.Data, err = json.Marshal(out[i].Data()); err != nil {
			return nil, fmt.Errorf("task %s: what its handler asks: %w", e.TaskID, err)
		}
	}
	return out, nil
}
