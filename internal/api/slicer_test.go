package api

import (
	"sort"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// countIn counts the sorted times in [from, until).
func countIn(times []time.Time, from, until time.Time) int64 {
	at := func(x time.Time) int { return sort.Search(len(times), func(i int) bool { return !times[i].Before(x) }) }
	return int64(at(until) - at(from))
}

// Slices cover the time without gaps and overlaps, none that could be shorter is
// too dense, and a call ends soon after it has read enough.
func TestSlicer(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 2, 25, 12, 0, 0, 0, time.UTC)
		since := now.Add(-time.Duration(rapid.Int64Range(1, int64(40*365*24*time.Hour)).Draw(t, "since")))
		if rapid.Bool().Draw(t, "year 1") {
			since = time.Time{}
		}
		until := now.Add(time.Duration(rapid.Int64Range(-int64(time.Hour), int64(1000*time.Hour)).Draw(t, "until")))
		var times []time.Time
		for range rapid.IntRange(0, 4).Draw(t, "bursts") {
			start := now.Add(-time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "burst")))
			gap := time.Duration(rapid.Int64Range(0, int64(10*time.Millisecond)).Draw(t, "gap"))
			for i := range rapid.IntRange(1, 3*sliceEvents).Draw(t, "events") {
				times = append(times, start.Add(time.Duration(i)*gap))
			}
		}
		sort.Slice(times, func(i, j int) bool { return times[i].Before(times[j]) })
		after, seen := time.Time{}, int64(0)
		for call := 0; ; call++ {
			s := newSlicer(since, until, after, now)
			first := s.from
			steps := 0
			for s.from.Before(s.until) && !s.enough(now) {
				if steps++; steps > 400 {
					t.Fatalf("call %d: %d steps, at %s of %s", call, steps, s.from, s.until)
				}
				end := s.slice()
				if !end.After(s.from) || end.After(s.until) {
					t.Fatalf("slice from %s to %s", s.from, end)
				}
				n := countIn(times, s.from, end)
				if n > sliceEvents && s.dense(end) {
					continue
				}
				if n > sliceEvents && end.Sub(s.from) > sliceLeast {
					t.Fatalf("slice of %s with %d events", end.Sub(s.from), n)
				}
				seen += n
				s.done(end, n)
			}
			if !s.from.Before(s.until) {
				break
			}
			if after = s.from; !after.After(first) {
				t.Fatalf("call %d does not get on from %s", call, first)
			}
		}
		from := since
		if from.Before(before) {
			from = before
		}
		if limit := now.Add(ahead); limit.Before(until) {
			until = limit
		}
		if want := countIn(times, from, until); from.Before(until) && seen != want {
			t.Fatalf("%d events seen, want %d", seen, want)
		}
	})
}
