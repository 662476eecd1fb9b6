package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// freeEffect has the side effect that a request is about run again: the
// reservation that people were asked about, not one that was made since.
func freeEffect(ctx context.Context, q *dbsqlc.Queries, a *dbsqlc.Approval, who Person, reason string) error {
	e, err := lockEffect(ctx, q, a)
	if err != nil || e == nil || e.State != string(protocol.EffectReserved) || e.ReservedAt.After(a.RequestedAt) {
		return err
	}
	// Asked after the row was had: an execution that reserves it must be seen.
	live, err := q.ExecutionLive(ctx, e.TaskID, e.Delivery)
	if err != nil {
		return fmt.Errorf("look whether effect %s is being run: %w", e.Name, err)
	}
	if live {
		return nil
	}
	err = q.FreeEffect(ctx, dbsqlc.FreeEffectParams{Scope: e.Scope, Key: e.Key, Name: e.Name, ResolvedBy: who.Principal, Reason: reason})
	if err != nil {
		return fmt.Errorf("have effect %s run again: %w", e.Name, err)
	}
	return nil
}

// noHandIn refuses those who had a hand in any task that uses the effect which a
// request is about: to answer it releases all of them.
func noHandIn(ctx context.Context, q *dbsqlc.Queries, a *dbsqlc.Approval, who Person) error {
	e, err := lockEffect(ctx, q, a)
	if err != nil || e == nil {
		return err
	}
	names, err := q.EffectRequesters(ctx, e.Users)
	if err != nil {
		return fmt.Errorf("read who asked for the tasks of effect %s: %w", e.Name, err)
	}
	if slices.ContainsFunc(names, who.is) {
		return fmt.Errorf("%s %w", who.Principal, ErrRequester)
	}
	return nil
}

// lockEffect locks the effect that a request is about; nil if it is gone.
func lockEffect(ctx context.Context, q *dbsqlc.Queries, a *dbsqlc.Approval) (*dbsqlc.LockEffectRow, error) {
	e, err := q.LockEffect(ctx, dbsqlc.LockEffectParams{Scope: store.Deref(a.EffectScope), Key: store.Deref(a.EffectKey), Name: store.Deref(a.EffectName)})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock effect %s: %w", store.Deref(a.EffectName), err)
	}
	return e, nil
}

// SettleEffectTx is for a person who says what became of a side effect: the
// requests that ask about it are approved, and the tasks that wait for that go
// on. It locks the tasks, then their requests; the caller must not hold the
// effect's row yet, and passes due, if it is not zero, to the dispatcher after
// the commit. Who may resolve effects is the caller's to check, but nobody who
// had a hand in a task decides about it: ErrNobody, ErrRequester.
func (s *Stage) SettleEffectTx(ctx context.Context, q *dbsqlc.Queries, scope, key, name, principal, reason string) (released []protocol.ID, due time.Time, err error) {
	who := Person{Principal: principal}
	if who.anonymous() {
		return nil, due, ErrNobody
	}
	rows, err := q.ApprovalsOfEffect(ctx, dbsqlc.ApprovalsOfEffectParams{Scope: &scope, Key: &key, Name: &name})
	if err != nil || len(rows) == 0 {
		return nil, due, err
	}
	ids := make([]protocol.ID, len(rows))
	for i, id := range rows {
		ids[i] = protocol.ID(id)
	}
	tasks, now, err := s.o.Store.Lock(ctx, q, ids)
	if err != nil {
		return nil, due, err
	}
	for _, id := range ids {
		if tasks[id] == nil {
			continue
		}
		m, err := s.openLocked(ctx, q, id, tasks[id], now)
		if err != nil {
			return nil, due, err
		}
		freed, err := m.settleEffect(ctx, protocol.EffectRef{Scope: scope, Key: key, Name: name}, who, reason)
		if err != nil {
			return nil, due, err
		}
		if !freed {
			continue
		}
		released = append(released, id)
		if at := m.task.DueAt; !at.IsZero() && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	return released, due, nil
}

func (m *matter) settleEffect(ctx context.Context, effect protocol.EffectRef, who Person, reason string) (released bool, err error) {
	for _, a := range m.requests {
		ref := protocol.EffectRef{Scope: store.Deref(a.EffectScope), Key: store.Deref(a.EffectKey), Name: store.Deref(a.EffectName)}
		if a.Kind != protocol.ApprovalEffect || ref != effect || m.openFor(a) != nil {
			continue
		}
		if err := who.notRequester(a); err != nil {
			return false, err
		}
		if !m.votes[a.ID].has(who) {
			if err := m.q.InsertVote(ctx, dbsqlc.InsertVoteParams{ID: a.ID, Principal: protocol.Person(who.Principal), Reason: reason}); err != nil {
				return false, fmt.Errorf("count what %s says about effect %s: %w", who.Principal, effect.Name, err)
			}
			m.votes[a.ID] = append(m.votes[a.ID], &dbsqlc.VotesOfRow{ApprovalID: a.ID, Principal: protocol.Person(who.Principal), Reason: reason, At: m.env.Now})
		}
		if err := m.grant(ctx, a); err != nil {
			return false, err
		}
		if released, err = m.proceed(ctx, a, who, reason, true); err != nil {
			return false, err
		}
	}
	return released, m.save(ctx)
}
