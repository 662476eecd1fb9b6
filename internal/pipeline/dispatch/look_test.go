package dispatch

import (
	"testing"
	"testing/synctest"
	"time"
)

// A queue with a backlog is read on from where the last batch ended, and from its
// beginning once in a while, and after whatever was no full batch.
func TestBacklogIsReadOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := New(Options{Poll: time.Second})
		want := func(when string, at time.Time) {
			t.Helper()
			if got := d.from("q"); !got.Equal(at) {
				t.Errorf("%s: from %s, want %s", when, got, at)
			}
		}
		first := time.Now()
		want("at first", time.Time{})
		d.readOn("q", d.from("q"), first)
		want("after a full batch", first)
		for i := range 4 {
			time.Sleep(300 * time.Millisecond)
			if i < 3 {
				d.readOn("q", d.from("q"), first.Add(time.Duration(i)*time.Hour))
				want("after one more", first.Add(time.Duration(i)*time.Hour))
			}
		}
		want("after more than a poll interval of full batches", time.Time{})
		d.readOn("q", d.from("q"), first)
		want("after it was read from its beginning", first)
		d.startOver("q")
		want("after a batch that was not full", time.Time{})
	})
}
