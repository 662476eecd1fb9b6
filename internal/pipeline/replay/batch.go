package replay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/tenancy"
	"github.com/penstock-dev/penstock/protocol"
)

// Bounds of batches.
const (
	// MaxBatch is the most dead letters of one batch.
	MaxBatch = 1_000_000
	// MaxIDs is the most dead letters that a batch may list by id.
	MaxIDs = 10_000
	// MaxRate is the highest rate limit.
	MaxRate = 100_000
	// chunk is how many items one transaction works off.
	chunk = 200
)

// Filter selects dead letters; empty fields select all. It is stored with the
// batch as JSON.
type Filter struct {
	Tenant       string    `json:"tenant,omitempty"`
	Type         string    `json:"type,omitempty"`
	ErrorCode    string    `json:"error_code,omitempty"`
	Fingerprint  string    `json:"fingerprint,omitempty"`
	Queue        string    `json:"queue,omitempty"`
	Status       string    `json:"status,omitempty"` // empty: open
	FailedAfter  time.Time `json:"failed_after,omitzero"`
	FailedBefore time.Time `json:"failed_before,omitzero"`
}

// FarFuture stands for no upper bound of a time.
var FarFuture = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// Before is FailedBefore, or the far future.
func (f Filter) Before() time.Time {
	if f.FailedBefore.IsZero() {
		return FarFuture
	}
	return f.FailedBefore
}

// ItemStatus is Status, or open.
func (f Filter) ItemStatus() string {
	if f.Status == "" {
		return "open"
	}
	return f.Status
}

// BatchRequest asks for a batch: either IDs or a Filter.
type BatchRequest struct {
	// ID is the caller's own, so that a repeated call makes one batch; zero: a
	// new one is made.
	ID        protocol.ID
	IDs       []protocol.ID
	Filter    *Filter
	Principal string
	Reason    string
	// Of requeues only.
	Again, Original, DryRun bool
	// Rate is items a second; 0: unlimited.
	Rate int32
}

// Create freezes a set of dead letters and starts requeueing it, or stores it
// as a draft (DryRun). Repeating it with the same ID returns the batch that is
// there. The error is TASK_NOT_FOUND if the set is empty or an id is unknown.
func (s *Stage) Create(ctx context.Context, r BatchRequest) (*dbsqlc.DlqBatch, error) {
	if err := checkReason(r.Reason, false); err != nil {
		return nil, err
	}
	if r.Rate < 0 || r.Rate > MaxRate {
		return nil, bad("rate", "is %d, want 1 to %d a second, or 0 for no limit", r.Rate, MaxRate)
	}
	status, ttl := "running", time.Duration(0)
	if r.DryRun {
		status, ttl = "draft", s.o.DraftTTL
	}
	r.Principal = orAnonymous(r.Principal)
	var out *dbsqlc.DlqBatch
	err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) (err error) {
		out, _, err = s.insert(ctx, q, r, "requeue", status, MaxBatch, ttl)
		return err
	})
	if err == nil {
		crashpoint.Here("replay.create_committed")
		s.Kick()
	}
	return out, err
}

// insert stores a batch and its items, or finds the one that has its id.
func (s *Stage) insert(ctx context.Context, q *dbsqlc.Queries, r BatchRequest, kind, status string, most int32, ttl time.Duration) (b *dbsqlc.DlqBatch, made bool, err error) {
	if (len(r.IDs) == 0) == (r.Filter == nil) || len(r.IDs) > MaxIDs {
		return nil, false, bad("dlq_ids", "give either 1 to %d ids or a filter; got %d ids", MaxIDs, len(r.IDs))
	}
	if err := distinct(r.IDs); err != nil {
		return nil, false, err
	}
	p := dbsqlc.InsertBatchParams{
		MaxItems: most + 1, Ids: pgid.Slice(r.IDs), Kind: kind, Status: status, Again: r.Again, Original: r.Original, Rate: r.Rate,
		Reason: r.Reason, CreatedBy: r.Principal, Tenants: tenancy.Of(ctx), TtlMs: ttl.Milliseconds(), ID: pgid.ID(r.ID), FailedBefore: FarFuture, ItemStatus: "open",
	}
	if r.ID.IsZero() {
		p.ID = pgid.ID(uuid.Must(uuid.NewV7()))
	}
	if f := r.Filter; f != nil {
		stored, err := json.Marshal(f)
		if err != nil {
			return nil, false, err
		}
		p.Filter, p.Tenant, p.Type, p.ErrorCode, p.Fingerprint, p.Queue = string(stored), f.Tenant, f.Type, f.ErrorCode, f.Fingerprint, f.Queue
		p.FailedAfter, p.FailedBefore, p.ItemStatus = f.FailedAfter, f.Before(), f.ItemStatus()
	}
	row, err := q.InsertBatch(ctx, p)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return s.existing(ctx, q, p)
	case err != nil:
		return nil, false, fmt.Errorf("store batch: %w", err)
	case row.Total > most:
		return nil, false, bad("filter", "admits more than %d dead letters, the most of one %s: narrow it", most, kind)
	case row.Total == 0 && r.Filter != nil:
		return nil, false, protocol.Errorf(protocol.CodeNotFound, "filter", "no %s dead letter matches the filter", p.ItemStatus)
	case len(r.IDs) > 0 && int(row.Total) < len(r.IDs):
		return nil, false, s.unknown(ctx, q, r.IDs)
	}
	b, err = q.GetBatch(ctx, row.ID)
	return b, true, err
}

func distinct(ids []protocol.ID) error {
	seen := make(map[protocol.ID]bool, len(ids))
	for _, id := range ids {
		if seen[id] {
			return bad("dlq_ids", "%s is listed twice", id)
		}
		seen[id] = true
	}
	return nil
}

// existing returns the batch that was made by an earlier call with the same
// id.
func (s *Stage) existing(ctx context.Context, q *dbsqlc.Queries, p dbsqlc.InsertBatchParams) (*dbsqlc.DlqBatch, bool, error) {
	b, err := q.GetBatch(ctx, p.ID)
	if err != nil {
		return nil, false, err
	}
	if !BatchVisible(ctx, b) {
		return nil, false, protocol.Errorf(protocol.CodeDuplicate, "batch_id", "batch %s exists with other fields", protocol.ID(p.ID))
	}
	same := b.ExpiresAt.Valid == (p.TtlMs > 0) && (len(p.Ids) == 0 || b.Digest == digestOf(p.Ids))
	if !same || b.Kind != p.Kind || b.CreatedBy != p.CreatedBy || b.Reason != p.Reason || b.Rate != p.Rate || b.Again != p.Again ||
		b.Original != p.Original || string(b.Filter) != p.Filter {
		return nil, false, protocol.Errorf(protocol.CodeDuplicate, "batch_id", "batch %s exists with other fields", protocol.ID(p.ID))
	}
	return b, false, nil
}

// BatchVisible reports whether the caller of ctx may see a batch: all its dead
// letters are of tenants that the caller may reach.
func BatchVisible(ctx context.Context, b *dbsqlc.DlqBatch) bool {
	outside := func(tenant string) bool { return !tenancy.May(ctx, tenant) }
	return !tenancy.Bound(ctx) || len(b.Tenants) > 0 && !slices.ContainsFunc(b.Tenants, outside)
}

// digestOf is the digest of a set, as InsertBatch computes it.
func digestOf(ids []pgid.ID) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = protocol.ID(id).String()
	}
	slices.Sort(texts)
	sum := sha256.Sum256([]byte(strings.Join(texts, "\n")))
	return hex.EncodeToString(sum[:])
}

// unknown names the first id that no dead letter has.
func (s *Stage) unknown(ctx context.Context, q *dbsqlc.Queries, ids []protocol.ID) error {
	rows, err := q.DeadByIDs(ctx, pgid.Slice(ids))
	if err != nil {
		return err
	}
	have := make(map[protocol.ID]bool, len(rows))
	for _, r := range rows {
		have[protocol.ID(r.DlqID)] = tenancy.May(ctx, r.Tenant)
	}
	for _, id := range ids {
		if !have[id] {
			return protocol.Errorf(protocol.CodeNotFound, "dlq_ids", "no dead letter %s", id)
		}
	}
	return errors.New("replay: dead letters vanished while a batch was made")
}

// Control starts a draft, or pauses, resumes or cancels a batch. The error is
// TASK_INVALID_TRANSITION where the batch's status forbids the action.
func (s *Stage) Control(ctx context.Context, batch protocol.ID, action, principal, reason string) (*dbsqlc.DlqBatch, error) {
	if err := checkReason(reason, false); err != nil {
		return nil, err
	}
	moves := map[string]struct{ from, to string }{
		"start": {"draft", "running"}, "pause": {"running", "paused"}, "resume": {"paused", "running"}, "cancel": {"", "cancelled"},
	}
	move, ok := moves[action]
	if !ok {
		return nil, bad("action", "is %q, want start, pause, resume or cancel", protocol.Text(action))
	}
	defer s.Kick()
	return s.change(ctx, batch, func(q *dbsqlc.Queries, b *dbsqlc.DlqBatch) error {
		p := dbsqlc.SetBatchStatusParams{ID: b.ID, Status: move.to, ControlledBy: orAnonymous(principal), DecisionReason: reason}
		switch {
		case action == "cancel" && b.Status == "proposed":
			return conflict("batch_id", "the discard %s is proposed: reject it instead", batch)
		case b.Kind == "discard" && principal == "":
			return ErrNobody
		case action == "cancel" && (b.Status == "draft" || b.Status == "running" || b.Status == "paused"):
		case b.Status != move.from:
			return conflict("batch_id", "the %s %s is %s: action %s is not possible", b.Kind, batch, b.Status, action)
		case action == "start" && !b.ExpiresAt.Time.After(time.Now()):
			return conflict("batch_id", "the dry run %s expired at %s: make another one", batch, b.ExpiresAt.Time.UTC().Format(time.RFC3339))
		}
		return q.SetBatchStatus(ctx, p)
	})
}

// Step works off one chunk of some running batch whose turn it is. more is
// false if there was none.
func (s *Stage) Step(ctx context.Context) (more bool, err error) {
	var out []Requeued
	var b *dbsqlc.DlqBatch
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) (err error) {
		out = nil
		if b, err = q.LockNextBatch(ctx); errors.Is(err, pgx.ErrNoRows) {
			b = nil
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for batches: %w", err)
		}
		out, err = s.advance(ctx, q, b)
		return err
	})
	if err != nil && b != nil { // whatever is wrong with it, others go first
		return false, errors.Join(err, s.o.Store.DeferBatch(ctx, b.ID))
	}
	if err != nil || b == nil {
		return false, err
	}
	crashpoint.Here("replay.batch_committed")
	if b.Kind == "requeue" {
		s.note(out)
	} else {
		s.count(out)
	}
	return true, nil
}

func (s *Stage) count(out []Requeued) {
	for _, r := range out {
		if r.Err == nil {
			s.settled.WithLabelValues("discarded").Inc()
		} else {
			s.refused.Inc()
		}
	}
}

// chunkOf is how many items to take at once: a tenth of a second's worth under
// a rate limit.
func chunkOf(rate int32) int32 {
	if rate == 0 {
		return chunk
	}
	return max(1, min(chunk, rate/10))
}

// advance works off the next chunk of a locked batch.
func (s *Stage) advance(ctx context.Context, q *dbsqlc.Queries, b *dbsqlc.DlqBatch) ([]Requeued, error) {
	pending, err := q.PendingBatchItems(ctx, b.ID, chunkOf(b.Rate))
	if err != nil {
		return nil, fmt.Errorf("read batch %s: %w", protocol.ID(b.ID), err)
	}
	ids := pgid.IDs(pending)
	var out []Requeued
	if len(ids) > 0 {
		if b.Kind == "requeue" {
			out, err = s.requeue(ctx, q, ids, RequeueOptions{
				Principal: named(b.CreatedBy), Again: b.Again, Original: b.Original, Reason: b.Reason, batch: protocol.ID(b.ID),
			})
		} else {
			out, err = s.discard(ctx, q, b, ids)
		}
		if err != nil {
			return nil, fmt.Errorf("batch %s: %w", protocol.ID(b.ID), err)
		}
	}
	crashpoint.Here("replay.batch_settled")
	mark := dbsqlc.MarkBatchItemsParams{BatchID: b.ID}
	step := dbsqlc.AdvanceBatchParams{ID: b.ID}
	for i, r := range out {
		status, detail := "done", ""
		if r.Err != nil {
			status, detail = "skipped", detailOf(r.Err)
			step.Skipped++
		} else {
			step.Done++
		}
		mark.DlqIds = append(mark.DlqIds, pgid.ID(ids[i]))
		mark.Statuses = append(mark.Statuses, status)
		mark.TaskIds = append(mark.TaskIds, pgid.ID(r.Task))
		mark.Details = append(mark.Details, detail)
	}
	if b.Rate > 0 {
		step.PaceMs = float64(len(out)) * 1000 / float64(b.Rate)
	}
	return out, errors.Join(q.MarkBatchItems(ctx, mark), q.AdvanceBatch(ctx, step))
}

// named undoes orAnonymous.
func named(principal string) string {
	if principal == protocol.Anonymous {
		return ""
	}
	return principal
}

func detailOf(err error) string {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e.Message
	}
	return err.Error()
}
