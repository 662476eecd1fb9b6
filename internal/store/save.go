package store

import (
	"context"
	"fmt"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

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
