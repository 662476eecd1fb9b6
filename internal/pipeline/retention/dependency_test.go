package retention_test

import (
	"testing"

	"github.com/penstock-dev/penstock/internal/pipeline/cancel"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// An upstream is kept as long as a task that depends on it lives, whether its day
// would be dropped or it would be removed by itself; then both go with their
// dependency.
func TestUpstreamOfALiveTaskIsKept(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	ups := p.succeeded(t, 2, 30)
	p.succeeded(t, 3, 31)
	ups = append(ups, p.succeeded(t, 2, 31)[0])
	var live []protocol.ID
	for _, up := range ups {
		live = append(live, p.Enqueue(t, &enqueue.Request{
			Type: "t", Payload: []byte("{}"), DependsOn: []enqueue.Dependency{{TaskID: up.String()}}, ScheduleType: "delay", DelayMS: 3_600_000,
		})...)
	}
	// As if they had been there for long: the enqueue has touched them.
	p.age(t, 0, ups...)
	p.exec(t, "UPDATE tasks SET updated_at = finished_at WHERE id = ANY($1::uuid[])", pgid.Slice(ups))
	p.remove(t, p.janitor(t))
	if n := p.left(t, ups...); n != 3 {
		t.Errorf("%d of 3 upstreams of live tasks are left", n)
	}
	if n := p.Count(t, "SELECT count(*) FROM task_dependencies"); n != 3 {
		t.Errorf("%d of 3 dependencies are left", n)
	}
	if _, err := p.Dependency.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range live {
		if row := p.Row(t, id); row.State != protocol.StatePending || !row.Due {
			t.Errorf("dependant is %s, due %t", row.State, row.Due)
		}
	}
	for _, id := range live {
		if _, err := p.Cancel.Cancel(t.Context(), id, cancel.Reason{Principal: "ada"}); err != nil {
			t.Fatal(err)
		}
	}
	p.remove(t, p.janitor(t))
	if n := p.left(t, ups...); n != 0 {
		t.Errorf("%d upstreams of finished tasks are left", n)
	}
	if n := p.Count(t, "SELECT count(*) FROM task_dependencies"); n != 0 {
		t.Errorf("%d dependencies of removed tasks are left", n)
	}
}

// What a dead letter depended on is kept as long as that can be requeued: the new
// task's handler is told again how it ended.
func TestUpstreamOfADeadLetterIsKept(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	up, free := p.succeeded(t, 1, 30)[0], p.succeeded(t, 1, 31)[0]
	dead, done := p.failed(t, 29), p.succeeded(t, 1, 29)[0]
	for below, up := range map[protocol.ID]protocol.ID{dead: up, done: free} {
		p.exec(t, "INSERT INTO task_dependencies (task_id, upstream_id, position, settled) VALUES ($1, $2, 0, true)", pgid.ID(below), pgid.ID(up))
		p.exec(t, "UPDATE tasks SET has_dependants = true WHERE id = $1", pgid.ID(up))
		p.exec(t, "UPDATE tasks SET on_dependency_failure = 'cancel' WHERE id = $1", pgid.ID(below))
	}
	p.remove(t, p.janitor(t))
	if n := p.left(t, up, free, dead, done); n != 2 || p.left(t, up, dead) != 2 {
		t.Errorf("%d tasks are left, want the dead letter's and what it depended on", n)
	}
}

// A task of the day gets a dependant while the day is being dropped: the day stays,
// and the dependant runs.
func TestADayThatGetsADependantIsKept(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	up := p.succeeded(t, 2, 30)[0]
	dead := p.failed(t, 30)
	p.exec(t, "UPDATE dlq_items SET status = 'expired', settled_at = now(), payload = NULL WHERE task_id = $1", pgid.ID(dead))
	tx, err := p.SQL(t).Begin(t.Context()) // holds up the function between its look and its locks
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM dlq_items WHERE task_id = $1 FOR UPDATE", pgid.ID(dead)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.janitor(t).RemoveTasks(t.Context()) }()
	testkit.Eventually(t, "the day is being dropped", func() (bool, string) {
		n := p.Count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%penstock_drop_days%'`)
		return n > 0, ""
	})
	id := p.Enqueue(t, &enqueue.Request{Type: "t", Payload: []byte("{}"), DependsOn: []enqueue.Dependency{{TaskID: up.String()}}})[0]
	_ = tx.Rollback(t.Context())
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := p.Dependency.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h := p.Fetch(t, "w", 1)[0]; h.ID != id {
		t.Errorf("fetched %s, want the dependant %s", h.ID, id)
	}
	if n := p.left(t, up); n != 1 {
		t.Errorf("%d tasks of the upstream's id are left, want it kept", n)
	}
}
