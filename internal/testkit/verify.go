package testkit

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// VerifyLog waits until nothing is under way (VerifyQuiet) and then checks every
// task against its event log (VerifyEvents).
func VerifyLog(t testing.TB, s Stores) {
	t.Helper()
	VerifyQuiet(t, s)
	VerifyEvents(t, s)
}

// VerifyQuiet waits until every stream is delivered and acknowledged to its end
// and the outbox is empty.
func VerifyQuiet(t testing.TB, s Stores) {
	t.Helper()
	db, redis, raw := s.SQL(t), s.Streams(t), s.Redis(t)
	Eventually(t, "all streams are acknowledged and the outbox is empty", func() (bool, string) {
		var open int
		if err := db.QueryRow(t.Context(), "SELECT count(*) FROM dispatch_outbox").Scan(&open); err != nil {
			return false, err.Error()
		}
		if open > 0 {
			return false, fmt.Sprintf("%d outbox rows", open)
		}
		groups := map[string]string{
			protocol.StreamResult: protocol.GroupOrchestrators, protocol.StreamDLQ: protocol.GroupOrchestrators,
		}
		tasks, err := raw.Keys(t.Context(), protocol.StreamTask+"*").Result()
		if err != nil {
			return false, err.Error()
		}
		for _, name := range tasks {
			groups[name] = protocol.GroupWorkers
		}
		for stream, group := range groups {
			info, err := redis.Info(t.Context(), stream, group)
			if errors.Is(err, streams.ErrNoGroup) {
				continue
			}
			if err != nil {
				return false, err.Error()
			}
			if info.Undelivered+info.Pending > 0 {
				return false, fmt.Sprintf("%s: %d undelivered, %d pending", stream, info.Undelivered, info.Pending)
			}
		}
		return true, ""
	})
}

// VerifyEvents folds the event log of every task, as one snapshot shows it, and
// compares it with the task's row: seq 1, 2, 3 … without gaps, at most one
// terminal event, every move legal, and state, attempt, delivery,
// interruptions and next_retry_at as the row has them. It recomputes the delays
// that came from a retry policy, and checks that exactly the tasks that were
// given up have a dead letter.
func VerifyEvents(t testing.TB, s Stores) {
	t.Helper()
	ctx := t.Context()
	tx, err := s.SQL(t).BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	var seed []byte
	if err := tx.QueryRow(ctx, "SELECT seed FROM deployment").Scan(&seed); err != nil {
		t.Fatalf("verify: %v", err)
	}
	faults := 0
	fault := func(format string, args ...any) {
		if faults++; faults <= 20 {
			t.Errorf("verify: "+format, args...)
		}
	}
	logs := foldLogs(t, tx, seed, fault)
	compareRows(t, tx, logs, fault)
	if faults > 20 {
		t.Errorf("verify: … and %d faults more", faults-20)
	}
}

// folded is what one task's log says.
type folded struct {
	protocol.Folded
	nextRetryAt time.Time
	key         string
	broken      bool
}

func foldLogs(t testing.TB, tx pgx.Tx, seed []byte, fault func(string, ...any)) map[protocol.ID]*folded {
	t.Helper()
	logs := map[protocol.ID]*folded{}
	rows, err := tx.Query(t.Context(), `SELECT task_id, seq, type, COALESCE(previous_status, ''), status, attempt, delivery,
		next_retry_at, COALESCE(error_code, ''), COALESCE(backoff_delay_ms, -1), COALESCE(data::text, ''), COALESCE(idempotency_key, '')
		FROM event_log ORDER BY task_id, seq`)
	if err != nil {
		t.Fatalf("verify: read events: %v", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id pgid.ID
		var next *time.Time
		var backoff int64
		var data, key string
		e := &protocol.Event{}
		if err := rows.Scan(&id, &e.Seq, &e.Type, &e.From, &e.To, &e.Attempt, &e.Delivery, &next, &e.Code, &backoff, &data, &key); err != nil {
			t.Fatalf("verify: read events: %v", err)
		}
		e.TaskID = protocol.ID(id)
		if next != nil {
			e.NextRetryAt = *next
		}
		f := logs[e.TaskID]
		if f == nil {
			f = &folded{key: key}
			logs[e.TaskID] = f
		}
		if f.broken {
			continue
		}
		if err := f.Add(e); err != nil {
			f.broken = true
			fault("%v", err)
		}
		if key != f.key {
			fault("task %s, event %d: idempotency_key changed from %q to %q", e.TaskID, e.Seq, f.key, key)
		}
		f.nextRetryAt = e.NextRetryAt
		checkDelay(e, backoff, data, seed, fault)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("verify: read events: %v", err)
	}
	return logs
}

// checkDelay recomputes the delay of a retry that came from a policy.
func checkDelay(e *protocol.Event, backoff int64, data string, seed []byte, fault func(string, ...any)) {
	if e.Type != protocol.EventRetryScheduled {
		return
	}
	var d protocol.RetryData
	if err := json.Unmarshal([]byte(data), &d); err != nil {
		fault("task %s, event %d: data is %q: %v", e.TaskID, e.Seq, data, err)
		return
	}
	if d.Policy == nil {
		return
	}
	if want := d.Policy.Delay(seed, e.TaskID, e.RetryCount()).Milliseconds(); want != backoff {
		fault("task %s, event %d: backoff_delay_ms is %d, recomputed %d", e.TaskID, e.Seq, backoff, want)
	}
}

func compareRows(t testing.TB, tx pgx.Tx, logs map[protocol.ID]*folded, fault func(string, ...any)) {
	t.Helper()
	rows, err := tx.Query(t.Context(), `SELECT t.id, t.state, t.attempt, t.delivery, t.interruptions, t.event_seq, t.next_retry_at,
		d.dlq_id IS NOT NULL, d.recorded_at IS NOT NULL FROM tasks t LEFT JOIN dlq_items d ON d.task_id = t.id`)
	if err != nil {
		t.Fatalf("verify: read tasks: %v", err)
	}
	defer rows.Close()
	seen := 0
	for rows.Next() {
		var row protocol.Folded
		var id pgid.ID
		var next *time.Time
		var dead, recorded bool
		if err := rows.Scan(&id, &row.State, &row.Attempt, &row.Delivery, &row.Interruptions, &row.Seq, &next, &dead, &recorded); err != nil {
			t.Fatalf("verify: read tasks: %v", err)
		}
		seen++
		f := logs[protocol.ID(id)]
		if f == nil {
			fault("task %s has no events", protocol.ID(id))
			continue
		}
		if row.State.Terminal() {
			row.Terminals = 1
		}
		if !f.broken && f.Folded != row {
			fault("task %s: its log implies %+v, its row says %+v", protocol.ID(id), f.Folded, row)
		}
		if next != nil && !next.Equal(f.nextRetryAt) {
			fault("task %s: its log implies next_retry_at %s, its row says %s", protocol.ID(id), f.nextRetryAt, next)
		}
		givenUp := row.State == protocol.StateDLQPending || row.State == protocol.StateDLQRecorded || row.State == protocol.StateFailed
		if dead != givenUp || recorded != (givenUp && row.State != protocol.StateDLQPending) {
			fault("task %s in state %s: dead letter %t, recorded %t", protocol.ID(id), row.State, dead, recorded)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("verify: read tasks: %v", err)
	}
	if seen != len(logs) {
		fault("%d tasks, but events of %d", seen, len(logs))
	}
}

// SQL opens one plain connection to the test's database, as its owner.
func (s Stores) SQL(t testing.TB) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), s.PostgresURL)
	if err != nil {
		t.Fatalf("open database: %v", err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// Redis opens a plain client of the test's key space, for commands that the
// application does not use.
func (s Stores) Redis(t testing.TB) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(s.RedisURL)
	if err != nil {
		t.Fatalf("open redis: %v", err)
	}
	o.MaxRetries = -1
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// EventTypes lists a task's events in order, for comparing at a glance:
// "task.created task.claimed task.succeeded".
func EventTypes(t testing.TB, s Stores, id protocol.ID) string {
	t.Helper()
	rows, err := s.SQL(t).Query(t.Context(), "SELECT type FROM event_log WHERE task_id = $1 ORDER BY seq", pgid.ID(id))
	if err != nil {
		t.Fatalf("read events of %s: %v", id, err)
	}
	types, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("read events of %s: %v", id, err)
	}
	return strings.Join(types, " ")
}

// Main is devtest.Main for packages whose tests mostly wait: it runs more of
// them at once than there are processors, unless -parallel says otherwise.
func Main(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0)))
	}
	devtest.Main(m)
}
