package alert

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// row holds the outcomes that this process refused since it last applied one.
type row struct {
	mu      sync.Mutex
	refused []refusal // oldest first
	found   int       // the longest row that is not raised yet; 0: none
}

// refusal is an outcome that was refused.
type refusal struct {
	id       protocol.ID
	delivery int64
	kind     protocol.OutcomeKind
	at       time.Time
	checked  bool // against the log: it is no repeat
}

// applied stands between refusals for outcomes that were applied.
var applied = refusal{}

// checkTimeout bounds how long a look into the event log may hold up the
// outcomes that follow.
const checkTimeout = 2 * time.Second

// Judged takes what became of a committed batch of outcomes, in order, with
// verdicts as in penstock_outcomes_total. A repeat of an outcome that was
// applied may be refused like any other, because a task remembers only the
// last one; where a row becomes long enough to raise the alert, the event log
// tells. If it can't be read, the row is forgotten.
func (s *Stage) Judged(ctx context.Context, judged iter.Seq2[*protocol.Outcome, string]) {
	if s.o.Interval == 0 {
		return
	}
	s.row.mu.Lock()
	defer s.row.mu.Unlock()
	batch, refused := s.row.read(judged)
	if refused == 0 {
		if len(batch) > 0 {
			s.row.refused = nil
		}
		return
	}
	s.row.expire(time.Now().Add(-s.o.Window))
	if len(s.row.refused)+refused >= s.o.InvalidInARow {
		var err error
		if s.row.refused, batch, err = s.withoutRepeats(ctx, s.row.refused, batch); err != nil {
			s.o.Log.Debug("refused outcomes not counted", "error", err)
			s.row.refused = nil
			return
		}
	}
	if s.row.add(batch, s.o.InvalidInARow) {
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
}

// read returns the refusals of a batch, with one mark where outcomes were
// applied between them, and how many refusals there are.
func (r *row) read(judged iter.Seq2[*protocol.Outcome, string]) (batch []refusal, refused int) {
	now := time.Now()
	for o, verdict := range judged {
		switch verdict {
		case protocol.Applied.String():
			if len(batch) == 0 || batch[len(batch)-1] != applied {
				batch = append(batch, applied)
			}
		case protocol.Rejected.String():
			batch = append(batch, refusal{id: o.ID, delivery: o.Delivery, kind: o.Kind, at: now})
			refused++
		}
	}
	return batch, refused
}

// expire forgets refusals from before a time.
func (r *row) expire(before time.Time) {
	for len(r.refused) > 0 && r.refused[0].at.Before(before) {
		r.refused = r.refused[1:]
	}
}

// add appends a batch and reports whether it made a row of at least length.
// What made one is counted once: the next row starts after it.
func (r *row) add(batch []refusal, length int) (long bool) {
	end := func() {
		if n := len(r.refused); n >= length {
			r.found, r.refused, long = max(r.found, n), nil, true
		}
	}
	for _, x := range batch {
		if x == applied {
			end()
			r.refused = nil
			continue
		}
		r.refused = append(r.refused, x)
	}
	end()
	return long
}

// take returns the longest row that is not raised yet, and forgets it.
func (r *row) take() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.found
	r.found = 0
	return n
}

// putBack is for what could not be raised.
func (r *row) putBack(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found = max(r.found, n)
}

type outcomeKey struct {
	id       protocol.ID
	delivery int64
	kind     protocol.OutcomeKind
}

func (x refusal) key() outcomeKey { return outcomeKey{x.id, x.delivery, x.kind} }

// withoutRepeats looks up refusals in the event log and returns both lists
// without those that are no illegal moves.
func (s *Stage) withoutRepeats(ctx context.Context, row, batch []refusal) (_, _ []refusal, err error) {
	var p dbsqlc.OutcomesOnRecordParams
	for _, list := range [][]refusal{row, batch} {
		for _, x := range list {
			if x != applied && !x.checked {
				p.Ids = append(p.Ids, pgid.ID(x.id))
				p.Deliveries = append(p.Deliveries, x.delivery)
				p.Kinds = append(p.Kinds, string(x.kind))
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	rows, err := s.o.Store.OutcomesOnRecord(ctx, p)
	if err != nil {
		return nil, nil, fmt.Errorf("look up %d refused outcomes: %w", len(p.Ids), err)
	}
	known := make(map[outcomeKey]bool, len(rows))
	for _, r := range rows {
		known[outcomeKey{protocol.ID(r.ID), r.Delivery, protocol.OutcomeKind(r.Kind)}] = true
	}
	return unknown(row, known), unknown(batch, known), nil
}

func unknown(list []refusal, known map[outcomeKey]bool) []refusal {
	kept := make([]refusal, 0, len(list))
	for _, x := range list {
		switch {
		case x == applied:
			kept = append(kept, x)
		case !known[x.key()]:
			x.checked = true
			kept = append(kept, x)
		}
	}
	return kept
}
