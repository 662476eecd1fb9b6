package main

import "github.com/penstock-dev/penstock/protocol"

// settle brings the block into its canonical form after a step: what can make
// no difference any more is dropped.
func (w *work) settle() {
	if w.row != w.from.row {
		w.replay()
	}
	w.settleOutcomes()
	w.settleEntries()
	w.settleExecs()
	w.settleOps()
	w.settleOffer()
	if w.taint&leases != 0 {
		w.honest = 0
		for i := range w.execs {
			w.execs[i].flags &^= clean
		}
	}
	w.sort()
	if w.task().State.Terminal() && w.empty() { // nothing is left that could break a promise
		w.block = block{row: w.row}
	}
}

// empty tells whether nothing but the row is left.
func (b *block) empty() bool {
	return b.boxes[0].d == 0 && b.entries[0].d == 0 && b.execs[0].d == 0 && b.late[0] == 0 &&
		b.res == 0 && b.passes[0].ph == passNone && b.recls[0].ph == reclNone
}

// replay applies every outcome that may have been applied or refused before
// once more: after a crash between commit and XACK, or when stream:result is
// read again from its beginning. It must change nothing.
func (w *work) replay() {
	for d := uint8(1); d <= w.delivery(); d++ {
		for k := claimed; k <= skipped; k++ {
			if int64(d) == w.task().Delivery && !w.task().DueAt.IsZero() {
				continue // not dispatched yet
			}
			if !w.current(d) || k == claimed && w.task().State == protocol.StateRunning {
				if c := w.m.rows.do(w.row, k.op(), d); c.moved {
					w.violate(staleAccepted, "%s of delivery %d once more", k, d)
				} else {
					w.violate(c.bad, "%s", c.why)
				}
			}
		}
	}
}

func (w *work) settleOutcomes() {
	if w.res != 0 && !w.current(w.resD) {
		for k := claimed; k <= released; k++ {
			if w.res>>k&1 == 1 {
				w.refuse(k, w.resD, w.honest>>k&1 == 1)
			}
		}
		w.res, w.honest = 0, 0
	}
	if w.res == 0 {
		w.resD = 0
	}
}

// settleEntries acknowledges what a reclaimer would acknowledge without
// changing the row.
func (w *work) settleEntries() {
	for i := range w.entries {
		if e := w.entries[i]; e.d != 0 && e.s == gone && !w.current(e.d) && w.nothing(opLost, e.d) {
			w.entries[i] = entry{}
			w.acked(e.d)
		}
	}
	for i, e := range w.entries {
		if e.s == acknowledged && !w.hasBox(e.d) { // nobody will read it
			w.entries[i] = entry{}
		}
	}
}

func (b *block) hasBox(d uint8) bool {
	for _, o := range b.boxes {
		if o.d == d {
			return true
		}
	}
	return false
}

func (w *work) settleExecs() {
	for i := range w.execs {
		x := w.execs[i]
		if x.d == 0 || w.current(x.d) {
			continue
		}
		switch x.ph {
		case execRepeat, execAck:
			if x.flags&own == 0 || w.nothing(opLost, x.d) {
				w.execs[i] = exec{}
				w.ack(x)
			}
		case execRun, execUnsent:
			if x.honest() && w.taint&leases == 0 && !w.cancelled() {
				w.violate(honestRefused, "delivery %d is superseded while it runs", x.d)
			}
			if w.taint&leases != 0 && (x.flags&own == 0 || w.nothing(opLost, x.d)) {
				w.refuse(succeeded, x.d, false) // whichever it comes to
				w.refuse(failed, x.d, false)
				w.execs[i] = exec{}
				w.ack(x)
			}
		}
	}
}

// settleOps ends the passes and reclaims that can do nothing any more.
func (w *work) settleOps() {
	for i := range w.recls {
		r := &w.recls[i]
		r.marks &= w.res
		if r.ph == reclNone || r.ph == reclDone || w.current(r.d) || !w.nothing(opLost, r.d) {
			continue
		}
		if r.held {
			w.acked(r.d)
		}
		*r = reclaim{}
	}
	for i := range w.passes {
		p := &w.passes[i]
		p.marks &= w.res
		if p.ph == passNone || w.row == w.from.row {
			continue
		}
		switch {
		case w.m.cfg.Mutant != PassWithoutSnapshot || w.task().State.Terminal():
			*p = pass{}
		case w.task().Delivery != w.m.rows.all[w.from.row].task.Delivery:
			p.seen = false
		}
	}
}

func (w *work) sort() {
	sortBy(w.boxes[:], func(b box) uint32 { return uint32(b.d)<<8 | uint32(b.ph) })
	sortBy(w.entries[:], func(e entry) uint32 { return uint32(e.d)<<8 | uint32(e.s) })
	sortBy(w.execs[:], func(x exec) uint32 {
		return uint32(x.d)<<24 | uint32(x.ph)<<16 | uint32(x.kind)<<8 | uint32(x.flags)
	})
	sortBy(w.late[:], func(d uint8) uint32 { return uint32(d) })
	sortBy(w.passes[:], func(p pass) uint32 { return uint32(p.ph)<<16 | uint32(p.marks)<<8 | uint32(bit(p.seen)) })
	sortBy(w.recls[:], func(r reclaim) uint32 {
		return uint32(r.ph)<<24 | uint32(r.d)<<16 | uint32(r.marks)<<8 | uint32(bit(r.held))
	})
}

// sortBy sorts a short list, largest first, so that empty places are last.
func sortBy[T any](s []T, key func(T) uint32) {
	for i := 1; i < len(s); i++ {
		for j := i; j > 0 && key(s[j]) > key(s[j-1]); j-- {
			s[j], s[j-1] = s[j-1], s[j]
		}
	}
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
