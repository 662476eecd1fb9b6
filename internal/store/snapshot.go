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
