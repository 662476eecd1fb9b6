package cancel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

const (
	// lookPause is how often to see whether Redis holds all tombstones.
	lookPause = time.Second
	// lookFloor is the least time between two looks, however much is cancelled,
	// and between the two that find that Redis lost some.
	lookFloor = 100 * time.Millisecond
	// Bounds of the time between two looks for tombstones that can go: a tenth
	// of the time that they are kept.
	minRemovePause, maxRemovePause = time.Second, time.Minute
	// page is how many tombstones one transaction tells or removes.
	page = 1000
)

// RunTombstones sees to it, until ctx ends, that Redis holds the tombstones, and
// removes those that nobody needs any more.
func (s *Stage) RunTombstones(ctx context.Context) error {
	beat := s.o.Pulse.Watch("tombstones", lookPause+2*applyDeadline, 2*applyDeadline)
	var removed time.Time
	quiet := false
	for {
		next := time.Now().Add(lookFloor)
		err := s.Tell(ctx)
		if every := min(max(s.o.Keep/10, minRemovePause), maxRemovePause); err == nil && time.Since(removed) >= every {
			if _, err = s.Remove(ctx); err == nil {
				removed = time.Now()
			}
		}
		if err == nil {
			beat.Mark()
		} else {
			beat.Fail("cannot be compared with Redis")
			if ctx.Err() == nil && !quiet {
				s.o.Log.Warn("tombstones of cancelled tasks wait until the stores are back", "error", err)
			}
		}
		quiet = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-s.now:
			if !rest(ctx, time.Until(next)) {
				return nil
			}
		case <-time.After(lookPause):
		}
	}
}

// rest waits; it returns false if ctx ends meanwhile.
func rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Tell adds to Redis the tombstones that it is not known to hold, or, if it
// holds fewer than it was told of, all of them. If it holds more than there are,
// the others are removed.
func (s *Stage) Tell(ctx context.Context) error {
	for n := page; n == page; {
		err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
			rows, err := q.LockUntoldTombstones(ctx, page)
			if n = len(rows); err != nil || n == 0 {
				return err
			}
			var some pairs
			for _, r := range rows {
				some.add(r.TaskID, r.Delivery)
			}
			if err := s.o.Redis.AddTombstones(ctx, some.all); err != nil {
				return err
			}
			return q.TombstonesTold(ctx, some.ids, some.deliveries)
		})
		if err != nil {
			return err
		}
	}
	// The set grows after the table, and shrinks before it.
	before, err := s.o.Redis.CountTombstones(ctx)
	if err != nil {
		return err
	}
	want, err := s.o.Store.CountTombstones(ctx)
	if err != nil {
		return fmt.Errorf("count tombstones: %w", err)
	}
	s.kept.Set(float64(want.Total))
	if short, err := s.short(ctx, want.Told); err != nil {
		return err
	} else if short {
		if err := s.tellAll(ctx); err != nil {
			return err
		}
	}
	if before > want.Total {
		return s.removeStrays(ctx)
	}
	return nil
}

// short reports whether Redis holds fewer tombstones than told. Another replica
// that is just removing some has done so in Redis and not yet in Postgres, so it
// looks twice.
func (s *Stage) short(ctx context.Context, told int64) (bool, error) {
	if told == 0 {
		return false, nil
	}
	held, err := s.o.Redis.CountTombstones(ctx)
	if err != nil || held >= told {
		return false, err
	}
	if !rest(ctx, lookFloor) {
		return false, ctx.Err()
	}
	want, err := s.o.Store.CountTombstones(ctx)
	if err != nil {
		return false, fmt.Errorf("count tombstones: %w", err)
	}
	held, err = s.o.Redis.CountTombstones(ctx)
	return held < want.Told, err
}

// tellAll adds all tombstones to Redis, which lost some. Those that somebody is
// removing just now are left out, so that none comes back for good.
func (s *Stage) tellAll(ctx context.Context) error {
	told := 0
	p := dbsqlc.LockTombstonesAfterParams{MaxRows: page}
	for n := page; n == page; {
		err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
			rows, err := q.LockTombstonesAfter(ctx, p)
			if n = len(rows); err != nil || n == 0 {
				return err
			}
			var some pairs
			for _, r := range rows {
				some.add(r.TaskID, r.Delivery)
			}
			p.AfterID, p.AfterDelivery = rows[n-1].TaskID, rows[n-1].Delivery
			return s.o.Redis.AddTombstones(ctx, some.all)
		})
		if err != nil {
			return err
		}
		told += n
	}
	s.o.Log.Warn("Redis had lost tombstones of cancelled tasks; it has them again", "tombstones", told)
	return nil
}

// removeStrays removes tombstones from Redis that have no row: those that were
// added while they were being removed, or belong to a record that was replaced
// by an older one.
func (s *Stage) removeStrays(ctx context.Context) error {
	return s.o.Redis.EachTombstone(ctx, func(held []protocol.Pair) error {
		var some pairs
		for _, p := range held {
			some.add(pgid.ID(p.ID), p.Delivery)
		}
		rows, err := s.o.Store.TombstonesAmong(ctx, some.ids, some.deliveries)
		if err != nil {
			return fmt.Errorf("read tombstones: %w", err)
		}
		known := make(map[protocol.Pair]bool, len(rows))
		for _, r := range rows {
			known[protocol.Pair{ID: protocol.ID(r.TaskID), Delivery: r.Delivery}] = true
		}
		var strays []protocol.Pair
		for _, p := range held {
			if !known[p] {
				strays = append(strays, p)
			}
		}
		return s.o.Redis.RemoveTombstones(ctx, strays)
	})
}

// Remove forgets the tombstones that are old enough and whose entry nobody can
// start any more, and returns how many. The order of reading is what makes it
// sound: an entry goes from the outbox, which is read together with the
// tombstones, to the undelivered entries of its stream, to the pending ones, and
// never back; so one that is in none of them was acknowledged, or lost. That it
// is in the stream no more says nothing on its own: it may not yet be.
func (s *Stage) Remove(ctx context.Context) (removed int, err error) {
	p := dbsqlc.OldTombstonesParams{KeepMs: s.o.Keep.Milliseconds(), AfterAt: farPast, MaxRows: 5 * page}
	for n := 5 * page; n == 5*page; {
		rows, err := s.o.Store.OldTombstones(ctx, p)
		if err != nil {
			return removed, fmt.Errorf("read old tombstones: %w", err)
		}
		if n = len(rows); n == 0 {
			break
		}
		last := rows[n-1]
		p.AfterAt, p.AfterID, p.AfterDelivery = last.CreatedAt, last.TaskID, last.Delivery
		byQueue := map[string]map[protocol.Pair]bool{}
		for _, r := range rows {
			if byQueue[r.Queue] == nil {
				byQueue[r.Queue] = map[protocol.Pair]bool{}
			}
			byQueue[r.Queue][protocol.Pair{ID: protocol.ID(r.TaskID), Delivery: r.Delivery}] = true
		}
		for queue, old := range byQueue {
			if err := s.spare(ctx, queue, old); err != nil {
				return removed, err
			}
			k, err := s.remove(ctx, old)
			removed += k
			if err != nil {
				return removed, err
			}
		}
	}
	return removed, nil
}

// spare takes those out of old whose entry is in its stream, not acknowledged.
func (s *Stage) spare(ctx context.Context, queue string, old map[protocol.Pair]bool) error {
	stream := protocol.TaskStream(queue)
	err := s.o.Unacked(ctx, stream, func(e streams.Entry) {
		if p, ok := protocol.PairOf(e.Values); ok {
			delete(old, p)
		}
	})
	if !errors.Is(err, streams.ErrNoGroup) {
		return err
	}
	// A stream that survived its group is emptied before it gets a new one.
	// Until then nobody can tell.
	there, err := s.o.Redis.Exists(ctx, stream)
	if err == nil && there {
		clear(old)
	}
	return err
}

// remove forgets tombstones, in Redis first: a row whose member is missing is
// added again, a member without a row would stay.
func (s *Stage) remove(ctx context.Context, old map[protocol.Pair]bool) (removed int, err error) {
	var some pairs
	for p := range old {
		some.add(pgid.ID(p.ID), p.Delivery)
	}
	for from := 0; from < len(some.ids); from += page {
		to := min(from+page, len(some.ids))
		n := 0
		err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
			rows, err := q.LockTombstones(ctx, some.ids[from:to], some.deliveries[from:to])
			if n = len(rows); err != nil || n == 0 {
				return err
			}
			var mine pairs
			for _, r := range rows {
				mine.add(r.TaskID, r.Delivery)
			}
			if err := s.o.Redis.RemoveTombstones(ctx, mine.all); err != nil {
				return err
			}
			return q.DeleteTombstones(ctx, mine.ids, mine.deliveries)
		})
		if err != nil {
			return removed, err
		}
		removed += n
	}
	return removed, nil
}

// pairs are deliveries as Redis and as Postgres take them.
type pairs struct {
	all        []protocol.Pair
	ids        []pgid.ID
	deliveries []int64
}

func (p *pairs) add(id pgid.ID, delivery int64) {
	p.all = append(p.all, protocol.Pair{ID: protocol.ID(id), Delivery: delivery})
	p.ids, p.deliveries = append(p.ids, id), append(p.deliveries, delivery)
}
