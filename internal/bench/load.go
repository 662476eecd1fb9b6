package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

var noop = task.Define[json.RawMessage]("bench.noop")

func counting(hit func()) task.Handler {
	return func(context.Context, *task.Raw) (json.RawMessage, error) {
		hit()
		return nil, nil
	}
}

// counter tells when the n-th task ran.
type counter struct {
	n    int64
	c    atomic.Int64
	done chan struct{}
}

func newCounter(n int) *counter { return &counter{n: int64(n), done: make(chan struct{})} }

func (c *counter) hit() {
	if c.c.Add(1) == c.n {
		close(c.done)
	}
}

// stalled is how long nothing may happen.
const stalled = 2 * time.Minute

func (c *counter) wait(ctx context.Context) error {
	for {
		before := c.c.Load()
		select {
		case <-c.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(stalled):
			if now := c.c.Load(); now == before {
				return fmt.Errorf("only %d of %d tasks ran, and none for %s", now, c.n, stalled)
			}
		}
	}
}

// newQueue names a queue that is not used yet.
func newQueue() string { return fmt.Sprintf("bench-%d", time.Now().UnixNano()) }

// Payload sizes in bytes: that of most parts, and the largest one.
const (
	smallPayload = 200
	largePayload = 64 << 10
)

// payloadOf makes a JSON object of so many bytes.
func payloadOf(size int) []byte {
	b := []byte(`{"n":1,"pad":"`)
	for len(b) < size-2 {
		b = append(b, 'x')
	}
	return append(b, `"}`...)
}

// callBytes is about how much one call of enqueueAll carries at most.
const callBytes = 1 << 20

// enqueueAll enqueues n tasks through the RPC in batches of 500 from four callers,
// who share the orchestrators, and returns their ids in order.
func (s *system) enqueueAll(ctx context.Context, n int, request func(i int) *task.Request) ([]string, error) {
	const callers = 4
	chunk := max(1, min(500, callBytes/max(1, len(request(0).Payload))))
	var wg sync.WaitGroup
	var next atomic.Int64
	ids, errs := make([]string, n), make(chan error, callers)
	for caller := range callers {
		wg.Go(func() {
			for {
				from := int(next.Add(int64(chunk))) - chunk
				if from >= n {
					return
				}
				if err := s.enqueueChunk(ctx, caller%len(s.clients), ids[from:min(from+chunk, n)], from, request); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return nil, err
	default:
		return ids, nil
	}
}

func (s *system) enqueueChunk(ctx context.Context, by int, ids []string, from int, request func(i int) *task.Request) error {
	reqs := make([]*task.Request, len(ids))
	for i := range reqs {
		reqs[i] = request(from + i)
	}
	res, err := s.clients[by].EnqueueMany(ctx, reqs)
	if err != nil {
		return err
	}
	for i, r := range res {
		if r.Err != nil {
			return r.Err
		}
		ids[i] = r.Value.TaskID
	}
	return nil
}

// noops makes requests of tasks that do nothing, for the queues in turn.
func noops(payload []byte, queues ...string) func(int) *task.Request {
	return func(i int) *task.Request {
		return &task.Request{Type: noop.Name(), Queue: queues[i%len(queues)], Payload: payload}
	}
}

var (
	//go:embed sql/open.sql
	openSQL string
	//go:embed sql/succeeded.sql
	succeededSQL string
)

// onRecord waits until every task of the queues, all of which have run, has its
// last result on record.
func (s *system) onRecord(ctx context.Context, queues ...string) error {
	// To look into Postgres is work that would be measured, too: it comes last.
	for s.raw.open(ctx, protocol.StreamResult, protocol.GroupOrchestrators) > 0 {
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	for {
		var open bool
		if err := s.db.QueryRow(ctx, openSQL, queues).Scan(&open); err != nil || !open {
			return err
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// succeeded checks that so many tasks of the queues, enqueued since then, did. It
// is for after the measurement.
func (s *system) succeeded(ctx context.Context, since time.Time, n int, queues ...string) error {
	var got int
	if err := s.db.QueryRow(ctx, succeededSQL, queues, since).Scan(&got); err != nil {
		return err
	}
	if got != n {
		return fmt.Errorf("%d of %d tasks succeeded", got, n)
	}
	return nil
}

// become waits until the queue's tasks are n in one state and none in another;
// it looks every so often.
func (s *system) become(ctx context.Context, queue, state string, n int, every time.Duration) error {
	for {
		res, err := s.client.RPC().CountTasks(ctx, connect.NewRequest(&penstockv1.CountTasksRequest{Queue: queue}))
		if err != nil {
			return err
		}
		if c := res.Msg.Counts; len(c) == 1 && c[0].State == state && c[0].Count == int64(n) {
			return nil
		}
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
