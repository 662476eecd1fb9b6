package replay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// rig runs what makes dead letters; batches are worked off by Step or Run.
func rig(t *testing.T, change ...func(*config.Orchestrator)) *testkit.Rig {
	t.Helper()
	r, _ := stoppable(t, change...)
	return r
}

// stoppable is rig; stop has no more dead letters be recorded.
func stoppable(t *testing.T, change ...func(*config.Orchestrator)) (r *testkit.Rig, stop func()) {
	t.Helper()
	s := testkit.NewStores(t)
	cfg := s.Config()
	for _, c := range change {
		c(&cfg)
	}
	r = testkit.NewRig(t, s, cfg)
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	stop = r.Start(t, r.DeadLetter.Run)
	r.Start(t, r.DeadLetter.RunIngest)
	return r, stop
}

// dead makes n dead letters of a type and returns their ids, in the order of
// their tasks.
func dead(t *testing.T, r *testkit.Rig, n int, typ, reason string) []protocol.ID {
	t.Helper()
	reqs := make([]*enqueue.Request, n)
	for i := range reqs {
		reqs[i] = &enqueue.Request{Type: typ, Payload: json.RawMessage(fmt.Sprintf(`{"n": %d, "to": "nobody"}`, i))}
	}
	return kill(t, r, reason, r.Enqueue(t, reqs...)...)
}

// kill fails tasks for good.
func kill(t *testing.T, r *testkit.Rig, reason string, tasks ...protocol.ID) []protocol.ID {
	t.Helper()
	for left := len(tasks); left > 0; {
		n := min(left, 500)
		held := r.Fetch(t, "worker-1", n)
		for _, h := range held {
			o := h.Outcome(protocol.OutcomeFailed)
			o.Error = reason
			r.Report(t, o)
		}
		r.Ack(t, held...)
		left -= n
	}
	r.WaitState(t, protocol.StateFailed, tasks...)
	ids := make([]protocol.ID, len(tasks))
	for i, id := range tasks {
		ids[i] = protocol.DLQID(id)
	}
	return ids
}

// status counts dead letters by status.
func status(t *testing.T, r *testkit.Rig, ids []protocol.ID) map[string]int {
	t.Helper()
	rows, err := r.DB.Query(t.Context(), "SELECT status, count(*) FROM dlq_items WHERE dlq_id = ANY($1::uuid[]) GROUP BY 1", pgid.Slice(ids))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	out := map[string]int{}
	for rows.Next() {
		var s string
		var n int
		if err := rows.Scan(&s, &n); err != nil {
			t.Fatal(err)
		}
		out[s] = n
	}
	return out
}

// finish works batches off until none can go on.
func finish(t *testing.T, r *testkit.Rig) {
	t.Helper()
	for more := true; more; {
		var err error
		if more, err = r.Replay.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func code(err error) protocol.Code { return protocol.CodeOf(err) }

// settleAll ends every live task, so that the log can be checked as a whole.
func succeedAll(t *testing.T, r *testkit.Rig, n int) []testkit.Held {
	t.Helper()
	var all []testkit.Held
	for left := n; left > 0; {
		k := min(left, 500)
		held := r.Fetch(t, "worker-2", k)
		for _, h := range held {
			r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
		}
		r.Ack(t, held...)
		all = append(all, held...)
		left -= k
	}
	if err := r.Client.WaitApplied(context.Background(), protocol.StreamResult, protocol.GroupOrchestrators); err != nil {
		t.Fatal(err)
	}
	return all
}
