package approval

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

const (
	// chunk is how many requests are looked at at once.
	chunk = 500
	// Bounds of the time between two looks.
	minLook, maxLook = 50 * time.Millisecond, time.Second
	errorPause       = 500 * time.Millisecond
	// countEvery is how often pending requests are counted, sweepEvery how often
	// those of removed tasks are removed.
	countEvery, sweepEvery = 5 * time.Second, time.Minute
	// doubtEvery is how often tasks are looked for whose effects are not in doubt any
	// more.
	doubtEvery = 500 * time.Millisecond
	// quiet is how long the loop may take before this process is not taken for
	// ready.
	quiet = 10 * time.Second
)

// Run rejects what nobody decided in time, counts what is pending, and removes
// the requests of tasks that are gone, until ctx ends.
func (s *Stage) Run(ctx context.Context) error {
	beat := s.o.Pulse.Watch("approvals", maxLook+quiet, quiet)
	var counted, swept, doubted time.Time
	silent := false
	for {
		next, err := s.Expire(ctx)
		if err == nil && time.Since(doubted) >= doubtEvery {
			if _, err = s.Undoubt(ctx, "", "", ""); err == nil {
				doubted = time.Now()
			}
		}
		if err == nil && time.Since(counted) >= countEvery {
			if err = s.count(ctx); err == nil {
				counted = time.Now()
			}
		}
		if err == nil && time.Since(swept) >= sweepEvery {
			if err = s.Sweep(ctx); err == nil {
				swept = time.Now()
			}
		}
		if err == nil {
			beat.Mark()
		} else {
			beat.Fail("approvals cannot be looked at")
			next = errorPause
			if ctx.Err() == nil && !silent {
				s.o.Log.Warn("approvals wait until Postgres is back", "error", err)
			}
		}
		silent = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(max(next, minLook), maxLook)):
		}
	}
}

func (s *Stage) count(ctx context.Context) error {
	n, err := s.o.Store.CountPendingApprovals(ctx)
	if err != nil {
		return fmt.Errorf("count approval requests: %w", err)
	}
	s.pending.Set(float64(n))
	return nil
}

// Expire rejects the tasks about which nobody decided in time, and returns how
// long it is until the next one's time is over.
func (s *Stage) Expire(ctx context.Context) (next time.Duration, err error) {
	for {
		rows, err := s.o.Store.ExpiringApprovals(ctx, chunk)
		if err != nil {
			return 0, fmt.Errorf("read approval requests that expire: %w", err)
		}
		next = maxLook
		over := 0
		for _, r := range rows {
			if r.WaitMs > 0 {
				next = time.Duration(r.WaitMs*float64(time.Millisecond)) + time.Millisecond
				break
			}
			over++
			if err := s.expire(ctx, protocol.ID(r.ID), protocol.ID(r.TaskID)); err != nil {
				return 0, err
			}
		}
		if over < chunk {
			return next, nil
		}
	}
}

// expire rejects a task because a request's time is over.
func (s *Stage) expire(ctx context.Context, id, task protocol.ID) error {
	var m *matter
	err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) (err error) {
		if m, err = s.open(ctx, q, task); err != nil {
			return err
		}
		a := m.find(id)
		if a == nil || a.Status != statusPending || m.env.Now.Before(a.ExpiresAt) {
			return nil // decided meanwhile
		}
		why := fmt.Sprintf("nobody decided by %s", a.ExpiresAt.UTC().Format(time.RFC3339Nano))
		if m.task == nil || m.task.State != protocol.StateWaitingApproval {
			return q.DecideApprovals(ctx, dbsqlc.DecideApprovalsParams{Status: statusWithdrawn, Decision: "the task does not wait any more", Ids: []pgid.ID{a.ID}})
		}
		if err := m.end(ctx, a, statusExpired, "", protocol.ActorApprovalTimeout, why); err != nil {
			return err
		}
		return m.save(ctx)
	})
	if err != nil {
		return err
	}
	if len(m.events) > 0 {
		s.decisions.WithLabelValues(statusExpired).Inc()
		s.o.Log.Info("a task was rejected: nobody decided about it in time", "task", task, "approval", id)
		s.tell(m)
	}
	return nil
}

// Sweep removes the decided requests of tasks that retention removed.
func (s *Stage) Sweep(ctx context.Context) error {
	var after pgid.ID
	for {
		last, err := s.o.Store.RemoveApprovals(ctx, after, chunk)
		if err != nil {
			return fmt.Errorf("remove approval requests of removed tasks: %w", err)
		}
		if last == (pgid.ID{}) || ctx.Err() != nil {
			return nil
		}
		after = last
	}
}
