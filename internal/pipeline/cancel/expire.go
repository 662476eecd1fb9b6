package cancel

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/protocol"
)

const (
	// applyDeadline bounds the wait for outcomes that are under way.
	applyDeadline = 30 * time.Second
	// Bounds of the time between two looks. A task whose time is over before
	// the next one is not started either: the dispatcher looks, too.
	minLook, maxLook = 50 * time.Millisecond, time.Second
	// Bounds of the time that workers get after Redis was away.
	minHold, maxHold = time.Second, 10 * time.Second
	// minStill: if Redis takes less to answer, it was not away.
	minStill = 500 * time.Millisecond
	// errorPause is how long to wait for a store that does not answer.
	errorPause = 500 * time.Millisecond
)

// RunExpiry cancels tasks whose time to start is over until ctx ends. Those that
// wait in Postgres are cancelled at once, those that Redis holds after the grace,
// by Postgres' clock. While Redis can't be reached, or stands still, workers can't
// say what they started: they get the grace (1 s to 10 s of it) once more when it is back.
func (s *Stage) RunExpiry(ctx context.Context) error {
	began := time.Now()
	if up, err := s.o.Redis.Uptime(ctx); err != nil || up < s.catchUp() || time.Since(began) > s.still() {
		s.hold = time.Now().Add(s.catchUp())
	}
	beat := s.o.Pulse.Watch("expiry", maxLook+2*applyDeadline, 2*applyDeadline)
	quiet := false
	for {
		next, err := s.ExpireWaiting(ctx)
		if err == nil {
			next, err = s.expireDispatched(ctx, next)
		}
		if err == nil {
			beat.Mark()
		} else {
			beat.Fail("cannot be looked for")
			next = errorPause
			if ctx.Err() == nil && !quiet {
				s.o.Log.Warn("expiry waits until the stores are back", "error", err)
			}
		}
		quiet = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(max(next, minLook), maxLook)):
		}
	}
}

// still is how long Redis may take to answer: with more it stood still for a good
// part of the grace.
func (s *Stage) still() time.Duration { return max(s.catchUp()/4, minStill) }

func (s *Stage) catchUp() time.Duration { return min(max(s.o.Grace, minHold), maxHold) }

// expireDispatched is ExpireDispatched unless workers are given time. It returns
// how long to wait, at most next.
func (s *Stage) expireDispatched(ctx context.Context, next time.Duration) (time.Duration, error) {
	err := s.o.Redis.Prompt(ctx, s.still())
	if err == nil && time.Now().Before(s.hold) {
		return next, nil
	}
	if err == nil {
		var wait time.Duration
		if wait, err = s.ExpireDispatched(ctx); err == nil {
			return min(next, wait), nil
		}
	}
	s.hold = time.Now().Add(s.catchUp())
	return next, err
}

// ExpireWaiting cancels the tasks that wait in Postgres and whose time to start
// is over. It returns how long it is until the next one's is.
func (s *Stage) ExpireWaiting(ctx context.Context) (next time.Duration, err error) {
	for {
		rows, err := s.o.Store.ExpiringWaiting(ctx, chunk)
		if err != nil {
			return 0, fmt.Errorf("read tasks that expire: %w", err)
		}
		next = maxLook
		var over []protocol.ID
		for _, r := range rows {
			if r.WaitMs > 0 {
				next = wait(r.WaitMs)
				break
			}
			over = append(over, protocol.ID(r.ID))
		}
		if len(over) == 0 {
			return next, nil
		}
		// One that was dispatched meanwhile gets its grace.
		if err := s.expire(ctx, over, func(t *store.Locked) bool { return !t.Dispatched() }); err != nil {
			return 0, err
		}
		if len(over) < chunk {
			return next, nil
		}
	}
}

// ExpireDispatched cancels the tasks that Redis holds and whose time to start
// and grace are over, and returns how long it is until the next one's are. A
// worker that started one in time is not overruled: its claim may be in
// stream:result already.
func (s *Stage) ExpireDispatched(ctx context.Context) (next time.Duration, err error) {
	for {
		rows, err := s.o.Store.ExpiringDispatched(ctx, s.o.Grace.Milliseconds(), chunk)
		if err != nil {
			return 0, fmt.Errorf("read dispatched tasks that expire: %w", err)
		}
		next = maxLook
		var over []protocol.ID
		read := make(map[protocol.ID]int64, len(rows))
		for _, r := range rows {
			if r.WaitMs > 0 {
				next = wait(r.WaitMs)
				break
			}
			over, read[protocol.ID(r.ID)] = append(over, protocol.ID(r.ID)), r.Delivery
		}
		if len(over) == 0 {
			return next, nil
		}
		if err := s.applied(ctx); err != nil {
			return 0, err
		}
		// Outcomes of a later delivery may not have been applied.
		if err := s.expire(ctx, over, func(t *store.Locked) bool { return t.Delivery == read[t.ID] }); err != nil {
			return 0, err
		}
		if len(over) < chunk {
			return next, nil
		}
	}
}

// applied waits until the outcomes that are in stream:result now are applied.
func (s *Stage) applied(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, applyDeadline)
	defer cancel()
	return s.o.Redis.WaitApplied(ctx, protocol.StreamResult, protocol.GroupOrchestrators)
}

func (s *Stage) expire(ctx context.Context, ids []protocol.ID, still func(*store.Locked) bool) error {
	ended, err := s.decide(ctx, ids, protocol.CodeExpired, func(env protocol.Env, t *store.Locked) ([]*protocol.Event, bool) {
		if !still(t) {
			return nil, false
		}
		return t.Expire(env, s.o.Grace)
	})
	if err != nil {
		return err
	}
	if len(ended) > 0 {
		s.o.Log.Info("tasks expired: no worker started them in time", "tasks", len(ended))
	}
	return nil
}

// wait is a time in milliseconds, rounded up so that it is over afterwards.
func wait(ms float64) time.Duration {
	return time.Duration(ms*float64(time.Millisecond)) + time.Millisecond
}
