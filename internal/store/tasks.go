package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Locked is a task whose row this transaction holds.
type Locked struct {
	protocol.Task
	Queue string
	Type  string
	Name  string // the caller's own id; empty if there is none
	Key   string // the caller's idempotency key; empty if there is none
	// ReadyAt is when it had become due when it was last dispatched; zero if that
	// was when it was created.
	ReadyAt time.Time
	ended   bool // before this transaction
	sent    bool // see Sent
}

// Sent notes that the task was dispatched without an event: nothing else about it
// changed, and it was waiting since ReadyAt.
func (l *Locked) Sent() { l.sent = true }

// ReadySince returns since when the task's present execution could have started.
func (l *Locked) ReadySince() time.Time {
	if l.ReadyAt.IsZero() {
		return l.CreatedAt
	}
	return l.ReadyAt
}

// TaskID is the id that callers know the task by.
func (l *Locked) TaskID() string { return TaskID(l.ID, l.Name) }

// TaskID is the id that callers know a task by: its name, else its UUID.
func TaskID(id protocol.ID, name string) string {
	if name != "" {
		return name
	}
	return id.String()
}

// eventKey is the idempotency_key column of an event: empty (null) where the
// key is the task's UUID.
func (l *Locked) eventKey() string {
	if l.Key != "" {
		return l.Key
	}
	return l.Name
}

// Decide locks the tasks, lets fn decide, and stores what fn returns, in one
// transaction. Tasks that do not exist are missing from the map. fn returns
// the tasks it changed and the events of their moves; it may be called again
// if the transaction is retried, so it must not have effects of its own.
func (s *Store) Decide(ctx context.Context, ids []protocol.ID, fn func(now time.Time, tasks map[protocol.ID]*Locked) ([]*Locked, []*protocol.Event)) error {
	return s.Tx(ctx, func(q *dbsqlc.Queries) error {
		return s.DecideTx(ctx, q, ids, fn)
	})
}

// DecideTx is Decide inside a transaction of the caller's.
func (s *Store) DecideTx(ctx context.Context, q *dbsqlc.Queries, ids []protocol.ID, fn func(now time.Time, tasks map[protocol.ID]*Locked) ([]*Locked, []*protocol.Event)) error {
	tasks, now, err := s.Lock(ctx, q, ids)
	if err != nil {
		return err
	}
	changed, events := fn(now, tasks)
	return s.Save(ctx, q, changed, events)
}

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

// Save stores decisions: the tasks as they are now, their events, a dlq_items
// row for each that was given up, and a note for each that ended and that others
// depend on. What people were asked about tasks that were cancelled is withdrawn.
// Once the transaction has committed, whom OnSaved names is told.
func (s *Store) Save(ctx context.Context, q *dbsqlc.Queries, changed []*Locked, events []*protocol.Event) error {
	if len(changed) == 0 {
		return nil
	}
	byID := make(map[protocol.ID]*Locked, len(changed))
	for _, l := range changed {
		byID[l.ID] = l
	}
	later := s.later(q)
	if err := saveAll(ctx, later, changed); err != nil {
		return fmt.Errorf("save %d tasks: %w", len(changed), err)
	}
	if len(events) > 0 {
		if err := later.InsertEvents(ctx, eventParams(events, byID)); err != nil {
			return fmt.Errorf("append %d events: %w", len(events), err)
		}
	}
	if err := s.noteSettled(ctx, q, later, changed); err != nil {
		return err
	}
	if err := withdraw(ctx, later, events); err != nil {
		return err
	}
	var dead dbsqlc.InsertDeadTasksParams
	for _, e := range events {
		if e.Type == protocol.EventDLQ && e.To == protocol.StateDLQPending {
			dead.DlqIds = append(dead.DlqIds, pgid.ID(protocol.DLQID(e.TaskID)))
			dead.TaskIds = append(dead.TaskIds, pgid.ID(e.TaskID))
			dead.Fingerprints = append(dead.Fingerprints, protocol.Fingerprint(byID[e.TaskID].Type, e.Code, e.Reason))
		}
	}
	if len(dead.TaskIds) > 0 {
		if err := later.InsertDeadTasks(ctx, dead); err != nil {
			return fmt.Errorf("write %d dead letters: %w", len(dead.TaskIds), err)
		}
	}
	if saved := s.onSaved.Load(); saved != nil {
		s.AfterCommit(q, func() { (*saved)(changed, events) })
	}
	return nil
}

// noteSettled has the dependants be told of tasks that ended.
func (s *Store) noteSettled(ctx context.Context, q, later *dbsqlc.Queries, changed []*Locked) error {
	var ended []pgid.ID
	for _, l := range changed {
		if l.HasDependants && l.State.Terminal() {
			ended = append(ended, pgid.ID(l.ID))
		}
	}
	if len(ended) == 0 {
		return nil
	}
	if err := later.InsertSettlements(ctx, ended); err != nil {
		return fmt.Errorf("note the end of %d tasks that others depend on: %w", len(ended), err)
	}
	s.tellEnded(q)
	return nil
}

// withdraw ends what is still asked about tasks that waited for approval and
// were cancelled, in whatever way.
func withdraw(ctx context.Context, q *dbsqlc.Queries, events []*protocol.Event) error {
	var ended []pgid.ID
	for _, e := range events {
		if e.From == protocol.StateWaitingApproval && e.To == protocol.StateCancelled {
			ended = append(ended, pgid.ID(e.TaskID))
		}
	}
	if len(ended) == 0 {
		return nil
	}
	if err := q.WithdrawApprovals(ctx, ended); err != nil {
		return fmt.Errorf("withdraw the approval requests of %d tasks: %w", len(ended), err)
	}
	return nil
}

// saveAll stores tasks where they are now: those that end are moved.
func saveAll(ctx context.Context, q *dbsqlc.Queries, changed []*Locked) error {
	var live, ending, ended []*Locked
	var sent []pgid.ID
	for _, l := range changed {
		switch {
		case l.ended:
			ended = append(ended, l)
		case l.sent:
			sent = append(sent, pgid.ID(l.ID))
		case l.State.Terminal():
			ending = append(ending, l)
		default:
			live = append(live, l)
		}
	}
	if len(sent) > 0 {
		if err := q.SendTasks(ctx, sent); err != nil {
			return err
		}
	}
	if len(live) > 0 {
		if err := q.SaveTasks(ctx, saveParams(live)); err != nil {
			return err
		}
	}
	if len(ending) > 0 {
		if err := q.FinishTasks(ctx, dbsqlc.FinishTasksParams(saveParams(ending))); err != nil {
			return err
		}
	}
	if len(ended) > 0 {
		if err := q.SaveFinished(ctx, dbsqlc.SaveFinishedParams(saveParams(ended))); err != nil {
			return err
		}
	}
	return nil
}

func saveParams(changed []*Locked) dbsqlc.SaveTasksParams {
	var p dbsqlc.SaveTasksParams
	for _, l := range changed {
		p.Ids = append(p.Ids, pgid.ID(l.ID))
		p.States = append(p.States, string(l.State))
		p.Attempts = append(p.Attempts, int32(l.Attempt))
		p.Deliveries = append(p.Deliveries, l.Delivery)
		p.Interruptions = append(p.Interruptions, int32(l.Interruptions))
		p.EventSeqs = append(p.EventSeqs, int32(l.Seq))
		p.DueAts = append(p.DueAts, l.DueAt)
		p.NextRetryAts = append(p.NextRetryAts, l.NextRetryAt)
		p.AppliedKinds = append(p.AppliedKinds, string(l.AppliedKind))
		p.AppliedDeliveries = append(p.AppliedDeliveries, l.AppliedDelivery)
		p.RejectedDeliveries = append(p.RejectedDeliveries, l.RejectedDelivery)
		p.WorkerIds = append(p.WorkerIds, l.WorkerID)
		p.Codes = append(p.Codes, string(l.Code))
		p.Reasons = append(p.Reasons, l.Reason)
		p.ClaimedAts = append(p.ClaimedAts, l.ClaimedAt)
		p.StartedAts = append(p.StartedAts, l.StartedAt)
		p.FinishedAts = append(p.FinishedAts, l.FinishedAt)
		p.Results = append(p.Results, string(l.Result))
		p.UnknownSinces = append(p.UnknownSinces, l.UnknownSince)
		p.StartAts = append(p.StartAts, l.StartAt)
		p.OpenDependencies = append(p.OpenDependencies, int32(l.OpenDependencies))
		p.ReadyAts = append(p.ReadyAts, l.ReadyAt)
	}
	return p
}

func eventParams(events []*protocol.Event, byID map[protocol.ID]*Locked) dbsqlc.InsertEventsParams {
	var p dbsqlc.InsertEventsParams
	for _, e := range events {
		key := ""
		if l := byID[e.TaskID]; l != nil {
			key = l.eventKey()
		}
		backoff := int64(-1)
		if e.BackoffDelay >= 0 {
			backoff = e.BackoffDelay.Milliseconds()
		}
		p.TaskIds = append(p.TaskIds, pgid.ID(e.TaskID))
		p.Seqs = append(p.Seqs, int32(e.Seq))
		p.Types = append(p.Types, string(e.Type))
		p.Froms = append(p.Froms, string(e.From))
		p.Tos = append(p.Tos, string(e.To))
		p.Attempts = append(p.Attempts, int32(e.Attempt))
		p.Deliveries = append(p.Deliveries, e.Delivery)
		p.Keys = append(p.Keys, key)
		p.NextRetryAts = append(p.NextRetryAts, e.NextRetryAt)
		p.Codes = append(p.Codes, string(e.Code))
		p.Reasons = append(p.Reasons, e.Reason)
		p.Backoffs = append(p.Backoffs, backoff)
		p.Actors = append(p.Actors, e.Actor)
		p.WorkerIds = append(p.WorkerIds, e.WorkerID)
		p.MessageIds = append(p.MessageIds, e.MessageID)
		p.TraceIds = append(p.TraceIds, e.TraceID)
		p.Datas = append(p.Datas, string(e.Data))
		p.Times = append(p.Times, e.OccurredAt)
	}
	return p
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

// Due is a locked task with what its stream entry needs besides.
type Due struct {
	*Locked
	Tenant string
	// EffectKey is the idempotency key that the handler sees, where it is not
	// the task's own: that of the task it was requeued from.
	EffectKey string
	// EffectOwn: EffectKey is the id of that task, which has no idempotency key.
	EffectOwn bool
	Payload   []byte
	Timeout   time.Duration
	// HeartbeatTimeout is 0 if the task has none.
	HeartbeatTimeout time.Duration
	// Scope is that of the task's idempotency key.
	Scope string
	// ScheduleType, ScheduledAt and DelayMS are the schedule as it was asked for.
	ScheduleType string
	ScheduledAt  time.Time
	DelayMS      int64
	// RequestedBy is the principal who asked for the task, or anonymous.
	RequestedBy string
	// Scheduled: a schedule made the task.
	Scheduled bool
	// Approvals is what the handler is told of approvals, JSON; nil: nothing.
	Approvals []byte
}

// maxDueBytes bounds the payloads of one dispatch: 16 MiB, or a single larger
// one.
const maxDueBytes = 16 << 20

// LockDueTasks takes up to limit tasks of a queue that are due or will be
// within ahead (whole milliseconds), longest due first, and leaves out those
// that another transaction is taking. It takes fewer, and says so with cut,
// where their payloads together would be larger than 16 MiB. now is Postgres'
// clock when it returns, or a little less.
func (s *Store) LockDueTasks(ctx context.Context, q *dbsqlc.Queries, queue string, ahead time.Duration, limit int) (out []*Due, cut bool, now time.Time, err error) {
	rows, err := q.LockDue(ctx, dbsqlc.LockDueParams{Queue: queue, AheadMs: ahead.Milliseconds(), MaxRows: int32(limit)})
	answered := time.Now()
	if err != nil {
		return nil, false, now, fmt.Errorf("lock due tasks of queue %s: %w", queue, err)
	}
	byID, size := make(map[protocol.ID]*Due, len(rows)), 0
	var read policies
	for _, r := range rows {
		if size += int(r.PayloadBytes); len(out) > 0 && size > maxDueBytes {
			cut = true
			break
		}
		l, err := s.locked(&dbsqlc.LockTasksRow{
			ID: r.ID, State: r.State, Attempt: r.Attempt, MaxRetries: r.MaxRetries, Delivery: r.Delivery,
			Interruptions: r.Interruptions, EventSeq: r.EventSeq, DueAt: r.DueAt, NextRetryAt: r.NextRetryAt,
			RetryPolicy: r.RetryPolicy, AppliedKind: r.AppliedKind, AppliedDelivery: r.AppliedDelivery,
			RejectedDelivery: r.RejectedDelivery, WorkerID: r.WorkerID, LastErrorCode: r.LastErrorCode,
			LastErrorReason: r.LastErrorReason, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, TraceID: r.TraceID,
			Queue: r.Queue, Name: r.Name, IdempotencyKey: r.IdempotencyKey, Type: r.Type, Now: r.Now,
			ExpiresAt: r.ExpiresAt, UnknownSince: r.UnknownSince, StartAt: r.StartAt, OpenDependencies: r.OpenDependencies,
			HasDependants: r.HasDependants, OnDependencyFailure: r.OnDependencyFailure,
			CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, ClaimedAt: r.ClaimedAt, ReadyAt: r.ReadyAt,
		}, &read)
		if err != nil {
			return nil, false, now, err
		}
		now = r.Now
		byID[l.ID] = &Due{Locked: l, Tenant: r.Tenant, EffectKey: Deref(r.EffectKey), EffectOwn: r.EffectOwn, Timeout: time.Duration(r.TimeoutMs) * time.Millisecond,
			HeartbeatTimeout: time.Duration(Deref(r.HeartbeatTimeoutMs)) * time.Millisecond, Scope: r.IdempotencyScope,
			ScheduleType: r.ScheduleType, ScheduledAt: r.ScheduledAt.Time, DelayMS: Deref(r.DelayMs), RequestedBy: r.RequestedBy,
			Scheduled: r.ScheduleID != nil, Approvals: r.Approvals, Payload: r.Payload}
		out = append(out, byID[l.ID])
	}
	var ids []pgid.ID
	for _, t := range out {
		if t.Payload == nil {
			ids = append(ids, pgid.ID(t.ID))
		}
	}
	if len(ids) == 0 {
		return out, cut, now.Add(time.Since(answered)), nil
	}
	payloads, err := q.Payloads(ctx, ids)
	if err != nil {
		return nil, false, now, fmt.Errorf("read %d payloads: %w", len(ids), err)
	}
	for _, p := range payloads {
		byID[protocol.ID(p.ID)].Payload = p.Payload
	}
	return out, cut, now.Add(time.Since(answered)), nil
}

// Deref returns *p, or the zero value if p is nil.
func Deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// Timestamptz is t as a nullable column; the zero time is null.
func Timestamptz(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}
