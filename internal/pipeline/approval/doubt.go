package approval

import (
	"context"
	"fmt"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Undoubt lets the tasks go on that wait for a person's word about an effect that
// is not in doubt any more: its run told what came of it after all, or somebody
// resolved it before the task's question arrived. Empty arguments are all effects.
// It returns the tasks that go on.
func (s *Stage) Undoubt(ctx context.Context, scope, key, name string) (released []protocol.ID, err error) {
	p := dbsqlc.EndedDoubtsParams{Scope: scope, Key: key, Name: name, MaxRows: chunk}
	for {
		rows, err := s.o.Store.EndedDoubts(ctx, p)
		if err != nil {
			return released, fmt.Errorf("look for doubts that ended: %w", err)
		}
		for _, r := range rows {
			p.AfterID = r.ID
			ok, err := s.undoubt(ctx, protocol.ID(r.ID), protocol.ID(r.TaskID))
			if err != nil {
				return released, err
			}
			if ok {
				released = append(released, protocol.ID(r.TaskID))
			}
		}
		if len(rows) < chunk || ctx.Err() != nil {
			return released, nil
		}
	}
}

// undoubt withdraws a request whose effect is not in doubt any more.
func (s *Stage) undoubt(ctx context.Context, id, task protocol.ID) (released bool, err error) {
	var m *matter
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) (err error) {
		released = false
		if m, err = s.open(ctx, q, task); err != nil {
			return err
		}
		a := m.find(id)
		if a == nil || m.openFor(a) != nil {
			return nil // decided meanwhile
		}
		e, err := lockEffect(ctx, q, a)
		if err != nil || e == nil || e.State == string(protocol.EffectReserved) {
			return err
		}
		why := fmt.Sprintf("effect %s is not in doubt any more: it is %s", e.Name, e.State)
		if err := q.DecideApprovals(ctx, dbsqlc.DecideApprovalsParams{Status: statusWithdrawn, Decision: why, Ids: []pgid.ID{a.ID}}); err != nil {
			return fmt.Errorf("withdraw approval request %s: %w", id, err)
		}
		a.Status = statusWithdrawn
		if released, err = m.advance(a, protocol.ActorEffects, "", why, true); err != nil {
			return err
		}
		return m.save(ctx)
	})
	if err == nil && len(m.events) > 0 {
		s.o.Log.Info("a task does not wait any more: its effect is not in doubt", "task", task, "approval", id)
		s.tell(m)
	}
	return released && err == nil, err
}
