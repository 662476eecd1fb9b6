package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

var (
	//go:embed sql/count_days.sql
	countDaysSQL string
	//go:embed sql/history.sql
	historySQL string
	//go:embed sql/end_history.sql
	endHistorySQL string
)

const (
	// historyDays is over how many days the finished tasks are spread.
	historyDays = 30
	// bytesFinished is what one takes on the disk, with its three events and
	// the indexes; keepFree is what is left of the disk.
	bytesFinished = 1500
	keepFree      = 8 << 30
)

// finished is what a long record costs.
var finished = &part{
	name: "finished", group: "size", ratio: "no finished task",
	about: func(b *bench) string {
		return fmt.Sprintf(`%d tasks enqueued and drained, in turn into a new system and into one with finished tasks and their events in partitions of %d days; those were
made by SQL, not run`, b.n, historyDays)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).besideHistory},
}

func (b *bench) besideHistory(ctx context.Context, empty *system) error {
	full, err := b.system(ctx, "history", func(ctx context.Context, s *system) error {
		rows, err := s.fitting(b.finished)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := s.makeHistory(ctx, rows, historyDays); err != nil {
			return err
		}
		b.add("finished tasks there", "tasks", "", float64(rows))
		fmt.Fprintf(os.Stderr, "%s finished tasks made within %s\n", thousands(rows), time.Since(began).Round(time.Second))
		return nil
	})
	if err != nil {
		return err
	}
	return b.inTurn(ctx, pair{"no finished task", empty}, pair{"many finished tasks", full})
}

// fitting is how many finished tasks the disk has room for, at most as many as
// are wanted; if they are fewer it says so.
func (s *system) fitting(wanted int) (int, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.stack.Dir, &fs); err != nil {
		return 0, fmt.Errorf("the room on the disk of %s: %w", s.stack.Dir, err)
	}
	free := int64(fs.Bavail) * int64(fs.Bsize)
	n := min(int64(wanted), (free-keepFree)/bytesFinished)
	if n < 1 {
		return 0, fmt.Errorf("%s has %d MB free, and %d MB are to be left: make room, or leave out this part", s.stack.Dir, free>>20, keepFree>>20)
	}
	if int(n) < wanted {
		fmt.Fprintf(os.Stderr, "the disk has room for %s finished tasks, not for %s\n", thousands(int(n)), thousands(wanted))
	}
	return int(n), nil
}

// fillSettings are those of Postgres while the finished tasks are made: nothing is
// kept for a crash, and what a transaction creates isn't logged.
var fillSettings = []string{
	"fsync = off", "synchronous_commit = off", "full_page_writes = off", "wal_level = minimal", "max_wal_senders = 0",
	"max_wal_size = '4GB'", "maintenance_work_mem = '256MB'", "autovacuum = off",
}

// makeHistory stores so many finished tasks, spread over the days before those
// that have a partition. Postgres has its stock settings again when it returns.
func (s *system) makeHistory(ctx context.Context, rows, days int) error {
	if err := s.dropOrchestrator(); err != nil {
		return err
	}
	for _, set := range fillSettings {
		if _, err := s.db.Exec(ctx, "ALTER SYSTEM SET "+set); err != nil {
			return err
		}
	}
	if err := s.restartPostgres(ctx); err != nil {
		return err
	}
	if err := s.fillDays(ctx, rows, days); err != nil {
		return fmt.Errorf("store finished tasks: %w", err)
	}
	if _, err := s.db.Exec(ctx, "ALTER SYSTEM RESET ALL"); err != nil {
		return err
	}
	if err := s.restartPostgres(ctx); err != nil {
		return err
	}
	return s.addOrchestrator(ctx)
}

// restartPostgres has Postgres read settings that it reads at its start only.
func (s *system) restartPostgres(ctx context.Context) error {
	if _, err := s.db.Exec(ctx, "CHECKPOINT"); err != nil {
		return err
	}
	s.db.Reset()
	return errors.Join(s.stack.KillPostgres(), s.stack.StartPostgres(ctx))
}

// fillDays makes the partitions, those of both tables at the same time.
func (s *system) fillDays(ctx context.Context, rows, days int) error {
	var n int
	var first time.Time
	if err := s.db.QueryRow(ctx, countDaysSQL).Scan(&n, &first); err != nil {
		return err
	}
	if _, err := s.db.Exec(ctx, historySQL); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, table := range datedTables {
		g.Go(func() error {
			for ago := days; ago > 0; ago-- {
				day := first.AddDate(0, 0, -ago)
				if err := s.fillDay(gctx, table, day, rows*ago/days-rows*(ago-1)/days); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	_, err := s.db.Exec(ctx, endHistorySQL)
	return err
}

func (s *system) fillDay(ctx context.Context, table string, day time.Time, rows int) error {
	if _, err := s.db.Exec(ctx, "SELECT bench_day($1, $2, $3, $4)", table, day, rows, string(s.b.payload)); err != nil {
		return err
	}
	part := fmt.Sprintf("%s_%s_%s", table, day.Format("20060102"), day.AddDate(0, 0, 1).Format("20060102"))
	_, err := s.db.Exec(ctx, "VACUUM (FREEZE, ANALYZE) "+part)
	return err
}

// datedTables have a partition for each day.
var datedTables = []string{"tasks_finished", "event_log"}
