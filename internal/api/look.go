package api

import (
	"context"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
)

// What one call of a list, a search or a watch looks at, whatever its filter
// admits. The rest is left to the next call, which goes on where this one
// stopped: a filter that admits little costs calls, never one that does not end.
const (
	// lookFirst is how many rows the first look of a call reads beyond the page;
	// each that does not fill it is followed by a larger one.
	lookFirst = 1000
	// lookRows is how many rows a call reads, lookTime for how long it begins new
	// looks.
	lookRows = 50_000
	lookTime = 3 * time.Second
)

// budget is what a call may still look at.
type budget struct {
	rows     int64
	deadline time.Time
}

func newBudget(now time.Time) budget { return budget{rows: lookRows, deadline: now.Add(lookTime)} }

// spend notes that n rows were read.
func (b *budget) spend(n int64) { b.rows -= n }

// spent reports whether the call must leave the rest to the next one.
func (b *budget) spent(now time.Time) bool { return b.rows <= 0 || now.After(b.deadline) }

// looked is a row of a look: its number among those that were looked at, and
// whether the filter admits it.
type looked struct {
	place    int64
	admitted bool
}

// look reads a page of a list: at most size rows that a filter admits, in as many
// looks as it takes, within a budget.
type look[R any] struct {
	// read returns at most maxRows rows of the next maxLook: those that are
	// admitted, and the last one if there are so many.
	read func(q *dbsqlc.Queries, maxLook, maxRows int32) ([]R, error)
	of   func(R) looked
	// move makes the next look start after a row.
	move func(R)
}

// page returns the rows, and after which one the next page starts; nil if this is
// the last. short tells that the page has fewer rows because the budget is spent,
// not because it is the last.
func (l look[R]) page(ctx context.Context, s *store.Store, size int32) (rows []R, next *R, short bool, err error) {
	err = s.Look(ctx, func(q *dbsqlc.Queries) (err error) {
		rows, next, short, err = l.looks(q, size)
		return err
	})
	return rows, next, short, err
}

func (l look[R]) looks(q *dbsqlc.Queries, size int32) (rows []R, next *R, short bool, err error) {
	b := newBudget(time.Now())
	for n := size + lookFirst; ; n *= 4 {
		n = int32(min(int64(n), b.rows))
		// One more than asked for tells whether there is another page.
		got, err := l.read(q, n, size+2-int32(len(rows)))
		if err != nil {
			return nil, nil, false, err
		}
		var last *R
		for i, r := range got {
			at := l.of(r)
			if at.admitted {
				rows = append(rows, r)
			}
			if at.place == int64(n) {
				last = &got[i]
			}
		}
		if len(rows) > int(size) {
			return rows[:size], &rows[size-1], false, nil
		}
		if last == nil {
			return rows, nil, false, nil
		}
		l.move(*last)
		if b.spend(int64(n)); b.spent(time.Now()) {
			return rows, last, len(rows) < int(size), nil
		}
	}
}
