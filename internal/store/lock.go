package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Lock locks the tasks, in id order, for a decision that needs more than their
// rows; store it with Save. Tasks that do not exist are missing. now is Postgres'
// clock.
func (s *Store) Lock(ctx context.Context, q *dbsqlc.Queries, ids []protocol.ID) (tasks map[protocol.ID]*Locked, now time.Time, err error) {
	rows, err := q.LockTasks(ctx, pgid.Slice(ids))
	if err != nil {
		return nil, now, fmt.Errorf("lock %d tasks: %w", len(ids), err)
	}
	tasks, now = make(map[protocol.ID]*Locked, len(rows)), time.Now()
	var read policies
	add := func(r *dbsqlc.LockTasksRow, ended bool) error {
		l, err := s.locked(r, &read)
		if err != nil {
			return err
		}
		l.ended, now = ended, r.Now
		tasks[l.ID] = l
		return nil
	}
	for _, r := range rows {
		if err := add(r, false); err != nil {
			return nil, now, err
		}
	}
	if len(tasks) == len(ids) {
		return tasks, now, nil
	}
	// Also what ended while we waited for its lock.
	missing := slices.DeleteFunc(slices.Clone(ids), func(id protocol.ID) bool { return tasks[id] != nil })
	finished, err := q.LockFinished(ctx, pgid.Slice(missing))
	if err != nil {
		return nil, now, fmt.Errorf("lock %d finished tasks: %w", len(missing), err)
	}
	for _, r := range finished {
		if err := add((*dbsqlc.LockTasksRow)(r), true); err != nil {
			return nil, now, err
		}
	}
	return tasks, now, nil
}

// policies reads retry policies of rows that lie together and mostly have the same.
type policies struct {
	text []byte
	last protocol.RetryPolicy
}

func (p *policies) read(text []byte) (protocol.RetryPolicy, error) {
	if bytes.Equal(text, p.text) {
		return p.last, nil
	}
	var policy protocol.RetryPolicy
	if err := json.Unmarshal(text, &policy); err != nil {
		return policy, fmt.Errorf("stored retry policy: %w", err)
	}
	p.text, p.last = text, policy
	return policy, nil
}

func (s *Store) locked(r *dbsqlc.LockTasksRow, read *policies) (*Locked, error) {
	var policy protocol.RetryPolicy
	var err error
	if len(r.RetryPolicy) == 0 {
		policy = s.policy(r.Type)
	} else if policy, err = read.read(r.RetryPolicy); err != nil {
		return nil, fmt.Errorf("task %s: %w", protocol.ID(r.ID), err)
	}
	l := &Locked{
		Task: protocol.Task{
			ID: protocol.ID(r.ID), State: protocol.State(r.State), Attempt: int(r.Attempt), MaxRetries: int(r.MaxRetries),
			Delivery: r.Delivery, Interruptions: int(r.Interruptions), Seq: int(r.EventSeq),
			DueAt: r.DueAt.Time, NextRetryAt: r.NextRetryAt.Time, Policy: policy,
			AppliedKind: protocol.OutcomeKind(Deref(r.AppliedKind)), AppliedDelivery: r.AppliedDelivery,
			RejectedDelivery: r.RejectedDelivery, WorkerID: Deref(r.WorkerID),
			Code: protocol.Code(Deref(r.LastErrorCode)), Reason: Deref(r.LastErrorReason),
			StartedAt: r.StartedAt.Time, FinishedAt: r.FinishedAt.Time, TraceID: r.TraceID,
			CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, ClaimedAt: r.ClaimedAt.Time,
			ExpiresAt: r.ExpiresAt.Time, UnknownSince: r.UnknownSince.Time,
			StartAt: r.StartAt.Time, OpenDependencies: int(r.OpenDependencies), HasDependants: r.HasDependants,
			OnDependencyFailure: protocol.DependencyPolicy(Deref(r.OnDependencyFailure)),
		},
		Queue: r.Queue, Type: r.Type, Name: Deref(r.Name), Key: Deref(r.IdempotencyKey), ReadyAt: r.ReadyAt.Time,
	}
	switch l.State {
	case protocol.StateDLQPending, protocol.StateDLQRecorded, protocol.StateFailed:
		l.DLQID = protocol.DLQID(l.ID)
	}
	return l, nil
}
