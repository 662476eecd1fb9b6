package worker

import (
	"context"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// An entry whose type this worker does not know is offered to those that do, if
// one lives: it stays pending, and this worker keeps its lease, until another one
// takes it over. Nobody else learns of it: no outcome, no event, no other delivery.
// Whoever removed the offer from its list may act on the entry (see
// streams.Offer). So this worker removes it before it renews the lease, and before
// it hands the entry back, which it does when no worker that lives knows the type
// any more, and when it stops. An offer that is gone was taken: the entry is left
// alone from then on, to be reclaimed if the one who took it died.

const (
	// maxOffers bounds what one worker offers at a time; what is beyond is handed
	// back at once.
	maxOffers = 1000
	// offersInterval is how often what is offered is looked at.
	offersInterval = 250 * time.Millisecond
	// offersTTL is how long a list of offers outlives the last look of a worker
	// that has offers in it.
	offersTTL = 10 * time.Minute
)

// offer is one entry.
type offer struct {
	x       *execution
	kind    streams.Kind
	outcome *protocol.Outcome // of handing it back
	renewed time.Time
	taken   bool // the entry is not this worker's to act on any more
}

func (o *offer) wire(w *Worker) streams.Offer { return streams.Offer{ID: o.x.entryID, Holder: w.id} }

// offers are the entries that this worker offers.
type offers struct {
	kick chan struct{}

	work sync.Mutex // held by who does anything with them in Redis
	open []*offer

	mu     sync.Mutex
	fresh  []*offer
	count  int
	closed bool
}

// offer hands an entry of an unknown type on, or back. x has its outcome; a place
// among the unsettled is held.
func (w *Worker) offer(x *execution, queue string, outcome *protocol.Outcome) {
	s := &w.offers
	s.mu.Lock()
	room := !s.closed && s.count < maxOffers
	if room {
		s.count++
		s.fresh = append(s.fresh, &offer{x: x, kind: streams.Kind{Queue: queue, Type: x.task.Type}, outcome: outcome, renewed: time.Now()})
	}
	s.mu.Unlock()
	if !room {
		x.offered(w, outcome)
		return
	}
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// keepOffers looks after the offers until ctx ends. While there are none it does
// nothing.
func (w *Worker) keepOffers(ctx context.Context) {
	tick := time.NewTicker(offersInterval)
	defer tick.Stop()
	for {
		var look <-chan time.Time
		w.offers.work.Lock()
		if len(w.offers.open) > 0 {
			look = tick.C
		}
		w.offers.work.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-w.offers.kick:
			w.offerFresh(ctx)
		case <-look:
			w.lookAtOffers(ctx)
		}
	}
}

// offerFresh offers what has come since the last time, if a worker that knows the
// type lives.
func (w *Worker) offerFresh(ctx context.Context) {
	s := &w.offers
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	fresh := byKind(s.fresh)
	s.fresh = nil
	s.mu.Unlock()
	known := w.known(ctx, fresh)
	for k, os := range fresh {
		if known[k] {
			w.push(ctx, k, os)
			s.open = append(s.open, os...)
		} else {
			w.handBackOffers(os)
		}
	}
	s.tidy()
}

func byKind(os []*offer) map[streams.Kind][]*offer {
	out := map[streams.Kind][]*offer{}
	for _, o := range os {
		out[o.kind] = append(out[o.kind], o)
	}
	return out
}

// known tells which kinds a living worker knows; none if Redis does not tell.
func (w *Worker) known(ctx context.Context, kinds map[streams.Kind][]*offer) map[streams.Kind]bool {
	out := map[streams.Kind]bool{}
	if len(kinds) == 0 {
		return out
	}
	ks := make([]streams.Kind, 0, len(kinds))
	for k := range kinds {
		ks = append(ks, k)
	}
	yes, err := w.redis.Known(ctx, ks)
	if err != nil {
		w.o.Log.Warn("not known which types other workers know; tasks of unknown types are handed back", "error", err)
		return out
	}
	for i, k := range ks {
		out[k] = yes[i]
	}
	return out
}

// push offers entries. What may or may not have been offered is not this worker's
// any more.
func (w *Worker) push(ctx context.Context, k streams.Kind, os []*offer) {
	wire := make([]streams.Offer, len(os))
	for i, o := range os {
		wire[i] = o.wire(w)
	}
	err := w.redis.Offer(ctx, k, wire, offersTTL)
	if err == nil {
		w.o.Log.Debug("tasks offered to workers that know their type", "queue", k.Queue, "type", k.Type, "tasks", len(os))
		return
	}
	w.o.Log.Warn("tasks of an unknown type not offered", "queue", k.Queue, "type", k.Type, "tasks", len(os), "error", err)
	if streams.Ambiguous(err) {
		for _, o := range os {
			o.taken = true
		}
		return
	}
	w.handBackOffers(os)
}

// handBackOffers hands entries back that are this worker's to act on.
func (w *Worker) handBackOffers(os []*offer) {
	for _, o := range os {
		w.o.Log.Warn("task handed back: no worker that lives has a handler for its type", "type", o.kind.Type, "queue", o.kind.Queue, "task_id", o.x.task.TaskID)
		o.x.offered(w, o.outcome)
		o.x = nil
	}
}

// offered ends an offer by reporting its outcome.
func (x *execution) offered(w *Worker, o *protocol.Outcome) {
	x.mu.Lock()
	x.offer = false
	x.mu.Unlock()
	w.submit(x, o)
}

// tidy drops offers that are over.
func (s *offers) tidy() {
	open := s.open[:0]
	for _, o := range s.open {
		if o.x != nil {
			open = append(open, o)
		}
	}
	clear(s.open[len(open):])
	s.open = open
	s.mu.Lock()
	s.count = len(s.open) + len(s.fresh)
	s.mu.Unlock()
}

// lookAtOffers finds what was taken, what nobody knows any more, and what is to be
// renewed.
func (w *Worker) lookAtOffers(ctx context.Context) {
	s := &w.offers
	s.work.Lock()
	defer s.work.Unlock()
	kinds := byKind(s.open)
	known := w.known(ctx, kinds)
	for k, os := range kinds {
		if err := w.lookAtKind(ctx, k, os, known[k]); err != nil {
			w.o.Log.Warn("offered tasks not looked at; trying again", "queue", k.Queue, "type", k.Type, "error", err)
		}
	}
	s.tidy()
}

func (w *Worker) lookAtKind(ctx context.Context, k streams.Kind, os []*offer, known bool) error {
	there, all, err := w.redis.Offered(ctx, k, offersTTL)
	if err != nil {
		return err
	}
	var due []*offer
	for _, o := range os {
		switch {
		case all && !there[o.wire(w)]:
			o.taken = true
		case !o.taken && (!known || time.Since(o.renewed) >= w.o.VisibilityTimeout/3):
			due = append(due, o)
		}
	}
	if err := w.forgetTaken(ctx, k, os); err != nil || len(due) == 0 {
		return err
	}
	mine, err := w.withdraw(ctx, k, due)
	if err != nil {
		return err
	}
	if !known {
		w.handBackOffers(mine)
		return nil
	}
	return w.renewOffers(ctx, k, mine)
}

// withdraw takes offers back and returns those that it got.
func (w *Worker) withdraw(ctx context.Context, k streams.Kind, os []*offer) (mine []*offer, err error) {
	wire := make([]streams.Offer, len(os))
	for i, o := range os {
		wire[i] = o.wire(w)
	}
	got, err := w.redis.Withdraw(ctx, k, wire)
	for i, o := range os {
		if got[i] {
			mine = append(mine, o)
		} else {
			o.taken = true
		}
	}
	if len(mine) > 0 {
		err = nil // of those that are not this worker's any more
	}
	return mine, err
}

// renewOffers renews the leases of what was withdrawn, and offers it again.
func (w *Worker) renewOffers(ctx context.Context, k streams.Kind, os []*offer) error {
	ids := make([]string, len(os))
	for i, o := range os {
		ids[i] = o.x.entryID
	}
	if len(ids) == 0 {
		return nil
	}
	stream := protocol.TaskStream(k.Queue)
	owned, err := w.redis.Owned(ctx, stream, protocol.GroupWorkers, w.id, ids)
	if err != nil {
		for _, o := range os { // nobody has them now: they are reclaimed
			o.taken = true
		}
		return err
	}
	var held []*offer
	ids = ids[:0]
	for i, o := range os {
		if owned[i] == streams.Held {
			held, ids = append(held, o), append(ids, o.x.entryID)
		} else {
			o.taken = true
		}
	}
	if _, err := w.redis.Renew(ctx, stream, protocol.GroupWorkers, w.id, ids); err != nil {
		w.o.Log.Warn("leases of offered tasks not renewed", "queue", k.Queue, "type", k.Type, "error", err)
	}
	for _, o := range held {
		o.renewed = time.Now()
	}
	w.push(ctx, k, held)
	return nil
}

// forgetTaken forgets entries that others took over.
func (w *Worker) forgetTaken(ctx context.Context, k streams.Kind, os []*offer) error {
	var taken []*offer
	var ids []string
	for _, o := range os {
		if o.taken {
			taken, ids = append(taken, o), append(ids, o.x.entryID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	owned, err := w.redis.Owned(ctx, protocol.TaskStream(k.Queue), protocol.GroupWorkers, w.id, ids)
	if err != nil {
		return err
	}
	for i, o := range taken {
		if owned[i] != streams.Held {
			w.forget(o.x)
			o.x = nil
		}
	}
	return nil
}

// closeOffers hands back what is offered: this worker stops, and its entries would
// have to wait for the visibility timeout. What comes from now on is handed back at
// once.
func (w *Worker) closeOffers(ctx context.Context) {
	s := &w.offers
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	s.closed = true
	fresh := s.fresh
	s.fresh = nil
	s.mu.Unlock()
	end := func(os []*offer) {
		for _, o := range os {
			o.outcome.Code, o.outcome.Error = "", "the worker stopped while it offered the task to those that know its type"
			o.x.offered(w, o.outcome)
			o.x = nil
		}
	}
	end(fresh)
	var open []*offer
	for _, o := range s.open {
		if !o.taken {
			open = append(open, o)
		}
	}
	for k, os := range byKind(open) {
		mine, err := w.withdraw(ctx, k, os)
		if err != nil {
			w.o.Log.Warn("offered tasks not withdrawn; those that nobody takes run again after the visibility timeout", "queue", k.Queue, "type", k.Type, "error", err)
		}
		end(mine)
	}
	s.tidy()
}

func (x *execution) isOffered() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.offer
}
