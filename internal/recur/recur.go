// Package recur computes when recurring schedules fire: from a cron expression
// in a time zone, or from an interval. A rule is a set of moments; Next returns
// the first one after a given time, so however a caller steps through time, it
// meets the same moments, each once.
package recur

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the zones are the same wherever the program runs

	"github.com/netresearch/go-cron"
)

// Bounds of what can be asked for.
const (
	// MaxCron is the most bytes of a cron expression.
	MaxCron = 255
	// MinEvery and MaxEvery bound an interval.
	MinEvery = time.Second
	MaxEvery = 10 * 366 * 24 * time.Hour
	// searchYears is how far ahead a moment is looked for. 29 February falls on a
	// given weekday every 28 years, or 40 around the year 2100.
	searchYears = 48
	// lastYear is the last one in which a moment can be: what follows is no RFC 3339.
	lastYear = 9999
)

// Rule is a set of moments. It is immutable and safe for concurrent use.
type Rule struct {
	// One of these is set.
	cron  *cronRule
	every time.Duration

	anchor     time.Time // every: moments are at anchor + n × every, n ≥ 1 …
	first      bool      // … or ≥ 0
	start, end time.Time // no moment before start or after end; zero: no bound
}

// Spec describes a rule.
type Spec struct {
	// Cron is an expression of 5 fields (minute, hour, day of month, month, day of
	// week), of 6 with seconds in front, or one of @yearly, @annually, @monthly,
	// @weekly, @daily, @midnight, @hourly. Empty: Every counts.
	Cron string
	// Every is the interval, whole milliseconds.
	Every time.Duration
	// Timezone is the IANA name of the zone of Cron; empty: UTC.
	Timezone string
	// Anchor is where intervals are counted from, if there is no Start.
	Anchor time.Time
	// Start and End bound the moments, inclusive; zero: no bound.
	Start, End time.Time
}

// Fault is what is wrong with a Spec.
type Fault struct {
	// Field is cron, every_ms, timezone or end_at.
	Field   string
	Message string
}

func (f *Fault) Error() string { return f.Field + ": " + f.Message }

func fault(field, format string, args ...any) error {
	return &Fault{Field: field, Message: fmt.Sprintf(format, args...)}
}

// New makes a rule. The error is a *Fault.
func New(s Spec) (*Rule, error) {
	r := &Rule{every: s.Every, anchor: s.Anchor, start: s.Start, end: s.End}
	if !s.Start.IsZero() && !s.End.IsZero() && !s.End.After(s.Start) {
		return nil, fault("end_at", "must be after start_at")
	}
	loc, err := Zone(s.Timezone)
	if err != nil {
		return nil, err
	}
	switch {
	case s.Cron != "" && s.Every != 0:
		return nil, fault("every_ms", "and cron are both given: give one of them")
	case s.Cron != "":
		if r.cron, err = parse(s.Cron, loc); err != nil {
			return nil, err
		}
		return r, nil
	case s.Every == 0:
		return nil, fault("cron", "is missing: give cron or every_ms")
	case s.Every < MinEvery || s.Every > MaxEvery || s.Every%time.Millisecond != 0:
		return nil, fault("every_ms", "is %d, want %d to %d", s.Every.Milliseconds(), MinEvery.Milliseconds(), MaxEvery.Milliseconds())
	}
	if !s.Start.IsZero() {
		r.anchor, r.first = s.Start, true
	}
	return r, nil
}

// Zone finds a time zone by its IANA name; empty: UTC. The error is a *Fault.
func Zone(name string) (*time.Location, error) {
	switch {
	case name == "":
		return time.UTC, nil
	case len(name) > 64:
		return nil, fault("timezone", "has %d bytes, at most 64 are allowed", len(name))
	case name == "Local":
		return nil, fault("timezone", "is Local, which is another zone on every machine: name one, such as Europe/Berlin")
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, fault("timezone", "is %q, which is no name of an IANA time zone such as Europe/Berlin", name)
	}
	return loc, nil
}

// Next returns the first moment after a time, and false if there is none up to
// the end of year 9999.
// Moments are whole seconds, or with an interval whole milliseconds.
func (r *Rule) Next(after time.Time) (time.Time, bool) {
	if !r.start.IsZero() && after.Before(r.start) {
		after = r.start.Add(-time.Nanosecond)
	}
	var at time.Time
	if r.cron != nil {
		var ok bool
		if at, ok = r.cron.next(after); !ok {
			return time.Time{}, false
		}
	} else {
		at = r.nextEvery(after)
	}
	if at = at.UTC(); at.Year() > lastYear || !r.end.IsZero() && at.After(r.end) {
		return time.Time{}, false
	}
	return at, true
}

func (r *Rule) nextEvery(after time.Time) time.Time {
	if after.Before(r.anchor) {
		if r.first {
			return r.anchor
		}
		return r.anchor.Add(r.every)
	}
	// In milliseconds: a Duration holds only 292 years.
	rest := time.Duration(r.anchor.Nanosecond() % int(time.Millisecond))
	passed, every := after.Add(-rest).UnixMilli()-r.anchor.UnixMilli(), r.every.Milliseconds()
	return time.UnixMilli(r.anchor.UnixMilli() + (passed/every+1)*every).Add(rest)
}

// Last returns the last n moments after from and not after to, in order. more
// tells that there are earlier ones. Its cost depends on n and the density of
// the moments, not on how long the time is.
func (r *Rule) Last(from, to time.Time, n int) (last []time.Time, more bool) {
	for window := time.Duration(n+1) * time.Minute; ; window *= 4 {
		begin := to.Add(-window)
		whole := window > 1<<60 || !begin.After(from)
		if whole {
			begin = from
		}
		last, more = last[:0], false
		for at, ok := r.Next(begin); ok && !at.After(to); at, ok = r.Next(at) {
			if last = append(last, at); len(last) > n {
				last, more = last[1:], true
			}
		}
		if whole || more {
			return last, more
		}
	}
}

// parser reads what crontab(5) describes, with seconds in front if there are six
// fields. A day counts if it is one of the days of the month or of the week,
// where both are given.
var parser = cron.MustNewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor | cron.DowOrDom).
	WithMaxSearchYears(searchYears)

func parse(expr string, loc *time.Location) (*cronRule, error) {
	switch {
	case len(expr) > MaxCron:
		return nil, fault("cron", "has %d bytes, at most %d are allowed", len(expr), MaxCron)
	case strings.Contains(expr, "="):
		return nil, fault("cron", "names a time zone: use the field timezone")
	case strings.HasPrefix(strings.TrimSpace(expr), "@every"):
		return nil, fault("cron", "is an interval: use every_ms")
	}
	for _, field := range strings.Fields(expr) {
		if slices.Contains(strings.Split(field, ","), "") { // the parser passes over it
			return nil, fault("cron", "is %q, which has an empty item in the list %q", expr, field)
		}
	}
	// In lower case, since the parser takes every H for a hash.
	sched, err := parser.Parse(strings.ToLower(strings.TrimSpace(expr)))
	if err != nil {
		return nil, fault("cron", "is %q, want 5 fields (minute hour day month weekday), 6 with seconds in front, or @daily and the like: %v", expr, err)
	}
	spec, ok := sched.(*cron.SpecSchedule)
	if !ok {
		return nil, fault("cron", "is %q, which is no cron expression", expr)
	}
	spec.Location, spec.DowOrDom = time.UTC, true
	c := &cronRule{wall: spec, loc: loc, hourly: spec.Hour&(1<<24-1) == 1<<24-1}
	if _, ok := c.next(time.Unix(0, 0)); !ok {
		return nil, fault("cron", "is %q, which never comes true: there is no such day", expr)
	}
	return c, nil
}

// AsFault returns the fault in err, or nil.
func AsFault(err error) *Fault {
	f, _ := errors.AsType[*Fault](err)
	return f
}
