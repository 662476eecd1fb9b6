package recur

import (
	"testing"
	"time"
)

// A Duration holds 292 years, a schedule up to year 9999.
func TestFarFromTheAnchor(t *testing.T) {
	t.Parallel()
	anchor := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, every := range []time.Duration{time.Second, 7 * time.Minute, 1234567 * time.Millisecond, MaxEvery} {
		r, err := New(Spec{Every: every, Anchor: anchor})
		if err != nil {
			t.Fatal(err)
		}
		for _, after := range []time.Time{
			time.Date(2262, 4, 11, 23, 47, 16, 0, time.UTC), time.Date(2500, 1, 1, 0, 0, 0, 1, time.UTC), time.Date(9980, 12, 31, 23, 59, 59, 999, time.UTC),
		} {
			at, ok := r.Next(after)
			if !ok || !at.After(after) || at.Add(-every).After(after) || (at.UnixMilli()-anchor.UnixMilli())%every.Milliseconds() != 0 {
				t.Errorf("every %s after %s: %s, %t", every, after, at, ok)
			}
		}
	}
}

// An anchor between two milliseconds counts as it is.
func TestAnchorBetweenMilliseconds(t *testing.T) {
	t.Parallel()
	anchor := time.Date(2026, 1, 1, 0, 0, 0, 1_500_000, time.UTC)
	r, err := New(Spec{Every: time.Second, Anchor: anchor})
	if err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Time]time.Time{
		anchor: anchor.Add(time.Second), anchor.Add(time.Second - 1): anchor.Add(time.Second), anchor.Add(time.Second): anchor.Add(2 * time.Second),
		anchor.Add(2*time.Second - time.Nanosecond): anchor.Add(2 * time.Second),
	} {
		if at, ok := r.Next(after); !ok || !at.Equal(want) {
			t.Errorf("after %s: %s, want %s", after, at, want)
		}
	}
}

func TestNothingAfterYear9999(t *testing.T) {
	t.Parallel()
	last := time.Date(9999, 12, 31, 23, 59, 58, 0, time.UTC)
	for name, s := range map[string]Spec{
		"interval": {Every: time.Second, Start: last}, "cron": {Cron: "* * * * * *", Start: last},
	} {
		r, err := New(s)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for at, ok := r.Next(last.Add(-time.Hour)); ok; at, ok = r.Next(at) {
			if n++; at.Year() != 9999 || n > 2 {
				t.Fatalf("%s: moment %d at %s", name, n, at)
			}
		}
		if n != 2 {
			t.Errorf("%s: %d moments, want 2", name, n)
		}
	}
	for name, s := range map[string]Spec{"ten years": {Every: MaxEvery, Anchor: last}, "new year": {Cron: "0 0 1 1 *", Start: last}} {
		r, err := New(s)
		if err != nil {
			t.Fatal(err)
		}
		if at, ok := r.Next(last); ok {
			t.Errorf("%s: %s", name, at)
		}
	}
}
