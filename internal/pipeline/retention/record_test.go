package retention_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/pipeline/retention"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
)

func TestOldDayIsDropped(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	old, young := p.succeeded(t, 50, 30), p.succeeded(t, 5, 5)
	day := time.Now().UTC().AddDate(0, 0, -30)
	newest := p.Count(t, "SELECT max(xid::text::bigint) FROM event_log WHERE task_id = ANY($1::uuid[])", pgid.Slice(old))
	p.remove(t, p.janitor(t, func(o *retention.Options) { o.Tasks = 0 }))
	if p.left(t, old...) != 50 {
		t.Fatal("tasks that are kept for ever are gone")
	}
	p.remove(t, p.janitor(t))
	if n := p.left(t, old...); n != 0 || p.has(t, day) != 0 {
		t.Errorf("%d tasks and %d partitions of an old day are left", n, p.has(t, day))
	}
	if n := p.left(t, young...); n != 5 {
		t.Errorf("%d of 5 young tasks are left", n)
	}
	if got := p.Count(t, "SELECT xid::text::bigint FROM event_horizon"); got != newest {
		t.Errorf("the horizon is %d, want %d", got, newest)
	}
	if tasks, days := p.metric(t, "penstock_retention_removed_total", "tasks"), p.metric(t, "penstock_retention_removed_total", "partitions"); tasks != 50 || days != 1 {
		t.Errorf("%v tasks and %v partitions counted", tasks, days)
	}
}

// A partition is looked at in steps, and goes on where the last round ended; one
// that nobody has looked at to the end is not dropped.
func TestPartitionsAreLookedAtInSteps(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	old := p.succeeded(t, 50, 30)
	day := time.Now().UTC().AddDate(0, 0, -30).Format(time.DateOnly)
	check := func() int {
		t.Helper()
		return p.Count(t, "SELECT COALESCE(penstock_check_days($1::text::date, $1::text::date + 1, '10 days', 20), -1)", day)
	}
	drop := func() int {
		t.Helper()
		return p.Count(t, "SELECT COALESCE(penstock_drop_days($1::text::date, $1::text::date + 1), -1)", day)
	}
	for i, want := range []int{1, 1, 0, 0} {
		if n := drop(); i < 3 && n != -1 {
			t.Fatalf("dropped after %d looks, with %d tasks", i, n)
		} else if i == 3 && n != 50 {
			t.Errorf("%d tasks were dropped, want 50", n)
		}
		if i == 3 {
			break
		}
		if n := check(); n != want {
			t.Fatalf("look %d: %d, want %d", i, n, want)
		}
	}
	if n := p.left(t, old...); n != 0 {
		t.Errorf("%d tasks of an old day are left", n)
	}
}

// What keeps a task keeps its day, but not its neighbours.
func TestDayWithATaskToKeep(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	keepers := map[string]protocol.ID{}
	var removed []protocol.ID
	keep := func(name string, ago int, id protocol.ID) {
		keepers[name] = id
		removed = append(removed, p.succeeded(t, 5, ago)...)
	}
	keep("open dead letter", 30, p.failed(t, 30))
	live := idAt(p.day(t, 31))
	keep("live", 31, live)
	late := p.succeeded(t, 1, 32)[0]
	keep("finished late", 32, late)
	p.age(t, -30, late)
	noted := p.succeeded(t, 1, 33)[0]
	keep("noted lately", 33, noted)
	p.exec(t, "UPDATE tasks SET updated_at = now() WHERE id = $1", pgid.ID(noted))
	keyed := p.succeeded(t, 1, 34)[0]
	keep("key holds", 34, keyed)
	p.exec(t, "UPDATE tasks SET idempotency_key = 'k' WHERE id = $1", pgid.ID(keyed))
	p.exec(t, "UPDATE event_log SET idempotency_key = 'k' WHERE task_id = $1", pgid.ID(keyed))
	p.exec(t, "INSERT INTO idempotency_keys (scope, key, task_id, created_at) VALUES ('default', 'k', $1, now() - interval '34 days')", pgid.ID(keyed))
	p.queued(t, live)
	j := p.janitor(t, func(o *retention.Options) { o.Keys = 60 * dayLong })
	p.remove(t, j)
	for name, id := range keepers {
		if p.left(t, id) != 1 || p.has(t, id.Time()) != 2 {
			t.Errorf("%s: %d tasks and %d partitions are left", name, p.left(t, id), p.has(t, id.Time()))
		}
	}
	if n := p.left(t, removed...); n != 0 {
		t.Errorf("%d neighbours are left", n)
	}

	// Once there is no reason any more, the days go.
	p.finish(t, 1, protocol.OutcomeSucceeded)
	p.age(t, 30, live, late)
	p.exec(t, "UPDATE tasks SET updated_at = finished_at WHERE id = $1", pgid.ID(noted))
	p.exec(t, "UPDATE dlq_items SET status = 'expired', settled_at = now(), payload = NULL, errors = NULL")
	p.remove(t, p.janitor(t))
	for name, id := range keepers {
		if p.left(t, id) != 0 || p.has(t, id.Time()) != 0 {
			t.Errorf("%s, later: %d tasks and %d partitions are left", name, p.left(t, id), p.has(t, id.Time()))
		}
	}
	if n := p.Count(t, "SELECT count(*) FROM idempotency_keys"); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

// Without partitions of their own, tasks are removed row by row.
func TestTasksOfNoDay(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	at := time.Now().AddDate(0, 0, -40)
	ids := make([]protocol.ID, 1200) // several batches
	for i := range ids {
		ids[i] = idAt(at.Add(time.Duration(i) * time.Second))
	}
	p.queued(t, ids[0])
	p.finish(t, 1, protocol.OutcomeSucceeded)
	p.copies(t, ids[0], ids[1:])
	p.age(t, 40, ids[:1100]...)
	p.remove(t, p.janitor(t))
	if n := p.left(t, ids...); n != 100 {
		t.Errorf("%d tasks are left, want the 100 young ones", n)
	}
}

// A name can be used again once its task is gone: so the task stays while
// anything of it could be mistaken for the next one's.
func TestNamedTasks(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	request := func(name string) *enqueue.Request {
		return &enqueue.Request{Type: "t", TaskID: name, Payload: []byte(`{}`)}
	}
	free := p.Enqueue(t, request("free"))[0]
	p.finish(t, 1, protocol.OutcomeSucceeded)
	dead := p.Enqueue(t, request("dead"))[0]
	p.finish(t, 1, protocol.OutcomeFailed)
	p.exec(t, "UPDATE dlq_items SET status = 'expired', settled_at = now(), payload = NULL, errors = NULL")
	late := p.Enqueue(t, request("late"))[0]
	p.finish(t, 1, protocol.OutcomeSucceeded)
	p.age(t, 20, free, dead, late)
	// An entry that nobody has fetched for weeks, in a queue without workers.
	p.exec(t, "UPDATE tasks SET queue = 'q' WHERE id = $1", pgid.ID(late))
	stream := protocol.TaskStream("q")
	if _, err := p.Client.CreateTaskGroup(t.Context(), stream, protocol.GroupWorkers); err != nil {
		t.Fatal(err)
	}
	entry := streams.IDAt(time.Now().AddDate(0, 0, -21))
	if err := p.Raw.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, ID: entry, Values: []string{"x", "y"}}).Err(); err != nil {
		t.Fatal(err)
	}
	p.remove(t, p.janitor(t))
	if p.left(t, free) != 0 || p.left(t, dead, late) != 2 {
		t.Fatalf("left: free %d, dead and late %d of 2", p.left(t, free), p.left(t, dead, late))
	}
	if _, err := p.Client.ReadNow(t.Context(), stream, protocol.GroupWorkers, "w", 1); err != nil {
		t.Fatal(err)
	}
	p.remove(t, p.janitor(t))
	if p.left(t, late) != 1 {
		t.Fatal("a task whose entry is pending is removed")
	}
	if err := p.Client.Ack(t.Context(), stream, protocol.GroupWorkers, []string{entry}); err != nil {
		t.Fatal(err)
	}
	p.remove(t, p.janitor(t))
	if p.left(t, late) != 0 || p.left(t, dead) != 1 {
		t.Fatal("a task of which nothing is left is not removed, or one with a dead letter is")
	}
	again := p.Enqueue(t, request("free"))
	if again[0] != free {
		t.Fatalf("the name leads to %s, then to %s", free, again[0])
	}
	p.finish(t, 1, protocol.OutcomeSucceeded)
	testkit.VerifyEvents(t, p.Stores)
}

// A task that came out of a dead letter, and the one that it came from, are
// removed each in its time, and neither is missed.
func TestRequeuedTasks(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	original := p.failed(t, 30)
	out, err := p.Replay.Requeue(t.Context(), []protocol.ID{protocol.DLQID(original)}, replay.RequeueOptions{Principal: "ann"})
	if err != nil || out[0].Err != nil {
		t.Fatal(err, out)
	}
	p.Rig.Dispatch.Wake(time.Now())
	p.finish(t, 1, protocol.OutcomeSucceeded)
	p.age(t, 20, out[0].Task)
	p.exec(t, "SELECT penstock_remove_tasks(ARRAY[$1]::uuid[], interval '10 days')", pgid.ID(out[0].Task))
	if p.left(t, out[0].Task) != 0 {
		t.Fatal("the requeued task is not removed")
	}
	p.missed(t, "dlq_requeues")
	p.remove(t, p.janitor(t))
	if p.left(t, original) != 1 {
		t.Fatal("a task whose dead letter has not expired is removed")
	}
	p.exec(t, "UPDATE dlq_items SET status = 'expired', payload = NULL, errors = NULL")
	p.exec(t, "UPDATE tasks SET updated_at = finished_at")
	p.remove(t, p.janitor(t))
	if p.left(t, original) != 0 || p.has(t, original.Time()) != 0 {
		t.Error("a task whose dead letter has expired is left")
	}
	p.missed(t, "dlq_items")
	if n := p.Count(t, "SELECT count(*) FROM dlq_requeues r JOIN dlq_items d USING (dlq_id) WHERE r.task_removed_at IS NOT NULL AND d.task_removed_at IS NOT NULL"); n != 1 {
		t.Errorf("%d links tell what was removed, want 1", n)
	}
}

// missed checks that a task is missed where a table does not say that retention
// removed it.
func (p *past) missed(t *testing.T, table string) {
	t.Helper()
	p.exec(t, "UPDATE "+table+" SET task_removed_at = NULL")
	sum, err := verify.Run(t.Context(), verify.Options{Store: p.Store})
	if err != nil || sum.Differences != 1 {
		t.Errorf("%d differences, want the missing task of %s: %v", sum.Differences, table, err)
	}
	p.exec(t, "UPDATE "+table+" SET task_removed_at = now()")
}

// An idempotency key holds until its task is finished and the time is over, and
// no longer.
func TestKeys(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	request := func(key string) *enqueue.Request {
		return &enqueue.Request{Type: "t", IdempotencyKey: key, Payload: []byte(`{}`)}
	}
	old := p.Enqueue(t, request("old"))[0]
	p.finish(t, 1, protocol.OutcomeSucceeded)
	young := p.Enqueue(t, request("young"))[0]
	p.finish(t, 1, protocol.OutcomeSucceeded)
	// It ended long ago, says its worker; that was recorded just now.
	recorded := p.Enqueue(t, request("recorded"))[0]
	p.finish(t, 1, protocol.OutcomeSucceeded)
	live := p.Enqueue(t, request("live"))[0]
	p.age(t, 3, old, recorded)
	p.exec(t, "UPDATE tasks SET updated_at = now(), claimed_at = claimed_at + interval '3 days' WHERE id = $1", pgid.ID(recorded))
	p.exec(t, "UPDATE event_log SET occurred_at = occurred_at + interval '3 days' WHERE task_id = $1", pgid.ID(recorded))
	p.exec(t, "UPDATE idempotency_keys SET created_at = now() - interval '3 days'")
	keys := p.janitor(t, func(o *retention.Options) { o.Tasks, o.Keys = 0, 2*dayLong })
	p.remove(t, keys)
	if n := p.metric(t, "penstock_retention_removed_total", "idempotency_keys"); n != 1 {
		t.Errorf("%v keys removed, want 1", n)
	}
	if id := p.Enqueue(t, request("old"))[0]; id == old {
		t.Error("the key of a task that finished long ago still holds")
	}
	for key, id := range map[string]protocol.ID{"young": young, "recorded": recorded, "live": live} {
		if got := p.Enqueue(t, request(key))[0]; got != id {
			t.Errorf("key %s makes a second task", key)
		}
	}
	p.finish(t, 2, protocol.OutcomeSucceeded)
	testkit.VerifyLog(t, p.Stores)
}
