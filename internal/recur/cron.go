package recur

import (
	"time"

	"github.com/netresearch/go-cron"
)

// cronRule is a cron expression in a time zone. The parser's own Next knows
// only shifts of the clock by one hour, so it is asked about wall clock times
// without a zone, and what becomes of them when the clock is moved is decided
// here.
type cronRule struct {
	wall *cron.SpecSchedule // in UTC, which stands for the wall clock
	loc  *time.Location
	// hourly: every hour counts, so the rule is about passing time: what is skipped
	// does not fire, and what comes twice fires twice. Else it is about times of
	// day: each fires once, one that is skipped at the moment of the shift.
	hourly bool
}

// next returns the first moment after a time. It goes through the stretches in
// which the zone's offset is constant.
func (c *cronRule) next(after time.Time) (time.Time, bool) {
	x := after.Truncate(time.Second).Add(time.Second) // moments are whole seconds
	for {
		local := x.In(c.loc)
		begin, end := local.ZoneBounds()
		_, offset := local.Zone()
		before := offset
		if !begin.IsZero() {
			_, before = begin.Add(-time.Second).In(c.loc).Zone()
		}
		shift := time.Duration(offset-before) * time.Second
		from := wallOf(x, offset)
		if !c.hourly && shift > 0 && x.Equal(begin) {
			// The clock was put forward just now: what it skipped is due.
			skipped := wallOf(begin, before)
			if w, ok := c.nextWall(skipped); ok && w.Before(skipped.Add(shift)) {
				return begin.UTC(), true
			}
		}
		if !c.hourly && shift < 0 {
			// It was put back: what it showed already has fired.
			if shown := wallOf(begin, before); from.Before(shown) {
				from = shown
			}
		}
		w, ok := c.nextWall(from)
		if !ok {
			return time.Time{}, false
		}
		at := w.Add(-time.Duration(offset) * time.Second)
		if end.IsZero() || at.Before(end) {
			return at, true
		}
		x = end
	}
}

// wallOf is what the clock shows at a moment, as if it were in UTC.
func wallOf(t time.Time, offset int) time.Time {
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// nextWall returns the first time at or after w that the expression means.
func (c *cronRule) nextWall(w time.Time) (time.Time, bool) {
	next := c.wall.Next(w.Add(-time.Nanosecond))
	return next, !next.IsZero()
}
