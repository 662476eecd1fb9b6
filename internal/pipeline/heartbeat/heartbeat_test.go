package heartbeat_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/pipeline/heartbeat"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// setup makes a rig whose dispatcher and appliers run, and a stage that writes
// an event in each interval.
func setup(t *testing.T, interval time.Duration) (*testkit.Rig, *heartbeat.Stage) {
	t.Helper()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	return r, heartbeat.New(heartbeat.Options{Store: r.Store, Interval: interval, Log: testkit.Log(t)})
}

var hand = &heartbeat.Worker{ID: "hand", Host: "h", Version: "v1", PID: 7, Queues: []string{"default"}, Concurrency: 10, Running: 2, Interval: time.Minute}

func running(id protocol.ID, delivery int64, progress string) heartbeat.Running {
	r := heartbeat.Running{Pair: protocol.Pair{ID: id, Delivery: delivery}}
	if progress != "" {
		r.Progress = json.RawMessage(progress)
	}
	return r
}

func beat(t *testing.T, s *heartbeat.Stage, tasks ...heartbeat.Running) heartbeat.Answer {
	t.Helper()
	a, err := s.Beat(t.Context(), hand, tasks)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// set moves a task by one decision.
func set(t *testing.T, r *testkit.Rig, id protocol.ID, decide func(l *store.Locked, env protocol.Env) []*protocol.Event) {
	t.Helper()
	err := r.Store.Decide(t.Context(), []protocol.ID{id}, func(now time.Time, ts map[protocol.ID]*store.Locked) ([]*store.Locked, []*protocol.Event) {
		env := r.Env
		env.Now = now
		return []*store.Locked{ts[id]}, decide(ts[id], env)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Every execution gets the answer that its task's row gives.
func TestAnswers(t *testing.T) {
	t.Parallel()
	r, s := setup(t, time.Millisecond)
	ids := r.Enqueue(t, testkit.Requests(6, "t")...)
	held := map[protocol.ID]testkit.Held{}
	for _, h := range r.Fetch(t, "hand", 6) {
		held[h.ID] = h
	}
	alive, queued, lost, cancelled, done, ahead := ids[0], ids[1], ids[2], ids[3], ids[4], ids[5]
	for _, id := range []protocol.ID{alive, lost, cancelled, ahead} {
		r.Report(t, held[id].Outcome(protocol.OutcomeClaimed))
	}
	r.Report(t, held[done].Outcome(protocol.OutcomeSucceeded))
	r.WaitState(t, protocol.StateRunning, alive, lost, cancelled, ahead)
	r.WaitState(t, protocol.StateSucceeded, done)
	set(t, r, lost, func(l *store.Locked, env protocol.Env) []*protocol.Event {
		e, _ := l.Lost(env, protocol.ActorReclaimer, "", nil)
		return e
	})
	set(t, r, cancelled, func(l *store.Locked, env protocol.Env) []*protocol.Event {
		e, _ := l.Cancel(env, protocol.ActorAPI, protocol.CodeCancelled, "")
		return e
	})
	nobody := protocol.ID(uuid.Must(uuid.NewV7()))
	a := beat(t, s, running(alive, 1, `{"n":1}`), running(queued, 1, `2`), running(lost, 1, ""), running(cancelled, 1, ""),
		running(done, 1, ""), running(ahead, 2, ""), running(nobody, 1, ""), running(alive, 1, `{"n":2}`))
	for what, got := range map[string]struct{ got, want []protocol.Pair }{
		"cancelled":  {a.Cancelled, []protocol.Pair{{ID: cancelled, Delivery: 1}}},
		"superseded": {a.Superseded, []protocol.Pair{{ID: lost, Delivery: 1}, {ID: done, Delivery: 1}, {ID: nobody, Delivery: 1}}},
		"unclaimed":  {a.Unclaimed, []protocol.Pair{{ID: queued, Delivery: 1}, {ID: ahead, Delivery: 2}}},
	} {
		for _, ps := range [][]protocol.Pair{got.got, got.want} {
			slices.SortFunc(ps, func(a, b protocol.Pair) int { return slices.Compare(a.ID[:], b.ID[:]) })
		}
		if !slices.Equal(got.got, got.want) {
			t.Errorf("%s: %v, want %v", what, got.got, got.want)
		}
	}
	if got := testkit.EventTypes(t, r.Stores, alive); got != "task.created task.claimed task.progress" {
		t.Errorf("events of the living one: %s", got)
	}
	for id, want := range map[protocol.ID]int{alive: 1, queued: 0, lost: 0, cancelled: 0, done: 0, ahead: 0} {
		if n := r.Count(t, "SELECT count(heartbeat_at)::int FROM tasks WHERE id = $1", id[:]); n != want {
			t.Errorf("%s: heartbeat_at of %d tasks, want %d", id, n, want)
		}
	}
	testkit.VerifyEvents(t, r.Stores)
}

// The first heartbeat of an interval is an event, the others only touch the row;
// what was reported stays until the next report.
func TestEventsByInterval(t *testing.T) {
	t.Parallel()
	r, s := setup(t, time.Hour)
	id := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	r.Report(t, r.Fetch(t, "hand", 1)[0].Outcome(protocol.OutcomeClaimed))
	r.WaitState(t, protocol.StateRunning, id)
	beat(t, s, running(id, 1, ""))
	beat(t, s, running(id, 1, `{"n": 1}`))
	beat(t, s, running(id, 1, ""))
	progress := func() (p string) {
		if err := r.DB.QueryRow(t.Context(), "SELECT COALESCE(progress::text, '-') FROM tasks WHERE id = $1", id[:]).Scan(&p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	if got := progress(); got != `{"n": 1}` {
		t.Errorf("progress %s", got)
	}
	last := func(ago string) {
		if _, err := r.DB.Exec(t.Context(), "UPDATE tasks SET heartbeat_at = now() - $2::text::interval WHERE id = $1", id[:], ago); err != nil {
			t.Fatal(err)
		}
	}
	// Counted from the start of the intervals, so that none is dropped because a
	// heartbeat comes a little early.
	const first = "task.created task.claimed task.heartbeat"
	if got := testkit.EventTypes(t, r.Stores, id); got != first && got != first+" task.progress" { // a new hour may have begun
		t.Errorf("events %s", got)
	}
	n := r.Count(t, "SELECT event_seq FROM tasks WHERE id = $1", id[:])
	last("61 minutes")
	beat(t, s, running(id, 1, `"half"`))
	last("61 minutes")
	beat(t, s, running(id, 1, ""))
	rows, err := r.DB.Query(t.Context(), "SELECT type, worker_id, actor, COALESCE(data::text, '-') FROM event_log WHERE task_id = $1 AND seq > $2 ORDER BY seq", id[:], n)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var typ, worker, actor, data string
		if err := rows.Scan(&typ, &worker, &actor, &data); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintln(typ, worker, actor, data))
	}
	want := []string{"task.progress hand worker \"half\"\n", "task.heartbeat hand worker -\n"}
	if !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	if got := progress(); got != `"half"` {
		t.Errorf("progress %s", got)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// More tasks than one transaction takes.
func TestManyTasks(t *testing.T) {
	t.Parallel()
	r, s := setup(t, time.Hour)
	const n = 1100
	ids := r.Enqueue(t, testkit.Requests(n, "t")...)
	var tasks []heartbeat.Running
	var claims []*protocol.Outcome
	for _, h := range r.Fetch(t, "hand", n) {
		claims = append(claims, h.Outcome(protocol.OutcomeClaimed))
		tasks = append(tasks, running(h.ID, 1, `1`))
	}
	r.Report(t, claims...)
	r.WaitState(t, protocol.StateRunning, ids...)
	if a := beat(t, s, tasks...); len(a.Cancelled)+len(a.Superseded)+len(a.Unclaimed) > 0 || a.Drain {
		t.Errorf("answer %v", a)
	}
	if got := r.Count(t, "SELECT count(*)::int FROM event_log WHERE type = 'task.progress'"); got != n {
		t.Errorf("%d events, want %d", got, n)
	}
}

func TestWorkersComeAndGo(t *testing.T) {
	t.Parallel()
	r, s := setup(t, time.Hour)
	if beat(t, s).Drain {
		t.Error("nobody ordered it to drain")
	}
	ws, err := r.Store.ListWorkers(t.Context(), nil, 10)
	if err != nil || len(ws) != 1 || ws[0].ID != "hand" || ws[0].Pid != 7 || ws[0].Running != 2 || ws[0].IntervalMs != 60_000 {
		t.Fatalf("%v, %v", ws, err)
	}
	for range 2 {
		if w, err := r.Store.DrainWorker(t.Context(), "ann", "hand"); err != nil || *w.DrainBy != "ann" {
			t.Fatalf("%v, %v", w, err)
		}
		if !beat(t, s).Drain {
			t.Error("it is not told to drain")
		}
	}
	seen := func(ago string) (listed int, pruned int64) {
		t.Helper()
		if _, err := r.DB.Exec(t.Context(), "UPDATE workers SET seen_at = now() - $1::text::interval", ago); err != nil {
			t.Fatal(err)
		}
		ws, err := r.Store.ListWorkers(t.Context(), nil, 10)
		if err != nil {
			t.Fatal(err)
		}
		if pruned, err = r.Store.PruneWorkers(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(ws), pruned
	}
	for ago, want := range map[string][2]int{"2 minutes": {1, 0}, "4 minutes": {0, 0}, "59 minutes": {0, 0}} {
		if listed, pruned := seen(ago); listed != want[0] || int(pruned) != want[1] {
			t.Errorf("seen %s ago: %d listed, %d forgotten; want %v", ago, listed, pruned, want)
		}
	}
	if listed, pruned := seen("61 minutes"); listed != 0 || pruned != 1 {
		t.Errorf("seen an hour ago: %d listed, %d forgotten", listed, pruned)
	}
	beat(t, s)
	if err := s.Leave(t.Context(), "hand"); err != nil {
		t.Fatal(err)
	}
	if n := r.Count(t, "SELECT count(*)::int FROM workers"); n != 0 {
		t.Errorf("%d workers are left", n)
	}
}
