// Package deadletter finishes the dead-letter sub-flow: what a stage gave up
// (dlq_pending, with its dlq_items row) is written to stream:dlq, then
// recorded, then failed. It also keeps stream entries that are no task.
package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Options are the settings of a Stage.
type Options struct {
	Store *store.Store
	Redis *streams.Client
	// Consumer is this process' consumer name on stream:dlq.
	Consumer string
	// Sweep is how often to look for dead letters that a crash left.
	Sweep time.Duration
	Env   protocol.Env
	// Failed is told which tasks became failed.
	Failed  func(ids []protocol.ID)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Stage writes dead letters.
type Stage struct {
	o       Options
	now     chan struct{}
	letters *prometheus.CounterVec
}

// New makes a Stage.
func New(o Options) *Stage {
	s := &Stage{o: o, now: make(chan struct{}, 1), letters: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_dead_letters_total", Help: "Dead letters written, by what they are about.",
	}, []string{"about"})}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.letters)
	}
	return s
}

// Kick asks for a look at once.
func (s *Stage) Kick() {
	select {
	case s.now <- struct{}{}:
	default:
	}
}

const (
	errorPause = 500 * time.Millisecond
	batch      = 200
)

// Run finishes sub-flows until ctx ends.
func (s *Stage) Run(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.now:
		case <-time.After(pause):
		}
		pause = s.o.Sweep
		for n := batch; n == batch; {
			var err error
			if n, err = s.Sweep(ctx); err != nil {
				if ctx.Err() == nil {
					s.o.Log.Warn("dead letters wait", "error", err, "retry_in", errorPause)
				}
				pause = errorPause
			}
		}
	}
}

// Sweep finishes up to a batch of sub-flows and returns how many. The rows
// stay locked while stream:dlq is written, so that replicas do not write the
// same one at once; after a crash in between it is written again with the same
// dlq_id.
func (s *Stage) Sweep(ctx context.Context) (n int, err error) {
	var failed []protocol.ID
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		rows, err := q.LockUnrecordedDead(ctx)
		if err != nil {
			return fmt.Errorf("read dead letters: %w", err)
		}
		n, failed = len(rows), nil
		if n == 0 {
			return nil
		}
		values := make([][]any, n)
		dlq := make([]pgid.ID, n)
		ids := make([]protocol.ID, n)
		for i, r := range rows {
			id := protocol.ID(*r.TaskID)
			letter := &protocol.DeadLetter{
				DLQID: protocol.ID(r.DlqID), ID: id, TaskID: store.TaskID(id, store.Deref(r.Name)),
				Type: store.Deref(r.Type), Tenant: r.Tenant, Payload: r.Payload, Code: protocol.Code(r.ErrorCode),
				Error: r.Error, RetryCount: int(r.RetryCount), FailedAt: r.FailedAt,
			}
			values[i], dlq[i], ids[i] = letter.Values(), r.DlqID, id
		}
		for _, a := range s.o.Redis.Append(ctx, protocol.StreamDLQ, values) {
			if a.Err != nil {
				return a.Err
			}
		}
		err = s.o.Store.DecideTx(ctx, q, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
			env := s.o.Env
			env.Now = now
			for _, t := range tasks {
				if ev, ok := t.RecordDeadLetter(env); ok {
					changed, events = append(changed, t), append(events, ev...)
					failed = append(failed, t.ID)
				}
			}
			return changed, events
		})
		if err != nil {
			return err
		}
		return q.MarkDeadRecorded(ctx, dlq)
	})
	if err != nil {
		return 0, err
	}
	if len(failed) > 0 {
		s.letters.WithLabelValues("task").Add(float64(len(failed)))
		s.o.Failed(failed)
	}
	return n, nil
}

// Keep stores stream entries that are no task: first in stream:dlq, then in
// dlq_items. Keeping the same entry twice stores it once.
func (s *Stage) Keep(ctx context.Context, letters []*protocol.DeadLetter) error {
	values := make([][]any, len(letters))
	for i, l := range letters {
		values[i] = l.Values()
	}
	for _, a := range s.o.Redis.Append(ctx, protocol.StreamDLQ, values) {
		if a.Err != nil {
			return a.Err
		}
	}
	return s.record(ctx, letters)
}

func (s *Stage) record(ctx context.Context, letters []*protocol.DeadLetter) error {
	var p dbsqlc.InsertDeadEntriesParams
	for _, l := range letters {
		raw, err := json.Marshal(l.Raw)
		if err != nil {
			return fmt.Errorf("dead letter %s: %w", l.DLQID, err)
		}
		p.DlqIds = append(p.DlqIds, pgid.ID(l.DLQID))
		p.Codes = append(p.Codes, string(l.Code))
		p.Errors = append(p.Errors, l.Error)
		p.FailedAts = append(p.FailedAts, l.FailedAt)
		p.Streams = append(p.Streams, l.Stream)
		p.MessageIds = append(p.MessageIds, l.MessageID)
		p.Raws = append(p.Raws, string(raw))
	}
	if err := s.o.Store.InsertDeadEntries(ctx, p); err != nil {
		return fmt.Errorf("keep %d dead entries: %w", len(letters), err)
	}
	s.letters.WithLabelValues("entry").Add(float64(len(letters)))
	return nil
}

// RunIngest follows stream:dlq until ctx ends and keeps in Postgres what
// others wrote there: dead letters of workers for entries that are no task,
// and anything that is no dead letter at all. Acknowledged entries stay in the
// stream.
func (s *Stage) RunIngest(ctx context.Context) error {
	work := context.WithoutCancel(ctx)
	from := streams.History
	for ctx.Err() == nil {
		es, err := s.o.Redis.Read(work, protocol.StreamDLQ, protocol.GroupOrchestrators, s.o.Consumer, from, batch)
		if err == nil && len(es) > 0 {
			err = s.ingest(work, es)
		}
		if streams.LostGroup(err) {
			err = s.o.Redis.CreateGroup(work, protocol.StreamDLQ, protocol.GroupOrchestrators)
		}
		switch {
		case err != nil:
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

var errForeign = errors.New("a dead letter about no task")

func (s *Stage) ingest(ctx context.Context, es []streams.Entry) error {
	ids := make([]string, len(es))
	var keep []*protocol.DeadLetter
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
		if l.Raw == nil { // not written by us: nothing of it may be lost
			l.Raw = protocol.Garbage(protocol.StreamDLQ, e.ID, e.Values, errForeign, time.Now()).Raw
		}
		keep = append(keep, l)
	}
	if len(keep) > 0 {
		if err := s.record(ctx, keep); err != nil {
			return err
		}
	}
	return s.o.Redis.Ack(ctx, protocol.StreamDLQ, protocol.GroupOrchestrators, ids)
}
