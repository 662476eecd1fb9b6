package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	//go:embed sql/ensure_day.sql
	ensureDaySQL string
	//go:embed sql/count_days.sql
	countDaysSQL string
	//go:embed sql/finished_tasks.sql
	finishedTasksSQL string
	//go:embed sql/finished_events.sql
	finishedEventsSQL string
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

// makeHistory stores so many finished tasks, spread over the days before today.
func (s *system) makeHistory(ctx context.Context, rows, days int) error {
	today := time.Now().UTC().Truncate(24 * time.Hour)
	if err := s.ensureDays(ctx, today, days); err != nil {
		return err
	}
	const writers = 2
	var wg sync.WaitGroup
	work, errs := make(chan int), make(chan error, writers)
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range writers {
		wg.Go(func() {
			for ago := range work {
				n := rows*ago/days - rows*(ago-1)/days
				day := today.AddDate(0, 0, -ago)
				_, err := s.db.Exec(wctx, finishedTasksSQL, day, n, string(s.b.payload))
				if err == nil {
					_, err = s.db.Exec(wctx, finishedEventsSQL, day, n)
				}
				if err != nil {
					errs <- fmt.Errorf("store finished tasks: %w", err)
					cancel()
					return
				}
			}
		})
	}
	for ago := days; ago > 0 && wctx.Err() == nil; ago-- {
		select {
		case work <- ago:
		case <-wctx.Done():
		}
	}
	close(work)
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return s.quiesce(ctx)
	}
}

// ensureDays makes partitions of one day each for so many days before a day.
func (s *system) ensureDays(ctx context.Context, before time.Time, days int) error {
	for ago := 1; ago <= days; ago++ {
		for _, table := range []string{"tasks_finished", "event_log"} {
			if err := s.ensureDay(ctx, table, before.AddDate(0, 0, -ago)); err != nil {
				return fmt.Errorf("make a partition of %s: %w", table, err)
			}
		}
	}
	return nil
}

// lockTimeout is Postgres' code for a lock that somebody else had for too long.
const lockTimeout = "55P03"

func (s *system) ensureDay(ctx context.Context, table string, day time.Time) error {
	for {
		_, err := s.db.Exec(ctx, ensureDaySQL, table, day)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != lockTimeout {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}
