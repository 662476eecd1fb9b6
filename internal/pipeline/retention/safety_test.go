package retention_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/pipeline/retention"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// Whatever the application asks of the database, it can't remove what must
// stay.
func TestWrongArgumentsRemoveNothing(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	dead, young := p.failed(t, 30), p.succeeded(t, 3, 1)
	live := []protocol.ID{idAt(time.Now()), idAt(p.day(t, 31))}
	p.queued(t, live...)
	all := append(append(live, young...), dead)
	p.exec(t, "SET ROLE penstock_app")
	// A table that would hide the dead letter from a careless function.
	p.exec(t, "CREATE TEMPORARY TABLE dlq_items (task_id uuid, status text, task_removed_at timestamptz)")
	for _, keep := range []string{"0", "-100 years", "1 second"} {
		if n := p.Count(t, "SELECT penstock_remove_tasks($1::uuid[], $2::text::interval)", pgid.Slice(all), keep); n != 0 {
			t.Errorf("keep %s: %d tasks removed", keep, n)
		}
		for ago := range 33 {
			// A day without tasks may go: at midnight one comes to be old enough.
			p.Count(t, "SELECT COALESCE(penstock_check_days(d, d + 1, $2::text::interval, 100), -1) FROM (SELECT (now() AT TIME ZONE 'UTC')::date - $1::int AS d) x", ago, keep)
			if n := p.Count(t, "SELECT COALESCE(penstock_drop_days(d, d + 1), 0) FROM (SELECT (now() AT TIME ZONE 'UTC')::date - $1::int AS d) x", ago); n != 0 {
				t.Errorf("keep %s: the day %d days ago is dropped with its %d tasks", keep, ago, n)
			}
		}
	}
	suffix := live[1].Time().UTC().Format("20060102") + live[1].Time().UTC().AddDate(0, 0, 1).Format("_20060102")
	for _, sql := range []string{
		"DELETE FROM event_log", "DELETE FROM tasks", "DELETE FROM tasks_finished", "DELETE FROM tasks_finished_named", "INSERT INTO partition_checks SELECT now(), now(), gen_random_uuid(), 0, true", "UPDATE event_horizon SET xid = '1'", "UPDATE dlq_requeues SET task_removed_at = now()",
		"DROP TABLE tasks_finished_" + suffix, "ALTER TABLE event_log DETACH PARTITION event_log_" + suffix,
	} {
		if _, err := p.DB.Exec(t.Context(), sql); !store.HasCode(err, "42501") {
			t.Errorf("%s: %v, want permission denied", sql, err)
		}
	}
	if n := p.left(t, all...); n != len(all) {
		t.Errorf("%d of %d tasks are left", n, len(all))
	}
	if _, err := p.DB.Exec(t.Context(), "SELECT penstock_remove_tasks(array_fill(gen_random_uuid(), ARRAY[5001]), '1 year')"); err == nil {
		t.Error("any number of tasks can be removed at once")
	}
}

// Days are dropped while tasks are accepted and outcomes applied: nobody gets
// an error.
func TestDropUnderLoad(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	var old []protocol.ID
	for ago := 30; ago < 36; ago++ {
		old = append(old, p.succeeded(t, 20, ago)...)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var done atomic.Int64
	load := make(chan error, 1)
	go func() { load <- p.load(ctx, &done) }()
	j := p.janitor(t)
	testkit.Eventually(t, "the days are dropped, and work goes on", func() (bool, string) {
		if err := j.RemoveTasks(t.Context()); err != nil {
			t.Fatal(err)
		}
		n := p.left(t, old...)
		return n == 0 && done.Load() > 200, fmt.Sprint(n, done.Load())
	})
	stop()
	if err := <-load; err != nil {
		t.Fatal(err)
	}
	testkit.VerifyLog(t, p.Stores)
}

// load has tasks accepted, fetched, run and acknowledged until ctx ends.
func (p *past) load(ctx context.Context, done *atomic.Int64) error {
	work := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		rs, err := p.Enqueuer.EnqueueAll(work, testkit.Requests(20, "t"))
		if err != nil {
			return err
		}
		for _, r := range rs {
			if r.Err != nil {
				return r.Err
			}
		}
		if err := p.runAll(work, done); err != nil {
			return err
		}
	}
	return nil
}

func (p *past) runAll(ctx context.Context, done *atomic.Int64) error {
	es, err := p.Client.ReadNow(ctx, protocol.StreamTask, protocol.GroupWorkers, "w", 100)
	if err != nil {
		return err
	}
	for _, e := range es {
		task, err := protocol.DecodeTask(e.Values)
		if err != nil {
			return err
		}
		h := testkit.Held{TaskEntry: task, MessageID: e.ID, Consumer: "w"}
		for _, a := range p.Client.Append(ctx, protocol.StreamResult, [][]any{h.Outcome(protocol.OutcomeSucceeded).Values()}) {
			if a.Err != nil {
				return a.Err
			}
		}
		if err := p.Client.Ack(ctx, protocol.StreamTask, protocol.GroupWorkers, []string{e.ID}); err != nil {
			return err
		}
		done.Add(1)
	}
	return nil
}

// A long transaction, such as a dump, keeps a day from being dropped; nobody
// else waits for it.
func TestTablesInUse(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	old := p.succeeded(t, 20, 30)
	dump := p.SQL(t)
	tx, err := dump.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT count(*) FROM tasks"); err != nil {
		t.Fatal(err)
	}
	j := p.janitor(t)
	round := make(chan error, 1)
	go func() { round <- j.RemoveTasks(t.Context()) }()
	for over := false; !over; {
		start := time.Now()
		p.Enqueue(t, testkit.Requests(1, "t")...)
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("an enqueue waited for %s", took)
		}
		select {
		case err := <-round:
			if over = true; err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
	if n := p.left(t, old...); n != 20 || p.metric(t, "penstock_retention_postponed_total", "") != 3 {
		t.Errorf("%d of 20 tasks are left, put off %v times", n, p.metric(t, "penstock_retention_postponed_total", ""))
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.remove(t, j)
	if n := p.left(t, old...); n != 0 {
		t.Errorf("%d tasks are left", n)
	}
}

// A whole orchestrator removes by itself, and who was watching is told that
// events are gone; who watches from later on is not.
func TestWatchersAreTold(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	ancient := p.succeeded(t, 1, 40)
	cfg := p.Config()
	first := testkit.StartOrchestrator(t, cfg)
	before, err := watch(t, first.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	first.Stop(t)
	old := p.succeeded(t, 10, 30)
	cfg.Retention.Tasks = 10 * dayLong
	second := testkit.StartOrchestrator(t, cfg)
	p.gone(t, append(old, ancient...)...)
	if _, err := watch(t, second.URL, before); connect.CodeOf(err) != connect.CodeOutOfRange {
		t.Errorf("watching from before what was removed: %v, want OutOfRange", err)
	}
	for _, from := range []string{"", "earliest"} {
		if _, err := watch(t, second.URL, from); err != nil {
			t.Errorf("watching from %q: %v", from, err)
		}
	}
}

// watch asks for the events after a position and returns the one it starts from.
func watch(t *testing.T, url, from string) (position string, err error) {
	t.Helper()
	testkit.Eventually(t, "the orchestrator serves", func() (bool, string) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var s *connect.ServerStreamForClient[penstockv1.WatchEventsResponse]
		s, err = penstockv1connect.NewTaskServiceClient(http.DefaultClient, url).WatchEvents(ctx, connect.NewRequest(&penstockv1.WatchEventsRequest{Position: from}))
		if err == nil && s.Receive() {
			position = s.Msg().Position
		} else if err == nil {
			err = s.Err()
		}
		return connect.CodeOf(err) != connect.CodeUnavailable, fmt.Sprint(err)
	})
	return position, err
}

// One step in trouble does not keep the others from their work.
func TestStepsAreIndependent(t *testing.T) {
	t.Parallel()
	p := newPast(t)
	old := p.succeeded(t, 5, 30)
	j := p.janitor(t, func(o *retention.Options) {
		o.Consumers = time.Hour
		o.Queues = func(context.Context) ([]string, error) { return nil, fmt.Errorf("no queues today") }
	})
	p.Start(t, j.Run)
	p.gone(t, old...)
	testkit.Eventually(t, "the others fail", func() (bool, string) {
		trim, consumers := p.metric(t, "penstock_retention_failures_total", "trim"), p.metric(t, "penstock_retention_failures_total", "consumers")
		return trim > 0 && consumers > 0, fmt.Sprint(trim, consumers)
	})
}
