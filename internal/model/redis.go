package main

import (
	"fmt"
	"strings"
)

// outbox: the XADD of a committed dispatch, and what follows if its fate is
// not known.
func (g *generator) outbox() {
	for i, b := range g.from.boxes {
		if b.d == 0 || i > 0 && b == g.from.boxes[i-1] {
			continue
		}
		set := func(w *work, ph boxPhase) { w.boxes[i].ph = ph }
		remove := func(w *work) { w.boxes[i] = box{} }
		switch b.ph {
		case boxAdd:
			g.send(i, b, set, remove)
		case boxTwice:
			g.where(needGroup, 0, func() {
				g.add(orderOutbox, func(w *work) {
					remove(w)
					w.addEntry(b.d)
				}, "the client repeats XADD d%d", b.d)
			})
		case boxDoubt:
			g.resolve(b, set, remove)
		case boxDone:
			g.add(orderOutbox, remove, "commit: outbox row d%d deleted", b.d)
		}
	}
	for i, d := range g.from.late {
		if d == 0 {
			continue
		}
		land := func(w *work) { w.late[i] = 0 }
		g.where(needGroup, 0, func() {
			g.add(orderLate, func(w *work) { land(w); w.addEntry(d) }, "the late XADD d%d lands", d)
		})
		g.where(needNoGroup, 0, func() {
			g.add(orderLate, land, "the late XADD d%d meets no group", d)
		})
	}
}

func (g *generator) send(i int, b box, set func(*work, boxPhase), remove func(*work)) {
	fine := g.m.cfg.Fine || g.m.cfg.Mutant == AddAgain
	g.where(needGroup, 0, func() {
		g.add(orderOutbox, func(w *work) {
			w.addEntry(b.d)
			if fine {
				set(w, boxDone)
			} else {
				remove(w)
			}
		}, "XADD d%d", b.d)
		g.where(joint, AddLost, func() {
			g.add(never, func(w *work) {
				w.addEntry(b.d)
				if set(w, boxDoubt); g.m.cfg.Mutant == ClientRetries {
					set(w, boxTwice)
				}
			}, "XADD d%d, added, reply lost", b.d)
		})
	})
	g.where(needNoGroup, 0, func() {
		g.add(orderOutbox, func(w *work) {
			if fine {
				set(w, boxDoubt)
			} else {
				remove(w)
			}
		}, "XADD d%d meets no group", b.d)
	})
	g.where(joint, AddLost, func() {
		g.add(never, func(w *work) { set(w, boxDoubt) }, "XADD d%d fails, nothing added, no reply", b.d)
	})
	g.where(joint, LateAdd, func() {
		g.add(never, func(w *work) {
			set(w, boxDoubt)
			w.excuse(leases | strays | stones)
			for j := range w.late {
				if w.late[j] == 0 {
					w.late[j] = b.d
					return
				}
			}
			w.violate(deliveryOverflow, "late")
		}, "XADD d%d is given up, but still on its way", b.d)
	})
}

// resolve reads whether an entry was added. Whatever it reads, the row is
// deleted: what is absent is left to reconcile.
func (g *generator) resolve(b box, set func(*work, boxPhase), remove func(*work)) {
	if g.m.cfg.Mutant == AddAgain && !g.visible(b.d) {
		g.where(needGroup, 0, func() {
			g.add(orderOutbox, func(w *work) { set(w, boxAdd) }, "d%d is not found in the stream, to be added again", b.d)
		})
		return
	}
	g.add(orderOutbox, remove, "d%d is looked up in the stream; commit: outbox row deleted", b.d)
}

// visible tells whether XRANGE finds an entry of the delivery.
func (g *generator) visible(d uint8) bool {
	for _, e := range g.from.entries {
		if e.d == d {
			return true
		}
	}
	return g.pending(d)
}

// faults that are neither a worker's nor about one XADD.
func (g *generator) faults() {
	g.where(0, StrangerAck, func() {
		for i, e := range g.from.entries {
			if e.d != 0 && e.s == gone {
				g.add(never, func(w *work) {
					w.excuse(leases | strays)
					w.entries[i] = entry{}
					w.acked(e.d)
				}, "a stranger XACKs d%d", e.d)
			}
		}
		for i, x := range g.from.execs {
			if x.d != 0 && x.flags&own != 0 {
				g.add(never, func(w *work) {
					w.excuse(leases | strays)
					if w.execs[i].flags &^= own | marked; x.ph == execLost {
						w.execs[i] = exec{}
					}
					w.acked(x.d)
				}, "a stranger XACKs d%d", x.d)
			}
		}
	})
	g.where(0, Trimmed, func() {
		for i, e := range g.from.entries {
			if e.d != 0 && e.s == acknowledged {
				g.add(never, func(w *work) { w.entries[i] = entry{} }, "d%d is trimmed", e.d)
			}
		}
	})
	g.crash()
	g.failover()
}

// failover: Redis loses its last writes. Any of them, not only the last ones:
// entries, deliveries, acknowledgements, outcomes, the tombstone.
func (g *generator) failover() {
	defer g.with(joint, Failover)()
	type undo struct {
		what string
		f    func(w *work)
	}
	keep := undo{"", func(*work) {}}
	stream := []undo{keep, {"the stream's entries", (*work).loseEntries}, {"what was delivered", (*work).undeliver}}
	for d := uint8(1); int64(d) <= g.task().Delivery; d++ {
		if int64(d) == g.task().Delivery && !g.task().DueAt.IsZero() || g.waiting(d) || g.pending(d) || g.from.hasBox(d) {
			continue
		}
		stream = append(stream,
			undo{fmt.Sprintf("the XACK of d%d", d), func(w *work) { w.putEntry(entry{d, gone}) }},
			undo{fmt.Sprintf("delivery and XACK of d%d", d), func(w *work) { w.putEntry(entry{d, undelivered}) }})
	}
	outcomes, stone := []undo{keep}, []undo{keep}
	if g.from.res != 0 {
		outcomes = append(outcomes, undo{"its outcomes", func(w *work) { w.res, w.honest = 0, 0 }})
	}
	if g.from.tomb == tombSet {
		stone = append(stone, undo{"its tombstone", func(w *work) { w.loseTombstone() }})
	}
	for _, a := range stream {
		for _, b := range outcomes {
			for _, c := range stone {
				if a.what+b.what+c.what == "" {
					continue
				}
				g.add(never, func(w *work) {
					w.excuse(leases | strays | stones)
					a.f(w)
					b.f(w)
					c.f(w)
				}, "Redis fails over and has lost: %s", strings.Trim(a.what+", "+b.what+", "+c.what, ", "))
			}
		}
	}
}

// undeliver puts every entry that a process holds back among the undelivered.
func (w *work) undeliver() {
	for i, e := range w.entries {
		if e.d != 0 && e.s == gone {
			w.entries[i].s = undelivered
		}
	}
	for i, x := range w.execs {
		if x.d == 0 || x.flags&own == 0 {
			continue
		}
		if w.execs[i].flags &^= own | marked; x.ph == execLost {
			w.execs[i] = exec{}
		}
		w.putEntry(entry{x.d, undelivered})
	}
	for i, r := range w.recls {
		if r.held {
			w.recls[i].held = false
			w.putEntry(entry{r.d, undelivered})
		}
	}
}

// loseTombstone is noticed, and Redis told again. Whoever fetched the entry
// before that may start it.
func (w *work) loseTombstone() {
	if w.tomb == tombSet {
		w.tomb, w.sweep = tombUntold, sweepNone
	}
	for i := range w.execs {
		w.execs[i].flags &^= marked
	}
}

// loseEntries empties the stream. Executions run on.
func (w *work) loseEntries() {
	w.entries = [maxEntries]entry{}
	for i := range w.recls {
		w.recls[i].held = false
	}
	for i, x := range w.execs {
		if w.execs[i].flags &^= own | marked; x.ph == execLost {
			w.execs[i] = exec{}
		}
	}
}

// crash: an orchestrator dies. Which of the things under way were its own is
// open, so any part of them may end.
func (g *generator) crash() {
	var ends []func(w *work)
	var what []string
	for i, b := range g.from.boxes {
		if b.d != 0 && (b.ph == boxAdd || b.ph == boxDone) {
			ends = append(ends, func(w *work) { w.boxes[i].ph = boxDoubt })
			what = append(what, fmt.Sprintf("outbox row d%d", b.d))
		}
	}
	for i, r := range g.from.recls {
		if g.m.cfg.Fine && r.ph != reclNone {
			ends = append(ends, func(w *work) {
				if r.held {
					w.putEntry(entry{r.d, gone})
				}
				w.recls[i] = reclaim{}
			})
			what = append(what, fmt.Sprintf("reclaim of d%d", r.d))
		}
	}
	defer g.with(joint, OrchestratorCrash)()
	for mask := 1; mask < 1<<len(ends); mask++ {
		var lost []string
		for i, s := range what {
			if mask>>i&1 == 1 {
				lost = append(lost, s)
			}
		}
		g.add(never, func(w *work) {
			for i, end := range ends {
				if mask>>i&1 == 1 {
					end(w)
				}
			}
		}, "an orchestrator crashes: %s", strings.Join(lost, ", "))
	}
}

// lose is what FLUSHALL or a lost group does to a block.
func (m *model) lose(b block, f Fault) (block, property, string) {
	w := work{block: b, m: m, from: &b}
	switch f {
	case FlushAll, TaskGroupLost:
		w.excuse(leases | strays)
		w.loseEntries()
	}
	switch {
	case f == FlushAll:
		w.res, w.honest = 0, 0
		w.offer = 0
		w.loseTombstone()
	case f == ResultGroupLost && m.cfg.Mutant == GroupAtEnd:
		if w.honest != 0 {
			w.violate(outcomeLost, "of delivery %d", w.resD)
		}
		w.res, w.honest = 0, 0
	}
	w.settle()
	return w.block, w.bad, w.why
}

// drop is a rebuild that deletes a stream that has its group (a mutant).
func (m *model) drop(b block) (block, property, string) {
	for _, x := range b.execs {
		if x.d != 0 && x.flags&own != 0 {
			c, _, _ := m.lose(b, TaskGroupLost)
			return c, leaseDestroyed, "delivery " + string('0'+rune(x.d))
		}
	}
	c, _, _ := m.lose(b, TaskGroupLost)
	return c, "", ""
}
