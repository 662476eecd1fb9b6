package streams_test

import (
	"testing"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
)

// One old pending entry holds back MINID trimming; the acknowledged entries
// behind it are removed one by one, and neither it, nor other pending ones, nor
// the last delivered one, nor the lag suffer.
func TestDropAcknowledged(t *testing.T) {
	t.Parallel()
	f, all := setUp(t, devtest.Redis(t), 1500)
	f.take(t, "w", 1400)
	held := map[string]bool{all[0]: true, all[700]: true}
	var done []string
	for _, id := range all[:1400] {
		if !held[id] {
			done = append(done, id)
		}
	}
	f.ack(t, done...)
	if n, err := f.Trim(t.Context(), stream, group, ""); err != nil || n != 0 {
		t.Fatalf("trimmed %d, %v", n, err)
	}
	if n, err := f.DropAcknowledged(t.Context(), stream, group, all[1399], 5000); err != nil || n != 0 {
		t.Fatalf("%d removed although few are held back: %v", n, err)
	}
	if n, err := f.DropAcknowledged(t.Context(), stream, group, all[500], 100); err != nil || n != 499 {
		t.Fatalf("%d removed before entry 500, want 499: %v", n, err)
	}
	if n, err := f.DropAcknowledged(t.Context(), stream, group, all[1499], 100); err != nil || n != 898 {
		t.Fatalf("%d removed, want 898: %v", n, err)
	}
	i := f.info(t)
	if i.Undelivered != 100 || i.Pending != 2 || i.Length != 103 || i.LastDelivered != all[1399] {
		t.Errorf("%+v", i)
	}
	left, err := f.Fetch(t.Context(), stream, []string{all[0], all[700], all[1399], all[1400]})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if e.Values == nil {
			t.Errorf("entry %s was removed", e.ID)
		}
	}
	f.take(t, "w", 100)
}
