package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/tenancy"
	"github.com/penstock-dev/penstock/protocol"
)

// Edit stores a payload for the next requeue of a dead letter and returns its
// difference to the payload as it failed. revision is the one that the caller
// saw: an edit that came between is not overwritten. The original is kept. The
// error is TASK_NOT_FOUND, TASK_INPUT_INVALID (the payload, as at enqueue; or a
// dead letter about no task) or TASK_INVALID_TRANSITION (settled for good, or
// another revision).
func (s *Stage) Edit(ctx context.Context, id protocol.ID, payload []byte, revision int32, principal, reason string) (diff json.RawMessage, err error) {
	if err := checkReason(reason, false); err != nil {
		return nil, err
	}
	if len(payload) == 0 {
		return nil, bad("payload", "is required: one JSON value")
	}
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		rows, err := q.LockDead(ctx, []pgid.ID{pgid.ID(id)})
		if err != nil {
			return fmt.Errorf("lock dead letter %s: %w", id, err)
		}
		if len(rows) == 0 || !tenancy.May(ctx, rows[0].Tenant) {
			return protocol.Errorf(protocol.CodeNotFound, "dlq_id", "no dead letter %s", id)
		}
		if err := editable(rows[0], revision); err != nil {
			return err
		}
		checked, err := s.o.CheckPayload(store.Deref(rows[0].Type), payload)
		if err != nil {
			return err
		}
		original, err := q.DeadPayload(ctx, pgid.ID(id))
		if errors.Is(err, pgx.ErrNoRows) {
			return protocol.Errorf(protocol.CodeNotFound, "dlq_id", "no dead letter %s", id)
		}
		if err != nil {
			return fmt.Errorf("read dead letter %s: %w", id, err)
		}
		if diff, err = Diff(original, checked); err != nil {
			return fmt.Errorf("compare payloads of %s: %w", id, err)
		}
		return q.InsertEdit(ctx, dbsqlc.InsertEditParams{
			DlqID: pgid.ID(id), Revision: revision + 1, Payload: string(checked), Diff: string(diff),
			Principal: orAnonymous(principal), Reason: reason,
		})
	})
	return diff, err
}

func editable(r *dbsqlc.LockDeadRow, revision int32) error {
	id := protocol.ID(r.DlqID)
	switch {
	case r.TaskID == nil:
		return bad("dlq_id", "dead letter %s is an entry of %s that was no task: it has no payload to edit", id, store.Deref(r.Stream))
	case r.ErasedAt.Valid:
		return conflict("dlq_id", "the content of dead letter %s was erased: there is nothing to edit", id)
	case r.Status != "open" && r.Status != "requeued":
		return conflict("dlq_id", "dead letter %s is %s: it can't be edited", id, r.Status)
	case r.Revision != revision:
		return conflict("revision", "dead letter %s is at revision %d, not %d: somebody edited it meanwhile; look at it again", id, r.Revision, revision)
	}
	return nil
}
