package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
	"github.com/penstock-dev/penstock/task"
)

// crashes are the points with what brings an orchestrator there. A cause says
// what there must be in the end; what it returns, if anything, is done after
// the restart.
var crashes = []struct {
	at, what   string
	visibility time.Duration
	cause      func(c *crashed) (again func())
}{
	{at: "result.committed", what: "of dead letters", cause: deadLetters},
	{at: "result.committed", what: "of a retry", cause: retry},
	{at: "deadletter.locked", cause: deadLetters},
	{at: "deadletter.appended", cause: deadLetters},
	{at: "deadletter.appended", what: "three times", cause: thrice},
	{at: "deadletter.decided", cause: deadLetters},
	{at: "deadletter.committed", cause: deadLetters},
	{at: "deadletter.kept_appended", cause: garbage(protocol.StreamResult)},
	{at: "deadletter.kept_inserted", cause: garbage(protocol.StreamResult)},
	{at: "deadletter.ingest_read", cause: garbage(protocol.StreamDLQ)},
	{at: "deadletter.ingest_recorded", cause: garbage(protocol.StreamDLQ)},
	{at: "dispatch.locked", cause: retry},
	{at: "dispatch.committed", cause: retryLost},
	{at: "dispatch.added:2", cause: retry}, // the first is the new task's
	{at: "schedule.fired", what: "the first time", cause: scheduled},
	{at: "schedule.fired:3", cause: scheduled},
	{at: "schedule.committed:2", cause: scheduled},
	{at: "approval.committed", what: "of the last approval", cause: approved(1)},
	{at: "approval.committed:2", what: "of the second of two", cause: approved(2)},
	{at: "enqueue.graph_committed", cause: storeGraph},
	{at: "dependency.counted", cause: runGraph},
	{at: "dependency.counted:2", what: "of the second level", cause: runGraph},
	{at: "dependency.committed", cause: runGraph},
	{at: "timeout.committed", visibility: 2 * time.Second, cause: noAnswer},
	{at: "reclaim.committed", visibility: time.Second, cause: lostWorker},
	{at: "reconcile.committed", visibility: 2 * time.Second, cause: lostEntry},
	// The first time is at the start, when Redis is found to be complete.
	{at: "reconcile.groups_made:2", visibility: 2 * time.Second, cause: lostRedis},
	{at: "reconcile.waited:2", visibility: 2 * time.Second, cause: lostRedis},
	{at: "reconcile.put_back:2", visibility: 2 * time.Second, cause: lostRedis},
	{at: "reconcile.completed:2", visibility: 2 * time.Second, cause: lostRedis},
	{at: "reconcile.restored", visibility: 2 * time.Second, cause: wentBack},
	{at: "replay.requeue_committed", cause: requeue},
	{at: "replay.create_committed", cause: createBatch},
	{at: "replay.batch_settled", what: "of the first chunk of a requeue", cause: requeueBatch},
	{at: "replay.batch_settled:2", what: "of a requeue", cause: requeueBatch},
	{at: "replay.batch_committed:2", what: "of a requeue", cause: requeueBatch},
	{at: "replay.propose_committed", cause: propose},
	{at: "replay.confirm_committed", cause: confirm},
	{at: "replay.batch_settled:2", what: "of a discard", cause: discardBatch},
	{at: "replay.batch_committed:2", what: "of a discard", cause: discardBatch},
}

const (
	eventsDead  = "task.created task.claimed task.dlq task.dlq task.failed"
	eventsRetry = "task.created task.claimed task.retry_scheduled task.claimed task.dlq task.dlq task.failed"
	// permanent fails at once, passing again and again.
	permanent, passing = `{"mode":"permanent_error"}`, `{"mode":"transient_error"}`
)

// failing has n tasks fail for good.
func failing(c *crashed, n int) {
	c.t.Helper()
	for range n {
		c.injected(c.Client, permanent)
	}
	c.worker(injectConfig)
	c.wants.failed, c.wants.events = n, eventsDead
}

func deadLetters(c *crashed) func() {
	failing(c, 3)
	return nil
}

// thrice dies at the point two times more.
func thrice(c *crashed) func() {
	failing(c, 1)
	for range 2 {
		c.dies()
		c.doom("deadletter.appended")
	}
	c.wants.entries = 4
	return nil
}

// retry has one task fail twice, with a retry in between.
func retry(c *crashed) func() {
	c.injected(c.Client, passing, task.MaxRetries(1))
	c.worker(injectConfig)
	c.wants.failed, c.wants.events = 1, eventsRetry
	c.dies()
	if c.count("SELECT count(*) FROM tasks WHERE state = 'retrying' AND attempt = 2") != 1 {
		c.t.Error("the orchestrator did not die on the way to the retry")
	}
	return nil
}

// retryLost is retry where the entry of the retry is never added.
func retryLost(c *crashed) func() {
	c.wants.redispatched = true
	return retry(c)
}

// chain is a graph of three tasks, each after the one before.
func chain() *client.Graph {
	var g client.Graph
	var before []string
	for _, name := range []string{"first", "second", "third"} {
		r := &task.Request{Type: "inject", Payload: []byte("{}")}
		if len(before) == 0 {
			r.Delay = time.Millisecond // so that all have the same events
		}
		g.Add(name, r, before...)
		before = []string{name}
	}
	return &g
}

const eventsChained = "task.created task.queued task.claimed task.succeeded"

// storeGraph has a graph stored by a call that is not answered.
func storeGraph(c *crashed) func() {
	once, err := client.NewWith("http://"+c.addr, client.Options{RetryFor: -1})
	must(c.t, err)
	g := chain()
	_, err = once.EnqueueGraph(c.t.Context(), g)
	c.unanswered(err)
	c.worker(injectConfig)
	c.wants.succeeded, c.wants.events = 3, eventsChained
	return func() { // the caller repeats the call
		res, err := c.EnqueueGraph(c.t.Context(), g)
		must(c.t, err)
		for name, e := range res {
			if !e.IdempotentHit {
				c.t.Errorf("task %s was stored twice", name)
			}
		}
	}
}

// runGraph has a graph run.
func runGraph(c *crashed) func() {
	_, err := c.EnqueueGraph(c.t.Context(), chain())
	must(c.t, err)
	c.worker(injectConfig)
	c.wants.succeeded, c.wants.events = 3, eventsChained
	return nil
}

// garbage puts entries into a stream that are neither outcome nor dead letter.
func garbage(stream string) func(c *crashed) func() {
	return func(c *crashed) func() {
		var values [][]any
		for i := range 3 {
			values = append(values, []any{"hello", fmt.Sprint(i)})
		}
		for _, a := range c.Streams(c.t).Append(c.t.Context(), stream, values) {
			must(c.t, a.Err)
		}
		c.wants.foreign = 3
		return nil
	}
}

// running has a task claimed by a worker that is never heard of again: by the
// test, so that the worker is certain not to end the task before it is gone.
func running(c *crashed, opts ...task.Option) {
	c.t.Helper()
	c.injected(c.Client, `{}`, append(opts, task.MaxRetries(0))...)
	redis := c.Streams(c.t)
	var entry streams.Entry
	testkit.Eventually(c.t, "the task's entry", func() (bool, string) {
		es, err := redis.ReadNow(c.t.Context(), protocol.StreamTask, protocol.GroupWorkers, "gone", 1)
		if err != nil || len(es) == 0 {
			return false, fmt.Sprint(err)
		}
		entry = es[0]
		return true, ""
	})
	t, err := protocol.DecodeTask(entry.Values)
	must(c.t, err)
	claim := &protocol.Outcome{
		ID: t.ID, Delivery: t.Delivery, Kind: protocol.OutcomeClaimed, WorkerID: "gone", MessageID: entry.ID, StartedAt: time.Now(), Delay: -1,
	}
	must(c.t, redis.Append(c.t.Context(), protocol.StreamResult, [][]any{claim.Values()})[0].Err)
	c.wants.failed, c.wants.events = 1, eventsDead
}

// noAnswer has a task time out whose worker is gone.
func noAnswer(c *crashed) func() {
	running(c, task.Timeout(400*time.Millisecond))
	return nil
}

// lostEntry has Redis forget the entry of a running task, whose worker is gone.
func lostEntry(c *crashed) func() {
	running(c)
	c.eventually("the task runs", "SELECT count(*) = 1 FROM tasks WHERE state = 'running'")
	redis := c.Redis(c.t)
	c.wants.events = "task.created task.claimed task.interrupted task.dlq task.dlq task.failed"
	p, err := redis.XPending(c.t.Context(), protocol.StreamTask, protocol.GroupWorkers).Result()
	must(c.t, err)
	must(c.t, redis.XAck(c.t.Context(), protocol.StreamTask, protocol.GroupWorkers, p.Lower).Err())
	return nil
}

// before has three tasks fail, and one wait in its stream. It is run once the
// orchestrator is back.
func before(c *crashed) func() {
	c.injected(c.Client, permanent)
	c.injected(c.Client, permanent)
	c.injected(c.Client, permanent)
	w := c.worker(injectConfig)
	c.eventually("three tasks have failed, and Redis is complete", `SELECT (SELECT count(*) = 3 FROM tasks WHERE state = 'failed')
		AND (SELECT id IS NOT NULL AND confirmed > 0 FROM redis_epoch)`)
	w.kill()
	c.injected(c.Client, permanent)
	c.eventually("one task is dispatched", `SELECT count(*) = 1 FROM tasks WHERE state = 'queued' AND due_at IS NULL
		AND NOT EXISTS (SELECT FROM dispatch_outbox)`)
	c.wants.failed, c.wants.events, c.wants.redispatched = 4, eventsDead, true
	return func() {
		c.eventually("all is rebuilt", "SELECT lost IS NULL FROM redis_epoch")
		c.eventually("it was reported", "SELECT NOT firing AND seq >= 2 FROM alerts WHERE kind = 'redis_lost'")
		c.worker(injectConfig)
	}
}

// lostRedis empties Redis.
func lostRedis(c *crashed) func() {
	again := before(c)
	must(c.t, c.Redis(c.t).FlushDB(c.t.Context()).Err())
	return again
}

// wentBack has Redis know more than Postgres does, as after a restore.
func wentBack(c *crashed) func() {
	again := before(c)
	must(c.t, c.Redis(c.t).HIncrBy(c.t.Context(), "penstock:epoch", "generation", 1000).Err())
	return again
}

// lostWorker has a task kill its worker before its claim is known.
func lostWorker(c *crashed) func() {
	c.injected(c.Client, `{"mode":"process_restart_interrupt"}`)
	c.worker(injectConfig)
	c.wants.failed, c.wants.events = 1, "task.created task.reclaimed task.interrupted task.dlq task.dlq task.failed"
	return nil
}

// open makes three dead letters, in peace, and returns their ids. The
// orchestrator that dies must not come to its point by this.
func open(c *crashed) (ids []string) {
	c.t.Helper()
	failing(c, 3)
	c.eventually("three tasks have failed", "SELECT count(*) = 3 FROM tasks WHERE state = 'failed'")
	res, err := c.DeadLetters().ListDeadLetters(c.t.Context(), connect.NewRequest(&penstockv1.ListDeadLettersRequest{}))
	must(c.t, err)
	for _, d := range res.Msg.DeadLetters {
		ids = append(ids, d.DlqId)
	}
	return ids
}

// requeued is what there is once those three were requeued, and failed again.
func (c *crashed) requeued() {
	c.wants.failed, c.wants.requeued, c.wants.events = 6, 3, eventsDead+" dlq.requeued"
}

// unanswered fails unless a call ended with the orchestrator.
func (c *crashed) unanswered(err error) {
	c.t.Helper()
	if code := connect.CodeOf(err); err == nil || code != connect.CodeUnavailable && code != connect.CodeUnknown {
		c.t.Errorf("a call whose orchestrator died: %v, want no answer", err)
	}
}

func requeue(c *crashed) func() {
	call := &penstockv1.RequeueDeadLettersRequest{DlqIds: open(c)}
	_, err := c.DeadLetters().RequeueDeadLetters(c.t.Context(), connect.NewRequest(call))
	c.unanswered(err)
	c.requeued()
	return func() { // a caller that had no answer tries again
		res, err := c.DeadLetters().RequeueDeadLetters(c.t.Context(), connect.NewRequest(call))
		must(c.t, err)
		for _, r := range res.Msg.Results {
			if r.GetError().GetCode() != string(protocol.CodeInvalidTransition) {
				c.t.Errorf("requeued again: %v", r)
			}
		}
	}
}

// batchID is the caller's own, so that a call can be repeated.
func batchID() string { return uuid.Must(uuid.NewV7()).String() }

func createBatch(c *crashed) func() {
	call := &penstockv1.CreateDeadLetterBatchRequest{BatchId: batchID(), DlqIds: open(c)}
	_, err := c.DeadLetters().CreateDeadLetterBatch(c.t.Context(), connect.NewRequest(call))
	c.unanswered(err)
	c.requeued()
	return func() {
		res, err := c.DeadLetters().CreateDeadLetterBatch(c.t.Context(), connect.NewRequest(call))
		must(c.t, err)
		if b := res.Msg.Batch; b.BatchId != call.BatchId || b.Total != 3 {
			c.t.Errorf("the call repeated: %v", b)
		}
	}
}

// requeueBatch has chunks of one dead letter each.
func requeueBatch(c *crashed) func() {
	open(c)
	_, err := c.DeadLetters().CreateDeadLetterBatch(c.t.Context(), connect.NewRequest(&penstockv1.CreateDeadLetterBatchRequest{
		Filter: &penstockv1.DeadLetterFilter{Type: "inject"}, Rate: 10,
	}))
	if err != nil { // its first chunk may be faster than the answer
		c.unanswered(err)
	}
	c.requeued()
	return nil
}

// tokensFile has the tokens of two people.
func tokensFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	must(t, os.WriteFile(file, []byte("alice "+token("alice")+" roles=admin\nbob "+token("bob")+" roles=operator\ndora "+token("dora")+" roles=producer\n"), 0o600))
	return file
}

func token(name string) string { return "the-token-of-" + name + "-in-tests" }

// as returns the RPC for somebody.
func (c *crashed) as(name string) penstockv1connect.DeadLetterServiceClient {
	c.t.Helper()
	who, err := client.NewWith("http://"+c.addr, client.Options{Token: token(name)})
	must(c.t, err)
	c.t.Cleanup(func() { _ = who.Close() })
	return who.DeadLetters()
}

// discarded is what there is once the three were discarded.
func (c *crashed) discarded() {
	c.wants.discarded, c.wants.events = 3, eventsDead+" dlq.discard_proposed dlq.discarded"
}

func (c *crashed) proposed(call *penstockv1.ProposeDiscardRequest) (*penstockv1.DeadLetterBatch, error) {
	res, err := c.as("alice").ProposeDiscard(c.t.Context(), connect.NewRequest(call))
	if err != nil {
		return nil, err
	}
	return res.Msg.Batch, nil
}

func (c *crashed) confirmed(b *penstockv1.DeadLetterBatch) error {
	_, err := c.as("bob").ConfirmDiscard(c.t.Context(), connect.NewRequest(&penstockv1.ConfirmDiscardRequest{BatchId: b.BatchId, Digest: b.Digest}))
	return err
}

func propose(c *crashed) func() {
	call := &penstockv1.ProposeDiscardRequest{BatchId: batchID(), DlqIds: open(c), Reason: "no longer needed"}
	_, err := c.proposed(call)
	c.unanswered(err)
	c.discarded()
	return func() {
		b, err := c.proposed(call)
		must(c.t, err)
		must(c.t, c.confirmed(b))
	}
}

func confirm(c *crashed) func() {
	b, err := c.proposed(&penstockv1.ProposeDiscardRequest{DlqIds: open(c), Reason: "no longer needed"})
	must(c.t, err)
	c.unanswered(c.confirmed(b))
	c.discarded()
	return func() { must(c.t, c.confirmed(b)) } // a repeat is answered as the call itself would have been
}

// discardBatch has a second discard worked off while the first one goes on, so
// that it has more than one chunk.
func discardBatch(c *crashed) func() {
	ids := open(c)
	for _, part := range [][]string{ids[:1], ids[1:]} {
		b, err := c.proposed(&penstockv1.ProposeDiscardRequest{DlqIds: part, Reason: "no longer needed"})
		must(c.t, err)
		if err := c.confirmed(b); err != nil { // the second may be done before the answer
			c.unanswered(err)
		}
	}
	c.discarded()
	return nil
}

// A name that is no point is refused at start, and so is any by a program
// without points.
func TestCrashPointIsChecked(t *testing.T) {
	t.Parallel()
	must(t, buildMortal())
	for program, want := range map[string]string{
		mortal: `there is no point "deadletter.appendd"; there are `, "orchestrator": "PENSTOCK_CRASH_AT: unknown setting",
	} {
		p := start(t, program, []string{crashpoint.Env + "=deadletter.appendd"}, "config", "print")
		if code := p.wait(t); code != 2 || !strings.Contains(p.out.String(), want) {
			t.Errorf("%s ended with %d, want 2 and %q:\n%s", program, code, want, p.out.tail())
		}
	}
}
