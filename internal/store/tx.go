package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
)

// rollbackLimit bounds the end of a transaction that failed.
const rollbackLimit = 5 * time.Second

// Every connection has these statements prepared under their own names, so that
// they can go together with others; and whoever looks at the wire sees them.
const (
	begin  = "begin"
	commit = "commit"
)

func prepareTx(ctx context.Context, c *pgx.Conn) error {
	for name, sql := range map[string]string{begin: "BEGIN", commit: "COMMIT"} {
		if _, err := c.Prepare(ctx, name, sql); err != nil {
			return fmt.Errorf("prepare %s: %w", sql, err)
		}
	}
	return nil
}

// Tx runs fn in one transaction (read committed) and commits if it returns
// nil. If the connection is lost during the commit, the error leaves open
// whether it happened.
//
// A transaction takes as few round trips as it can: it begins together with its
// first query, and what is saved goes together with the next query, or with the
// commit. So an error of a statement may be that of a later one, or of the commit.
func (s *Store) Tx(ctx context.Context, fn func(q *dbsqlc.Queries) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	tx := &tx{conn: conn}
	defer tx.end()
	q := dbsqlc.New(tx)
	s.txs.Store(q, tx)
	defer s.txs.Delete(q)
	if err := fn(q); err != nil {
		return err
	}
	if err := tx.commit(ctx); err != nil {
		return err
	}
	for _, fn := range tx.after {
		fn()
	}
	return nil
}

// AfterCommit has fn be called once the transaction of Tx that q belongs to has
// committed, in the order of the calls, and never if it is not known to have.
func (s *Store) AfterCommit(q *dbsqlc.Queries, fn func()) {
	if t, ok := s.txs.Load(q); ok {
		t.(*tx).after = append(t.(*tx).after, fn)
	}
}

// later returns the queries of q's transaction whose statements go together with
// the next one that is waited for. Only those without a result may be used.
func (s *Store) later(q *dbsqlc.Queries) *dbsqlc.Queries {
	if t, ok := s.txs.Load(q); ok {
		return dbsqlc.New(queue{t.(*tx)})
	}
	return q
}

// tx is a transaction that begins with its first statement. It is used by one
// goroutine.
type tx struct {
	conn   *pgxpool.Conn
	begun  bool
	queued []queued
	after  []func()
}

type queued struct {
	sql  string
	args []any
}

// queue is a tx whose statements wait for the next one.
type queue struct{ *tx }

func (q queue) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	q.queued = append(q.queued, queued{sql, args})
	return pgconn.CommandTag{}, nil
}

// send sends what waits and one statement more; reply is to be closed. An error is
// that of a statement that waited.
func (t *tx) send(ctx context.Context, sql string, args []any) (reply pgx.BatchResults, err error) {
	var b pgx.Batch
	if !t.begun {
		b.Queue(begin)
	}
	for _, q := range t.queued {
		b.Queue(q.sql, q.args...)
	}
	b.Queue(sql, args...)
	t.begun, t.queued = true, nil
	reply = t.conn.SendBatch(ctx, &b)
	for range b.Len() - 1 {
		if _, err := reply.Exec(); err != nil {
			_ = reply.Close()
			return nil, err
		}
	}
	return reply, nil
}

// direct reports whether a statement need not take others with it.
func (t *tx) direct() bool { return t.begun && len(t.queued) == 0 }

func (t *tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.direct() {
		return t.conn.Exec(ctx, sql, args...)
	}
	reply, err := t.send(ctx, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := reply.Exec()
	if e := reply.Close(); err == nil {
		err = e
	}
	return tag, err
}

func (t *tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.direct() {
		return t.conn.Query(ctx, sql, args...)
	}
	reply, err := t.send(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	rs, err := reply.Query()
	if err != nil {
		_ = reply.Close()
		return nil, err
	}
	return &rows{rs, reply}, nil
}

func (t *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.direct() {
		return t.conn.QueryRow(ctx, sql, args...)
	}
	rs, err := t.Query(ctx, sql, args...)
	return row{rs, err}
}

// rows are those of the last statement that was sent together with others: with
// them the reply ends.
type rows struct {
	pgx.Rows
	reply pgx.BatchResults
}

func (r *rows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *rows) Close() {
	r.Rows.Close()
	_ = r.reply.Close()
}

type row struct {
	rows pgx.Rows
	err  error
}

func (r row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

func (t *tx) commit(ctx context.Context) error {
	if !t.begun && len(t.queued) == 0 {
		return nil
	}
	tag, err := t.Exec(ctx, commit)
	if err != nil {
		return err
	}
	t.begun = false
	if tag.String() == "ROLLBACK" { // a statement had failed, and its error was passed over
		return pgx.ErrTxCommitRollback
	}
	return nil
}

// end gives the connection back, and rolls back what was not committed.
func (t *tx) end() {
	defer t.conn.Release() // closes it if a transaction is open
	if !t.begun {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), rollbackLimit)
	defer cancel()
	if _, err := t.conn.Exec(ctx, "rollback"); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		_ = t.conn.Conn().Close(ctx)
	}
}
