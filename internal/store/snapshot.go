package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
)

// Snapshot runs fn in one read-only transaction whose queries all see the
// database as it was at the first of them, whatever commits meanwhile. It keeps
// vacuum from removing what was deleted since: let it be short.
func (s *Store) Snapshot(ctx context.Context, fn func(q *dbsqlc.Queries) error) error {
	o := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, s.pool, o, func(tx pgx.Tx) error { return fn(dbsqlc.New(tx)) })
}

// Look runs fn in a read-only transaction whose statements read along indexes: for
// statements that take one look at a list, a bounded number of its rows.
func (s *Store) Look(ctx context.Context, fn func(q *dbsqlc.Queries) error) error {
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if err := q.ReadInOrder(ctx); err != nil {
			return err
		}
		return fn(q)
	})
}
