package replay

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/tenancy"
	"github.com/penstock-dev/penstock/protocol"
)

// MaxRequeue is the most dead letters of one Requeue call.
const MaxRequeue = 1000

// RequeueOptions say how to requeue.
type RequeueOptions struct {
	// Principal is who asks; empty: anonymous.
	Principal string
	// Again also takes dead letters that were requeued before.
	Again bool
	// Original sends payloads as they failed, even if they were edited.
	Original bool
	// Reason goes into the event.
	Reason string
	// Graph also makes anew the tasks that were cancelled because of it.
	Graph bool

	batch protocol.ID
}

// Requeued is what became of one dead letter: the new task, or a refusal with
// code TASK_NOT_FOUND, TASK_INVALID_TRANSITION (settled, or not yet recorded)
// or TASK_INPUT_INVALID (about no task, or listed twice).
type Requeued struct {
	Task protocol.ID
	// Clones is how many tasks that depended on it were made anew.
	Clones int
	Err    error
}

// Requeue makes a new task of each dead letter in one transaction. The tasks
// are due at once. Results come in the order of ids.
func (s *Stage) Requeue(ctx context.Context, ids []protocol.ID, o RequeueOptions) ([]Requeued, error) {
	if len(ids) < 1 || len(ids) > MaxRequeue {
		return nil, bad("dlq_ids", "has %d items, want 1 to %d; use a batch for more", len(ids), MaxRequeue)
	}
	if err := checkReason(o.Reason, false); err != nil {
		return nil, err
	}
	var out []Requeued
	err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) (err error) {
		out, err = s.requeue(ctx, q, ids, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	crashpoint.Here("replay.requeue_committed")
	s.note(out)
	return out, nil
}

// note counts what was committed and wakes the dispatcher.
func (s *Stage) note(out []Requeued) {
	n := 0
	for _, r := range out {
		if r.Err == nil {
			n++
		}
	}
	if n > 0 {
		s.o.Wake(time.Now())
	}
	s.settled.WithLabelValues("requeued").Add(float64(n))
	s.refused.Add(float64(len(out) - n))
}

// plan is one dead letter that will be requeued.
type plan struct {
	row      *dbsqlc.LockDeadRow
	task     protocol.ID
	n        int32
	revision int32
	diff     []byte
	result   *Requeued
}

// requeue does the work inside a transaction: the dead letters are locked, and
// each original's event, the new task with its first event and the links
// between them are stored together.
func (s *Stage) requeue(ctx context.Context, q *dbsqlc.Queries, ids []protocol.ID, o RequeueOptions) ([]Requeued, error) {
	out := make([]Requeued, len(ids))
	if o.Graph {
		if err := q.GraphRequeueLock(ctx); err != nil {
			return nil, fmt.Errorf("wait for another requeue of a graph: %w", err)
		}
	}
	plans, err := s.plan(ctx, q, ids, o, out)
	if err != nil {
		return nil, err
	}
	if len(plans) == 0 {
		return out, nil
	}
	var g *regraph
	if o.Graph {
		g, err = planGraph(ctx, q, plans)
	} else {
		_, err = lockUpstreams(ctx, q, plans, nil)
	}
	if err != nil {
		return nil, err
	}
	if plans, err = s.tellOriginals(ctx, q, plans, o); err != nil || len(plans) == 0 {
		return out, err
	}
	p := dbsqlc.RequeueDeadParams{Actor: protocol.ActorUser(o.Principal), Principal: orAnonymous(o.Principal), BatchID: pgid.ID(o.batch)}
	for _, pl := range plans {
		p.DlqIds = append(p.DlqIds, pl.row.DlqID)
		p.TaskIds = append(p.TaskIds, pgid.ID(pl.task))
		p.Ns = append(p.Ns, pl.n)
		p.Revisions = append(p.Revisions, pl.revision)
		p.TraceIds = append(p.TraceIds, fmt.Sprintf("trace-run-%s:1-%s", pl.task, uuid.NewString()))
		pl.result.Task = pl.task
	}
	done, err := q.RequeueDead(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("requeue %d dead letters: %w", len(plans), err)
	}
	if len(done) != len(plans) { // both were locked: cannot be, and must not be half done
		return nil, fmt.Errorf("requeue: %d of %d dead letters found", len(done), len(plans))
	}
	return out, g.store(ctx, q, s.o.Store, s.o.Tasks, o)
}

// plan locks the dead letters and decides which can be requeued; the others
// get their refusal in out.
func (s *Stage) plan(ctx context.Context, q *dbsqlc.Queries, ids []protocol.ID, o RequeueOptions, out []Requeued) ([]*plan, error) {
	rows, err := q.LockDead(ctx, pgid.Slice(ids))
	if err != nil {
		return nil, fmt.Errorf("lock %d dead letters: %w", len(ids), err)
	}
	links, err := q.DeadLinks(ctx, pgid.Slice(ids))
	if err != nil {
		return nil, fmt.Errorf("read %d dead letters: %w", len(ids), err)
	}
	byID := make(map[protocol.ID]*dbsqlc.LockDeadRow, len(rows))
	for _, r := range rows {
		byID[protocol.ID(r.DlqID)] = r
	}
	link := make(map[protocol.ID]*dbsqlc.DeadLinksRow, len(links))
	for _, l := range links {
		link[protocol.ID(l.DlqID)] = l
	}
	var plans []*plan
	seen := make(map[protocol.ID]bool, len(ids))
	for i, id := range ids {
		r := byID[id]
		switch {
		case seen[id]:
			out[i].Err = bad("dlq_ids", "%s is listed twice", id)
		case r == nil || !tenancy.May(ctx, r.Tenant):
			out[i].Err = protocol.Errorf(protocol.CodeNotFound, "dlq_id", "no dead letter %s", id)
		default:
			out[i].Err = requeueable(r, link[id], o.Again)
		}
		seen[id] = true
		if out[i].Err != nil {
			continue
		}
		pl := &plan{row: r, task: protocol.ID(uuid.Must(uuid.NewV7())), n: r.Requeues + 1, result: &out[i]}
		if !o.Original && r.Revision > 0 {
			pl.revision, pl.diff = r.Revision, link[id].Diff
		}
		plans = append(plans, pl)
	}
	return plans, nil
}

func requeueable(r *dbsqlc.LockDeadRow, l *dbsqlc.DeadLinksRow, again bool) error {
	id := protocol.ID(r.DlqID)
	switch {
	case r.TaskID == nil:
		return bad("dlq_id", "dead letter %s is an entry of %s that was no task: it can't be requeued; enqueue a task, or discard it", id, store.Deref(r.Stream))
	case !r.RecordedAt.Valid:
		return conflict("dlq_id", "dead letter %s is not in stream:dlq yet: try again in a moment", id)
	case r.ErasedAt.Valid:
		return conflict("dlq_id", "the content of dead letter %s was erased: it can't be requeued", id)
	case r.Status == "open", r.Status == "requeued" && again:
		return nil
	case r.Status == "requeued":
		return conflict("dlq_id", "dead letter %s was requeued already, as task %s; to requeue it once more ask for it (--again)", id, protocol.ID(store.Deref(l.LastTaskID)))
	}
	return conflict("dlq_id", "dead letter %s is %s: it can't be requeued", id, r.Status)
}

// tellOriginals appends dlq.requeued to the log of each original task. A dead
// letter whose task is gone is refused.
func (s *Stage) tellOriginals(ctx context.Context, q *dbsqlc.Queries, plans []*plan, o RequeueOptions) ([]*plan, error) {
	ids := make([]protocol.ID, len(plans))
	for i, pl := range plans {
		ids[i] = protocol.ID(*pl.row.TaskID)
	}
	var kept []*plan
	err := s.o.Store.DecideTx(ctx, q, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
		for _, pl := range plans {
			t := tasks[protocol.ID(*pl.row.TaskID)]
			if t == nil {
				pl.result.Err = conflict("dlq_id", "the task of dead letter %s is gone: enqueue it anew", protocol.ID(pl.row.DlqID))
				continue
			}
			d := protocol.RequeuedData{
				DLQID: protocol.ID(pl.row.DlqID).String(), TaskID: pl.task.String(), N: int(pl.n), Revision: int(pl.revision),
				Principal: orAnonymous(o.Principal), Diff: pl.diff,
			}
			if !o.batch.IsZero() {
				d.BatchID = o.batch.String()
			}
			events = append(events, t.Note(protocol.EventDLQRequeued, protocol.Env{Now: now}, protocol.ActorUser(o.Principal), o.Reason, d))
			changed = append(changed, t)
			kept = append(kept, pl)
		}
		return changed, events
	})
	return kept, err
}

func orAnonymous(principal string) string {
	if principal == "" {
		return protocol.Anonymous
	}
	return principal
}
