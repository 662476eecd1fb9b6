package main

import (
	"fmt"

	"github.com/penstock-dev/penstock/protocol"
)

// Bounds of a block's lists. Reaching one is reported, never ignored.
const (
	maxBoxes   = 6
	maxEntries = 6
	maxExecs   = 3
	maxLate    = 3
	maxOps     = 2
	maxD       = 15
)

// block is everything about one task: its row, and what Redis and the
// processes hold of it. Equal blocks are equal values: lists are sorted, empty
// places are zero. Deliveries start at 1.
type block struct {
	// none: there is no task; see newModel.
	none bool
	row  uint16
	// adds has a bit for each delivery ever added to the stream; kept only if
	// fine or in a mutant.
	adds    uint16
	taint   taint
	tomb    tombState
	tombD   uint8
	sweep   sweep
	offer   uint8 // the delivery whose entry is offered to other workers
	left    uint8 // the delivery whose entry is gone, in the name of the one that offered it
	boxes   [maxBoxes]box
	entries [maxEntries]entry
	execs   [maxExecs]exec
	late    [maxLate]uint8 // XADDs that are still on their way
	// res are the unapplied outcomes of delivery resD, honest those among them
	// whose execution held its lease when it reported.
	res, honest uint8
	resD        uint8
	// More than one of each only if fine.
	passes [maxOps]pass
	recls  [maxOps]reclaim
}

// taint tells which promises a fault has ended for this task.
type taint uint8

const (
	// leases may be lost without the worker's fault or knowledge: executions
	// may overlap, honest ones be overruled.
	leases taint = 1 << iota
	// entries may be lost, come late or vanish: decided work may start.
	strays
	// an entry may come back or come late after its tombstone was removed.
	stones
)

type tombState uint8

const (
	tombNone    tombState = iota
	tombUntold            // in Postgres; Redis is to be told
	tombSet               // in Redis
	tombRemoved           // it was in Redis
)

// sweep is a look for whether the tombstone can go.
type sweep uint8

const (
	sweepNone sweep = iota
	sweepRows       // it is old enough and in no outbox row
	sweepOne        // the first of undelivered and pending is read
)

// box is a (task, delivery) pair of an outbox row.
type box struct {
	d  uint8
	ph boxPhase
}

type boxPhase uint8

const (
	boxAdd   boxPhase = iota // committed; the XADD is next
	boxDoubt                 // no reply, or its owner died: to be resolved by reading
	boxDone                  // added; the row is to be deleted (fine only)
	boxTwice                 // no reply, and the client repeats (mutant)
)

// entry is one in the task stream that no execution holds.
type entry struct {
	d uint8
	s entryState
}

type entryState uint8

const (
	undelivered  entryState = iota
	gone                    // pending; its owner is dead
	acknowledged            // kept for the mutant that reads it again
)

// exec is an entry in a worker's hands; it occupies a slot.
type exec struct {
	d     uint8
	ph    execPhase
	kind  kind
	flags execFlags
}

type execPhase uint8

const (
	execLost   execPhase = iota // delivered, the reply lost: to be read from the history
	execFetch                   // fetched, not started
	execRun                     // the handler runs
	execRepeat                  // the outcome is added, but the worker does not know
	execAck                     // the outcome is added; the XACK is next
	execUnsent                  // acknowledged before the outcome is added (mutant)
	execOffer                   // its type is unknown here; it is offered to others
	execBack                    // the offer is withdrawn; it is to be handed back
	execClaim                   // the offer was taken; the XCLAIM is next
)

type execFlags uint8

const (
	own    execFlags = 1 << iota // the entry is pending and the worker's
	clean                        // the lease was never at risk
	paused                       // the worker stands still
	slow                         // it did so since the fetch
	marked                       // fetched after its tombstone was written
)

// honest tells whether the execution has held its lease since the fetch.
func (x exec) honest() bool {
	return x.flags&clean != 0 && (x.flags&own != 0 || x.ph == execUnsent)
}

// pass is a reconcile pass as far as it is about this task. It has seen the
// row as it is; if the row moves, the pass is over.
type pass struct {
	ph   passPhase
	seen bool // a mutant's
	// marks are the outcomes that it waits for.
	marks uint8
}

type passPhase uint8

const (
	passNone passPhase = iota
	passRows           // the candidates are read
	passOne            // the first of undelivered and pending is read
	passTwo            // both are read (fine only)
	passWait           // the tail of stream:result is read
)

// reclaim is an entry that a reclaimer has taken over.
type reclaim struct {
	ph    reclPhase
	d     uint8
	marks uint8
	held  bool // still pending
}

type reclPhase uint8

const (
	reclNone reclPhase = iota
	reclTook           // XAUTOCLAIM done (fine only)
	reclWait           // the tail of stream:result is read
	reclDone           // decided; the XACK is next (fine only)
)

// slots is how many workers the block occupies.
func (b *block) slots() int {
	n := 0
	for _, x := range b.execs {
		if x.d != 0 {
			n++
		}
	}
	return n
}

// work is a block that a step changes.
type work struct {
	block
	m    *model
	from *block
	bad  property
	why  string
}

func (w *work) violate(p property, format string, args ...any) {
	if p != "" && w.bad == "" {
		w.bad, w.why = p, fmt.Sprintf(format, args...)
	}
}

// excuse ends promises, because of a fault.
func (w *work) excuse(t taint) {
	if !w.m.cfg.Strict {
		w.taint |= t
	}
}

func (w *work) task() *protocol.Task { return &w.m.rows.all[w.row].task }

// current tells whether the delivery is the one that may be under way.
func (w *work) current(d uint8) bool {
	t := w.task()
	return int64(d) == t.Delivery && live(t)
}

func (w *work) cancelled() bool { return w.task().State == protocol.StateCancelled }

func (w *work) delivery() uint8 {
	d := w.task().Delivery
	if d > maxD {
		w.violate(deliveryOverflow, "delivery %d", d)
		return maxD
	}
	return uint8(d)
}

// do makes a Postgres transaction on the row.
func (w *work) do(o op, d uint8) {
	c := w.m.rows.do(w.row, o, d)
	w.violate(c.bad, "%s", c.why)
	w.row = c.to
}

// nothing tells whether the operation would leave the row as it is.
func (w *work) nothing(o op, d uint8) bool {
	c := w.m.rows.do(w.row, o, d)
	w.violate(c.bad, "%s", c.why)
	return !c.moved
}

func (w *work) addBox(b box) {
	for i := range w.boxes {
		if w.boxes[i].d == 0 {
			w.boxes[i] = b
			return
		}
	}
	w.violate(deliveryOverflow, "outbox")
}

// addEntry is an XADD that arrives.
func (w *work) addEntry(d uint8) {
	bit := uint16(1) << d
	if w.adds&bit != 0 {
		w.violate(secondEntry, "delivery %d", d)
	}
	if w.m.ghosts() {
		w.adds |= bit
	}
	w.putEntry(entry{d, undelivered})
}

func (w *work) putEntry(e entry) {
	for i := range w.entries {
		if w.entries[i].d == 0 {
			w.entries[i] = e
			return
		}
	}
	w.violate(deliveryOverflow, "stream")
}

func (w *work) addExec(x exec) {
	for i := range w.execs {
		if w.execs[i].d == 0 {
			w.execs[i] = x
			return
		}
	}
	w.violate(deliveryOverflow, "workers")
}

// acked notes that an entry has been acknowledged.
func (w *work) acked(d uint8) {
	if w.m.cfg.Mutant == AddAgain {
		w.putEntry(entry{d, acknowledged})
	}
}

// ack is a worker's XACK; it succeeds whoever owns the entry.
func (w *work) ack(x exec) {
	switch {
	case x.flags&own != 0:
		w.acked(x.d)
	default:
		for i := range w.recls {
			if r := &w.recls[i]; r.d == x.d && r.held {
				r.held = false
				w.acked(x.d)
			}
		}
	}
}

// addOutcome is an XADD to stream:result.
func (w *work) addOutcome(k kind, d uint8, honest bool) {
	if !w.current(d) {
		w.refuse(k, d, honest)
		return
	}
	w.res |= 1 << k
	w.resD = d
	if honest {
		w.honest |= 1 << k
	}
}

// refuse is the end of an outcome that can't count any more. That it changes
// nothing is not assumed: the row is asked.
func (w *work) refuse(k kind, d uint8, honest bool) {
	w.nothing(k.op(), d)
	if honest && w.taint&leases == 0 && !w.cancelled() {
		w.violate(honestRefused, "%s of delivery %d", k, d)
	}
}
