package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func doNothing(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil }

// ignorant starts a worker of a queue that knows another type only.
func (b *bundle) ignorant(queue string) *testkit.Worker {
	b.t.Helper()
	return b.worker(worker.Options{Queues: []string{queue}, Name: "ignorant"}, func(w *worker.Worker) { w.HandleRaw("other", doNothing) })
}

// awaitKnown waits until a worker has said that it knows a type.
func (b *bundle) awaitKnown(queue, typ string) {
	b.t.Helper()
	testkit.Eventually(b.t, "a worker knows the type", func() (bool, string) {
		err := b.redis.ZScore(b.t.Context(), protocol.KeyTypes, queue+" "+typ).Err()
		return err == nil, fmt.Sprint(err)
	})
}

// pretend says that a worker knows a type, for as long as is allowed.
func (b *bundle) pretend(queue, typ string) {
	b.t.Helper()
	now := b.redis.Time(b.t.Context()).Val()
	if err := b.redis.ZAdd(b.t.Context(), protocol.KeyTypes, redis.Z{Score: float64(now.Add(50 * time.Second).UnixMilli()), Member: queue + " " + typ}).Err(); err != nil {
		b.t.Fatal(err)
	}
}

// offered waits until an entry is offered, and takes the offer as a worker does.
func (b *bundle) takeOffer(queue, typ string) (id, holder string) {
	b.t.Helper()
	testkit.Eventually(b.t, "an entry is offered", func() (bool, string) {
		s, err := b.redis.LPop(b.t.Context(), protocol.KeyOffers+":"+queue+":"+typ).Result()
		if err != nil {
			return false, err.Error()
		}
		id, holder, _ = strings.Cut(s, " ")
		return true, ""
	})
	return id, holder
}

// One of two workers knows the type. What the other one fetches comes to it at
// once, and leaves no trace.
func TestAWorkerThatDoesNotKnowATypeHandsItOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n, queue = 100, "hand-on"
	heard := b.redis.Subscribe(t.Context(), protocol.KeyOffers)
	t.Cleanup(func() { _ = heard.Close() })
	if _, err := heard.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	var running, most atomic.Int64
	b.worker(worker.Options{Queues: []string{queue}, Concurrency: 3, Name: "knows"}, func(w *worker.Worker) {
		w.HandleRaw("t", func(context.Context, *task.Raw) (json.RawMessage, error) {
			for now, old := running.Add(1), most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
			}
			time.Sleep(2 * time.Millisecond) // lets others run beside it, as they should
			running.Add(-1)
			return nil, nil
		})
	})
	b.awaitKnown(queue, "t")
	b.ignorant(queue)
	var offered atomic.Int64
	go func() {
		for m := range heard.Channel() {
			if m.Payload == queue+" t" {
				offered.Add(1)
			}
		}
	}()
	b.wait(b.enqueueMany(1, queue)[0]) // makes the queue
	var ids []string
	for round := 0; round < 10 || offered.Load() == 0 && round < 200; round++ {
		ids = append(ids, b.enqueueMany(n/10, queue)...)
		b.wait(ids[len(ids)-1])
	}
	var waits []time.Duration
	for _, id := range ids {
		got := b.wait(id)
		if got.State != "succeeded" || got.Delivery != 1 {
			t.Errorf("%s with delivery %d, want succeeded with the first", got.State, got.Delivery)
		}
		waits = append(waits, got.StartedAt.AsTime().Sub(got.CreatedAt.AsTime()))
		b.wantEvents(id, "task.created", "task.claimed", "task.succeeded")
	}
	if most.Load() > 3 {
		t.Errorf("%d ran at once in a worker with 3 slots", most.Load())
	}
	if offered.Load() == 0 {
		t.Error("nothing was offered: the other worker has fetched none of them")
	}
	slices.Sort(waits)
	t.Logf("%d tasks, %d times offered; from created to started p50 %s, p99 %s", len(ids), offered.Load(), waits[len(waits)/2], waits[len(waits)*99/100])
	testkit.VerifyLog(t, b.Stores)
}

// What is offered keeps its lease while those that know it are busy.
func TestOfferedTasksWaitForASlot(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(time.Second))
	const queue = "busy"
	begun, end := make(chan struct{}), make(chan struct{})
	b.worker(worker.Options{Queues: []string{queue}, Concurrency: 1, Name: "knows"}, func(w *worker.Worker) {
		w.HandleRaw("long", func(context.Context, *task.Raw) (json.RawMessage, error) { close(begun); <-end; return nil, nil })
		w.HandleRaw("t", doNothing)
	})
	b.awaitKnown(queue, "t")
	b.enqueue(task.Request{Type: "long", Queue: queue})
	<-begun
	ignorant := b.ignorant(queue)
	ids := b.enqueueMany(5, queue)
	held := func() (n int64) {
		ps, _ := b.redis.XPendingExt(t.Context(), &redis.XPendingExtArgs{
			Stream: protocol.TaskStream(queue), Group: protocol.GroupWorkers, Start: "-", End: "+", Count: 10, Consumer: ignorant.ID(),
		}).Result()
		return int64(len(ps))
	}
	testkit.Eventually(t, "all are offered", func() (bool, string) { return held() == 5, fmt.Sprint(held()) })
	for from := time.Now(); time.Since(from) < 3*time.Second; time.Sleep(50 * time.Millisecond) { // three visibility timeouts
		if n := held(); n != 5 {
			t.Fatalf("%d of 5 are left with the worker that offers them", n)
		}
	}
	close(end)
	for _, id := range ids {
		b.wait(id)
		b.wantEvents(id, "task.created", "task.claimed", "task.succeeded")
	}
	testkit.Eventually(t, "the other worker holds nothing", func() (bool, string) { return held() == 0, fmt.Sprint(held()) })
	testkit.VerifyLog(t, b.Stores)
}

// A worker that took an offer and died: at once, or after it had taken the entry
// over. The task ends once, after the visibility timeout.
func TestTheReceiverOfAnOfferDies(t *testing.T) {
	t.Parallel()
	for name, claims := range map[string]bool{"before it took the entry over": false, "after it took the entry over": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, visibility(time.Second))
			queue := fmt.Sprintf("dies-%t", claims)
			b.ignorant(queue)
			b.pretend(queue, "t")
			id := b.enqueue(task.Request{Queue: queue})
			entry, holder := b.takeOffer(queue, "t")
			if !strings.HasPrefix(holder, "ignorant-") {
				t.Errorf("offered by %q", holder)
			}
			if claims {
				if got, err := b.redis.XClaim(t.Context(), &redis.XClaimArgs{
					Stream: protocol.TaskStream(queue), Group: protocol.GroupWorkers, Consumer: "dies", Messages: []string{entry},
				}).Result(); err != nil || len(got) != 1 {
					t.Fatalf("XCLAIM: %v, %v", got, err)
				}
			}
			var runs atomic.Int64
			b.worker(worker.Options{Queues: []string{queue}}, func(w *worker.Worker) {
				w.HandleRaw("t", func(context.Context, *task.Raw) (json.RawMessage, error) { runs.Add(1); return nil, nil })
			})
			if got := b.wait(id); got.State != "succeeded" || got.Delivery != 2 || got.Interruptions != 1 {
				t.Errorf("%v, want one interruption, of the worker that died", got)
			}
			if runs.Load() != 1 {
				t.Errorf("it ran %d times", runs.Load())
			}
			testkit.VerifyLog(t, b.Stores)
		})
	}
}

// A worker that stops while it offers hands back what nobody has taken.
func TestAStopWithOffers(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(time.Hour))
	const queue = "stops"
	w := b.ignorant(queue)
	b.pretend(queue, "t")
	ids := b.enqueueMany(3, queue)
	b.takeOffer(queue, "t") // somebody has taken the first, and lives
	testkit.Eventually(t, "the others are offered", func() (bool, string) {
		n, err := b.redis.LLen(t.Context(), protocol.KeyOffers+":"+queue+":t").Result()
		return err == nil && n == 2, fmt.Sprint(n, err)
	})
	w.Stop(t)
	handedBack := 0
	testkit.Eventually(t, "two are handed back", func() (bool, string) {
		handedBack = 0
		for _, id := range ids {
			if slices.Contains(types(b.events(id)), "task.interrupted") {
				handedBack++
			}
		}
		return handedBack == 2, fmt.Sprint(handedBack)
	})
	if n := b.redis.LLen(t.Context(), protocol.KeyOffers+":"+queue+":t").Val(); n != 0 {
		t.Errorf("%d offers are left of a worker that has stopped", n)
	}
}

// Nobody knows the type: the waits grow, the task says so, and it runs soon once a
// worker comes that knows it.
func TestATypeBecomesKnown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const queue = "later"
	b.ignorant(queue)
	id := b.enqueue(task.Request{Queue: queue})
	got := b.waitState(id, protocol.StateInterrupted)
	if since := got.TypeUnknownSince; since == nil || since.AsTime().Before(got.CreatedAt.AsTime()) {
		t.Errorf("type_unknown_since is %v, want when it was handed back", since)
	}
	e := find(b.events(id), protocol.EventInterrupted)
	if e.ErrorCode != "TASK_UNKNOWN_TYPE" || e.Reason != "no worker that lives has a handler for type t" {
		t.Errorf("handed back with %s: %s", e.ErrorCode, e.Reason)
	}
	// As after many hand-backs.
	db := b.SQL(t)
	testkit.Eventually(t, "it waits for an hour", func() (bool, string) {
		tag, err := db.Exec(t.Context(), "UPDATE tasks SET due_at = now() + interval '1 hour' WHERE state = 'interrupted' AND due_at IS NOT NULL")
		return err == nil && tag.RowsAffected() == 1, fmt.Sprint(err)
	})
	b.worker(worker.Options{Queues: []string{queue}}, func(w *worker.Worker) { w.HandleRaw("t", doNothing) })
	if got = b.wait(id); got.State != "succeeded" || got.TypeUnknownSince != nil {
		t.Errorf("%v, want it to have run", got)
	}
	testkit.VerifyLog(t, b.Stores)
}

// What strangers write where workers say what they know stops nothing.
func TestForeignOffers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const queue = "foreign"
	key := protocol.KeyOffers + ":" + queue + ":t"
	for _, s := range []string{"", "x", "1-1", "1-1 ", "1-1 nobody", "-1-1 me", "99999999999999999999999-1 me", "1-1 " + strings.Repeat("x", 10_000), "\xff\x00 \xff"} {
		if err := b.redis.RPush(t.Context(), key, s).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.redis.ZAdd(t.Context(), protocol.KeyTypes, redis.Z{Score: 9e18, Member: queue + " never"}, redis.Z{Score: 1, Member: "\xff"}).Err(); err != nil {
		t.Fatal(err)
	}
	b.worker(worker.Options{Queues: []string{queue}}, func(w *worker.Worker) { w.HandleRaw("t", doNothing) })
	b.awaitKnown(queue, "t")
	if err := b.redis.Publish(t.Context(), protocol.KeyOffers, "\xff").Err(); err != nil {
		t.Fatal(err)
	}
	b.wait(b.enqueue(task.Request{Queue: queue}))
	testkit.Eventually(t, "the strangers' offers are dropped", func() (bool, string) {
		n, err := b.redis.Exists(t.Context(), key).Result()
		return err == nil && n == 0, fmt.Sprint(n, err)
	})
	id := b.enqueue(task.Request{Queue: queue, Type: "never"})
	if got := b.waitState(id, protocol.StateInterrupted); got.Delivery != 2 {
		t.Errorf("%v, want it handed back: no worker lives for so long", got)
	}
	b.redis.Del(t.Context(), protocol.KeyTypes)
	if err := b.redis.Set(t.Context(), protocol.KeyTypes, "a string", 0).Err(); err != nil {
		t.Fatal(err)
	}
	b.waitState(b.enqueue(task.Request{Queue: queue, Type: "never2"}), protocol.StateInterrupted)
	b.wait(b.enqueue(task.Request{Queue: queue}))
}
