package api

import (
	"context"
	"time"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
)

// The work of one search over a time.
const (
	// sliceStart is how long the first slice of time is; each that has few events
	// is followed by one that is twice as long.
	sliceStart = time.Minute
	// sliceLeast is the shortest slice. It is read however many events it has.
	sliceLeast = time.Millisecond
	// sliceEvents is how many events a longer slice may have, whether they match or
	// not. One that has more is made shorter.
	sliceEvents = 20_000
)

// slicer cuts a time into slices and says when a call has read enough.
type slicer struct {
	from, until time.Time     // what is not read yet
	width       time.Duration // of the next slice
	moved       bool          // a slice was read to its end
	budget      budget
}

// before is earlier than all events, ahead is how far an orchestrator's clock may
// be before ours.
var before = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

const ahead = 24 * time.Hour

// newSlicer cuts the time from since, or after if that is later, until until.
func newSlicer(since, until, after, now time.Time) *slicer {
	s := &slicer{from: before, until: now.Add(ahead), width: sliceStart, budget: newBudget(now)}
	for _, t := range []time.Time{since, after} {
		if t.After(s.from) {
			s.from = t
		}
	}
	if until.Before(s.until) {
		s.until = until
	}
	return s
}

// slice returns the end of the next slice.
func (s *slicer) slice() time.Time {
	if s.until.Sub(s.from) <= s.width {
		return s.until
	}
	return s.from.Add(s.width)
}

// dense makes the next slice shorter, as it has too many events; false if it is
// as short as it can be.
func (s *slicer) dense(end time.Time) bool {
	width := end.Sub(s.from)
	if width <= sliceLeast {
		return false
	}
	s.width = max(width/8, sliceLeast)
	return true
}

// done notes that a slice with n events was read to its end.
func (s *slicer) done(end time.Time, n int64) {
	s.from, s.moved = end, true
	s.budget.spend(n)
	if n < sliceEvents/2 && s.width < s.until.Sub(s.from) {
		s.width *= 2
	}
}

// enough reports whether the call must end before all is read. Each call gets
// on, however slow the database is.
func (s *slicer) enough(now time.Time) bool {
	return s.moved && s.from.Before(s.until) && s.budget.spent(now)
}

// searchAll reads events of all tasks in slices of time until it has what the
// page needs, or all, or has worked enough: then next is where to go on, with
// whatever was found before.
func (s *Service) searchAll(ctx context.Context, p dbsqlc.SearchAllEventsParams, now time.Time) (rows []*dbsqlc.WatchEventsRow, next time.Time, err error) {
	t := newSlicer(p.Since, p.Until, p.AfterAt, now)
	most := p.MaxRows
	for t.from.Before(t.until) && len(rows) < int(most) {
		if t.enough(time.Now()) {
			return rows, t.from, nil
		}
		p.Since, p.Until, p.MaxRows = t.from, t.slice(), most-int32(len(rows))
		found, n, err := s.searchSlice(ctx, p, p.Until.Sub(p.Since) <= sliceLeast)
		if err != nil {
			return nil, time.Time{}, failure(err)
		}
		if n > sliceEvents && t.dense(p.Until) {
			continue
		}
		for _, r := range found {
			rows = append(rows, (*dbsqlc.WatchEventsRow)(r))
		}
		t.done(p.Until, n)
	}
	return rows, time.Time{}, nil
}

// searchSlice counts the events of a slice and reads those that match, unless
// there are more than sliceEvents and the slice is not to be read anyway.
func (s *Service) searchSlice(ctx context.Context, p dbsqlc.SearchAllEventsParams, anyway bool) (found []*dbsqlc.SearchAllEventsRow, n int64, err error) {
	err = s.store.Snapshot(ctx, func(q *dbsqlc.Queries) (err error) {
		if err = q.AvoidFullScans(ctx); err != nil {
			return err
		}
		n, err = q.CountEventsBetween(ctx, dbsqlc.CountEventsBetweenParams{Since: p.Since, Until: p.Until, MaxRows: sliceEvents + 1})
		if err != nil || n == 0 || n > sliceEvents && !anyway {
			return err
		}
		found, err = q.SearchAllEvents(ctx, p)
		return err
	})
	return found, n, err
}
