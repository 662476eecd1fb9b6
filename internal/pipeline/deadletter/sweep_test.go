package deadletter_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

var wholeFlow = []string{"task.created", "task.claimed", "task.dlq", "task.dlq", "task.failed"}

// The sub-flow step by step: first Postgres, then stream:dlq, then the end.
func TestSubFlow(t *testing.T) {
	t.Parallel()
	r := rig(t)
	id := givenUp(t, r, 1)[0]
	events(t, r, id, "task.created", "task.claimed", "task.dlq")
	dlq := protocol.DLQID(id)
	if n := r.Count(t, "SELECT count(*) FROM dlq_items WHERE task_id = $1 AND dlq_id = $2 AND recorded_at IS NULL", id[:], dlq[:]); n != 1 {
		t.Errorf("%d dead letters in Postgres before the stream has it", n)
	}
	if n := len(letters(t, r)); n != 0 {
		t.Errorf("%d entries in stream:dlq before the sweep", n)
	}
	sweep(t, r, 1)
	events(t, r, id, wholeFlow...)
	ls := letters(t, r)
	if len(ls) != 1 {
		t.Fatalf("%d entries in stream:dlq", len(ls))
	}
	at, err := time.Parse(time.RFC3339Nano, ls[0]["failed_at"])
	if err != nil || time.Since(at) > time.Hour || time.Since(at) < -time.Minute {
		t.Errorf("failed_at is %q", ls[0]["failed_at"])
	}
	for field, want := range map[string]string{ // the names of the task queue protocol, and dlq_id
		"task_id": id.String(), "tool_name": "t", "payload": "{}", "error": "the cause", "retry_count": "0", "dlq_id": dlq.String(),
		"error_code": "TASK_EXECUTION_FAILED", "id": id.String(), "v": "1", "tenant": "default",
	} {
		if got, ok := ls[0][field]; !ok || got != want {
			t.Errorf("field %s of the dead letter is %q, want %q", field, got, want)
		}
	}
	sweep(t, r, 0)
	r.Start(t, r.DeadLetter.RunIngest)
	testkit.VerifyLog(t, r.Stores)
	if n := r.Count(t, "SELECT count(*) FROM dlq_items"); n != 1 {
		t.Errorf("%d dead letters: the task's own was ingested again", n)
	}
}

// A crash at each step. Afterwards there is one row, the stream has the dead
// letter at least once under the same dlq_id, and one terminal event.
func TestCrashBetweenSteps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		redis           bool
		match           string
		forward         int
		entries, second int
	}{
		"before anything":                   {false, "begin", 0, 1, 1},
		"before the entry was added":        {true, "stream:dlq", 0, 1, 1},
		"after the entry was added":         {true, "stream:dlq", -1, 2, 1},
		"before the commit":                 {false, "commit", 0, 2, 1},
		"after the commit, reply lost":      {false, "commit", -1, 1, 0},
		"after the state, before the entry": {false, "task.failed", 0, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig(t)
			id := givenUp(t, r, 1)[0]
			dying, p := behind(t, r.Stores, c.redis)
			match := []string{c.match}
			if c.redis {
				match = append(match, "xadd")
			}
			lost := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has(match...), Forward: c.forward})
			if _, err := dying.DeadLetter.Sweep(t.Context()); err == nil {
				t.Error("the sweep that died reports success")
			}
			<-lost
			testkit.Eventually(t, "another one finishes what is left", func() (bool, string) { // the dead one's locks go with its connection
				_, err := r.DeadLetter.Sweep(t.Context())
				row := r.Row(t, id)
				return err == nil && row.State == protocol.StateFailed, fmt.Sprint(row.State, err)
			})
			events(t, r, id, wholeFlow...)
			ls := letters(t, r)
			if len(ls) != c.entries {
				t.Errorf("%d entries in stream:dlq, want %d", len(ls), c.entries)
			}
			for _, l := range ls {
				if l["dlq_id"] != protocol.DLQID(id).String() {
					t.Errorf("dlq_id is %s", l["dlq_id"])
				}
			}
			r.Start(t, r.DeadLetter.RunIngest)
			testkit.VerifyLog(t, r.Stores)
			if n := r.Count(t, "SELECT count(*) FROM dlq_items WHERE recorded_at IS NOT NULL"); n != 1 {
				t.Errorf("%d dead letters in Postgres", n)
			}
		})
	}
}

// A process that lives on looks for what it has written already: however often it
// fails, stream:dlq grows by each letter once.
func TestRepeatedSweepWritesOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		redis bool
		match []string
	}{
		"the reply of the entry is lost": {true, []string{"stream:dlq", "xadd"}},
		"the transaction is lost":        {false, []string{"task.failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig(t)
			ids := givenUp(t, r, 7)
			living, p := behind(t, r.Stores, c.redis)
			forward := 0
			if c.redis {
				forward = -1
			}
			for range 3 {
				lost := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has(c.match...), Forward: forward})
				_, err := living.DeadLetter.Sweep(t.Context())
				if err == nil { // it found all entries, and had none to write
					break
				}
				<-lost
			}
			testkit.Eventually(t, "the sweep succeeds", func() (bool, string) {
				_, err := living.DeadLetter.Sweep(t.Context())
				return err == nil && r.Row(t, ids[0]).State == protocol.StateFailed, fmt.Sprint(err)
			})
			if ls := letters(t, r); len(ls) != len(ids) {
				t.Errorf("%d entries in stream:dlq, want %d", len(ls), len(ids))
			}
			r.WaitState(t, protocol.StateFailed, ids...)
			r.Start(t, r.DeadLetter.RunIngest)
			testkit.VerifyLog(t, r.Stores)
		})
	}
}

// The batch after a failure may hold other letters: what was written, and what may
// have been, is not forgotten because of it.
func TestSweepsOfOtherBatchesWriteOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		redis   bool
		match   []string
		forward int
	}{
		"the replies of entries are lost": {true, []string{"stream:dlq", "xadd"}, -1},
		"the transaction is lost":         {false, []string{"task.failed"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig(t)
			ids := givenUp(t, r, 9)
			living, p := behind(t, r.Stores, c.redis)
			lost := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has(c.match...), Forward: c.forward})
			if _, err := living.DeadLetter.Sweep(t.Context()); err == nil {
				t.Fatal("the sweep succeeded")
			}
			<-lost
			for batch := range slices.Chunk(ids, 3) { // another orchestrator holds the others
				tx, err := r.DB.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tx.Exec(t.Context(), "SELECT FROM dlq_items WHERE NOT task_id = ANY($1) FOR UPDATE", pgid.Slice(batch)); err != nil {
					t.Fatal(err)
				}
				testkit.Eventually(t, "a batch is recorded", func() (bool, string) {
					n, err := living.DeadLetter.Sweep(t.Context())
					return n == len(batch), fmt.Sprint(n, err)
				})
				if _, err := living.DeadLetter.Sweep(t.Context()); err != nil { // finds nothing, and forgets nothing
					t.Fatal(err)
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			r.WaitState(t, protocol.StateFailed, ids...)
			if ls := letters(t, r); len(ls) != len(ids) {
				t.Errorf("%d entries in stream:dlq, want %d", len(ls), len(ids))
			}
		})
	}
}

// What one sweep reads is bounded by its bytes.
func TestSweepsOfLargePayloads(t *testing.T) {
	t.Parallel()
	r := rig(t)
	const n, size = 150, 200 << 10
	reqs := testkit.Requests(n, "t")
	for _, q := range reqs {
		q.Payload = []byte(`"` + strings.Repeat("a", size) + `"`)
	}
	ids := r.Enqueue(t, reqs...)
	giveUp(t, r, ids)
	var took []int
	for total := 0; total < n; {
		k, err := r.DeadLetter.Sweep(t.Context())
		if err != nil || k == 0 {
			t.Fatalf("after %v: %d, %v", took, k, err)
		}
		took, total = append(took, k), total+k
	}
	if len(took) < 3 || took[1] > 24 {
		t.Errorf("sweeps of %v letters of 200 KiB, want few after the first one", took)
	}
}

// behind is a replica that reaches one of its stores through a proxy.
func behind(t *testing.T, s testkit.Stores, redis bool) (*testkit.Rig, *chaosproxy.Proxy) {
	t.Helper()
	var p *chaosproxy.Proxy
	if redis {
		p = chaosproxy.Redis(t, s.RedisURL)
		s.RedisURL = p.URL
	} else {
		p = chaosproxy.Postgres(t, s.PostgresURL)
		s.PostgresURL = p.URL
	}
	return testkit.NewRig(t, s, s.Config()), p
}

// More dead letters than one sweep takes, several replicas sweeping.
func TestConcurrentSweeps(t *testing.T) {
	t.Parallel()
	r := rig(t)
	const n = 700
	ids := givenUp(t, r, n)
	var wg sync.WaitGroup
	for range 3 {
		o := testkit.NewRig(t, r.Stores, r.Config())
		wg.Go(func() { o.Start(t, o.DeadLetter.Run) })
	}
	wg.Wait()
	r.WaitState(t, protocol.StateFailed, ids...)
	if got := len(letters(t, r)); got != n {
		t.Errorf("%d entries in stream:dlq, want %d: replicas that live do not repeat each other", got, n)
	}
	r.Start(t, r.DeadLetter.RunIngest)
	testkit.VerifyLog(t, r.Stores)
}
