package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// A worker that stopped leaves no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(devtest.Runner{M: m}) }

// bundle is one orchestrator on stores of its own.
type bundle struct {
	testkit.Stores
	t      *testing.T
	cfg    config.Orchestrator
	orch   *testkit.Orchestrator
	client *client.Client
	redis  *redis.Client
}

func setup(t *testing.T, edit ...func(*config.Orchestrator)) *bundle {
	t.Helper()
	return setupOn(t, testkit.NewStores(t), edit...)
}

func setupOn(t *testing.T, s testkit.Stores, edit ...func(*config.Orchestrator)) *bundle {
	t.Helper()
	b := &bundle{Stores: s, t: t, cfg: s.Config()}
	for _, e := range edit {
		e(&b.cfg)
	}
	b.orch = testkit.StartOrchestrator(t, b.cfg)
	b.client = testkit.Client(t, b.orch.URL)
	o, err := redis.ParseURL(s.RedisURL)
	if err != nil {
		t.Fatalf("parse Redis URL: %v", err)
	}
	b.redis = redis.NewClient(o)
	t.Cleanup(func() { _ = b.redis.Close() })
	return b
}

// visibility sets the visibility timeout.
func visibility(d time.Duration) func(*config.Orchestrator) {
	return func(c *config.Orchestrator) { c.Recovery.VisibilityTimeout = d }
}

// worker starts one with the bundle's visibility timeout.
func (b *bundle) worker(o worker.Options, set func(w *worker.Worker)) *testkit.Worker {
	b.t.Helper()
	o.VisibilityTimeout = b.cfg.Recovery.VisibilityTimeout
	return b.StartWorker(b.t, o, set)
}

// raw starts a worker with one raw handler for type "t".
func (b *bundle) raw(o worker.Options, h task.Handler) *testkit.Worker {
	b.t.Helper()
	return b.worker(o, func(w *worker.Worker) { w.HandleRaw("t", h) })
}

// enqueue enqueues a task of type "t" unless the request names another.
func (b *bundle) enqueue(r task.Request) string {
	b.t.Helper()
	if r.Type == "" {
		r.Type = "t"
	}
	e, err := b.client.EnqueueTask(b.t.Context(), &r)
	if err != nil {
		b.t.Fatalf("enqueue: %v", err)
	}
	return e.TaskID
}

// enqueueMany enqueues n tasks of type "t" with payloads 0 … n-1.
func (b *bundle) enqueueMany(n int, queue string) []string {
	b.t.Helper()
	rs := make([]*task.Request, n)
	for i := range rs {
		rs[i] = &task.Request{Type: "t", Queue: queue, Payload: json.RawMessage(fmt.Sprint(i))}
	}
	res, err := b.client.EnqueueMany(b.t.Context(), rs)
	if err != nil {
		b.t.Fatalf("enqueue %d: %v", n, err)
	}
	ids := make([]string, n)
	for i, r := range res {
		if r.Err != nil {
			b.t.Fatalf("enqueue %d: %v", i, r.Err)
		}
		ids[i] = r.Value.TaskID
	}
	return ids
}

// wait waits until the task is terminal.
func (b *bundle) wait(id string) *client.Task {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), testkit.Deadline)
	defer cancel()
	t, err := b.client.Wait(ctx, "", id)
	if err != nil {
		b.t.Fatalf("wait for %s: %v; events %v", id, err, types(b.events(id)))
	}
	return t
}

// waitState waits until the task is in a state that is not terminal.
func (b *bundle) waitState(id string, want protocol.State) *client.Task {
	b.t.Helper()
	var last *client.Task
	testkit.Eventually(b.t, "task in state "+string(want), func() (bool, string) {
		t, err := b.client.Get(b.t.Context(), "", id)
		if err != nil {
			return false, err.Error()
		}
		last = t
		return t.State == string(want), t.State
	})
	return last
}

func (b *bundle) events(id string) []*penstockv1.Event {
	b.t.Helper()
	res, err := b.client.RPC().ListEvents(context.Background(), connect.NewRequest(&penstockv1.ListEventsRequest{TaskId: id}))
	if err != nil {
		b.t.Fatalf("events of %s: %v", id, err)
	}
	return res.Msg.Events
}

func types(es []*penstockv1.Event) []string {
	out := make([]string, len(es))
	for i, e := range es {
		out[i] = e.Type
	}
	return out
}

// wantEvents fails unless the task has exactly these events.
func (b *bundle) wantEvents(id string, want ...string) []*penstockv1.Event {
	b.t.Helper()
	es := b.events(id)
	if got := types(es); !slices.Equal(got, want) {
		b.t.Errorf("events of %s are %v, want %v", id, got, want)
	}
	return es
}

// find returns the first event of a type.
func find(es []*penstockv1.Event, typ protocol.EventType) *penstockv1.Event {
	for _, e := range es {
		if e.Type == string(typ) {
			return e
		}
	}
	return &penstockv1.Event{}
}

// pending returns the pending entries of a queue's stream.
func (b *bundle) pending(queue string) []redis.XPendingExt {
	b.t.Helper()
	ps, err := b.redis.XPendingExt(b.t.Context(), &redis.XPendingExtArgs{
		Stream: protocol.TaskStream(queue), Group: protocol.GroupWorkers, Start: "-", End: "+", Count: 5000,
	}).Result()
	if err != nil {
		b.t.Fatalf("XPENDING: %v", err)
	}
	return ps
}

// steal gives an entry to another consumer and returns why the handler of its
// worker was ended. A renewal that had looked at the entry just before may take it
// back: it is stolen again then.
func (b *bundle) steal(entry redis.XPendingExt, causes <-chan error) (cause error) {
	b.t.Helper()
	testkit.Eventually(b.t, "the lease is lost", func() (bool, string) {
		select {
		case cause = <-causes:
			return true, ""
		default:
		}
		ps := b.pending("default")
		if slices.ContainsFunc(ps, func(p redis.XPendingExt) bool { return p.ID == entry.ID && p.Consumer == entry.Consumer }) {
			b.claimAs("thief", entry.ID)
		}
		return false, fmt.Sprint("pending: ", ps)
	})
	return cause
}

func (b *bundle) claimAs(consumer, entryID string) {
	b.t.Helper()
	if err := b.redis.XClaim(b.t.Context(), &redis.XClaimArgs{
		Stream: protocol.StreamTask, Group: protocol.GroupWorkers, Consumer: consumer, Messages: []string{entryID},
	}).Err(); err != nil {
		b.t.Fatalf("XCLAIM: %v", err)
	}
}

// consumers returns the names of the group's consumers.
func (b *bundle) consumers(queue string) []string {
	b.t.Helper()
	cs, err := b.redis.XInfoConsumers(b.t.Context(), protocol.TaskStream(queue), protocol.GroupWorkers).Result()
	if err != nil {
		b.t.Fatalf("XINFO CONSUMERS: %v", err)
	}
	var out []string
	for _, c := range cs {
		out = append(out, c.Name)
	}
	return out
}

// receive waits for a signal of a handler.
func receive[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(testkit.Deadline):
		t.Fatalf("not within %s: %s", testkit.Deadline, what)
		panic("unreachable")
	}
}

// waitEvent waits until the task has an event of a type.
func (b *bundle) waitEvent(id string, typ protocol.EventType) *penstockv1.Event {
	b.t.Helper()
	var e *penstockv1.Event
	testkit.Eventually(b.t, "event "+string(typ), func() (bool, string) {
		es := b.events(id)
		e = find(es, typ)
		return e.Type != "", fmt.Sprint(types(es))
	})
	return e
}

// addGarbage is an entry of stream:task that is no task.
func addGarbage() *redis.XAddArgs {
	return &redis.XAddArgs{Stream: protocol.StreamTask, Values: []any{"hello", "world"}}
}
