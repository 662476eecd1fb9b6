package verify

import (
	"context"
	"fmt"
	"strconv"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// CheckRuns: a task has one run for each attempt from 1 on, by its log as in the
// view task_runs, each with an execution key of its own.
const CheckRuns Check = "runs"

const (
	// maxRuns is about how many runs are read from the view in one statement: what
	// the view does for a run grows with the task's log.
	maxRuns = 1000
	// maxAttempt is above every task's attempt. That a row has a greater one is seen
	// without counting up to it.
	maxAttempt = 10_000
)

// countRuns checks that the event goes on with the run before it, or begins the
// next one. It tells more than the fold, which ends at the first event that can't
// have happened.
func (h *history) countRuns(e *protocol.Event) {
	switch {
	case e.Attempt == h.attempt && h.runs > 0:
	case e.Attempt == h.runs+1:
		h.runs++
	case h.runs == 0:
		h.differ(CheckRuns, e.Seq, "attempt", "1", strconv.Itoa(e.Attempt))
	default:
		h.differ(CheckRuns, e.Seq, "attempt", fmt.Sprintf("%d, or %d for the next run", h.runs, h.runs+1), strconv.Itoa(e.Attempt))
	}
	h.attempt, h.runs = e.Attempt, max(h.runs, e.Attempt)
}

// checkRuns compares the runs that the log began with those that the view makes
// of the row.
func (h *history) checkRuns() {
	if n := int(h.row.Attempt); h.seq > 0 && n != h.runs {
		h.differ(CheckRuns, 0, "runs", strconv.Itoa(h.runs), strconv.Itoa(n))
	}
}

// keepFirst leaves one row of each id in the page, in order of id. The view's key
// is made of the table's: with an id that two tasks have no run is unique.
func (r *run) keepFirst(rows []*taskRow) []*taskRow {
	kept := rows[:0]
	told := -1
	for _, t := range rows {
		last := len(kept) - 1
		if last < 0 || kept[last].ID != t.ID {
			kept = append(kept, t)
			continue
		}
		if told != last {
			r.report(subjectOf(t).of(Difference{Check: CheckRuns, Field: "tasks of this id", Expected: "1", Found: "more"}))
		}
		told = last
	}
	return kept
}

// checkView looks at the runs of the page's tasks in the view itself. It is asked
// about tasks that ran more than once: one attempt has one key. Each statement
// compares the view with the row as it is by then, outside of the page's snapshot.
func (r *run) checkView(ctx context.Context, tasks []*taskRow) error {
	var ids []pgid.ID
	runs := 0
	for _, t := range tasks {
		if t.Attempt != 1 && t.Attempt <= maxAttempt {
			ids = append(ids, t.ID)
			runs += int(t.Attempt)
		}
		if runs < maxRuns {
			continue
		}
		if err := r.readView(ctx, ids); err != nil {
			return err
		}
		ids, runs = ids[:0], 0
	}
	return r.readView(ctx, ids)
}

func (r *run) readView(ctx context.Context, ids []pgid.ID) error {
	if len(ids) == 0 {
		return nil
	}
	rows, err := r.Store.VerifyRuns(ctx, ids)
	if err != nil {
		return fmt.Errorf("read runs: %w", err)
	}
	for _, v := range rows {
		s, want := subject{protocol.ID(v.ID), store.Deref(v.Name)}, max(int64(v.Attempt), 1)
		for _, c := range []struct {
			of string
			n  int64
		}{{"runs", v.Runs}, {"attempts", v.Attempts}, {"execution keys", v.Keys}} {
			if c.n != want {
				r.report(s.of(Difference{Check: CheckRuns, Field: c.of + " in task_runs", Expected: strconv.FormatInt(want, 10), Found: strconv.FormatInt(c.n, 10)}))
			}
		}
	}
	return nil
}
