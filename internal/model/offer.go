package main

// A worker that does not know a task's type offers its entry to others; whoever
// removes the offer may act on the entry. See worker/offers.go.

// offer: a worker that does not know the type has fetched an entry.
func (w *work) addOffer(x exec) {
	x.ph = execOffer
	w.addExec(x)
	w.offer = x.d
}

// offers: another worker removes the offer, to take the entry over.
func (g *generator) offers() {
	d := g.from.offer
	if d == 0 {
		return
	}
	g.where(needIdle, 0, func() {
		g.add(orderFetch, func(w *work) {
			w.offer = 0
			w.addExec(exec{d: d, ph: execClaim})
		}, "worker takes the offer of d%d", d)
	})
}

// offering: what can happen to an entry with the worker that offers it.
func (g *generator) offering(i int, x exec) {
	if g.from.offer != x.d { // taken
		g.add(orderWorker, func(w *work) {
			if w.execs[i] = (exec{}); x.flags&own != 0 {
				w.putEntry(entry{x.d, gone})
				w.left = x.d
			}
		}, "worker leaves d%d, whose offer was taken", x.d)
		return
	}
	if g.m.cfg.Mutant == OfferKept {
		g.report(i, x, released)
		return
	}
	g.add(orderWorker, func(w *work) {
		w.offer = 0
		w.execs[i].ph = execBack
	}, "worker withdraws its offer of d%d", x.d)
}

// claiming: the worker that removed the offer takes the entry over, if its holder
// still has it, and has renewed its lease lately.
func (g *generator) claiming(i int, x exec) {
	if x.flags&slow == 0 {
		g.add(orderWorker, func(w *work) {
			w.execs[i] = exec{}
			if w.takeOver(x.d) {
				w.start(w.claimed(x))
			}
		}, "worker XCLAIMs the offered d%d, starts it", x.d)
		g.where(0, FetchLost, func() { g.doubt(i, x, "worker XCLAIMs the offered d%d, reply lost") })
		return
	}
	g.add(orderWorker, func(w *work) { w.execs[i] = exec{} }, "worker leaves the offered d%d: it took too long", x.d)
	g.doubt(i, x, "the XCLAIM of the offered d%d lands too late")
}

// doubt: the entry may be the worker's now, whoever had it; it is left alone.
func (g *generator) doubt(i int, x exec, label string) {
	g.add(never, func(w *work) {
		w.execs[i] = exec{}
		if w.takeOver(x.d) || w.rob(x.d) {
			w.putEntry(entry{x.d, gone})
		}
	}, label, x.d)
}

// claimed is the execution of an entry that was taken over.
func (w *work) claimed(x exec) exec {
	y := exec{d: x.d, flags: own | clean}
	if w.tombD == x.d && (w.tomb == tombSet || w.tomb == tombRemoved) {
		y.flags |= marked
	}
	return y
}

// takeOver takes an entry from the worker that offered it, which may be dead; false
// if it is not that worker's any more.
func (w *work) takeOver(d uint8) bool {
	for i, x := range w.execs {
		if x.d == d && x.flags&own != 0 && x.flags&paused == 0 {
			w.execs[i].flags &^= own
			return true
		}
	}
	for i, e := range w.entries {
		if e.d == d && e.s == gone && w.left == d {
			w.entries[i] = entry{}
			return true
		}
	}
	return w.m.cfg.Mutant == OfferUnchecked && w.rob(d)
}

// rob takes an entry from a reclaimer.
func (w *work) rob(d uint8) bool {
	for i, r := range w.recls {
		if r.d == d && r.held {
			w.recls[i].held = false
			return true
		}
	}
	return false
}

// settleOffer drops an offer of what is not pending any more: whoever removes it
// finds nothing.
func (w *work) settleOffer() {
	if d := w.offer; d != 0 && !(&generator{m: w.m, from: w.block}).pending(d) {
		w.offer = 0
	}
	for _, e := range w.entries {
		if e.d == w.left && e.s == gone {
			return
		}
	}
	w.left = 0
}
