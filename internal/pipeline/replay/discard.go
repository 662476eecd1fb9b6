package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// MaxDiscard is the most dead letters of one proposal.
const MaxDiscard = 10_000

// Propose freezes a set of dead letters to be given up. It does nothing until
// somebody else confirms it.
func (s *Stage) Propose(ctx context.Context, r BatchRequest) (*dbsqlc.DlqBatch, error) {
	if r.Principal == "" {
		return nil, ErrNobody
	}
	if err := checkReason(r.Reason, true); err != nil {
		return nil, err
	}
	var out *dbsqlc.DlqBatch
	err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) (err error) {
		made := false
		if out, made, err = s.insert(ctx, q, r, "discard", "proposed", MaxDiscard, s.o.ProposalTTL); err != nil || !made {
			return err
		}
		ids, err := q.BatchItemIDs(ctx, out.ID)
		if err != nil {
			return fmt.Errorf("read batch: %w", err)
		}
		// All at once: their tasks' rows are locked in the order in which others
		// lock them.
		return s.propose(ctx, q, out, pgid.IDs(ids))
	})
	if err != nil {
		return nil, err
	}
	crashpoint.Here("replay.propose_committed")
	return out, nil
}

// propose records the proposal in the log of each dead letter.
func (s *Stage) propose(ctx context.Context, q *dbsqlc.Queries, b *dbsqlc.DlqBatch, ids []protocol.ID) error {
	rows, err := q.LockDead(ctx, pgid.Slice(ids))
	if err != nil {
		return fmt.Errorf("lock %d dead letters: %w", len(ids), err)
	}
	for _, r := range rows {
		if err := discardable(r); err != nil {
			return err
		}
	}
	return s.tell(ctx, q, rows, protocol.EventDiscardProposed, protocol.ActorUser(b.CreatedBy), b)
}

func discardable(r *dbsqlc.LockDeadRow) error {
	switch id := protocol.ID(r.DlqID); {
	case r.Status != "open":
		return conflict("dlq_id", "dead letter %s is %s: only open ones can be discarded", id, r.Status)
	case !r.RecordedAt.Valid:
		return conflict("dlq_id", "dead letter %s is not in stream:dlq yet: try again in a moment", id)
	}
	return nil
}

// tell appends an event to the log of each dead letter's task, or, for those
// that are about none, to the dead letter's own.
func (s *Stage) tell(ctx context.Context, q *dbsqlc.Queries, rows []*dbsqlc.LockDeadRow, typ protocol.EventType, actor string, b *dbsqlc.DlqBatch) error {
	about := make(map[protocol.ID]protocol.ID, len(rows)) // task → dead letter
	entries := dbsqlc.InsertEntryEventsParams{Type: string(typ), Actor: actor, Reason: b.Reason}
	var ids []protocol.ID
	for _, r := range rows {
		if r.TaskID != nil {
			id := protocol.ID(*r.TaskID)
			about[id] = protocol.ID(r.DlqID)
			ids = append(ids, id)
			continue
		}
		d, err := json.Marshal(discardData(b, protocol.ID(r.DlqID), typ))
		if err != nil {
			return err
		}
		entries.DlqIds = append(entries.DlqIds, r.DlqID)
		entries.Datas = append(entries.Datas, string(d))
	}
	if len(entries.DlqIds) > 0 {
		if err := q.InsertEntryEvents(ctx, entries); err != nil {
			return fmt.Errorf("record %s: %w", typ, err)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return s.o.Store.DecideTx(ctx, q, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
		for _, t := range tasks {
			events = append(events, t.Note(typ, protocol.Env{Now: now}, actor, b.Reason, discardData(b, about[t.ID], typ)))
			changed = append(changed, t)
		}
		return changed, events
	})
}

func discardData(b *dbsqlc.DlqBatch, dlq protocol.ID, typ protocol.EventType) protocol.DiscardData {
	d := protocol.DiscardData{DLQID: dlq.String(), BatchID: protocol.ID(b.ID).String(), Digest: b.Digest, ProposedBy: b.CreatedBy}
	if typ == protocol.EventDiscarded {
		d.ConfirmedBy = store.Deref(b.DecidedBy)
	}
	return d
}

// Confirm carries a proposal out. It is refused if the digest is not the
// proposal's, if the proposal was decided or has expired, and with
// ErrSamePerson if the caller proposed it.
func (s *Stage) Confirm(ctx context.Context, batch protocol.ID, principal, digest string) (*dbsqlc.DlqBatch, error) {
	if principal == "" {
		return nil, ErrNobody
	}
	defer s.Kick()
	defer crashpoint.Here("replay.confirm_committed")
	return s.change(ctx, batch, func(q *dbsqlc.Queries, b *dbsqlc.DlqBatch) error {
		switch {
		case b.Kind != "discard":
			return bad("batch_id", "batch %s is a %s: there is nothing to confirm", batch, b.Kind)
		case b.StartedAt.Valid && store.Deref(b.DecidedBy) == principal && b.Digest == digest:
			return nil // repeated after a lost reply
		case b.Status != "proposed":
			return conflict("batch_id", "the discard %s is %s: it can't be confirmed", batch, b.Status)
		case !b.ExpiresAt.Time.After(time.Now()):
			return conflict("batch_id", "the discard %s expired at %s: propose it again", batch, b.ExpiresAt.Time.UTC().Format(time.RFC3339))
		case strings.EqualFold(b.CreatedBy, principal):
			return ErrSamePerson
		case b.Digest != digest:
			return conflict("digest", "is not the digest of discard %s: look at what it covers before you confirm it", batch)
		}
		changes, err := q.BatchChanges(ctx, b.ID)
		if err != nil {
			return fmt.Errorf("read batch %s: %w", batch, err)
		}
		if changes.Edited > 0 {
			return conflict("batch_id", "%d dead letters of discard %s were edited after it was proposed: propose it again", changes.Edited, batch)
		}
		return q.SetBatchStatus(ctx, dbsqlc.SetBatchStatusParams{ID: b.ID, Status: "running", DecidedBy: principal})
	})
}

// Reject ends a proposal without doing anything.
func (s *Stage) Reject(ctx context.Context, batch protocol.ID, principal, reason string) (*dbsqlc.DlqBatch, error) {
	if principal == "" {
		return nil, ErrNobody
	}
	if err := checkReason(reason, false); err != nil {
		return nil, err
	}
	return s.change(ctx, batch, func(q *dbsqlc.Queries, b *dbsqlc.DlqBatch) error {
		if b.Kind != "discard" || b.Status != "proposed" {
			return conflict("batch_id", "the %s %s is %s: it can't be rejected", b.Kind, batch, b.Status)
		}
		return q.SetBatchStatus(ctx, dbsqlc.SetBatchStatusParams{ID: b.ID, Status: "rejected", DecidedBy: principal, DecisionReason: reason})
	})
}

// change locks a batch, lets fn decide, and returns the batch as it is then.
func (s *Stage) change(ctx context.Context, id protocol.ID, fn func(q *dbsqlc.Queries, b *dbsqlc.DlqBatch) error) (*dbsqlc.DlqBatch, error) {
	var out *dbsqlc.DlqBatch
	err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		b, err := q.LockBatch(ctx, pgid.ID(id))
		if errors.Is(err, pgx.ErrNoRows) || err == nil && !BatchVisible(ctx, b) {
			return protocol.Errorf(protocol.CodeNotFound, "batch_id", "no batch %s", id)
		}
		if err != nil {
			return fmt.Errorf("lock batch %s: %w", id, err)
		}
		if err := fn(q, b); err != nil {
			return err
		}
		out, err = q.GetBatch(ctx, b.ID)
		return err
	})
	return out, err
}

// discard gives up a chunk of a confirmed batch.
func (s *Stage) discard(ctx context.Context, q *dbsqlc.Queries, b *dbsqlc.DlqBatch, ids []protocol.ID) ([]Requeued, error) {
	rows, err := q.LockDead(ctx, pgid.Slice(ids))
	if err != nil {
		return nil, fmt.Errorf("lock %d dead letters: %w", len(ids), err)
	}
	refused := make(map[protocol.ID]error, len(rows))
	var open []*dbsqlc.LockDeadRow
	p := dbsqlc.DiscardDeadParams{BatchID: &b.ID, Reason: &b.Reason, ProposedBy: &b.CreatedBy, ConfirmedBy: b.DecidedBy}
	for _, r := range rows {
		if err := discardable(r); err != nil {
			refused[protocol.ID(r.DlqID)] = err
			continue
		}
		open = append(open, r)
		p.DlqIds = append(p.DlqIds, r.DlqID)
	}
	if len(open) > 0 {
		if err := s.tell(ctx, q, open, protocol.EventDiscarded, protocol.ActorUser(store.Deref(b.DecidedBy)), b); err != nil {
			return nil, err
		}
		if err := q.DiscardDead(ctx, p); err != nil {
			return nil, fmt.Errorf("discard %d dead letters: %w", len(open), err)
		}
	}
	out := make([]Requeued, len(ids))
	for i, id := range ids {
		out[i].Err = refused[id]
	}
	return out, nil
}
