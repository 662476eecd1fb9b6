package streams_test

import (
	"testing"

	"github.com/penstock-dev/penstock/internal/testkit"
)

// Without XTRIM MINID acknowledged entries are removed one by one, and no
// others.
func TestTrimWithoutMinID(t *testing.T) {
	t.Parallel()
	f, added := setUp(t, testkit.StartRedis(t, "--rename-command", "XTRIM", ""), 1205)
	got, err := f.ReadNow(t.Context(), stream, group, "a", 1203)
	if err != nil || len(got) != 1203 {
		t.Fatal(len(got), err)
	}
	if err := f.Ack(t.Context(), stream, group, added[:1201]); err != nil { // two are pending, two undelivered
		t.Fatal(err)
	}
	if n, err := f.Trim(t.Context(), stream, group, added[1100]); err != nil || n != 1100 {
		t.Errorf("%d entries trimmed up to a limit, want 1100: %v", n, err)
	}
	if n, err := f.Trim(t.Context(), stream, group, ""); err != nil || n != 101 {
		t.Errorf("%d entries trimmed, want 101: %v", n, err)
	}
	info, err := f.Info(t.Context(), stream, group)
	if err != nil || info.Length != 4 || info.Pending != 2 || info.Undelivered != 2 {
		t.Errorf("%+v, %v", info, err)
	}
}
