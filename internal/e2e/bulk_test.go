package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/testkit"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

const (
	// bulk is how many dead letters are requeued, at bulkRate a second: 40 in
	// each of 20 chunks.
	bulk, bulkRate = 800, 400
	bulkType       = "bulk"
)

// repairable fails every task for good until it is repaired, and then counts
// the executions of each.
type repairable struct {
	repaired atomic.Bool
	mu       sync.Mutex
	runs     map[string]int
}

func (r *repairable) run(_ context.Context, t *task.Raw) (json.RawMessage, error) {
	if !r.repaired.Load() {
		return nil, task.Permanent(errors.New("the account is locked"))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs[t.TaskID]++
	return t.Payload, nil
}

// total returns how many tasks ran and how many executions there were.
func (r *repairable) total() (tasks, runs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.runs {
		runs += n
	}
	return len(r.runs), runs
}

// makeDeadLetters enqueues n tasks that fail, and waits until all have.
func (c *crashed) makeDeadLetters(n int) {
	c.t.Helper()
	reqs := make([]*task.Request, n)
	none := 0
	for i := range reqs {
		reqs[i] = &task.Request{Type: bulkType, Payload: fmt.Appendf(nil, `{"n":%d}`, i), MaxRetries: &none}
	}
	res, err := c.EnqueueMany(c.t.Context(), reqs)
	must(c.t, err)
	for _, r := range res {
		must(c.t, r.Err)
	}
	c.eventually(fmt.Sprintf("%d tasks have failed", n), "SELECT count(*) = $1 FROM tasks WHERE state = 'failed'", n)
}

// kill -9 of the orchestrator, again and again while it requeues dead letters
// in bulk: each is requeued once, and runs once.
func TestKillDuringABulkRequeue(t *testing.T) {
	t.Parallel()
	rnd := seed(t)
	// The first death is at the first chunk's commit.
	c := newCrashed(t, "replay.batch_committed", 30*time.Second)
	h := &repairable{runs: map[string]int{}}
	c.StartWorker(t, worker.Options{Concurrency: 64, VisibilityTimeout: c.visibility}, func(w *worker.Worker) { w.HandleRaw(bulkType, h.run) })
	c.makeDeadLetters(bulk)
	h.repaired.Store(true)
	call := &penstockv1.CreateDeadLetterBatchRequest{BatchId: batchID(), Filter: &penstockv1.DeadLetterFilter{Type: bulkType}, Rate: bulkRate}
	if _, err := c.DeadLetters().CreateDeadLetterBatch(t.Context(), connect.NewRequest(call)); err != nil {
		c.unanswered(err) // it may have died before it answered
	}
	c.dies()
	began := time.Now()
	// Half of the deaths are within a chunk, half at any moment.
	const deaths = 6
	for k := range deaths {
		if k%2 == 0 {
			c.doom(fmt.Sprintf("replay.batch_settled:%d", 1+rnd.IntN(3)))
			c.dies()
			continue
		}
		p := c.orchestrator(c.addr, c.env...)
		c.eventually("the batch goes on", "SELECT done >= $2 FROM dlq_batches WHERE id = $1", call.BatchId, 1+c.done(call.BatchId))
		<-time.After(time.Duration(rnd.IntN(200)) * time.Millisecond)
		p.kill()
	}
	if n := c.done(call.BatchId); n == 0 || n >= bulk {
		t.Errorf("%d of %d dead letters were requeued before the last death: it killed nothing", n, bulk)
	}
	c.restart()
	c.wants = ends{failed: bulk, succeeded: bulk, requeued: bulk, entries: 1, events: eventsDead + " dlq.requeued"}
	c.whole()
	if tasks, runs := h.total(); tasks != bulk || runs != bulk {
		t.Errorf("%d executions of %d requeued tasks, want one each of %d", runs, tasks, bulk)
	}
	if b := c.batch(call.BatchId); b.Status != "finished" || b.Total != bulk || b.Done != bulk || b.Skipped != 0 {
		t.Errorf("the batch in the end: %v", b)
	}
	t.Logf("%d dead letters requeued and run in %s, with %d deaths", bulk, time.Since(began), 1+deaths)
}

// A bulk requeue keeps to its rate, and needs no more memory for many dead
// letters than for few. PENSTOCK_TEST_BULK=50000 makes it large; -v shows the
// figures.
func TestBulkRequeueKeepsToItsRate(t *testing.T) {
	t.Parallel()
	n, rate := 1000, 1000
	if s := os.Getenv("PENSTOCK_TEST_BULK"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	c := &crashed{system: system{Stores: testkit.NewStores(t), t: t, visibility: 30 * time.Second}, addr: freeAddr(t)}
	c.Client, c.db = testkit.Client(t, "http://"+c.addr), c.SQL(t)
	o := c.orchestrator(c.addr)
	waitReady(t, c.addr)
	h := &repairable{runs: map[string]int{}}
	c.StartWorker(t, worker.Options{Concurrency: 64, VisibilityTimeout: c.visibility}, func(w *worker.Worker) { w.HandleRaw(bulkType, h.run) })
	began := time.Now()
	c.makeDeadLetters(n)
	made := time.Since(began)
	h.repaired.Store(true)
	before := resident(t, o)
	call := &penstockv1.CreateDeadLetterBatchRequest{BatchId: batchID(), Filter: &penstockv1.DeadLetterFilter{Type: bulkType}, Rate: int32(rate)}
	began = time.Now()
	_, err := c.DeadLetters().CreateDeadLetterBatch(t.Context(), connect.NewRequest(call))
	must(t, err)
	frozen := time.Since(began)
	peak := before
	for end := time.Now().Add(testkit.Deadline + 2*time.Duration(n/rate)*time.Second); c.done(call.BatchId) < n; {
		if time.Now().After(end) {
			t.Fatalf("%d of %d dead letters were requeued", c.done(call.BatchId), n)
		}
		<-time.After(20 * time.Millisecond)
		peak = max(peak, resident(t, o))
	}
	b := c.batch(call.BatchId)
	took := b.FinishedAt.AsTime().Sub(b.StartedAt.AsTime())
	c.wants = ends{failed: n, succeeded: n, requeued: n, entries: 1, events: eventsDead + " dlq.requeued"}
	c.whole()
	t.Logf("%d dead letters made in %s; frozen in %s, requeued in %s: %.0f a second with a limit of %d; orchestrator's memory: %d MiB before, %d MiB at most",
		n, made, frozen, took, float64(n)/took.Seconds(), rate, before>>20, peak>>20)
	// The first chunk is not waited for, and one that is late is made up for.
	if least := time.Duration(float64(n)/float64(rate)*float64(time.Second)) - 400*time.Millisecond; took < least {
		t.Errorf("%d dead letters were requeued in %s, want at least %s", n, took, least)
	}
	if grown := peak - before; grown > 64<<20 {
		t.Errorf("the orchestrator's memory grew by %d MiB", grown>>20)
	}
	if tasks, runs := h.total(); tasks != n || runs != n {
		t.Errorf("%d executions of %d requeued tasks, want one each of %d", runs, tasks, n)
	}
}

// resident is the memory of a process in bytes.
func resident(t *testing.T, p *process) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	must(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	must(t, err)
	return pages * os.Getpagesize()
}

// done is how many items of a batch are, whoever runs.
func (c *crashed) done(batch string) int {
	c.t.Helper()
	return c.count("SELECT done FROM dlq_batches WHERE id = $1", batch)
}

// batch reads one by RPC.
func (c *crashed) batch(id string) *penstockv1.DeadLetterBatch {
	c.t.Helper()
	res, err := c.DeadLetters().GetDeadLetterBatch(c.t.Context(), connect.NewRequest(&penstockv1.GetDeadLetterBatchRequest{BatchId: id}))
	must(c.t, err)
	return res.Msg.Batch
}
