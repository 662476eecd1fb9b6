// Package verify compares the record with itself and with Redis: it folds the
// event log of every task and compares the result with the task's row, its dead
// letter, and the place where Redis must have it. It only reads, works while
// the system runs, and needs the same memory for a thousand tasks as for
// millions.
//
// Tasks are read in pages, each with its events and dead letters in one short
// snapshot, so that what is compared belongs together. What Redis holds is read
// afterwards; where it seems to lack something, the task is read again before
// that is reported.
package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Options say what to verify. Without IDs, Since and Until it is everything:
// all tasks, events that belong to none, idempotency keys, dead letters that
// are about no task, batches of dead letters, and alerts.
type Options struct {
	Store *store.Store
	// Redis may be nil: what is in Redis is then not looked at.
	Redis *streams.Client
	// IDs are the tasks to verify; see Resolve. Ids that no task has are
	// passed over.
	IDs []protocol.ID
	// Since and Until select tasks by created_at, Since included, Until not;
	// a zero time is no bound.
	Since, Until time.Time
	// Report is told each difference soon after it was found; nil: they are only
	// counted.
	Report func(Difference)
	// Progress, if not nil, is told after each page what was done so far.
	Progress func(Summary)
}

// Summary counts what was verified.
type Summary struct {
	Tasks  int64 `json:"tasks"`
	Events int64 `json:"events"`
	// Retries is the number of delays that came from a retry policy and were
	// recomputed.
	Retries     int64 `json:"retries_recomputed"`
	DeadLetters int64 `json:"dead_letters"`
	// Live is the number of live tasks that were looked for in Redis.
	Live        int64   `json:"live_tasks_located"`
	Differences int64   `json:"differences"`
	Seconds     float64 `json:"seconds"`
}

// Sizes of what is held in memory at once.
const (
	pageTasks  = 1000
	pageEvents = 2000
	// maxLive is how many live tasks are looked for in one scan of the streams.
	maxLive = 5000
	maxHeld = 10_000
)

// run is one verification.
type run struct {
	Options
	seed  []byte
	sum   Summary
	start time.Time
	live  map[protocol.Pair]liveTask
	// held are differences found in a snapshot that is not over, while hold.
	held []Difference
	hold bool
}

// Run verifies and returns what it counted. The error is about reading Postgres
// or Redis; differences are no error.
func Run(ctx context.Context, o Options) (Summary, error) {
	r := &run{Options: o, seed: o.Store.Deployment().Seed, start: time.Now(), live: map[protocol.Pair]liveTask{}}
	err := r.all(ctx)
	r.sum.Seconds = time.Since(r.start).Seconds()
	return r.sum, err
}

func (r *run) all(ctx context.Context) error {
	var src source
	everything := false
	switch {
	case r.IDs != nil:
		src = newListed(r.IDs)
	case !r.Since.IsZero() || !r.Until.IsZero():
		src = newCreated(r.Since, r.Until)
	default:
		src, everything = &byID{}, true
	}
	for more := true; more; {
		var err error
		if more, err = r.page(ctx, src); err != nil {
			return err
		}
	}
	if err := r.locate(ctx); err != nil {
		return err
	}
	if everything {
		return r.sweeps(ctx)
	}
	return nil
}

// page verifies the next tasks of a source; more is false after the last ones.
func (r *run) page(ctx context.Context, src source) (more bool, err error) {
	var p *page
	r.hold = true
	err = r.Store.Snapshot(ctx, func(q *dbsqlc.Queries) error {
		var ids []protocol.ID
		if ids, more, err = src.next(ctx, q); err != nil {
			return fmt.Errorf("list tasks: %w", err)
		}
		if p, err = r.readPage(ctx, q, ids); err != nil {
			return err
		}
		return r.replay(ctx, q, p, src)
	})
	r.hold = false
	r.release()
	if err != nil {
		return false, err
	}
	r.sum.Tasks += int64(len(p.tasks))
	r.sum.DeadLetters += int64(len(p.dead))
	if err := r.checkView(ctx, p.tasks); err != nil {
		return false, err
	}
	if r.Redis != nil {
		for _, l := range p.live {
			r.live[l.Pair] = l
		}
		if err := r.checkEntries(ctx, p.entries()); err != nil {
			return false, err
		}
	}
	if len(r.live) >= maxLive {
		if err := r.locate(ctx); err != nil {
			return false, err
		}
	}
	if r.Progress != nil {
		r.sum.Seconds = time.Since(r.start).Seconds()
		r.Progress(r.sum)
	}
	return more, nil
}

// report passes a difference on, after the snapshot that shows it: whoever
// takes it may be slow, and a snapshot must be short.
func (r *run) report(d Difference) {
	r.sum.Differences++
	if r.Report == nil {
		return
	}
	r.held = append(r.held, d)
	if !r.hold || len(r.held) >= maxHeld {
		r.release()
	}
}

func (r *run) release() {
	for _, d := range r.held {
		r.Report(d)
	}
	r.held = r.held[:0]
}

// Resolve finds the id under which a task is stored: s is its UUID or, in the
// tenant, its name. The error is an *protocol.Error with TASK_NOT_FOUND if
// there is no such task.
func Resolve(ctx context.Context, s *store.Store, tenant, taskID string) (protocol.ID, error) {
	ids := []protocol.ID{protocol.NameID(tenant, taskID)}
	if id, err := protocol.ParseID(taskID); err == nil {
		ids = append(ids, id)
	}
	rows, err := s.VerifyTasks(ctx, pgIDs(ids))
	if err != nil {
		return protocol.ID{}, fmt.Errorf("look up task %s: %w", taskID, err)
	}
	if len(rows) == 0 {
		return protocol.ID{}, protocol.Errorf(protocol.CodeNotFound, "task_id", "there is no task %q of tenant %q", taskID, tenant)
	}
	return protocol.ID(rows[0].ID), nil // a UUID sorts before a name's
}
