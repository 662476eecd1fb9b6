package cancel_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A tombstone stays while its entry is undelivered or pending, whatever its age.
func TestTombstoneStaysUntilTheEntryIsAcknowledged(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Enqueue(t, testkit.Requests(2, "t")...)
	pending := r.Fetch(t, "w", 1)
	if _, _, err := r.Cancel.CancelAll(t.Context(), all(), why, 0, false); err != nil {
		t.Fatal(err)
	}
	tell(t, r)
	sent(t, r)
	remove(t, r, 0) // young
	age(t, r)
	remove(t, r, 0) // one is undelivered, one pending
	wantTombstones(t, r, 2, 2)
	other := r.Fetch(t, "w", 1)
	r.Ack(t, pending...)
	remove(t, r, 1)
	wantTombstones(t, r, 1, 1)
	if !tombstoned(t, r, other[0].ID, 1) {
		t.Error("the tombstone of the pending entry is gone")
	}
	r.Ack(t, other...)
	remove(t, r, 1)
	wantTombstones(t, r, 0, 0)
}

// The entry is still in the outbox when old tombstones are removed: it is not in
// its stream, and was not acknowledged either. Once it is added, its tombstone
// must be there.
func TestTombstoneStaysWhileTheEntryIsInTheOutbox(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, calm(s)) // no dispatcher runs
	id := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	if n := r.Count(t, "SELECT count(*) FROM tasks WHERE due_at IS NOT NULL"); n != 1 {
		t.Fatalf("%d tasks wait in Postgres, want the one", n)
	}
	// What a dispatcher commits before it adds the entry.
	var outbox int64
	err := r.Store.Tx(t.Context(), func(q *dbsqlc.Queries) error {
		due, _, now, err := r.Store.LockDueTasks(t.Context(), q, protocol.DefaultQueue, time.Time{}, 0, 1)
		if err != nil {
			return err
		}
		ev, _ := due[0].Dispatch(protocol.Env{Now: now})
		if err := r.Store.Save(t.Context(), q, append(changed(), due[0].Locked), ev); err != nil {
			return err
		}
		outbox, err = q.InsertOutbox(t.Context(), dbsqlc.InsertOutboxParams{
			Owner: pgid.ID(r.Instance), Queue: protocol.DefaultQueue, AfterID: "0-0", TaskIds: []pgid.ID{pgid.ID(id)}, Deliveries: []int64{1},
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	mustCancel(t, r, id)
	tell(t, r)
	age(t, r)
	remove(t, r, 0)
	wantTombstones(t, r, 1, 1)

	// The entry is added, and the outbox row goes.
	e := &protocol.TaskEntry{ID: id, TaskID: id.String(), Type: "t", Payload: []byte("{}"), Attempt: 1, Delivery: 1, Timeout: time.Second}
	if err := r.Raw.XAdd(t.Context(), &redis.XAddArgs{Stream: protocol.StreamTask, Values: e.Values()}).Err(); err != nil {
		t.Fatal(err)
	}
	if err := r.Store.DeleteOutbox(t.Context(), []int64{outbox}); err != nil {
		t.Fatal(err)
	}
	remove(t, r, 0)
	es, some, err := r.Client.ReadTasks(t.Context(), protocol.StreamTask, protocol.GroupWorkers, "w", ">", 1)
	if err != nil || len(es) != 1 || !some || !tombstoned(t, r, id, 1) {
		t.Fatalf("the entry could start: %d entries, tombstones %t, %v", len(es), some, err)
	}
	remove(t, r, 0)
	if err := r.Client.Ack(t.Context(), protocol.StreamTask, protocol.GroupWorkers, []string{es[0].ID}); err != nil {
		t.Fatal(err)
	}
	remove(t, r, 1)
	events(t, r, id, "task.created task.cancelled")
	testkit.VerifyLog(t, s)
}

// Redis loses the set, or a part of it, or holds what is not to be there; and an
// orchestrator died between the row and the tombstone.
func TestRedisIsToldAgain(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Enqueue(t, testkit.Requests(5, "t")...)
	if n, _, err := r.Cancel.CancelAll(t.Context(), all(), why, 0, false); n != 5 || err != nil {
		t.Fatalf("%d cancelled, %v", n, err)
	}
	lose := func(what string, members int) {
		t.Helper()
		if _, m := tombstones(t, r); m != members {
			t.Fatalf("%s: %d in Redis, want %d", what, m, members)
		}
		tell(t, r)
		wantTombstones(t, r, 5, 5)
	}
	if err := r.Raw.Del(t.Context(), protocol.KeyTombstones).Err(); err != nil {
		t.Fatal(err)
	}
	lose("never told", 0)
	if err := r.Raw.SPop(t.Context(), protocol.KeyTombstones).Err(); err != nil {
		t.Fatal(err)
	}
	lose("one lost", 4)
	if err := r.Raw.Del(t.Context(), protocol.KeyTombstones).Err(); err != nil {
		t.Fatal(err)
	}
	lose("all lost", 0)
	stray := protocol.Pair{ID: protocol.NameID("default", "stray"), Delivery: 7}
	if err := r.Client.AddTombstones(t.Context(), []protocol.Pair{stray}); err != nil {
		t.Fatal(err)
	}
	lose("a stray", 6)
}

// The loop does all of it by itself.
func TestTombstoneLoop(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Start(t, r.Cancel.RunTombstones)
	id := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	hs := r.Fetch(t, "w", 1)
	mustCancel(t, r, id)
	testkit.Eventually(t, "Redis is known to hold the tombstone", func() (bool, string) {
		return r.Count(t, "SELECT count(*) FROM tombstones WHERE told") == 1 && tombstoned(t, r, id, 1), ""
	})
	r.Report(t, skipped(hs[0]))
	r.Ack(t, hs...)
	testkit.Eventually(t, "the tombstone is removed", func() (bool, string) {
		rows, members := tombstones(t, r)
		return rows+members == 0, ""
	})
	settled(t, r)
	events(t, r, id, "task.created task.cancelled") // skipped is no refusal
	testkit.VerifyLog(t, r.Stores)
}

// Tombstones of a stream that has gone altogether are not kept for ever; those
// of one that only lost its group are, until it has one.
func TestTombstonesOfALostStream(t *testing.T) {
	t.Parallel()
	r := rig(t)
	mails := r.Enqueue(t, requests(1, func(q *enqueue.Request) { q.Queue = "mail" })...)[0]
	mustCancel(t, r, mails)
	tell(t, r)
	sent(t, r)
	age(t, r)
	remove(t, r, 0)
	stream := protocol.TaskStream("mail")
	if err := r.Raw.XGroupDestroy(t.Context(), stream, protocol.GroupWorkers).Err(); err != nil {
		t.Fatal(err)
	}
	remove(t, r, 0)
	if err := r.Raw.Del(context.WithoutCancel(t.Context()), stream).Err(); err != nil {
		t.Fatal(err)
	}
	remove(t, r, 1)
	wantTombstones(t, r, 0, 0)
}
