package recur

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func rule(t testing.TB, s Spec) *Rule {
	t.Helper()
	r, err := New(s)
	if err != nil {
		t.Fatalf("%+v: %v", s, err)
	}
	return r
}

func moment(t testing.TB, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// What becomes of times that the clock skips or shows twice. Moments are given
// as the local clock shows them.
func TestDaylightSaving(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, cron, zone, from, want string }{
		{"Berlin, spring, a time that is skipped fires at the shift", "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00+01:00",
			"2026-03-29T03:00:00+02:00 2026-03-30T02:30:00+02:00"},
		{"Berlin, spring, several skipped times are one fire", "*/15 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00+01:00",
			"2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00"},
		{"Berlin, spring, a skipped time and the next hour are one fire", "0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00+01:00",
			"2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00"},
		{"Berlin, spring, every half hour skips nothing that passes", "*/30 * * * *", "Europe/Berlin", "2026-03-29T01:00:00+01:00",
			"2026-03-29T01:30:00+01:00 2026-03-29T03:00:00+02:00 2026-03-29T03:30:00+02:00"},
		{"Berlin, autumn, a time that comes twice fires the first time", "30 2 * * *", "Europe/Berlin", "2026-10-25T00:00:00+02:00",
			"2026-10-25T02:30:00+02:00 2026-10-26T02:30:00+01:00"},
		{"Berlin, autumn, the hour after the shift", "0 3 * * *", "Europe/Berlin", "2026-10-25T00:00:00+02:00",
			"2026-10-25T03:00:00+01:00 2026-10-26T03:00:00+01:00"},
		{"Berlin, autumn, every half hour goes on", "*/30 * * * *", "Europe/Berlin", "2026-10-25T01:30:00+02:00",
			"2026-10-25T02:00:00+02:00 2026-10-25T02:30:00+02:00 2026-10-25T02:00:00+01:00 2026-10-25T02:30:00+01:00 2026-10-25T03:00:00+01:00"},
		{"New York, spring", "15 2 * * *", "America/New_York", "2026-03-07T12:00:00-05:00", "2026-03-08T03:00:00-04:00 2026-03-09T02:15:00-04:00"},
		{"New York, autumn", "15 1 * * *", "America/New_York", "2026-10-31T12:00:00-04:00", "2026-11-01T01:15:00-04:00 2026-11-02T01:15:00-05:00"},
		{"Lord Howe, spring: half an hour is skipped", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00+10:30",
			"2026-10-04T02:30:00+11:00 2026-10-05T02:15:00+11:00"},
		{"Lord Howe, spring: later that day", "0 4 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00+10:30",
			"2026-10-04T04:00:00+11:00 2026-10-05T04:00:00+11:00"},
		{"Lord Howe, autumn: half an hour comes twice", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00:00+11:00",
			"2026-04-05T01:45:00+11:00 2026-04-06T01:45:00+10:30"},
		{"Lord Howe, autumn, every quarter", "*/15 * * * *", "Australia/Lord_Howe", "2026-04-05T01:30:00+11:00",
			"2026-04-05T01:45:00+11:00 2026-04-05T01:30:00+10:30 2026-04-05T01:45:00+10:30 2026-04-05T02:00:00+10:30"},
		{"Santiago: midnight is skipped", "@daily", "America/Santiago", "2026-09-05T12:00:00-04:00",
			"2026-09-06T01:00:00-03:00 2026-09-07T00:00:00-03:00"},
		{"Apia: a whole day is skipped", "0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00-10:00",
			"2011-12-29T12:00:00-10:00 2011-12-31T00:00:00+14:00 2011-12-31T12:00:00+14:00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := rule(t, Spec{Cron: c.cron, Timezone: c.zone})
			at := moment(t, c.from)
			for _, want := range strings.Fields(c.want) {
				next, ok := r.Next(at)
				if !ok || !next.Equal(moment(t, want)) {
					loc, _ := Zone(c.zone)
					t.Fatalf("after %s comes %s, want %s", at.In(loc), next.In(loc), want)
				}
				at = next
			}
		})
	}
}

func TestExpressions(t *testing.T) {
	t.Parallel()
	from := "2026-02-27T23:59:30Z"
	for expr, want := range map[string]string{
		"* * * * *":          "2026-02-28T00:00:00Z",
		"*/20 * * * * *":     "2026-02-27T23:59:40Z",
		"  0 9 * * MON-FRI ": "2026-03-02T09:00:00Z",
		"0 9 * * THU":        "2026-03-05T09:00:00Z",
		"0 0 13 * 5":         "2026-03-06T00:00:00Z", // day of month or weekday
		"0 0 * * 7":          "2026-03-01T00:00:00Z",
		"0 0 29 2 *":         "2028-02-29T00:00:00Z",
		"0 0 31 MAR *":       "2026-03-31T00:00:00Z",
		"@hourly":            "2026-02-28T00:00:00Z",
		"@weekly":            "2026-03-01T00:00:00Z",
		"@yearly":            "2027-01-01T00:00:00Z",
		"@monthly":           "2026-03-01T00:00:00Z",
	} {
		if next, ok := rule(t, Spec{Cron: expr}).Next(moment(t, from)); !ok || !next.Equal(moment(t, want)) {
			t.Errorf("%q: %s, %t, want %s", expr, next, ok, want)
		}
	}
	leap := rule(t, Spec{Cron: "0 0 29 2 *"})
	if next, ok := leap.Next(moment(t, "2096-03-01T00:00:00Z")); !ok || next.Year() != 2104 {
		t.Errorf("the leap day after 2096 is %s, %t", next, ok)
	}
}

func TestNonsense(t *testing.T) {
	t.Parallel()
	start := time.Unix(1e9, 0)
	for name, c := range map[string]struct {
		spec  Spec
		field string
	}{
		"nothing":         {Spec{}, "cron"},
		"words":           {Spec{Cron: "every day at noon please"}, "cron"},
		"four fields":     {Spec{Cron: "* * * *"}, "cron"},
		"seven fields":    {Spec{Cron: "* * * * * * *"}, "cron"},
		"minute 60":       {Spec{Cron: "60 * * * *"}, "cron"},
		"month 13":        {Spec{Cron: "0 0 1 13 *"}, "cron"},
		"day 0":           {Spec{Cron: "0 0 0 * *"}, "cron"},
		"step 0":          {Spec{Cron: "*/0 * * * *"}, "cron"},
		"no such day":     {Spec{Cron: "0 0 30 2 *"}, "cron"},
		"empty list":      {Spec{Cron: ", * * * *"}, "cron"},
		"NUL":             {Spec{Cron: "* * * * \x00"}, "cron"},
		"reboot":          {Spec{Cron: "@reboot"}, "cron"},
		"empty item":      {Spec{Cron: "0,,5 * * * *"}, "cron"},
		"empty last item": {Spec{Cron: "0 0,12, * * *"}, "cron"},
		"every in cron":   {Spec{Cron: "@every 1s"}, "cron"},
		"zone in cron":    {Spec{Cron: "CRON_TZ=UTC * * * * *"}, "cron"},
		"long":            {Spec{Cron: strings.Repeat("1,", 200) + "1 * * * *"}, "cron"},
		"hash":            {Spec{Cron: "H * * * *"}, "cron"},
		"both":            {Spec{Cron: "* * * * *", Every: time.Second}, "every_ms"},
		"too often":       {Spec{Every: 999 * time.Millisecond}, "every_ms"},
		"negative":        {Spec{Every: -time.Hour}, "every_ms"},
		"too seldom":      {Spec{Every: MaxEvery + time.Millisecond}, "every_ms"},
		"no such zone":    {Spec{Cron: "* * * * *", Timezone: "Europe/Atlantis"}, "timezone"},
		"zone is a path":  {Spec{Cron: "* * * * *", Timezone: "../../etc/passwd"}, "timezone"},
		"local":           {Spec{Cron: "* * * * *", Timezone: "Local"}, "timezone"},
		"long zone":       {Spec{Cron: "* * * * *", Timezone: strings.Repeat("x", 65)}, "timezone"},
		"ends before":     {Spec{Every: time.Hour, Start: start, End: start}, "end_at"},
		"zone with every": {Spec{Every: time.Hour, Timezone: "Nowhere"}, "timezone"},
	} {
		_, err := New(c.spec)
		if f := AsFault(err); f == nil || f.Field != c.field || f.Message == "" {
			t.Errorf("%s: %v, want a fault of %s", name, err, c.field)
		}
	}
}

func TestEvery(t *testing.T) {
	t.Parallel()
	anchor := moment(t, "2026-01-01T00:00:07Z")
	r := rule(t, Spec{Every: 10 * time.Second, Anchor: anchor})
	for after, want := range map[time.Duration]time.Duration{-time.Hour: 10, 0: 10, 9 * time.Second: 10, 10 * time.Second: 20, 10*time.Second - 1: 10} {
		if next, ok := r.Next(anchor.Add(after)); !ok || next.Sub(anchor) != want*time.Second {
			t.Errorf("%s after the anchor: %s", after, next.Sub(anchor))
		}
	}
	r = rule(t, Spec{Every: time.Hour, Anchor: anchor.Add(-time.Minute), Start: anchor, End: anchor.Add(2 * time.Hour)})
	var got []time.Duration
	for at, ok := r.Next(anchor.Add(-time.Hour)); ok; at, ok = r.Next(at) {
		got = append(got, at.Sub(anchor))
	}
	if want := []time.Duration{0, time.Hour, 2 * time.Hour}; !slices.Equal(got, want) {
		t.Errorf("between its bounds it fires at %v, want %v", got, want)
	}
}

var (
	exprs = []string{"* * * * *", "*/7 * * * *", "30 2 * * *", "15 1,2,3 * * *", "*/10 0-4 * * *", "0 0 * * *", "0 */2 * * *", "5 4 * 3,4,10,11 0", "*/13 */11 1-4 * * *", "59 59 23 * * *"}
	zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo", "Asia/Kathmandu", "America/St_Johns"}
)

// Moments strictly increase, and in whatever steps time is walked through, none
// is passed over.
func TestNextIsASet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := Spec{Timezone: rapid.SampledFrom(zones).Draw(t, "zone"), Anchor: time.Unix(0, 0)}
		if rapid.Bool().Draw(t, "cron") {
			s.Cron = rapid.SampledFrom(exprs).Draw(t, "expr")
		} else {
			s.Every = time.Duration(rapid.Int64Range(1000, 100_000_000).Draw(t, "every")) * time.Millisecond
		}
		r, err := New(s)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Unix(rapid.Int64Range(1_700_000_000, 2_200_000_000).Draw(t, "from"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		for range 20 {
			next, ok := r.Next(at)
			if !ok || !next.After(at) {
				t.Fatalf("after %s comes %s, %t", at, next, ok)
			}
			// Any step that does not reach the moment leads to it.
			step := time.Duration(rapid.Int64Range(0, int64(next.Sub(at))-1).Draw(t, "step"))
			if again, ok := r.Next(at.Add(step)); !ok || !again.Equal(next) {
				t.Fatalf("after %s comes %s, but %s later comes %s", at, next, step, again)
			}
			at = next
		}
	})
}

// In a zone that never moves its clock the moments are those that match field
// by field.
func TestCronAgainstEverySecond(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, err := New(Spec{Cron: "*/13 */11 1-4 * * *"})
		if err != nil {
			t.Fatal(err)
		}
		at := time.Unix(rapid.Int64Range(1_700_000_000, 1_900_000_000).Draw(t, "from"), 0).UTC()
		next, _ := r.Next(at)
		for x := at.Add(time.Second); x.Before(at.Add(time.Hour)); x = x.Add(time.Second) {
			hit := x.Second()%13 == 0 && x.Minute()%11 == 0 && x.Hour() >= 1 && x.Hour() <= 4
			if hit != x.Equal(next) && !x.After(next) {
				t.Fatalf("after %s comes %s, but %s matches: %t", at, next, x, hit)
			}
		}
	})
}

// A day has every time of day once, whatever the clock does.
func TestTimesOfDayFireOnceADay(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo"} {
		loc, err := Zone(zone)
		if err != nil {
			t.Fatal(err)
		}
		for _, expr := range []string{"30 2 * * *", "15 1 * * *", "45 1 * * *", "0 0 * * *", "15 2 * * *", "0 3 * * *", "59 23 * * *"} {
			r, n := rule(t, Spec{Cron: expr, Timezone: zone}), 0
			end := time.Date(2027, 1, 1, 0, 0, 0, 0, loc)
			days := map[int]bool{}
			for at, ok := r.Next(time.Date(2025, 12, 31, 23, 59, 59, 0, loc)); ok && at.Before(end); at, ok = r.Next(at) {
				n++
				days[at.In(loc).YearDay()] = true
			}
			if n != 365 || len(days) != 365 {
				t.Errorf("%s in %s: %d fires on %d days of 2026", expr, zone, n, len(days))
			}
		}
	}
}

func TestLast(t *testing.T) {
	t.Parallel()
	to := moment(t, "2026-03-01T00:00:30Z")
	r := rule(t, Spec{Cron: "* * * * *"})
	last, more := r.Last(to.AddDate(-10, 0, 0), to, 3)
	if len(last) != 3 || !more || !last[2].Equal(to.Add(-30*time.Second)) || !last[0].Equal(to.Add(-150*time.Second)) {
		t.Errorf("%v, %t", last, more)
	}
	if last, more = r.Last(to.Add(-90*time.Second), to, 3); len(last) != 1 || more {
		t.Errorf("within 90 s: %v, %t", last, more)
	}
	yearly := rule(t, Spec{Cron: "@yearly"})
	if last, more = yearly.Last(to.AddDate(-50, 0, 0), to, 2); len(last) != 2 || !more || last[0].Year() != 2025 {
		t.Errorf("%v, %t", last, more)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 50).Draw(t, "n")
		span := time.Duration(rapid.Int64Range(0, int64(100*time.Hour)).Draw(t, "span"))
		r, err := New(Spec{Cron: rapid.SampledFrom(exprs).Draw(t, "expr")})
		if err != nil {
			t.Fatal(err)
		}
		var all []time.Time
		for at, ok := r.Next(to.Add(-span)); ok && !at.After(to); at, ok = r.Next(at) {
			all = append(all, at)
		}
		last, more := r.Last(to.Add(-span), to, n)
		if want := all[max(0, len(all)-n):]; !slices.EqualFunc(last, want, time.Time.Equal) || more != (len(all) > n) {
			t.Fatalf("the last %d of %d are %v, %t, want %v", n, len(all), last, more, want)
		}
	})
}

// FuzzCron: no expression makes the parser panic or run for long.
func FuzzCron(f *testing.F) {
	for _, e := range exprs {
		f.Add(e, "Europe/Berlin")
	}
	f.Add("0 0 29 2 1", "America/New_York")
	f.Add(",,,,", "Local")
	f.Fuzz(func(t *testing.T, expr, zone string) {
		r, err := New(Spec{Cron: expr, Timezone: zone})
		if err != nil {
			return
		}
		if at, ok := r.Next(time.Unix(1_790_000_000, 0)); ok && at.Unix() <= 1_790_000_000 {
			t.Errorf("%q fires in the past", expr)
		}
	})
}
