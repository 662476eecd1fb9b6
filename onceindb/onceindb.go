// Package onceindb does a side effect once that is in the caller's own Postgres: the
// effect and the note that it was done commit in one transaction, so that nothing is
// ever in doubt. It needs no orchestrator, and the ledger of worker.Once is not
// involved.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		balance, err := onceindb.Do(ctx, onceindb.Pgx(tx), onceindb.Key(j.Info), "debit", func(ctx context.Context) (int, error) {
//			...
//		})
//		return err
//	})
//
// The table is Schema; create it in the schema that the connections' search_path
// finds first.
package onceindb

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/task"
)

// Schema makes the table, if it is not there. Rows may be deleted once their task
// can't run any more; created_at is for that.
const Schema = `CREATE TABLE IF NOT EXISTS penstock_once (
    key        text NOT NULL,
    name       text NOT NULL,
    result     jsonb NOT NULL DEFAULT 'null',
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (key, name)
)`

// Tx is a transaction of the caller's; see Pgx and SQL.
type Tx interface {
	// exec runs a statement and returns how many rows it changed.
	exec(ctx context.Context, query string, args ...any) (int64, error)
	// row reads one value.
	row(ctx context.Context, into any, query string, args ...any) error
}

// Pgx makes a Tx of a pgx transaction.
func Pgx(tx pgx.Tx) Tx { return pgxTx{tx} }

// SQL makes a Tx of a database/sql transaction.
func SQL(tx *sql.Tx) Tx { return sqlTx{tx} }

type pgxTx struct{ tx pgx.Tx }

func (t pgxTx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (t pgxTx) row(ctx context.Context, into any, query string, args ...any) error {
	return t.tx.QueryRow(ctx, query, args...).Scan(into)
}

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := t.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (t sqlTx) row(ctx context.Context, into any, query string, args ...any) error {
	return t.tx.QueryRowContext(ctx, query, args...).Scan(into)
}

// maxText is the most bytes of a key or a name. A Key has at most 64 of the tenant,
// 255 each of scope and key, and 10 besides.
const maxText = 600

// Key is the key of an execution's effects: its idempotency scope and key, or its
// tenant and id if it has no key; the same over all attempts, and for a task that
// was requeued. A new task whose producer uses an expired key again has another.
func Key(i task.Info) string {
	kind, scope := "k", i.IdempotencyScope
	if i.IdempotencyKeyOwn {
		kind, scope = "t", i.Tenant
	}
	return fmt.Sprintf("%s%d:%s%d:%s%s", kind, len(i.Tenant), i.Tenant, len(scope), scope, i.IdempotencyKey)
}

// Do runs fn, which works within tx, unless that was done before in a transaction
// that committed; then it returns the result of then. Nothing is done before tx
// commits. A transaction that does the same at the same time waits for the other
// to end. If Do returns an error, roll tx back; the error of fn is returned as it
// is, others are Postgres' or about a result without a JSON form. key and name have 1
// to 600 bytes.
func Do[T any](ctx context.Context, tx Tx, key, name string, fn func(ctx context.Context) (T, error)) (T, error) {
	var out T
	for what, s := range map[string]string{"key": key, "name": name} {
		if s == "" || len(s) > maxText {
			return out, task.Permanent(fmt.Errorf("onceindb: the %s has %d bytes, want 1 to %d", what, len(s), maxText))
		}
	}
	n, err := tx.exec(ctx, "INSERT INTO penstock_once (key, name) VALUES ($1, $2) ON CONFLICT (key, name) DO NOTHING", key, name)
	if err != nil {
		return out, fmt.Errorf("onceindb: note %q (create the table by onceindb.Schema): %w", name, err)
	}
	if n == 0 {
		return known[T](ctx, tx, key, name)
	}
	v, err := fn(ctx)
	if err != nil {
		return out, err
	}
	b, err := json.Marshal(v)
	if err != nil {
		return out, task.Permanent(fmt.Errorf("onceindb: the result of %q has no JSON form: %w", name, err))
	}
	if _, err := tx.exec(ctx, "UPDATE penstock_once SET result = $3::text::jsonb WHERE key = $1 AND name = $2", key, name, string(b)); err != nil {
		return out, fmt.Errorf("onceindb: keep the result of %q: %w", name, err)
	}
	return v, nil
}

// errGone: the row was deleted between two statements.
var errGone = errors.New("its row was deleted just now; run the transaction again")

func known[T any](ctx context.Context, tx Tx, key, name string) (out T, err error) {
	var text string
	err = tx.row(ctx, &text, "SELECT result::text FROM penstock_once WHERE key = $1 AND name = $2", key, name)
	if errors.Is(err, pgx.ErrNoRows) || errors.Is(err, sql.ErrNoRows) {
		err = errGone
	}
	if err != nil {
		return out, fmt.Errorf("onceindb: read the result of %q: %w", name, err)
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return out, task.Permanent(fmt.Errorf("onceindb: the stored result of %q does not decode into %T: %w", name, out, err))
	}
	return out, nil
}
