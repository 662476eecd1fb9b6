package testkit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
)

// VerifyLog waits until nothing is under way (VerifyQuiet) and then verifies
// Postgres and Redis as `orchestrator verify` does.
func VerifyLog(t testing.TB, s Stores) {
	t.Helper()
	VerifyQuiet(t, s)
	verifyAll(t, verify.Options{Store: s.Store(t), Redis: s.Streams(t)})
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
		tasks, err := raw.Keys(t.Context(), s.Prefix+protocol.StreamTask+"*").Result()
		if err != nil {
			return false, err.Error()
		}
		for _, name := range tasks {
			groups[strings.TrimPrefix(name, s.Prefix)] = protocol.GroupWorkers
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

// VerifyEvents verifies all that Postgres has, as `orchestrator verify
// --no-redis` does.
func VerifyEvents(t testing.TB, s Stores) {
	t.Helper()
	verifyAll(t, verify.Options{Store: s.Store(t)})
}

// verifyAll fails the test for each difference, up to 20.
func verifyAll(t testing.TB, o verify.Options) {
	t.Helper()
	n := 0
	o.Report = func(d verify.Difference) {
		if n++; n <= 20 {
			t.Errorf("verify: %s: %s", d.Check, d)
		}
	}
	_, err := verify.Run(context.WithoutCancel(t.Context()), o)
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	if n > 20 {
		t.Errorf("verify: … and %d differences more", n-20)
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
