package reclaim

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_000_000, 0)
	for name, c := range map[string]struct {
		gap   time.Duration
		looks []time.Duration // Redis' clock, counted from the start
		held  bool
	}{
		"first look":                {time.Second, []time.Duration{time.Hour}, false},
		"regular":                   {time.Second, []time.Duration{0, 900 * time.Millisecond, 1800 * time.Millisecond}, false},
		"at the bound":              {time.Second, []time.Duration{0, time.Second}, false},
		"stood still":               {time.Second, []time.Duration{0, 1001 * time.Millisecond}, true},
		"stood still, and went on":  {time.Second, []time.Duration{0, 5 * time.Second, 5100 * time.Millisecond}, true},
		"clock set back":            {time.Second, []time.Duration{0, -time.Hour, -time.Hour + time.Second}, false},
		"clock set back, and ahead": {time.Second, []time.Duration{0, -time.Hour, 0}, true},
		"nobody watches":            {0, []time.Duration{0, time.Hour}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pace{gap: c.gap}
			for _, at := range c.looks {
				p.look(start.Add(at), time.Minute)
			}
			if held := p.hold.After(time.Now()); held != c.held {
				t.Errorf("held: %t, want %t", held, c.held)
			}
		})
	}
}
