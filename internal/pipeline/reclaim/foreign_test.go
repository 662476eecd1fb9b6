package reclaim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A consumer may have any name. The tasks that it took come back all the same, and
// so do those that healthy workers lost.
func TestConsumersOfAnyName(t *testing.T) {
	t.Parallel()
	r := rig(t)
	names := []string{"\xff\xfe", "nul\x00nul", strings.Repeat("long", 1<<18), "two\nlines", "lost"}
	ids := r.Enqueue(t, testkit.Requests(len(names), "t")...)
	for _, name := range names {
		age(t, r, time.Hour, r.Fetch(t, name, 1)...)
	}
	if err := r.Reclaim.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	finish(t, r, len(names))
	r.WaitState(t, protocol.StateSucceeded, ids...)
	testkit.VerifyLog(t, r.Stores)
	if n := r.Count(t, "SELECT count(*) FROM event_log WHERE type = 'task.reclaimed' AND octet_length(data->>'original_consumer') <= 4096"); n != len(names) {
		t.Errorf("%d tasks were reclaimed, want %d", n, len(names))
	}
}
