package streams_test

import (
	"testing"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
)

// Only a stream of which nothing is left to do is removed.
func TestRemoveIdle(t *testing.T) {
	t.Parallel()
	f, ids := setUp(t, devtest.Redis(t), 2)
	remove := func(want bool, when string) {
		t.Helper()
		got, err := f.RemoveIdle(t.Context(), stream, group)
		left, lerr := f.raw.Exists(t.Context(), stream).Result()
		if err != nil || lerr != nil || got != want || want && left != 0 {
			t.Errorf("%s: removed %t (%v), %d streams left (%v)", when, got, err, left, lerr)
		}
	}
	remove(false, "undelivered entries")
	f.take(t, "c", 2)
	remove(false, "pending entries")
	if err := f.Ack(t.Context(), stream, group, ids[:1]); err != nil {
		t.Fatal(err)
	}
	remove(false, "one pending entry")
	if n, err := f.raw.XLen(t.Context(), stream).Result(); err != nil || n != 2 {
		t.Errorf("%d entries (%v), want 2", n, err)
	}
	if err := f.Ack(t.Context(), stream, group, ids[1:]); err != nil {
		t.Fatal(err)
	}
	remove(true, "all acknowledged")
	remove(false, "no stream")
}
