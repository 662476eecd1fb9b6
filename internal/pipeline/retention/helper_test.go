package retention_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/pipeline/retention"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

const dayLong = 24 * time.Hour

// past is a rig whose database has a past.
type past struct {
	*testkit.Rig
	metrics *prometheus.Registry
}

// newPast makes a rig that dispatches and applies outcomes.
func newPast(t *testing.T) *past {
	t.Helper()
	s := testkit.NewStores(t)
	p := &past{Rig: testkit.NewRig(t, s, s.Config()), metrics: prometheus.NewRegistry()}
	p.StartDispatch(t)
	p.Start(t, p.Results.Run)
	return p
}

// janitor makes one that keeps tasks for ten days.
func (p *past) janitor(t *testing.T, change ...func(*retention.Options)) *retention.Janitor {
	t.Helper()
	p.metrics = prometheus.NewRegistry()
	o := retention.Options{
		Store: p.Store, Redis: p.Client, Trim: time.Hour, Tasks: 10 * dayLong, Queues: onlyDefault, Log: testkit.Log(t), Metrics: p.metrics,
	}
	for _, c := range change {
		c(&o)
	}
	return retention.New(o)
}

// metric reads a counter of the last janitor.
func (p *past) metric(t *testing.T, name, label string) (n float64) {
	t.Helper()
	families, err := p.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name && (label == "" || m.Label[0].GetValue() == label) {
				n += m.Counter.GetValue()
			}
		}
	}
	return n
}

// day is a moment some days ago; its day gets partitions.
func (p *past) day(t *testing.T, ago int) time.Time {
	t.Helper()
	at := time.Now().UTC().Truncate(dayLong).AddDate(0, 0, -ago).Add(time.Hour)
	p.exec(t, "SELECT penstock_ensure_partition(parent, $1::date, 1) FROM (VALUES ('tasks_finished'), ('event_log')) p(parent)", at)
	return at
}

// has reports how many partitions a day has.
func (p *past) has(t *testing.T, day time.Time) int {
	t.Helper()
	return p.Count(t, "SELECT count(*) FROM dated_partitions WHERE first_day = $1::date", day)
}

func (p *past) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := p.DB.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// idAt is a UUIDv7 of a moment.
func idAt(at time.Time) protocol.ID {
	id := protocol.ID(uuid.Must(uuid.NewV7()))
	ms := at.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	return id
}

// queued stores tasks as if they had been accepted at a moment, and puts them
// into their stream.
func (p *past) queued(t *testing.T, ids ...protocol.ID) {
	t.Helper()
	p.exec(t, `INSERT INTO tasks (id, tenant, queue, type, state, max_retries, schedule_type, timeout_ms, idempotency_scope, given, trace_id, payload, due_at)
		SELECT unnest($1::uuid[]), 'default', 'default', 't', 'queued', 0, 'now', 60000, 'default', 0, 'trace', '{}', now()`, pgid.Slice(ids))
	p.exec(t, `INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at)
		SELECT unnest($1::uuid[]), 1, 'task.created', 'queued', 1, 1, 'api', 'trace', now()`, pgid.Slice(ids))
	p.Rig.Dispatch.Wake(time.Now())
}

// finish lets the next n entries end.
func (p *past) finish(t *testing.T, n int, kind protocol.OutcomeKind) []protocol.ID {
	t.Helper()
	var ids []protocol.ID
	for _, h := range p.Fetch(t, "w", n) {
		o := h.Outcome(kind)
		if kind == protocol.OutcomeFailed {
			o.Code, o.Error = protocol.CodeExecutionFailed, "no luck"
		}
		p.Report(t, o)
		p.Ack(t, h)
		ids = append(ids, h.ID)
	}
	if kind == protocol.OutcomeFailed {
		p.WaitState(t, protocol.StateDLQPending, ids...)
		if _, err := p.DeadLetter.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.WaitState(t, protocol.StateFailed, ids...)
		return ids
	}
	p.WaitState(t, protocol.StateSucceeded, ids...)
	return ids
}

// age moves all that has happened to tasks into the past.
func (p *past) age(t *testing.T, days int, ids ...protocol.ID) {
	t.Helper()
	p.exec(t, `UPDATE tasks SET created_at = created_at - $2 * interval '1 day', updated_at = updated_at - $2 * interval '1 day',
		claimed_at = claimed_at - $2 * interval '1 day', started_at = started_at - $2 * interval '1 day', finished_at = finished_at - $2 * interval '1 day' WHERE id = ANY($1::uuid[])`, pgid.Slice(ids), days)
	p.exec(t, `UPDATE event_log SET occurred_at = occurred_at - $2 * interval '1 day',
		data = CASE WHEN COALESCE(data->>'started_at', data->>'finished_at') IS NULL THEN data ELSE (data::jsonb || jsonb_strip_nulls(jsonb_build_object(
			'started_at', (data->>'started_at')::timestamptz - $2 * interval '1 day', 'finished_at', (data->>'finished_at')::timestamptz - $2 * interval '1 day')))::json END
		WHERE task_id = ANY($1::uuid[])`, pgid.Slice(ids), days)
}

// succeeded makes n tasks of a day that have succeeded on it.
func (p *past) succeeded(t *testing.T, n, ago int) []protocol.ID {
	t.Helper()
	at := p.day(t, ago)
	ids := make([]protocol.ID, n)
	for i := range ids {
		ids[i] = idAt(at.Add(time.Duration(i) * time.Millisecond))
	}
	p.queued(t, ids[0])
	p.finish(t, 1, protocol.OutcomeSucceeded)
	p.copies(t, ids[0], ids[1:])
	p.age(t, ago, ids...)
	return ids
}

// copies gives other ids the history of a task.
func (p *past) copies(t *testing.T, of protocol.ID, ids []protocol.ID) {
	t.Helper()
	p.exec(t, `INSERT INTO tasks SELECT (jsonb_populate_record(t, jsonb_build_object('id', u.id))).*
		FROM tasks t, unnest($2::uuid[]) u(id) WHERE t.id = $1`, pgid.ID(of), pgid.Slice(ids))
	p.exec(t, `INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, actor, worker_id, message_id, trace_id, data, occurred_at)
		SELECT u.id, seq, type, previous_status, status, attempt, delivery, actor, worker_id, message_id, trace_id, data, occurred_at
		FROM event_log e, unnest($2::uuid[]) u(id) WHERE e.task_id = $1`, pgid.ID(of), pgid.Slice(ids))
}

// failed makes a task of a day that became a dead letter on it.
func (p *past) failed(t *testing.T, ago int) protocol.ID {
	t.Helper()
	id := idAt(p.day(t, ago))
	p.queued(t, id)
	p.finish(t, 1, protocol.OutcomeFailed)
	p.age(t, ago, id)
	return id
}

// left counts how many of the tasks there are.
func (p *past) left(t *testing.T, ids ...protocol.ID) int {
	t.Helper()
	return p.Count(t, "SELECT count(*) FROM tasks WHERE id = ANY($1::uuid[])", pgid.Slice(ids))
}

// remove runs one round and checks that the record fits together.
func (p *past) remove(t *testing.T, j *retention.Janitor) {
	t.Helper()
	if err := j.ExpireKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := j.RemoveTasks(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.VerifyEvents(t, p.Stores)
}

// gone waits until tasks are there no more.
func (p *past) gone(t *testing.T, ids ...protocol.ID) {
	t.Helper()
	testkit.Eventually(t, "the tasks are removed", func() (bool, string) {
		n := p.left(t, ids...)
		return n == 0, fmt.Sprint(n)
	})
}
