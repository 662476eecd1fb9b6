package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
)

// Later is later.
func (s *Store) Later(q *dbsqlc.Queries) *dbsqlc.Queries { return s.later(q) }

// Instances counts the rows of instances.
func (s *Store) Instances(ctx context.Context) (n int, err error) {
	err = s.pool.QueryRow(ctx, "SELECT count(*) FROM instances").Scan(&n)
	return n, err
}

// Setting is a setting of a connection of the pool.
func (s *Store) Setting(ctx context.Context, name string) (value string, err error) {
	err = s.pool.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value)
	return value, err
}

// CheckSession is checkSession of a Store's connections.
func CheckSession(ctx context.Context, c *pgx.Conn) error {
	return checkSession(ctx, c.PgConn(), session)
}

// SessionError is sessionError.
var SessionError = sessionError

// Session are the settings of a Store's connections.
func Session() map[string]string { return session }
