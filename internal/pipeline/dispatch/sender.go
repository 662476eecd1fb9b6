package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// doneInterval is how long a finished outbox row stays at most when no
// transaction comes by to take it along.
const doneInterval = 100 * time.Millisecond

// Room tells how many entries the queue's stream may still take, and an id
// from before anything that is added now, for the outbox row. An error means
// that Redis can't take entries now: tasks then wait in Postgres.
func (d *Dispatcher) Room(ctx context.Context, queue string) (n int, afterID string, err error) {
	select {
	case <-d.alive:
		if d.isHeld != nil && d.isHeld() {
			return 0, "", errHeld
		}
		return d.window.room(ctx, queue)
	default:
		return 0, "", errNotRunning
	}
}

// errNotRunning: an outbox row of an instance that has not shown a sign of life
// yet would be taken over by others at once.
var errNotRunning = errors.New("dispatch is not running yet")

// errHeld: it is not known yet which deliveries may be used.
var errHeld = errors.New("dispatch is held until Postgres and Redis have been compared")

// TakeDone hands out the outbox rows whose XADD is done, to be deleted by the
// caller's transaction; GiveBack returns them if it fails.
func (d *Dispatcher) TakeDone() []int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	ids := d.done
	d.done = nil
	if ids == nil {
		ids = []int64{}
	}
	return ids
}

// GiveBack returns ids from TakeDone that were not deleted.
func (d *Dispatcher) GiveBack(ids []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done = append(d.done, ids...)
}

// Expect tells that an outbox row was committed and will be sent, so that it is
// not taken for forgotten while others are sent before it.
func (d *Dispatcher) Expect(outboxID int64) { d.inflight.Store(outboxID, true) }

// Begin tells that a transaction may commit outbox rows of this instance. They are
// not taken for forgotten before end was called, by when Expect knows of them,
// however long that takes. began is for Send.
func (d *Dispatcher) Begin() (began time.Time, end func()) { return time.Now(), d.commits.begin() }

// commits are the transactions under way, in the order in which they began.
type commits struct {
	mu   sync.Mutex
	next int64
	open map[int64]bool
}

func (c *commits) begin() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[int64]bool{}
	}
	c.next++
	n := c.next
	c.open[n] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, n)
	}
}

// last is the newest that has begun; oldest is the first that has not ended.
func (c *commits) last() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next
}

func (c *commits) oldest() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest := c.next + 1
	for n := range c.open {
		oldest = min(oldest, n)
	}
	return oldest
}

// Send adds the entries of a committed outbox row to the queue's stream. It
// never repeats an XADD: what is not known to have arrived is looked up and,
// if it is absent, dispatched anew under the next delivery. began is a time before
// the row's transaction began: if that is long ago, as when this process stood still,
// others may have taken the row over, and then nothing is added.
func (d *Dispatcher) Send(ctx context.Context, began time.Time, outboxID int64, queue string, entries []*protocol.TaskEntry) {
	d.Expect(outboxID)
	defer d.inflight.Delete(outboxID)
	if err := d.own(ctx, began, outboxID); err != nil {
		d.log.Warn("dispatch not sent: it is too late for it; looking it up", "queue", queue, "outbox_id", outboxID, "entries", len(entries), "error", err)
		d.lookUp(outboxID)
		return
	}
	values := make([][]any, len(entries))
	for i, e := range entries {
		values[i] = e.Values()
	}
	added := d.redis.Add(ctx, protocol.TaskStream(queue), values)
	crashpoint.Here("dispatch.added")
	n := 0
	var failed error
	for _, a := range added {
		if a.Err != nil {
			failed = a.Err
		} else {
			n++
		}
	}
	d.window.note(queue, n, failed)
	d.metrics.dispatched.Add(float64(n))
	if failed == nil {
		d.GiveBack([]int64{outboxID})
		return
	}
	d.log.Warn("dispatch not confirmed; looking it up", "queue", queue, "outbox_id", outboxID, "entries", len(entries), "confirmed", n, "error", failed)
	d.lookUp(outboxID)
}

// errTakenOver: others may have dispatched the batch anew.
var errTakenOver = errors.New("another orchestrator took it over")

// own makes sure that nobody can take over an outbox row within the next fifth of
// the time to live: its age is less than that time, or it is renewed.
func (d *Dispatcher) own(ctx context.Context, began time.Time, outboxID int64) error {
	for time.Since(began) > d.ttl*4/5 {
		began = time.Now()
		n, err := d.store.RenewOutbox(ctx, outboxID)
		if err != nil {
			return fmt.Errorf("renew it: %w", err)
		}
		if n == 0 {
			return errTakenOver
		}
	}
	return nil
}

// lookUp has the loop look for a batch in its stream.
func (d *Dispatcher) lookUp(outboxID int64) {
	d.mu.Lock()
	d.unresolved[outboxID] = true
	d.mu.Unlock()
	signal(d.resolve)
}

// runDone removes finished outbox rows when nobody else does, and looks up
// those that are not known to be finished.
func (d *Dispatcher) runDone(ctx context.Context) error {
	tick := time.NewTicker(doneInterval)
	defer tick.Stop()
	var lastOwn time.Time
	for {
		select {
		case <-ctx.Done():
			return d.flushDone(context.WithoutCancel(ctx))
		case <-d.resolve:
		case <-tick.C:
		}
		if err := d.flushDone(ctx); err != nil && ctx.Err() == nil {
			d.log.Warn("outbox rows not removed; trying again", "error", err)
		}
		if time.Since(lastOwn) > 2*time.Second {
			lastOwn = time.Now()
			if err := d.findForgotten(ctx); err != nil && ctx.Err() == nil {
				d.log.Warn("outbox not read; trying again", "error", err)
			}
		}
		d.resolveAll(ctx)
	}
}

func (d *Dispatcher) flushDone(ctx context.Context) error {
	ids := d.TakeDone()
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := d.store.DeleteOutbox(ctx, ids); err != nil {
		d.GiveBack(ids)
		return fmt.Errorf("delete %d outbox rows: %w", len(ids), err)
	}
	return nil
}

// findForgotten looks for outbox rows of this instance that it does not know:
// their commit was reported as failed, but happened. A row that is not known may
// be one whose transaction is still under way here, so it is forgotten only once
// all have ended that had begun when it was first seen.
func (d *Dispatcher) findForgotten(ctx context.Context) error {
	ids, err := d.store.OwnOutbox(ctx, d.instance)
	if err != nil {
		return err
	}
	began, oldest := d.commits.last(), d.commits.oldest()
	d.mu.Lock()
	defer d.mu.Unlock()
	known := make(map[int64]bool, len(d.done))
	for _, id := range d.done {
		known[id] = true
	}
	strange := make(map[int64]int64)
	for _, id := range ids {
		if _, sending := d.inflight.Load(id); sending || known[id] || d.unresolved[id] {
			continue
		}
		if since, seen := d.strange[id]; !seen {
			strange[id] = began
		} else if since < oldest {
			d.unresolved[id] = true
		} else {
			strange[id] = since
		}
	}
	d.strange = strange
	return nil
}

// resolveAll looks up every dispatch that was not confirmed. What can't be
// decided now, because a store is away, stays for the next round.
func (d *Dispatcher) resolveAll(ctx context.Context) {
	d.mu.Lock()
	ids := make([]int64, 0, len(d.unresolved))
	for id := range d.unresolved {
		ids = append(ids, id)
	}
	d.mu.Unlock()
	for _, id := range ids {
		absent, err := d.resolveOne(ctx, id)
		if err != nil {
			if ctx.Err() == nil {
				d.log.Debug("dispatch still unconfirmed", "outbox_id", id, "error", err)
			}
			return
		}
		d.mu.Lock()
		delete(d.unresolved, id)
		d.suspects = append(d.suspects, absent...)
		d.mu.Unlock()
	}
	d.reconcileSuspects(ctx)
}

func (d *Dispatcher) resolveOne(ctx context.Context, id int64) (absent []protocol.ID, err error) {
	rows, err := d.store.OutboxByID(ctx, id)
	if err != nil || len(rows) == 0 { // gone: somebody took it over
		return nil, err
	}
	o := rows[0]
	if absent, err = d.absent(ctx, &dbsqlc.LockOrphanedOutboxRow{
		ID: o.ID, Owner: o.Owner, Queue: o.Queue, AfterID: o.AfterID, TaskIds: o.TaskIds, Deliveries: o.Deliveries,
	}); err != nil {
		return nil, err
	}
	return absent, d.store.DeleteOutbox(ctx, []int64{id})
}

// absent returns the tasks of an outbox row whose entry is not in the stream.
// Nothing from the row's after_id on is trimmed while the row exists, so an
// entry that is not found was never added, or Redis lost it.
func (d *Dispatcher) absent(ctx context.Context, o *dbsqlc.LockOrphanedOutboxRow) ([]protocol.ID, error) {
	want := make(map[protocol.Pair]bool, len(o.TaskIds))
	for i, id := range o.TaskIds {
		want[protocol.Pair{ID: protocol.ID(id), Delivery: o.Deliveries[i]}] = true
	}
	err := d.redis.Range(ctx, protocol.TaskStream(o.Queue), o.AfterID, func(e streams.Entry) bool {
		if p, ok := protocol.PairOf(e.Values); ok {
			delete(want, p)
		}
		return len(want) > 0
	})
	if err != nil {
		return nil, err
	}
	var out []protocol.ID
	for p := range want {
		out = append(out, p.ID)
	}
	return out, nil
}

// reconcileSuspects runs the reconcile pass for tasks whose entry is absent.
func (d *Dispatcher) reconcileSuspects(ctx context.Context) {
	d.mu.Lock()
	ids := d.suspects
	d.suspects = nil
	d.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	if err := d.reconciler.Pass(ctx, ids); err != nil {
		if !errors.Is(err, context.Canceled) {
			d.log.Warn("absent entries not reconciled; trying again", "tasks", len(ids), "error", err)
		}
		d.mu.Lock()
		d.suspects = append(d.suspects, ids...)
		d.mu.Unlock()
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
