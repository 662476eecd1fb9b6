package main

// worker: what can happen to the entry that execs[i] holds.
func (g *generator) worker(i int, x exec) {
	set := func(w *work, y exec) { w.execs[i] = y }
	drop := func(w *work) { w.execs[i] = exec{} }
	g.where(0, WorkerCrash, func() {
		g.add(never, func(w *work) {
			drop(w)
			if x.flags&own != 0 {
				w.putEntry(entry{x.d, gone})
				if x.ph == execOffer {
					w.left = x.d
				}
			}
		}, "worker with d%d crashes", x.d)
	})
	if x.flags&paused != 0 {
		g.add(orderWorker, func(w *work) {
			y := x
			y.flags &^= paused
			set(w, y)
		}, "worker with d%d goes on", x.d)
		return
	}
	if x.ph != execLost {
		g.where(0, WorkerPause, func() {
			g.add(never, func(w *work) {
				w.excuse(leases)
				y := x
				y.flags = y.flags&^clean | paused | slow
				set(w, y)
			}, "worker with d%d stands still past the visibility timeout", x.d)
		})
	}
	switch x.ph {
	case execLost:
		g.where(needGroup, 0, func() { g.begin(i, x, "worker reads d%d in its history, starts it") })
	case execFetch:
		g.begin(i, x, "worker starts d%d")
	case execRun:
		g.running(i, x)
	case execRepeat, execUnsent:
		g.report(i, x, x.kind)
	case execOffer:
		g.offering(i, x)
	case execBack:
		g.report(i, x, released)
	case execClaim:
		g.claiming(i, x)
	case execAck:
		g.add(orderWorker, func(w *work) {
			drop(w)
			w.ack(x)
		}, "worker XACKs d%d", x.d)
	}
}

// begin starts a fetched entry. One that was not started promptly is started
// only if it is still the worker's.
func (g *generator) begin(i int, x exec, label string) {
	if x.flags&slow != 0 && x.flags&own == 0 && g.m.cfg.Mutant != StartUnchecked {
		g.add(orderWorker, func(w *work) { w.execs[i] = exec{} }, "worker drops d%d: it is not its own any more", x.d)
		return
	}
	g.add(orderWorker, func(w *work) {
		w.execs[i] = exec{}
		w.start(x)
	}, label, x.d)
}

func (g *generator) running(i int, x exec) {
	g.add(never, func(w *work) {
		if w.current(x.d) && w.nothing(opClaimed, x.d) {
			return // it is on record
		}
		w.addOutcome(claimed, x.d, false)
	}, "worker XADDs claimed d%d", x.d)
	for _, k := range []kind{succeeded, failed} {
		g.end(i, x, k)
	}
	g.where(needRelease, 0, func() { g.end(i, x, released) })
	if x.flags&own == 0 && g.reclaimed(x.d) {
		g.add(never, func(w *work) { w.execs[i] = exec{} }, "worker with d%d finds its lease lost, gives up", x.d)
	}
}

// reclaimed tells whether a reclaimer has the delivery's entry.
func (g *generator) reclaimed(d uint8) bool {
	for _, r := range g.from.recls {
		if r.d == d {
			return true
		}
	}
	return false
}

// end: the handler has returned.
func (g *generator) end(i int, x exec, k kind) {
	if g.m.cfg.Mutant == AckFirst {
		g.add(orderWorker, func(w *work) {
			w.ack(x)
			w.execs[i] = exec{d: x.d, ph: execUnsent, kind: k, flags: x.flags &^ own}
		}, "worker XACKs d%d before it reports %s", x.d, k)
		return
	}
	g.report(i, x, k)
}

// report adds an outcome to stream:result, maybe again.
func (g *generator) report(i int, x exec, k kind) {
	add := func(w *work, ph execPhase) {
		w.execs[i] = exec{d: x.d, ph: ph, flags: x.flags}
		if ph == execRepeat {
			w.execs[i].kind = k
		}
		w.addOutcome(k, x.d, x.honest() && x.ph != execRepeat)
	}
	g.add(orderWorker, func(w *work) { add(w, execAck) }, "worker XADDs %s d%d", k, x.d)
	g.where(0, OutcomeLost, func() {
		g.add(never, func(w *work) { add(w, execRepeat) }, "worker XADDs %s d%d, added, reply lost", k, x.d)
	})
}
