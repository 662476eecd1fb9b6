package deadletter

import (
	"context"
	"errors"
	"time"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// RunIngest follows stream:dlq until ctx ends and keeps in Postgres what
// others wrote there: dead letters of workers for entries that are no task,
// and anything that is no dead letter at all. Acknowledged entries stay in the
// stream.
func (s *Stage) RunIngest(ctx context.Context) error {
	work := context.WithoutCancel(ctx)
	defer s.o.Redis.UnblockAt(ctx)()
	from := streams.History
	beat := s.o.Pulse.Watch("stream:dlq", quiet, quiet)
	var relieved time.Time
	count := streams.FirstPage
	for ctx.Err() == nil {
		if time.Since(relieved) >= s.o.TakeOver {
			relieved = time.Now()
			if err := s.relieve(work); err != nil && !streams.LostGroup(err) {
				s.o.Log.Warn("dead letters of another orchestrator not taken over; trying again", "error", err)
			}
		}
		es, err := s.o.Redis.Read(work, protocol.StreamDLQ, protocol.GroupOrchestrators, s.o.Consumer, from, min(count, batch))
		if count = streams.Page(es); err != nil {
			count = 1 // perhaps more than arrives in time
		}
		if err == nil && len(es) > 0 {
			err = s.ingest(work, es)
		}
		if streams.LostGroup(err) {
			var made bool
			if made, err = s.o.Redis.CreateGroup(work, protocol.StreamDLQ, protocol.GroupOrchestrators); made && s.o.Lost != nil {
				s.o.Lost(protocol.StreamDLQ)
			}
		}
		if err == nil {
			beat.Mark()
		}
		switch {
		case err != nil:
			beat.Fail("cannot be followed")
			if ctx.Err() == nil {
				s.o.Log.Warn("stream:dlq waits", "error", err, "retry_in", errorPause)
			}
			from = streams.History
			select {
			case <-ctx.Done():
			case <-time.After(errorPause):
			}
		case len(es) == 0 && from != streams.Fresh:
			from = streams.Fresh
		}
	}
	leave, cancel := context.WithTimeout(work, 2*time.Second)
	defer cancel()
	if _, err := s.o.Redis.LeaveGroup(leave, protocol.StreamDLQ, protocol.GroupOrchestrators, s.o.Consumer); err != nil {
		s.o.Log.Debug("consumer not removed", "consumer", s.o.Consumer, "error", err)
	}
	return nil
}

// relieve keeps what an orchestrator read and did not live to acknowledge.
func (s *Stage) relieve(ctx context.Context) error {
	for from := "0-0"; from != ""; {
		es, ghosts, next, err := s.o.Redis.Claim(ctx, protocol.StreamDLQ, protocol.GroupOrchestrators, s.o.Consumer, from, s.o.TakeOver)
		if err == nil {
			err = s.o.Redis.Ack(ctx, protocol.StreamDLQ, protocol.GroupOrchestrators, ghosts)
		}
		if err == nil && len(es) > 0 {
			err = s.ingest(ctx, es)
		}
		if err != nil {
			return err
		}
		from = next
	}
	return nil
}

var errForeign = errors.New("a dead letter about no task")

func (s *Stage) ingest(ctx context.Context, es []streams.Entry) error {
	ids := make([]string, len(es))
	var keep []*protocol.DeadLetter
	var kept []string
	for i, e := range es {
		ids[i] = e.ID
		if e.Values == nil {
			continue
		}
		l, err := protocol.DecodeDeadLetter(e.Values)
		if err != nil {
			l = protocol.Garbage(protocol.StreamDLQ, e.ID, e.Values, err, time.Now())
		}
		if !l.ID.IsZero() && l.DLQID == protocol.DLQID(l.ID) {
			continue // a task's own dead letter is in dlq_items already
		}
		foreign := protocol.Garbage(protocol.StreamDLQ, e.ID, e.Values, errForeign, time.Now())
		if l.DLQID[0] != protocol.EntryIDByte { // chosen by a stranger, it could be some task's or its dead letter's
			l.DLQID, l.Raw, l.Stream, l.MessageID = foreign.DLQID, nil, foreign.Stream, foreign.MessageID
		}
		if l.Raw == nil { // not written by us: nothing of it may be lost
			l.Raw = foreign.Raw
		}
		keep, kept = append(keep, l), append(kept, e.ID)
	}
	if len(keep) > 0 {
		crashpoint.Here("deadletter.ingest_read")
		if err := s.record(ctx, keep, kept); err != nil {
			return err
		}
		crashpoint.Here("deadletter.ingest_recorded")
	}
	return s.o.Redis.Ack(ctx, protocol.StreamDLQ, protocol.GroupOrchestrators, ids)
}
