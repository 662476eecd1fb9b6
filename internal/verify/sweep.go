package verify

import (
	"context"
	"fmt"
	"strconv"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// pageBatches is small: each batch is counted item by item.
const pageBatches = 10

// sweeps checks what is reached from no task: each table in pages of its own.
func (r *run) sweeps(ctx context.Context) error {
	if err := r.sweepKeys(ctx); err != nil {
		return fmt.Errorf("read idempotency keys: %w", err)
	}
	if err := r.sweepItems(ctx); err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	if err := r.sweepAlerts(ctx); err != nil {
		return fmt.Errorf("read alerts: %w", err)
	}
	if err := r.sweepBatches(ctx); err != nil {
		return fmt.Errorf("read batches of dead letters: %w", err)
	}
	if err := r.sweepApprovals(ctx); err != nil {
		return fmt.Errorf("read approval requests: %w", err)
	}
	if err := r.sweepEffects(ctx); err != nil {
		return fmt.Errorf("read side effects: %w", err)
	}
	if err := r.sweepFires(ctx); err != nil {
		return fmt.Errorf("read fires of schedules: %w", err)
	}
	return nil
}

// object reports a difference about something that is no task.
func (r *run) object(check Check, object, field, expected, found string) {
	if expected != found {
		r.report(Difference{Check: check, Object: object, Field: field, Expected: expected, Found: found})
	}
}

// sweepKeys checks that every idempotency key is the key of its task.
func (r *run) sweepKeys(ctx context.Context) error {
	scope, key := "", ""
	for {
		rows, err := r.Store.VerifyKeys(ctx, dbsqlc.VerifyKeysParams{AfterScope: scope, AfterKey: key, MaxRows: pageTasks})
		if err != nil {
			return err
		}
		for _, k := range rows {
			scope, key = k.Scope, k.Key
			object := fmt.Sprintf("idempotency key %s of scope %s", text(key), text(scope))
			if !k.TaskFound {
				r.object(CheckIdempotency, object, "task", protocol.ID(k.TaskID).String(), none)
				continue
			}
			r.object(CheckIdempotency, object, "idempotency_key of task "+protocol.ID(k.TaskID).String(),
				text(scope)+" "+text(key), text(store.Deref(k.IdempotencyScope))+" "+text(store.Deref(k.IdempotencyKey)))
		}
		if len(rows) < pageTasks {
			return nil
		}
	}
}

// sweepItems checks that every dead letter's task exists or was removed by
// retention, and the dead letters that are about no task.
func (r *run) sweepItems(ctx context.Context) error {
	var after pgid.ID
	for {
		rows, err := r.Store.VerifyItems(ctx, after, pageTasks)
		if err != nil {
			return err
		}
		var entries []entry
		for _, d := range rows {
			after = d.DlqID
			id := protocol.ID(d.DlqID)
			object := "dead letter " + id.String()
			switch {
			case d.TaskID == nil:
				r.sum.DeadLetters++
				r.checkEntryItem(object, d)
				if d.Status != statusExpired {
					entries = append(entries, entry{dlqID: id, id: store.Deref(d.EntryID), foreign: store.Deref(d.Stream) == protocol.StreamDLQ})
				}
			case !d.TaskFound && !d.TaskRemoved: // by retention
				r.object(CheckDeadLetter, object, "task", protocol.ID(*d.TaskID).String(), none)
			}
		}
		if r.Redis != nil {
			if err := r.checkEntries(ctx, entries); err != nil {
				return err
			}
		}
		if len(rows) < pageTasks {
			return nil
		}
	}
}

func (r *run) checkEntryItem(object string, d *dbsqlc.VerifyItemsRow) {
	r.object(CheckDeadLetter, object, "recorded", "true", strconv.FormatBool(d.RecordedAt.Valid))
	r.object(CheckSeq, object, "event_seq", strconv.Itoa(int(d.LastSeq)), strconv.Itoa(int(d.EventSeq)))
	r.object(CheckRequeue, object, "requeues", "0", strconv.Itoa(int(d.Requeues)))
	if d.Status != statusExpired {
		want := int64(0)
		if d.Status == statusDiscarded {
			want = 1
		}
		r.object(CheckDiscard, object, string(protocol.EventDiscarded)+" events", strconv.FormatInt(want, 10), strconv.FormatInt(d.Discarded, 10))
	}
}

// sweepAlerts checks that alerts are numbered as their events are.
func (r *run) sweepAlerts(ctx context.Context) error {
	var after pgid.ID
	for {
		rows, err := r.Store.VerifyAlerts(ctx, after, pageTasks)
		if err != nil {
			return err
		}
		for _, a := range rows {
			after = a.ID
			object := fmt.Sprintf("alert %s of tenant %s", a.Kind, text(a.Tenant))
			r.object(CheckSeq, object, "seq", strconv.Itoa(int(a.LastSeq)), strconv.Itoa(int(a.Seq)))
		}
		if len(rows) < pageTasks {
			return nil
		}
	}
}

// sweepBatches compares what batches of dead letters count with their items.
func (r *run) sweepBatches(ctx context.Context) error {
	var after pgid.ID
	for {
		rows, err := r.Store.VerifyBatches(ctx, after, pageBatches)
		if err != nil {
			return err
		}
		for _, b := range rows {
			after = b.ID
			object := "batch " + protocol.ID(b.ID).String()
			num := func(field string, want, got int64) {
				r.object(CheckBatch, object, field, strconv.FormatInt(want, 10), strconv.FormatInt(got, 10))
			}
			num("total", b.Items, int64(b.Total))
			num("done", b.ItemsDone, int64(b.Done))
			num("skipped", b.ItemsSkipped, int64(b.Skipped))
			num("items that are done and left no trace", 0, b.Unlinked)
			r.object(CheckBatch, object, "digest", b.ItemsDigest, b.Digest)
		}
		if len(rows) < pageBatches {
			return nil
		}
	}
}
