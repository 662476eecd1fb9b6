// Package deadletter finishes the dead-letter sub-flow: what a stage gave up
// (dlq_pending, with its dlq_items row) is written to stream:dlq, then
// recorded, then failed. It also keeps stream entries that are no task.
package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/lifecycle"
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
	// TakeOver is how long another orchestrator may hold entries of stream:dlq.
	TakeOver time.Duration
	Env      protocol.Env
	// Failed is told which tasks became failed.
	Failed func(ids []protocol.ID)
	// Lost, if set, is told that the group of stream:dlq was gone.
	Lost func(stream string)
	// Pulse, if set, is told how the loops fare.
	Pulse   *lifecycle.Pulse
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Stage writes dead letters.
type Stage struct {
	o       Options
	now     chan struct{}
	letters *prometheus.CounterVec

	// Of Sweep alone.
	count  int // how many to read, with their payloads
	writer writer
}

// New makes a Stage.
func New(o Options) *Stage {
	s := &Stage{o: o, count: streams.FirstPage, writer: newWriter(o.Redis), now: make(chan struct{}, 1), letters: prometheus.NewCounterVec(prometheus.CounterOpts{
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
	maxPause   = 15 * time.Second
	batch      = 200
	// quiet is how long a batch may take, and how long dead letters may have to
	// wait, before this process is not taken for ready.
	quiet = 10 * time.Second
)

// Run finishes sub-flows until ctx ends.
func (s *Stage) Run(ctx context.Context) error {
	beat := s.o.Pulse.Watch("dead letters", s.o.Sweep+quiet, quiet)
	pause, retry, kick := time.Duration(0), errorPause, s.now
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-kick:
		case <-time.After(pause):
		}
		pause, kick = s.o.Sweep, s.now
		for n := 1; n > 0; {
			var err error
			if n, err = s.Sweep(ctx); err == nil {
				beat.Mark()
				retry = errorPause
				continue
			}
			beat.Fail("cannot be written")
			if ctx.Err() == nil {
				s.o.Log.Warn("dead letters wait", "error", err, "retry_in", retry)
			}
			pause, kick = retry, nil // what fails is not tried more often because there is more of it
			retry = min(2*retry, maxPause)
		}
	}
}

// Sweep finishes up to a batch of sub-flows and returns how many. The rows
// stay locked while stream:dlq is written, so that replicas do not write the
// same one at once; after a crash in between it is written again with the same
// dlq_id.
func (s *Stage) Sweep(ctx context.Context) (n int, err error) {
	var failed, dlqIDs []protocol.ID
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		rows, err := q.LockUnrecordedDead(ctx, int32(min(s.count, batch))) //nolint:gosec // at most batch
		if err != nil {
			return fmt.Errorf("read dead letters: %w", err)
		}
		n, failed, dlqIDs = len(rows), nil, nil
		size := 0
		for _, r := range rows {
			size += len(r.Payload)
		}
		s.count = streams.PageOf(n, size)
		if n == 0 {
			return nil
		}
		crashpoint.Here("deadletter.locked")
		dlq := make([]pgid.ID, n)
		ids := make([]protocol.ID, n)
		letters := make([]*protocol.DeadLetter, n)
		ended := make(map[protocol.ID]time.Time, n)
		for i, r := range rows {
			id := protocol.ID(*r.TaskID)
			ended[id] = r.EndedAt
			letter := &protocol.DeadLetter{
				DLQID: protocol.ID(r.DlqID), ID: id, TaskID: store.TaskID(id, store.Deref(r.Name)),
				Type: store.Deref(r.Type), Tenant: r.Tenant, Payload: r.Payload, Code: protocol.Code(r.ErrorCode),
				Error: r.Error, RetryCount: int(r.RetryCount), FailedAt: r.FailedAt,
			}
			letters[i], dlq[i], ids[i] = letter, r.DlqID, id
			dlqIDs = append(dlqIDs, letter.DLQID)
		}
		entries, err := s.writer.write(ctx, letters)
		if err != nil {
			return err
		}
		crashpoint.Here("deadletter.appended")
		err = s.o.Store.DecideTx(ctx, q, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
			env := s.o.Env
			env.Now = now
			for _, t := range tasks {
				t.EndedAt = ended[t.ID]
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
		crashpoint.Here("deadletter.decided")
		return q.MarkDeadRecorded(ctx, dlq, entries)
	})
	if err != nil {
		return 0, err
	}
	s.writer.recorded(dlqIDs)
	if len(failed) > 0 {
		crashpoint.Here("deadletter.committed")
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
	entries, err := s.append(ctx, values)
	if err != nil {
		return err
	}
	crashpoint.Here("deadletter.kept_appended")
	if err := s.record(ctx, letters, entries); err != nil {
		return err
	}
	crashpoint.Here("deadletter.kept_inserted")
	return nil
}

// append adds entries to stream:dlq and returns their ids.
func (s *Stage) append(ctx context.Context, values [][]any) ([]string, error) {
	ids := make([]string, len(values))
	for i, a := range s.o.Redis.Append(ctx, protocol.StreamDLQ, values) {
		if a.Err != nil {
			return nil, a.Err
		}
		ids[i] = a.ID
	}
	return ids, nil
}

func (s *Stage) record(ctx context.Context, letters []*protocol.DeadLetter, entries []string) error {
	var p dbsqlc.InsertDeadEntriesParams
	for i, l := range letters {
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
		p.Fingerprints = append(p.Fingerprints, protocol.Fingerprint("", l.Code, l.Error))
		p.EntryIds = append(p.EntryIds, entries[i])
	}
	if err := s.o.Store.InsertDeadEntries(ctx, p); err != nil {
		return fmt.Errorf("keep %d dead entries: %w", len(letters), err)
	}
	s.letters.WithLabelValues("entry").Add(float64(len(letters)))
	return nil
}
