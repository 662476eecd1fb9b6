// Package result applies outcomes: it reads stream:result in batches, lets the
// state machine decide under lock, stores tasks and events in one transaction,
// and acknowledges only after the commit.
package result

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/mutant"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// DeadLetters keeps stream entries that are no outcome.
type DeadLetters interface {
	Keep(ctx context.Context, letters []*protocol.DeadLetter) error
}

// Applied tells the other stages what a committed batch did.
type Applied struct {
	// Terminal lists tasks that reached a terminal state.
	Terminal []protocol.ID
	// Due is the earliest time at which a task became due; zero if none did.
	Due time.Time
	// Dead tells whether tasks were given up.
	Dead bool
	// Unknown lists tasks that were handed back because their type is unknown.
	Unknown []*store.Locked
}

// Options are the settings of a Stage.
type Options struct {
	Store       *store.Store
	Redis       *streams.Client
	DeadLetters DeadLetters
	// Consumer is the prefix of this process' consumer names.
	Consumer string
	// MaxBatch is the most outcomes of one transaction, Consumers how many
	// transactions may run at once.
	MaxBatch, Consumers int
	// TakeOver is how long another orchestrator may hold outcomes.
	TakeOver time.Duration
	Env      protocol.Env // Seed and MaxInterruptions; Now is Postgres'
	// Notify is called after each commit.
	Notify func(Applied)
	// Judged, if set, is called after Notify with the outcomes of the batch in
	// order, and their verdicts as penstock_outcomes_total has them.
	Judged func(ctx context.Context, judged iter.Seq2[*protocol.Outcome, string])
	// Lost, if set, is told that the group of stream:result was gone.
	Lost func(stream string)
	// Pulse, if set, is told how the loops fare.
	Pulse   *lifecycle.Pulse
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Stage applies outcomes.
type Stage struct {
	o        Options
	outcomes *prometheus.CounterVec
	batches  prometheus.Histogram
	turn     turn
}

// New makes a Stage; Run works until its context ends.
func New(o Options) *Stage {
	s := &Stage{
		o: o,
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_outcomes_total", Help: "Entries of stream:result, by kind and what became of them.",
		}, []string{"kind", "verdict"}),
		batches: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_result_batch_size", Help: "Outcomes applied in one transaction.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 512},
		}),
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.outcomes, s.batches)
	}
	return s
}

const (
	errorPause = 300 * time.Millisecond
	// quiet is how long a batch may take, and how long a store may be away,
	// before this process is not taken for ready.
	quiet = 10 * time.Second
)

// Run consumes until ctx ends; a batch that was read is finished first.
func (s *Stage) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	defer s.o.Redis.UnblockAt(gctx)()
	for i := range max(s.o.Consumers, 1) {
		beat := s.o.Pulse.Watch(fmt.Sprintf("result-%d", i), quiet, quiet)
		g.Go(func() error { return s.consume(gctx, fmt.Sprintf("%s-%d", s.o.Consumer, i), beat) })
	}
	g.Go(func() error { return s.takeOver(gctx) })
	return g.Wait()
}

func (s *Stage) consume(ctx context.Context, consumer string, beat *lifecycle.Beat) error {
	// A batch is finished even while stopping, so that nothing waits for
	// another orchestrator's takeover.
	work := context.WithoutCancel(ctx)
	from, count := streams.History, min(firstCount, s.o.MaxBatch)
	for ctx.Err() == nil {
		es, err := s.read(ctx, consumer, from, count)
		count = nextCount(count, s.o.MaxBatch, es, err)
		if err == nil && len(es) > 0 {
			err = s.handle(work, es)
		}
		switch {
		case err != nil:
			if ctx.Err() != nil {
				return nil
			}
			beat.Fail("outcomes cannot be read or applied")
			s.trouble(ctx, err)
			from = streams.History
			continue
		case len(es) == 0 && from != streams.Fresh:
			from = streams.Fresh
		}
		beat.Mark()
	}
	return s.leave(work, consumer)
}

func (s *Stage) leave(ctx context.Context, consumer string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := s.o.Redis.LeaveGroup(ctx, protocol.StreamResult, protocol.GroupOrchestrators, consumer); err != nil {
		s.o.Log.Debug("consumer not removed", "consumer", consumer, "error", err)
	}
	return nil
}

// trouble repairs a lost group or waits for a store to come back.
func (s *Stage) trouble(ctx context.Context, err error) {
	if streams.LostGroup(err) {
		var made bool
		made, err = s.o.Redis.CreateGroup(ctx, protocol.StreamResult, protocol.GroupOrchestrators)
		if made {
			s.o.Log.Warn("group of stream:result was missing; made anew at its beginning")
			if s.o.Lost != nil {
				s.o.Lost(protocol.StreamResult)
			}
		}
		if err == nil {
			return
		}
	}
	s.o.Log.Warn("outcomes wait", "error", err, "retry_in", errorPause)
	select {
	case <-ctx.Done():
	case <-time.After(errorPause):
	}
}

// takeOver relieves orchestrators that died with outcomes in hand.
func (s *Stage) takeOver(ctx context.Context) error {
	tick := time.NewTicker(max(s.o.TakeOver/5, 50*time.Millisecond))
	defer tick.Stop()
	consumer := s.o.Consumer + "-takeover"
	beat := s.o.Pulse.Watch("result-takeover", quiet+s.o.TakeOver, quiet+s.o.TakeOver)
	work := context.WithoutCancel(ctx)
	failing := false
	for {
		select {
		case <-ctx.Done():
			return s.leave(work, consumer)
		case <-tick.C:
		}
		from := "0-0"
		for from != "" && ctx.Err() == nil {
			es, ghosts, next, err := s.o.Redis.Claim(work, protocol.StreamResult, protocol.GroupOrchestrators, consumer, from, s.o.TakeOver)
			if err == nil && len(ghosts) > 0 {
				err = s.o.Redis.Ack(work, protocol.StreamResult, protocol.GroupOrchestrators, ghosts)
			}
			if err == nil && len(es) > 0 {
				s.o.Log.Info("took over outcomes of another orchestrator", "outcomes", len(es))
				err = s.handle(work, es)
			}
			if err != nil {
				if !streams.LostGroup(err) && ctx.Err() == nil && !failing {
					s.o.Log.Warn("outcomes not taken over; trying again", "error", err)
				}
				break
			}
			from = next
		}
		if failing = from != ""; !failing {
			beat.Mark()
		} else {
			beat.Fail("outcomes of others cannot be taken over")
		}
	}
}

type outcome struct {
	*protocol.Outcome
	entry string
}

// handle applies a batch and acknowledges it. It returns an error, with nothing
// acknowledged, if a store is away.
func (s *Stage) handle(ctx context.Context, es []streams.Entry) error {
	ids := make([]string, 0, len(es))
	outcomes := make([]outcome, 0, len(es))
	var garbage []*protocol.DeadLetter
	var garbageIDs []string
	for _, e := range es {
		if e.Values == nil { // deleted while pending
			ids = append(ids, e.ID)
			continue
		}
		o, err := decode(e.Values)
		if err == nil {
			ids = append(ids, e.ID)
			outcomes = append(outcomes, outcome{o, e.ID})
			continue
		}
		garbage = append(garbage, protocol.Garbage(protocol.StreamResult, e.ID, e.Values, err, time.Now()))
		garbageIDs = append(garbageIDs, e.ID)
		if o = unreadable(e.Values, err); o != nil {
			outcomes = append(outcomes, outcome{o, e.ID})
		}
	}
	// Outcomes first: garbage that can't be kept now must not hold them up.
	if err := s.applyAll(ctx, outcomes, es); err != nil {
		return err
	}
	if err := s.o.Redis.Ack(ctx, protocol.StreamResult, protocol.GroupOrchestrators, ids); err != nil || len(garbage) == 0 {
		return err
	}
	s.o.Log.Warn("entries of stream:result are no outcomes; kept as dead letters", "entries", len(garbage), "error", garbage[0].Error)
	if err := s.o.DeadLetters.Keep(ctx, garbage); err != nil {
		// It stays pending, and is taken over and tried again later: Redis that
		// is full takes no dead letter, but outcomes must go on.
		s.o.Log.Warn("garbage not kept; trying again later", "entries", len(garbage), "error", err)
		return nil
	}
	return s.o.Redis.Ack(ctx, protocol.StreamResult, protocol.GroupOrchestrators, garbageIDs)
}

// apply decides about outcomes. Before any is refused, those are left out that
// were applied before; see unapplied.
func (s *Stage) apply(ctx context.Context, outcomes []outcome) error {
	refused, err := s.decideAll(ctx, outcomes, false)
	if err != nil || len(refused) == 0 {
		return err
	}
	if outcomes, err = s.unapplied(ctx, outcomes, refused); err != nil || len(outcomes) == 0 {
		return err
	}
	_, err = s.decideAll(ctx, outcomes, true)
	return err
}

// decideAll decides about outcomes in one transaction. Unless all are known to
// be new, it stores nothing if some would be refused, and returns their places.
func (s *Stage) decideAll(ctx context.Context, outcomes []outcome, known bool) (refused []int, err error) {
	s.batches.Observe(float64(len(outcomes)))
	seen := make(map[protocol.ID]bool, len(outcomes))
	ids := make([]protocol.ID, 0, len(outcomes))
	for _, o := range outcomes {
		if !seen[o.ID] {
			seen[o.ID] = true
			ids = append(ids, o.ID)
		}
	}
	var applied Applied
	verdicts := make([]string, len(outcomes))
	err = s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		if err := checkEffects(ctx, q, outcomes); err != nil {
			return err
		}
		var asked []*store.Ask
		var failed error
		err := s.o.Store.DecideTx(ctx, q, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) ([]*store.Locked, []*protocol.Event) {
			applied, refused = Applied{}, nil
			changed, events := s.decide(now, tasks, outcomes, verdicts, &applied)
			for i, v := range verdicts {
				if !known && v == protocol.Rejected.String() {
					refused = append(refused, i)
				}
			}
			if len(refused) > 0 {
				return nil, nil
			}
			if asked, failed = asks(ctx, q, events); failed != nil {
				return nil, nil
			}
			return changed, events
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		return store.AskAll(ctx, q, asked)
	})
	if err != nil || len(refused) > 0 {
		return refused, err
	}
	crashpoint.Here("result.committed")
	for i, o := range outcomes {
		s.outcomes.WithLabelValues(string(o.Kind), verdicts[i]).Inc()
	}
	s.o.Notify(applied)
	if s.o.Judged != nil {
		s.o.Judged(ctx, func(yield func(*protocol.Outcome, string) bool) {
			for i, o := range outcomes {
				if !yield(o.Outcome, verdicts[i]) {
					return
				}
			}
		})
	}
	return nil, nil
}

func (s *Stage) decide(now time.Time, tasks map[protocol.ID]*store.Locked, outcomes []outcome, verdicts []string, applied *Applied) ([]*store.Locked, []*protocol.Event) {
	env := s.o.Env
	env.Now = now
	changed := make([]*store.Locked, 0, len(tasks))
	events := make([]*protocol.Event, 0, 2*len(outcomes))
	first := make(map[protocol.ID]int, len(tasks)) // seq before this batch
	for i, o := range outcomes {
		t := tasks[o.ID]
		if t == nil {
			verdicts[i] = "unknown_task"
			continue
		}
		if _, ok := first[o.ID]; !ok {
			first[o.ID] = t.Seq
		}
		if mutant.On(mutant.FenceIgnored) {
			o.Delivery = t.Delivery
		}
		ev, v := t.ApplyOutcome(o.Outcome, env)
		verdicts[i] = v.String()
		events = append(events, ev...)
	}
	for id, seq := range first {
		t := tasks[id]
		if t.Seq == seq {
			continue
		}
		changed = append(changed, t)
		if t.State == protocol.StateInterrupted && !t.UnknownSince.IsZero() {
			applied.Unknown = append(applied.Unknown, t)
		}
		switch {
		case t.State.Terminal():
			applied.Terminal = append(applied.Terminal, id)
		case t.State == protocol.StateDLQPending:
			applied.Dead = true
		case !t.DueAt.IsZero() && (applied.Due.IsZero() || t.DueAt.Before(applied.Due)):
			applied.Due = t.DueAt
		}
	}
	return changed, events
}
