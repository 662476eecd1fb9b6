package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed sql/ensure_days.sql
var ensureDaysSQL string

// partitionCounts are how many partitions with dates there are to be, of each of
// the two tables that have them.
var partitionCounts = []int{5, 50, 400}

// partitions is what it costs that the record has many.
var partitions = &part{
	name: "partitions", group: "size", ratio: "the fewest partitions",
	about: func(b *bench) string {
		return fmt.Sprintf(`%d tasks enqueued and drained, with so many partitions with dates of the finished tasks, and as many of the log: in turn, on servers of
their own. If an orchestrator makes more of them by itself than are asked for, there are as many as it makes`, b.n)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).severalPartitions},
}

func (b *bench) severalPartitions(ctx context.Context, _ *system) error {
	var systems []pair
	for i, want := range partitionCounts {
		key := ""
		if i > 0 {
			key = fmt.Sprint(want)
		}
		s, err := b.system(ctx, key, nil)
		if err != nil {
			return err
		}
		n, err := s.partition(ctx, want)
		if err != nil {
			return err
		}
		systems = append(systems, pair{plural(n, "partition"), s})
	}
	return b.inTurn(ctx, systems...)
}

// partition makes partitions of days before those that there are, until there are
// as many as wanted, and returns how many there are.
func (s *system) partition(ctx context.Context, want int) (int, error) {
	var n int
	var first time.Time
	if err := s.db.QueryRow(ctx, countDaysSQL).Scan(&n, &first); err != nil {
		return 0, err
	}
	if n >= want {
		return n, nil
	}
	return want, s.ensureDays(ctx, first, want-n)
}

// ensureDays makes partitions of one day each for so many days before a day, some
// at a time: each transaction holds the locks of what it makes.
func (s *system) ensureDays(ctx context.Context, before time.Time, days int) error {
	const most = 25
	for _, table := range datedTables {
		for ago := 1; ago <= days; ago += most {
			if err := s.ensureSome(ctx, table, before, ago, min(ago+most-1, days)); err != nil {
				return fmt.Errorf("make partitions of %s: %w", table, err)
			}
		}
	}
	return nil
}

// lockTimeout is Postgres' code for a lock that somebody else had for too long.
const lockTimeout = "55P03"

func (s *system) ensureSome(ctx context.Context, table string, before time.Time, from, to int) error {
	for {
		_, err := s.db.Exec(ctx, ensureDaysSQL, table, before, from, to)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != lockTimeout {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}
