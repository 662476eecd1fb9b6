package acceptance

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

type dur = time.Duration

func ms(n int) dur { return time.Duration(n) * time.Millisecond }

// longest is later than any acceptance ends.
const longest = 24 * time.Hour

// row is one row of a query.
type row struct {
	r   *run
	ctx context.Context
	sql string
	arg []any
}

// query prepares a question with one row for an answer. The connection is for
// one goroutine at a time.
func (r *run) query(ctx context.Context, sql string, arg ...any) row { return row{r, ctx, sql, arg} }

func (q row) scan(into ...any) error {
	q.r.dbMu.Lock()
	defer q.r.dbMu.Unlock()
	return q.r.db.QueryRow(q.ctx, q.sql, q.arg...).Scan(into...)
}

// collect reads all rows of a query.
func collect[T any](ctx context.Context, r *run, scan pgx.RowToFunc[T], sql string, arg ...any) ([]T, error) {
	r.dbMu.Lock()
	defer r.dbMu.Unlock()
	rows, err := r.db.Query(ctx, sql, arg...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}
