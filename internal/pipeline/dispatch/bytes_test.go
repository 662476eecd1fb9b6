package dispatch_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A batch of due tasks is bounded by the size of its payloads, and nothing of a
// backlog of large ones is left behind.
func TestLargePayloadsLeaveInSmallBatches(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	const n, size = 100, 250_000
	reqs := testkit.Requests(n, "large")
	for _, q := range reqs {
		q.Payload = []byte(`"` + strings.Repeat("x", size-2) + `"`)
	}
	r.Enqueue(t, reqs...)
	err := r.Store.Tx(t.Context(), func(q *dbsqlc.Queries) error {
		due, cut, _, err := r.Store.LockDueTasks(t.Context(), q, protocol.DefaultQueue, time.Time{}, 0, 1000)
		if err != nil {
			return err
		}
		if most := (16 << 20) / size; !cut || len(due) != most {
			t.Errorf("%d tasks at once (cut: %v), want %d", len(due), cut, most)
		}
		for _, d := range due {
			if len(d.Payload) != size {
				t.Errorf("task %s has a payload of %d bytes", d.ID, len(d.Payload))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.StartDispatch(t)
	testkit.Eventually(t, "every entry in the stream", func() (bool, string) {
		got := pairs(t, r, protocol.StreamTask)
		return len(got) == n, ""
	})
	noneTwice(t, r, protocol.StreamTask)
}
