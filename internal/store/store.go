// Package store is the record: everything that Penstock keeps in Postgres.
// Queries live in queries/*.sql and are generated into dbsqlc; this package
// adds connections, migrations, and the translation between rows and the
// values of package protocol.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// Options are the settings of a Store.
type Options struct {
	// URL is a postgres:// URL.
	URL string
	// Role is switched to after connecting; empty: stay the login role.
	Role string
	// MaxConns bounds the pool.
	MaxConns int
	// Policy returns the retry policy of tasks of a type that bring none; nil:
	// protocol.DefaultRetryPolicy for all. It is called for every task that is
	// locked, from several goroutines.
	Policy func(typ string) protocol.RetryPolicy
}

// Deployment identifies the database and carries its jitter seed.
type Deployment struct {
	ID        protocol.ID
	Seed      []byte
	CreatedAt time.Time
}

// Store is a pool of connections to one migrated database. It is safe for
// concurrent use.
type Store struct {
	pool   *pgxpool.Pool
	policy func(typ string) protocol.RetryPolicy
	dep    Deployment
	// txs are the transactions of Tx, *tx by *dbsqlc.Queries.
	txs     sync.Map
	onEnded atomic.Pointer[func()]
	onSaved atomic.Pointer[func([]*Locked, []*protocol.Event)]
	*dbsqlc.Queries
}

// Open connects, switches to the application role and reads the deployment.
// It fails if the database is unreachable, not migrated, or refuses the role.
func Open(ctx context.Context, o Options) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, fmt.Errorf("postgres.url: %w", err)
	}
	cfg.MaxConns = int32(max(o.MaxConns, 1))
	pin(cfg.ConnConfig.RuntimeParams, session)
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		if err := errors.Join(checkSession(ctx, c.PgConn(), session), prepareTx(ctx, c)); err != nil || o.Role == "" {
			return err
		}
		if _, err := c.Exec(ctx, "SET ROLE "+pgx.Identifier{o.Role}.Sanitize()); err != nil {
			return fmt.Errorf("switch to role %s (postgres.role; made by `orchestrator migrate up`): %w", o.Role, err)
		}
		return nil
	}
	cfg.ConnConfig.DialFunc = attentive(cfg.ConnConfig.DialFunc)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to postgres: %w", err)
	}
	if o.Policy == nil {
		o.Policy = func(string) protocol.RetryPolicy { return protocol.DefaultRetryPolicy() }
	}
	s := &Store{pool: pool, policy: o.Policy, Queries: dbsqlc.New(pool)}
	d, err := s.GetDeployment(ctx)
	if err != nil {
		pool.Close()
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "42P01" {
			return nil, errors.New("the database has no Penstock schema: run `orchestrator migrate up`, or set postgres.auto_migrate")
		}
		return nil, fmt.Errorf("read deployment: %w", sessionError(err))
	}
	s.dep = Deployment{ID: protocol.ID(d.ID), Seed: d.Seed, CreatedAt: d.CreatedAt}
	return s, nil
}

// Deployment returns what Open read.
func (s *Store) Deployment() Deployment { return s.dep }

// Close releases the connections; it waits for those in use.
func (s *Store) Close() { s.pool.Close() }

// Ping reports whether Postgres answers.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// OnSaved has fn be called after each transaction of this Store in which Save
// stored tasks, with those and their events. It must not block.
func (s *Store) OnSaved(fn func(changed []*Locked, events []*protocol.Event)) { s.onSaved.Store(&fn) }

// The days that must have partitions, from today. A new row's id is a day old at
// most, and an hour ahead. Two to come leave the time to find out why none is made.
const firstDay, lastDay = -1, 2

// EnsurePartitions makes the partitions of tasks_finished and event_log that are
// missing, so many days wide, each in a transaction of its own, so that it never
// holds the lock of one while it waits for another's. An error (55P03: a table was
// in use) leaves the others made.
func (s *Store) EnsurePartitions(ctx context.Context, days int) (err error) {
	for ahead := firstDay; ahead <= lastDay; ahead++ {
		for _, parent := range []string{"tasks_finished", "event_log"} {
			_, e := s.EnsurePartition(ctx, dbsqlc.EnsurePartitionParams{Parent: parent, Ahead: int32(ahead), Days: int32(days)})
			err = errors.Join(err, e)
		}
	}
	return err
}

// OnEnded has fn be called after each transaction of this Store in which tasks
// ended that others depend on. It must not block.
func (s *Store) OnEnded(fn func()) { s.onEnded.Store(&fn) }

func (s *Store) tellEnded(q *dbsqlc.Queries) {
	if fn := s.onEnded.Load(); fn != nil {
		s.AfterCommit(q, *fn)
	}
}

// IsUnavailable reports whether err means that Postgres could not be reached
// or was shutting down, so that the same call may succeed later.
func IsUnavailable(err error) bool {
	if err == nil {
		return false
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch e.Code[:2] {
		case "08", "53", "57": // connection, insufficient resources, operator intervention
			return true
		}
		return e.Code == "25006" || e.Code == "40001" || e.Code == "40P01" // read-only, serialization, deadlock
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, puddle.ErrClosedPool) || errors.Is(err, pgx.ErrTxClosed) || strings.Contains(err.Error(), "conn closed") ||
		pgconn.SafeToRetry(err)
}

// HasCode reports whether err is a Postgres error with the given SQLSTATE.
func HasCode(err error, code string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == code
}
