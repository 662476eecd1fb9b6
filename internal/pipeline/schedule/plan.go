package schedule

import (
	"time"

	"github.com/penstock-dev/penstock/internal/recur"
)

// Kinds of fires.
const (
	KindDue    = "due"
	KindMissed = "missed"
	KindManual = "manual"
)

// What became of fires.
const (
	ResultFired          = "fired"
	ResultSkippedOverlap = "skipped_overlap"
	ResultSkippedMissed  = "skipped_missed"
	ResultFailed         = "failed"
)

// Policies.
const (
	MissedSkip    = "skip"
	MissedRunOnce = "run_once"
	MissedRunAll  = "run_all"
	OverlapAllow  = "allow"
	OverlapSkip   = "skip"
)

// fire is what becomes of a fire time, or of all from at to until.
type fire struct {
	at, until    time.Time
	kind, result string
}

// plan is what one turn does with a schedule.
type plan struct {
	fires []fire
	// next is the fire time that follows; zero: there is none.
	next time.Time
}

// turn is what a plan depends on.
type turn struct {
	rule *recur.Rule
	// next is the fire time that is due, now Postgres' clock.
	next, now time.Time
	// seen is when it began to be looked at, not after now: what came due since then
	// was not missed, however long others take. Zero: now.
	seen      time.Time
	grace     time.Duration
	missed    string
	missedMax int
	skipsOver bool // the overlap policy is skip
	live      bool // a task of the schedule has not ended
	limit     int  // the most tasks of this turn, at least 1
}

// plan decides about the fire times from next to now, and a little ahead.
func (t turn) plan() plan {
	var p plan
	cut := t.now.Add(-t.grace)
	if !t.seen.IsZero() && t.seen.Before(t.now) {
		cut = t.seen.Add(-t.grace)
	}
	before := t.next.Add(-time.Nanosecond)
	var late []time.Time
	if t.next.Before(cut) {
		from, to := before, cut.Add(-time.Nanosecond)
		var more bool
		late, more = t.rule.Last(from, to, t.keep())
		before = to
		if more {
			end := to
			if len(late) > 0 {
				end = late[0].Add(-time.Nanosecond)
			}
			if last, _ := t.rule.Last(from, end, 1); len(last) > 0 {
				p.fires = append(p.fires, fire{t.next, last[0], KindMissed, ResultSkippedMissed})
			}
		}
	}
	tasks := 0
	take := func(at time.Time, kind string) bool {
		f := fire{at, at, kind, ResultFired}
		switch {
		case t.skipsOver && t.live:
			f.result = ResultSkippedOverlap
			if len(p.fires) >= maxRows {
				p.next = at
				return false
			}
		case tasks == t.limit:
			p.next = at
			return false
		default:
			tasks++
			t.live = true
		}
		p.fires = append(p.fires, f)
		return true
	}
	for _, at := range late {
		if !take(at, KindMissed) {
			return p
		}
	}
	at, ok := t.rule.Next(before)
	for ; ok && !at.After(t.now.Add(ahead)); at, ok = t.rule.Next(at) {
		if !take(at, KindDue) {
			return p
		}
	}
	if ok {
		p.next = at
	}
	return p
}

// maxRows bounds the fires of one schedule in one turn.
const maxRows = 1000

// keep is how many of the fire times that were missed still count.
func (t turn) keep() int {
	switch t.missed {
	case MissedSkip:
		return 0
	case MissedRunAll:
		return t.missedMax
	}
	return 1
}
