package protocol

import (
	"testing"
	"time"
)

// The first interruption costs no time; later ones spread tasks that were lost
// together over a time that grows, whole as it is.
func TestSpread(t *testing.T) {
	t.Parallel()
	seed := []byte("seed")
	for n, want := range map[int]time.Duration{0: 0, 1: 0, 2: time.Second, 3: 2 * time.Second, 31: 30 * time.Second, 1000: 30 * time.Second} {
		var sum, most time.Duration
		const tasks = 4000
		for _, id := range ids(tasks) {
			d := Spread(seed, id, n)
			if d < 0 || d > want || d != Spread(seed, id, n) {
				t.Fatalf("interruption %d: %s, want at most %s, the same each time", n, d, want)
			}
			sum, most = sum+d, max(most, d)
		}
		if mean := sum / tasks; mean < want*48/100 || mean > want*52/100 || most < want*99/100 {
			t.Errorf("interruption %d: mean %s, most %s; want them spread up to %s", n, mean, most, want)
		}
	}
	if id := testID(1); Spread(seed, id, 2) == Spread(seed, id, 3) && Spread(seed, id, 3) == Spread(seed, id, 4) {
		t.Error("each interruption waits as long as the one before")
	}
	if Spread(seed, testID(1), 9) == Spread([]byte("other"), testID(1), 9) {
		t.Error("the seed does not matter")
	}
}
