package main

import (
	"fmt"

	"github.com/penstock-dev/penstock/protocol"
)

// step is what can happen next to one task.
type step struct {
	to    uint32 // block
	fault uint8  // index of its fault, 0: none
	need  need
	// order is the place in the schedule that the liveness check follows;
	// never: not part of it.
	order uint8
	bad   uint8 // index into model.bad, 0: none
}

// need is what must be so, outside of the block, for a step to be possible.
type need uint8

const (
	needIdle    need = 1 << iota // a worker has a free slot
	needGroup                    // the task stream has its group
	needNoGroup                  // it has not
	needCancel                   // a cancellation is left
	needRelease                  // a hand-back is left
	// joint: the fault may strike both tasks at once.
	joint
)

// The schedule of the liveness check: the smallest enabled order goes first.
const (
	orderApply uint8 = iota
	orderWorker
	orderLate
	orderOutbox
	orderRebuild
	orderFetch
	orderReclaim
	orderDispatch
	orderDead
	orderPass
	orderNewPass
	never = 255
)

// generator makes the steps of one block.
type generator struct {
	m      *model
	from   block
	class  class
	out    []step
	names  bool // make labels
	labels []string
	fault  Fault
	need   need
}

// add makes a step. It costs g.fault, if the run has that fault at all, and
// needs g.need.
func (g *generator) add(order uint8, f func(w *work), format string, args ...any) {
	if g.fault&^g.m.cfg.Faults != 0 || classOf(g.need, g.fault) != g.class {
		return
	}
	w := work{block: g.from, m: g.m, from: &g.from}
	f(&w)
	w.settle()
	if w.block == g.from && w.bad == "" {
		return
	}
	s := step{to: g.m.intern(w.block), need: g.need, order: order, bad: g.m.badness(w.bad, w.why)}
	if g.fault != 0 {
		s.fault, s.order = g.fault.index(), never
	}
	g.out = append(g.out, s)
	if g.names {
		l := fmt.Sprintf(format, args...)
		if g.fault != 0 {
			l = "FAULT " + l
		}
		if w.row != g.from.row {
			b, a := &g.m.rows.all[g.from.row].task, &g.m.rows.all[w.row].task
			l += fmt.Sprintf(" [%s d%d → %s d%d]", b.State, b.Delivery, a.State, a.Delivery)
		}
		g.labels = append(g.labels, l)
	}
}

// with makes the steps that are added need something or cost a fault, until
// the function that it returns is called.
func (g *generator) with(n need, fault Fault) (end func()) {
	oldN, oldF := g.need, g.fault
	g.need, g.fault = g.need|n, g.fault|fault
	return func() { g.need, g.fault = oldN, oldF }
}

// where is with for the steps that f adds.
func (g *generator) where(n need, fault Fault, f func()) {
	defer g.with(n, fault)()
	f()
}

func (g *generator) task() *protocol.Task { return &g.m.rows.all[g.from.row].task }

func (g *generator) all() {
	g.postgres()
	g.outcomes()
	for i, x := range g.from.execs {
		if x.d != 0 && (i == 0 || x != g.from.execs[i-1]) {
			g.worker(i, x)
		}
	}
	g.fetches()
	g.offers()
	g.outbox()
	g.reclaim()
	g.reconcile()
	g.tombstone()
	g.faults()
}

// postgres: dispatch, dead letter, cancellation, backstop.
func (g *generator) postgres() {
	t := &g.m.rows.all[g.from.row].task
	if !t.DueAt.IsZero() {
		g.add(orderDispatch, func(w *work) {
			w.do(opDispatch, 0)
			w.addBox(box{w.delivery(), boxAdd})
		}, "commit: dispatch d%d, outbox row", t.Delivery)
	}
	if t.State == protocol.StateDLQPending {
		g.add(orderDead, func(w *work) { w.do(opDead, 0) }, "dead letter added to stream:dlq; commit")
	}
	g.where(needCancel, 0, func() {
		g.add(never, func(w *work) {
			d := w.delivery()
			if w.do(opCancel, 0); t.Dispatched() && w.row != w.from.row {
				w.tomb, w.tombD = tombUntold, d
			}
		}, "commit: cancel")
	})
	if t.State == protocol.StateRunning {
		g.where(0, Backstop, func() {
			g.add(never, func(w *work) {
				w.excuse(leases)
				w.do(opTimedOut, 0)
			}, "commit: d%d exceeds its timeout and grace", t.Delivery)
		})
	}
}

// outcomes: a collector applies one of stream:result, in any order.
func (g *generator) outcomes() {
	for k := claimed; k <= released; k++ {
		if g.from.res>>k&1 == 0 {
			continue
		}
		g.add(orderApply, func(w *work) {
			w.res &^= 1 << k
			w.honest &^= 1 << k
			w.do(k.op(), w.resD)
		}, "commit: outcome %s d%d; XACK", k, g.from.resD)
	}
}

// fetches: a worker with a free slot reads an undelivered entry, in any order.
func (g *generator) fetches() {
	for i, e := range g.from.entries {
		if e.d == 0 || e.s != undelivered || i > 0 && e == g.from.entries[i-1] {
			continue
		}
		fetch := func(w *work, ph execPhase, flags execFlags) {
			w.entries[i] = entry{}
			x := exec{d: e.d, ph: ph, flags: own | flags}
			if w.tombD == e.d && (w.tomb == tombSet || w.tomb == tombRemoved) {
				x.flags |= marked
			}
			switch ph {
			case execRun:
				w.start(x)
			case execOffer:
				w.addOffer(x)
			default:
				w.addExec(x)
			}
		}
		g.where(needIdle|needGroup, 0, func() {
			if g.m.cfg.Fine {
				g.add(orderFetch, func(w *work) { fetch(w, execFetch, clean) }, "worker fetches d%d", e.d)
			} else {
				g.add(orderFetch, func(w *work) { fetch(w, execRun, clean) }, "worker fetches d%d, starts it", e.d)
			}
			if g.from.offer == 0 {
				g.where(needRelease, 0, func() {
					g.add(never, func(w *work) { fetch(w, execOffer, clean) }, "worker fetches d%d, does not know its type, offers it", e.d)
				})
			}
			g.where(0, FetchLost, func() {
				g.add(never, func(w *work) { fetch(w, execLost, clean) }, "worker fetches d%d, reply lost", e.d)
			})
			g.where(0, WorkerPause, func() {
				g.add(never, func(w *work) {
					w.excuse(leases)
					fetch(w, execFetch, paused|slow)
				}, "worker fetches d%d and stands still before it starts", e.d)
			})
		})
	}
}

// start begins an execution, unless its task is marked as cancelled.
func (w *work) start(x exec) {
	if w.tombD == x.d && w.tomb == tombSet {
		w.refuse(skipped, x.d, false)
		w.ack(x)
		return
	}
	if x.flags&marked != 0 && w.taint&stones == 0 {
		w.violate(cancelledStarts, "delivery %d", x.d)
	}
	x.flags &^= marked
	if !w.current(x.d) && !w.cancelled() && w.taint&strays == 0 {
		w.violate(decidedStarts, "delivery %d", x.d)
	}
	if w.taint&leases == 0 {
		for _, y := range w.execs {
			if y.d != 0 && y.ph == execRun {
				w.violate(overlap, "deliveries %d and %d", y.d, x.d)
			}
		}
	}
	x.ph = execRun
	w.addExec(x)
}

// tombstone: Redis is told after the row is committed. It goes when its entry is
// in no outbox row, not undelivered and not pending, read in this order.
func (g *generator) tombstone() {
	b := &g.from
	if b.tomb == tombUntold {
		g.add(orderWorker, func(w *work) { w.tomb = tombSet }, "tombstone of d%d written", b.tombD)
	}
	if b.tomb != tombSet {
		return
	}
	switch b.sweep {
	case sweepNone:
		if !b.hasBox(b.tombD) || g.m.cfg.Mutant == TombstoneEarly {
			g.add(never, func(w *work) { w.sweep = sweepRows }, "tombstone of d%d is old, its outbox row gone", b.tombD)
		}
	case sweepRows, sweepOne:
		read, name := g.waiting, "undelivered"
		if (b.sweep == sweepOne) != (g.m.cfg.Mutant == TombstonePendingFirst) {
			read, name = g.pending, "pending"
		}
		g.add(never, func(w *work) {
			switch {
			case read(b.tombD):
				w.sweep = sweepNone
			case w.sweep == sweepOne:
				w.sweep, w.tomb = sweepNone, tombRemoved
			default:
				w.sweep = sweepOne
			}
		}, "tombstone of d%d: %s entries are read", b.tombD, name)
	}
}
