package schedule

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/internal/recur"
)

var zero = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func everyMinute(t testing.TB) *recur.Rule {
	t.Helper()
	r, err := recur.New(recur.Spec{Every: time.Minute, Anchor: zero.Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// short is the minutes after zero of a fire, with its kind and result.
func short(f fire) string {
	s := f.at.Sub(zero).String()
	if !f.until.Equal(f.at) {
		s += "…" + f.until.Sub(zero).String()
	}
	return s + " " + f.kind + " " + f.result
}

func TestPlan(t *testing.T) {
	t.Parallel()
	base := turn{rule: everyMinute(t), next: zero, now: zero.Add(5*time.Minute + time.Second), grace: 90 * time.Second, missed: MissedRunOnce, missedMax: 2, limit: 100}
	for name, c := range map[string]struct {
		edit func(*turn)
		want []string
		next time.Duration
	}{
		"in time":        {func(x *turn) { x.now = zero.Add(time.Millisecond) }, []string{"0s due fired"}, time.Minute},
		"a little ahead": {func(x *turn) { x.now = zero.Add(-ahead) }, []string{"0s due fired"}, time.Minute},
		"too early":      {func(x *turn) { x.now = zero.Add(-ahead - time.Millisecond) }, nil, 0},
		"run once":       {func(*turn) {}, []string{"0s…2m0s missed skipped_missed", "3m0s missed fired", "4m0s due fired", "5m0s due fired"}, 6 * time.Minute},
		"skip":           {func(x *turn) { x.missed = MissedSkip }, []string{"0s…3m0s missed skipped_missed", "4m0s due fired", "5m0s due fired"}, 6 * time.Minute},
		"run all": {func(x *turn) { x.missed, x.missedMax = MissedRunAll, 4 },
			[]string{"0s missed fired", "1m0s missed fired", "2m0s missed fired", "3m0s missed fired", "4m0s due fired", "5m0s due fired"}, 6 * time.Minute},
		"run all up to a bound": {func(x *turn) { x.missed = MissedRunAll },
			[]string{"0s…1m0s missed skipped_missed", "2m0s missed fired", "3m0s missed fired", "4m0s due fired", "5m0s due fired"}, 6 * time.Minute},
		"run all, one missed": {func(x *turn) { x.missed, x.next = MissedRunAll, zero.Add(3*time.Minute) },
			[]string{"3m0s missed fired", "4m0s due fired", "5m0s due fired"}, 6 * time.Minute},
		"skip, one missed": {func(x *turn) { x.missed, x.next = MissedSkip, zero.Add(3*time.Minute) },
			[]string{"3m0s missed skipped_missed", "4m0s due fired", "5m0s due fired"}, 6 * time.Minute},
		"overlap": {func(x *turn) { x.skipsOver = true },
			[]string{"0s…2m0s missed skipped_missed", "3m0s missed fired", "4m0s due skipped_overlap", "5m0s due skipped_overlap"}, 6 * time.Minute},
		"overlap with an earlier task": {func(x *turn) { x.skipsOver, x.live, x.next = true, true, zero.Add(5*time.Minute) },
			[]string{"5m0s due skipped_overlap"}, 6 * time.Minute},
		"live without the policy": {func(x *turn) { x.live, x.next = true, zero.Add(5*time.Minute) }, []string{"5m0s due fired"}, 6 * time.Minute},
		// Others took six minutes of the same round: that is nobody's downtime.
		"seen in time": {func(x *turn) { x.seen = zero.Add(time.Minute) },
			[]string{"0s due fired", "1m0s due fired", "2m0s due fired", "3m0s due fired", "4m0s due fired", "5m0s due fired"}, 6 * time.Minute},
		"seen when it was late": {func(x *turn) { x.seen = zero.Add(2 * time.Minute) },
			[]string{"0s missed fired", "1m0s due fired", "2m0s due fired", "3m0s due fired", "4m0s due fired", "5m0s due fired"}, 6 * time.Minute},
		"more than fits": {func(x *turn) { x.limit = 2 }, []string{"0s…2m0s missed skipped_missed", "3m0s missed fired", "4m0s due fired"}, 5 * time.Minute},
		"the end": {func(x *turn) {
			x.rule, _ = recur.New(recur.Spec{Every: time.Minute, Start: zero, End: zero.Add(4 * time.Minute)})
		}, []string{"0s…2m0s missed skipped_missed", "3m0s missed fired", "4m0s due fired"}, -1},
	} {
		x := base
		c.edit(&x)
		p := x.plan()
		var got []string
		for _, f := range p.fires {
			got = append(got, short(f))
		}
		want := zero.Add(c.next)
		if c.next < 0 {
			want = time.Time{}
		}
		if !slices.Equal(got, c.want) || !p.next.Equal(want) {
			t.Errorf("%s: %q, then %s; want %q, then %s", name, got, p.next, c.want, want)
		}
	}
}

// Whatever the policies and however late the turns come: every fire time up to
// the last turn is dealt with once, in order, and the bounds hold.
func TestPlansCoverEveryFireTimeOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		every := time.Duration(rapid.Int64Range(1, 100).Draw(t, "every")) * time.Second
		rule, err := recur.New(recur.Spec{Every: every, Anchor: zero.Add(-every)})
		if err != nil {
			t.Fatal(err)
		}
		x := turn{
			rule: rule, next: zero, now: zero, grace: time.Duration(rapid.Int64Range(1, 300).Draw(t, "grace")) * time.Second,
			missed:    rapid.SampledFrom([]string{MissedSkip, MissedRunOnce, MissedRunAll}).Draw(t, "missed"),
			missedMax: rapid.IntRange(1, 20).Draw(t, "max"), skipsOver: rapid.Bool().Draw(t, "overlap"), limit: rapid.IntRange(1, 30).Draw(t, "limit"),
		}
		covered := zero.Add(-every) // the last fire time dealt with
		for range rapid.IntRange(1, 10).Draw(t, "turns") {
			x.now = x.now.Add(time.Duration(rapid.Int64Range(0, 2000).Draw(t, "pause")) * time.Second)
			x.live = rapid.Bool().Draw(t, "live")
			p := x.plan()
			tasks, missed := 0, 0
			for _, f := range p.fires {
				if f.at.Sub(covered) != every || f.until.Before(f.at) {
					t.Fatalf("after %s comes %s", covered, short(f))
				}
				if f.kind == KindMissed != f.at.Before(x.now.Add(-x.grace)) {
					t.Fatalf("%s at %s", short(f), x.now)
				}
				if f.result == ResultFired {
					tasks++
					if f.kind == KindMissed {
						missed++
					}
				}
				covered = f.until
			}
			if tasks > x.limit || missed > max(1, x.missedMax) || x.skipsOver && (tasks > 1 || tasks > 0 && x.live) {
				t.Fatalf("%d tasks, %d missed", tasks, missed)
			}
			if p.next.Sub(covered) != every {
				t.Fatalf("dealt with all until %s, but next is %s", covered, p.next)
			}
			if tasks < x.limit && !p.next.After(x.now.Add(ahead)) {
				t.Fatalf("%s is due and was left at %s", p.next, x.now)
			}
			x.next = p.next
		}
	})
}

func TestManualFiresNeverMeetARule(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, rapid.Int64Range(0, 1<<60).Draw(t, "ns"))
		at := manualAt(now)
		if at.Nanosecond()%int(time.Millisecond) == 0 || at.Nanosecond()%1000 != 0 || at.Sub(now).Abs() > time.Microsecond {
			t.Fatalf("%s becomes %s", now, at)
		}
	})
}
