package main

// reclaim takes over an entry whose lease lapsed, waits for the outcomes that
// are under way, decides, acknowledges.
func (g *generator) reclaim() {
	for i, r := range g.from.recls {
		if r.ph == reclNone {
			if i == 0 || g.m.cfg.Fine {
				g.lapsed(i)
			}
			return
		}
		if i > 0 && r == g.from.recls[i-1] {
			continue
		}
		g.reclaiming(i, r)
	}
}

func (g *generator) reclaiming(i int, r reclaim) {
	done := func(w *work) {
		if r.held {
			w.acked(r.d)
		}
		w.recls[i] = reclaim{}
	}
	switch r.ph {
	case reclTook:
		g.add(orderReclaim, func(w *work) { w.recls[i].ph, w.recls[i].marks = reclWait, g.awaited(r.d) },
			"reclaimer of d%d reads the tail of stream:result", r.d)
	case reclWait:
		if r.marks != 0 && g.m.cfg.Mutant != ReclaimBeforeResults {
			return
		}
		g.add(orderReclaim, func(w *work) {
			w.do(opLost, r.d)
			if w.recls[i].ph = reclDone; !g.m.cfg.Fine {
				done(w)
			}
		}, "%scommit: reclaimer ends d%d", waited(r.marks), r.d)
	case reclDone:
		g.add(orderReclaim, done, "reclaimer XACKs d%d", r.d)
	}
}

func waited(marks uint8) string {
	if marks != 0 {
		return "without waiting for outcomes, "
	}
	return "outcomes are applied; "
}

// awaited are the outcomes of a delivery that are not applied. Those of others
// would only delay.
func (g *generator) awaited(d uint8) uint8 {
	if g.from.resD != d {
		return 0
	}
	return g.from.res
}

// lapsed makes a free reclaimer take over an entry that nobody has renewed:
// its owner is dead, stands still, never saw it, or is a slow reclaimer.
func (g *generator) lapsed(free int) {
	take := func(w *work, d uint8) {
		w.recls[free] = reclaim{ph: reclWait, d: d, held: true, marks: g.awaited(d)}
		if g.m.cfg.Fine {
			w.recls[free].ph, w.recls[free].marks = reclTook, 0
		}
	}
	defer g.with(needGroup, 0)()
	for i, e := range g.from.entries {
		if e.d != 0 && e.s == gone {
			g.add(orderReclaim, func(w *work) {
				w.entries[i] = entry{}
				take(w, e.d)
			}, "reclaimer XAUTOCLAIMs d%d", e.d)
		}
	}
	for i, x := range g.from.execs {
		if x.d == 0 || x.flags&own == 0 || x.flags&paused == 0 && x.ph != execLost {
			continue
		}
		g.add(never, func(w *work) {
			if w.execs[i].flags &^= own; x.ph == execLost {
				w.execs[i] = exec{}
			}
			take(w, x.d)
		}, "reclaimer XAUTOCLAIMs d%d, which its worker has not renewed", x.d)
	}
	for i, r := range g.from.recls[:free] {
		if r.held {
			g.add(never, func(w *work) {
				w.recls[i].held = false
				take(w, r.d)
			}, "second reclaimer XAUTOCLAIMs d%d from the first", r.d)
		}
	}
}

// reconcile makes passes: candidates, undelivered, pending, outcomes,
// compare-and-set.
func (g *generator) reconcile() {
	for i, p := range g.from.passes {
		if p.ph == passNone {
			if i == 0 || g.m.cfg.Fine {
				g.newPass(i)
			}
			return
		}
		if i > 0 && p == g.from.passes[i-1] {
			continue
		}
		g.pass(i, p)
	}
}

// candidate tells whether the task must be somewhere in Redis.
func (g *generator) candidate() bool {
	return live(g.task()) && (g.from.boxes[0].d == 0 || g.m.cfg.Mutant == PassIgnoresOutbox)
}

func (g *generator) newPass(i int) {
	t := g.task()
	late := g.m.cfg.Mutant == PassWithoutSnapshot && !t.State.Terminal()
	if g.m.cfg.Mutant != NoReconcile && (g.candidate() || late) {
		g.add(orderNewPass, func(w *work) { w.passes[i] = pass{ph: passRows} }, "reconcile reads the row: d%d", t.Delivery)
	}
}

func (g *generator) pass(i int, p pass) {
	t := g.task()
	switch p.ph {
	case passRows, passOne:
		defer g.with(needGroup, 0)()
		g.look(i, p)
	case passTwo:
		g.add(orderPass, func(w *work) { w.passes[i].ph, w.passes[i].marks = passWait, g.awaited(w.resD) }, "reconcile reads the tail of stream:result")
	case passWait:
		if p.marks != 0 && g.m.cfg.Mutant != PassBeforeResults {
			return
		}
		g.add(orderPass, func(w *work) {
			w.passes[i] = pass{}
			if g.m.cfg.Mutant == PassWithoutSnapshot && (!g.candidate() || p.seen) {
				return
			}
			w.do(opRedispatch, 0)
		}, "%scommit: reconcile finds d%d absent", waited(p.marks), t.Delivery)
	}
}

// look is one of reconcile's two readings of the task stream.
func (g *generator) look(i int, p pass) {
	d := uint8(g.task().Delivery)
	read, name := g.waiting, "undelivered"
	if (p.ph == passOne) != (g.m.cfg.Mutant == PendingFirst) {
		read, name = g.pending, "pending"
	}
	g.add(orderPass, func(w *work) {
		q := &w.passes[i]
		if read(d) {
			if g.m.cfg.Mutant != PassWithoutSnapshot {
				*q = pass{}
				return
			}
			q.seen = true
		}
		if q.ph++; q.ph == passTwo && !g.m.cfg.Fine {
			q.ph, q.marks = passWait, g.awaited(w.resD)
		}
	}, "reconcile reads %s entries", name)
}

// pending tells whether XPENDING has an entry of the delivery.
func (g *generator) pending(d uint8) bool {
	for _, e := range g.from.entries {
		if e.d == d && e.s == gone {
			return true
		}
	}
	for _, x := range g.from.execs {
		if x.d == d && x.flags&own != 0 {
			return true
		}
	}
	for _, r := range g.from.recls {
		if r.d == d && r.held {
			return true
		}
	}
	return false
}

// waiting tells whether the stream has the delivery undelivered.
func (g *generator) waiting(d uint8) bool {
	for _, e := range g.from.entries {
		if e.d == d && e.s == undelivered {
			return true
		}
	}
	return false
}
