package verify

import (
	"context"
	"fmt"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

type (
	taskRow = dbsqlc.VerifyTasksRow
	deadRow = dbsqlc.VerifyDeadRow
)

// page is what one snapshot shows of some tasks, without their events.
type page struct {
	tasks []*taskRow
	byID  map[protocol.ID]*taskRow
	dead  map[protocol.ID]*deadRow // by task
	live  []liveTask               // those that must be somewhere in Redis
}

func (r *run) readPage(ctx context.Context, q *dbsqlc.Queries, ids []protocol.ID) (*page, error) {
	p := &page{byID: make(map[protocol.ID]*taskRow, len(ids)), dead: map[protocol.ID]*deadRow{}}
	if len(ids) == 0 {
		return p, nil
	}
	rows, err := q.VerifyTasks(ctx, pgIDs(ids))
	if err != nil {
		return nil, fmt.Errorf("read tasks: %w", err)
	}
	p.tasks = r.keepFirst(rows)
	dead, err := q.VerifyDead(ctx, pgIDs(ids))
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	for _, d := range dead {
		p.dead[protocol.ID(*d.TaskID)] = d
	}
	var dispatched []protocol.ID
	for _, t := range p.tasks {
		p.byID[protocol.ID(t.ID)] = t
		if mayBeInRedis(t) {
			dispatched = append(dispatched, protocol.ID(t.ID))
		}
	}
	if r.Redis != nil && len(dispatched) > 0 {
		p.live, err = readLive(ctx, q, dispatched)
	}
	return p, err
}

// mayBeInRedis reports whether the task was dispatched and not ended since. It
// may still be in the outbox.
func mayBeInRedis(t *taskRow) bool {
	switch protocol.State(t.State) {
	case protocol.StateQueued, protocol.StateRetrying, protocol.StateRunning:
		return !t.DueAt.Valid && t.Queue != protocol.QueueInternal
	}
	return false
}

// entries lists the entries of stream:dlq that the page's dead letters name.
func (p *page) entries() (out []entry) {
	for _, t := range p.tasks {
		d := p.dead[protocol.ID(t.ID)]
		if d != nil && d.RecordedAt.Valid && d.Status != statusExpired && !d.ErasedAt.Valid {
			out = append(out, entry{dlqID: protocol.ID(d.DlqID), id: store.Deref(d.EntryID), task: subjectOf(t)})
		}
	}
	return out
}

// replay checks the logs of the page's tasks and, with them, all else that the
// snapshot shows of each.
func (r *run) replay(ctx context.Context, q *dbsqlc.Queries, p *page, src source) error {
	requeues, err := r.requeues(ctx, q, p)
	if err != nil {
		return err
	}
	var h *history
	var others []protocol.ID // not tasks'
	seen := make(map[protocol.ID]bool, len(p.tasks))
	finish := func() {
		switch {
		case h == nil:
		case h.row != nil:
			seen[h.id] = true
			h.finish(p.dead[h.id], requeues[protocol.DLQID(h.id)])
		case !h.id.IsTask():
			others = append(others, h.id)
		}
	}
	at := src.begin()
	for full := true; full; {
		events, err := src.events(ctx, q, at)
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		for _, e := range events {
			at = position{protocol.ID(e.TaskID), e.Seq}
			if h == nil || h.id != at.id {
				finish()
				h = r.newHistory(at.id, p.byID[at.id])
			}
			h.add(e)
		}
		if full = len(events) == pageEvents; !full {
			finish()
		}
		if err := r.checkOthers(ctx, q, others); err != nil {
			return err
		}
		others = others[:0]
	}
	for _, t := range p.tasks {
		if id := protocol.ID(t.ID); !seen[id] {
			r.newHistory(id, t).finish(p.dead[id], requeues[protocol.DLQID(id)])
		}
	}
	return nil
}

// checkOthers checks that ids which have events and are no tasks' are those of
// an alert, or of a dead letter that is about no task.
func (r *run) checkOthers(ctx context.Context, q *dbsqlc.Queries, ids []protocol.ID) error {
	if len(ids) == 0 {
		return nil
	}
	rows, err := q.VerifyOthers(ctx, pgIDs(ids))
	if err != nil {
		return fmt.Errorf("read alerts: %w", err)
	}
	known := make(map[protocol.ID]bool, len(rows))
	for _, id := range rows {
		known[protocol.ID(id)] = true
	}
	for _, id := range ids {
		if !known[id] {
			r.object(CheckOrphan, "id "+id.String(), "events", none, "some, of no alert and no dead letter")
		}
	}
	return nil
}

// requeues checks the requeues of the page's dead letters, one by one, and
// returns how many each has.
func (r *run) requeues(ctx context.Context, q *dbsqlc.Queries, p *page) (map[protocol.ID]int, error) {
	counts := map[protocol.ID]int{}
	if len(p.dead) == 0 {
		return counts, nil
	}
	ids := make([]pgid.ID, 0, len(p.dead))
	originals := make(map[protocol.ID]*taskRow, len(p.dead))
	for id, d := range p.dead {
		ids = append(ids, d.DlqID)
		originals[protocol.ID(d.DlqID)] = p.byID[id]
	}
	arg := dbsqlc.VerifyRequeuesParams{DlqIds: ids, MaxRows: pageEvents}
	for full := true; full; {
		rows, err := q.VerifyRequeues(ctx, arg)
		if err != nil {
			return nil, fmt.Errorf("read requeues: %w", err)
		}
		for _, x := range rows {
			id := protocol.ID(x.DlqID)
			counts[id]++
			r.checkRequeue(originals[id], x, counts[id])
			arg.AfterID, arg.AfterN = x.DlqID, x.N
		}
		full = len(rows) == pageEvents
	}
	return counts, nil
}
