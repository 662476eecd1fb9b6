package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// The worker was away for longer than its lease: meanwhile the entry was taken
// over, acknowledged and trimmed, so that Redis knows nothing of it any more.
func TestLostLeaseIsNoticedAfterTheEntryWasTrimmed(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(900*time.Millisecond))
	causes := make(chan error, 2)
	b.raw(worker.Options{}, func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil, context.Cause(ctx)
	})
	id := b.enqueue(task.Request{})
	b.waitState(id, protocol.StateRunning)
	b.renewed()
	entry := b.pending("default")[0].ID
	if _, err := b.redis.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.XAck(t.Context(), protocol.StreamTask, protocol.GroupWorkers, entry)
		p.XDel(t.Context(), protocol.StreamTask, entry)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if cause := receive(t, "the lease is lost", causes); !errors.Is(cause, task.ErrLeaseLost) {
		t.Errorf("the context ended with %v, want ErrLeaseLost", cause)
	}
}

// renewed waits until leases have been renewed after the system was up.
func (b *bundle) renewed() {
	b.t.Helper()
	testkit.Eventually(b.t, "Redis has an epoch", func() (bool, string) {
		return b.redis.HGet(b.t.Context(), "penstock:epoch", "id").Val() != "", "none"
	})
	for range 2 { // one may have been under way
		idle := time.Duration(0)
		testkit.Eventually(b.t, "the lease is renewed", func() (bool, string) {
			before := idle
			if ps := b.pending("default"); len(ps) > 0 {
				idle = ps[0].Idle
			}
			return idle < before, idle.String()
		})
	}
}

// The same view of Redis, but nobody else has the task: the stream was lost and
// made anew, or a stranger deleted the entry. The task runs on.
func TestALostEntryIsNoLostLease(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(ctx context.Context, r *redis.Client, entry string) error{
		"stream": func(ctx context.Context, r *redis.Client, _ string) error {
			return r.Del(ctx, protocol.StreamTask).Err()
		},
		"group": func(ctx context.Context, r *redis.Client, _ string) error {
			return r.XGroupDestroy(ctx, protocol.StreamTask, protocol.GroupWorkers).Err()
		},
		"entry": func(ctx context.Context, r *redis.Client, entry string) error {
			return r.XDel(ctx, protocol.StreamTask, entry).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, visibility(1500*time.Millisecond))
			release := make(chan struct{})
			b.worker(worker.Options{}, func(w *worker.Worker) {
				w.HandleRaw("t", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
					select {
					case <-release:
						return json.RawMessage(`"kept"`), nil
					case <-ctx.Done():
						return nil, context.Cause(ctx)
					}
				})
				w.HandleRaw("other", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
			})
			id := b.enqueue(task.Request{})
			b.waitState(id, protocol.StateRunning)
			if err := lose(t.Context(), b.redis, b.pending("default")[0].ID); err != nil {
				t.Fatal(err)
			}
			b.wait(b.enqueue(task.Request{Type: "other"})) // delivered, so that its id passes the lost one
			seen := b.redis.XInfoStream(t.Context(), protocol.StreamResult).Val().LastGeneratedID
			testkit.Eventually(t, "a renewal has found the entry gone: the claim is reported again", func() (bool, string) {
				es, err := b.redis.XRange(t.Context(), protocol.StreamResult, "("+seen, "+").Result()
				if err != nil || len(es) == 0 {
					return false, "nothing"
				}
				o, err := protocol.DecodeOutcome(es[0].Values)
				return err == nil && o.Kind == protocol.OutcomeClaimed && o.ID.String() == id, es[0].ID
			})
			close(release)
			if got := b.wait(id); string(got.Result) != `"kept"` || got.Delivery != 1 {
				t.Errorf("%v, want the result of the only execution", got)
			}
		})
	}
}
