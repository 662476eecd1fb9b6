package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// A suspect is a task whose last workers were lost with it; its entry is marked
// solo. It may be what killed them, so it runs only while this process holds
// nothing else: no task, and no outcome that is not yet in Redis.
//
// It gets there by closing a gate, behind which nothing new is fetched, and
// collecting all slots. It does so for a limited time only: a worker with long
// tasks must not stand still for one suspect. If they still run then, the task
// is handed back, to be taken by another worker, or by this one later, and the
// worker waits for no other suspect for four times as long as it stood still. The
// time doubles with each delivery up to some minutes, so that a suspect runs in
// the end even where every worker is always busy. A second suspect is handed back
// at once: it must not be in the process that the first may kill.

const (
	// soloWait is how long a suspect's first delivery may wait for what runs.
	soloWait = 5 * time.Second
	// soloDelay is the least time until a suspect that was handed back is
	// dispatched again; it doubles with each delivery up to maxSoloDelay, and
	// up to as much again is added at random.
	soloDelay    = time.Second
	maxSoloDelay = 10 * time.Second
	soloPoll     = 10 * time.Millisecond
	// soloRest is how much longer than a wait in vain a worker then waits for no
	// suspect, so that suspects take no more than a fifth of its time.
	soloRest = 4
	// soloRounds is after how many deliveries the times begin anew: the longest
	// wait is soloWait times 2 to the power of this, less one.
	soloRounds = 7
)

// gate is open unless a suspect has closed it.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // closed when it opens; nil while it is open
	rest   time.Time     // until then it is not closed in front of tasks that run
}

// shut returns nil if the gate is open, else a channel that is closed when it
// opens.
func (g *gate) shut() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened
}

// close closes an open gate; false if it is closed, or rests while there are
// tasks to wait for.
func (g *gate) close(idle bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil || !idle && time.Now().Before(g.rest) {
		return false
	}
	g.opened = make(chan struct{})
	return true
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.opened)
	g.opened = nil
}

// openAfter opens the gate after a wait in vain.
func (g *gate) openAfter(wait time.Duration) {
	g.mu.Lock()
	g.rest = time.Now().Add(soloRest * wait)
	g.mu.Unlock()
	g.open()
}

// Why a suspect was not run.
var (
	errCompany  = errors.New("other tasks run in this worker, and the task is to run alone: it was interrupted before")
	errStopping = errors.New("the worker stopped before the task ran")
	errNotHeld  = errors.New("the entry is not this worker's any more")
)

// startSolo begins a suspect. A slot and a place among the unsettled are held.
func (w *Worker) startSolo(stop context.Context, x *execution, h task.Handler, queue string) {
	if !w.gate.close(w.holdsOnly(x)) {
		w.add(x)
		w.release(1)
		w.notRun(x, errCompany)
		return
	}
	run, cancel := context.WithCancelCause(context.Background())
	x.cancel = cancel
	w.done.Add(1)
	w.add(x)
	w.release(1) // behind the gate nobody but the suspect takes it
	go w.executeSolo(stop, run, x, h, queue)
}

func (w *Worker) executeSolo(stop, run context.Context, x *execution, h task.Handler, queue string) {
	defer w.done.Done()
	began := time.Now()
	slots, err := w.alone(stop, run, x)
	share := sync.OnceFunc(func() {
		w.release(slots - 1)
		w.gate.open()
	})
	if err == nil {
		err = w.begin(run, x, share)
	}
	if err != nil {
		w.release(slots)
		if errors.Is(err, errCompany) {
			w.gate.openAfter(time.Since(began))
		} else {
			w.gate.open()
		}
		w.notRun(x, err)
		x.cancel(context.Canceled)
		return
	}
	w.o.Log.Info("suspect runs alone", "type", x.task.Type, "task_id", x.task.TaskID, "delivery", x.task.Delivery)
	w.done.Add(1) // execute's
	defer share()
	w.execute(run, x, h, queue)
}

// alone collects all slots and waits until nothing else is in this process's
// hands. It returns how many slots it got, in any case.
func (w *Worker) alone(stop, run context.Context, x *execution) (slots int, err error) {
	limit := time.NewTimer(w.soloWait << soloRound(x.task))
	defer limit.Stop()
	look := time.NewTicker(soloPoll)
	defer look.Stop()
	for slots < w.o.Concurrency || !w.holdsOnly(x) {
		free := w.slots
		if slots == w.o.Concurrency {
			free = nil
		}
		select {
		case <-free:
			slots++
		case <-look.C:
			if w.Stuck() > 0 {
				return slots, errCompany
			}
		case <-limit.C:
			return slots, errCompany
		case <-run.Done():
			return slots, context.Cause(run)
		case <-stop.Done():
			return slots, errStopping
		}
	}
	return slots, nil
}

// soloRound is about how often a suspect was delivered as one: deliveries
// without those that ended in a retry or made it a suspect. It begins anew after
// soloRounds: deliveries also grow for other reasons, and by a lot.
func soloRound(t *protocol.TaskEntry) int64 {
	return max(t.Delivery-int64(t.Attempt)-protocol.SoloAfter, 0) % soloRounds
}

// holdsOnly reports whether nothing else is in this process's hands. What was
// left to be reclaimed is not.
func (w *Worker) holdsOnly(x *execution) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, y := range w.running {
		if y != x && !y.leftBehind() {
			return false
		}
	}
	return true
}

// begin notes that a suspect starts, if its entry is still this worker's. share
// lets other tasks start beside it.
func (w *Worker) begin(run context.Context, x *execution, share func()) error {
	owned, err := w.redis.Owned(context.WithoutCancel(run), x.stream, protocol.GroupWorkers, w.id, []string{x.entryID})
	if err != nil {
		return err
	}
	if owned[0] == streams.Taken {
		w.lose(x)
	}
	if owned[0] != streams.Held {
		return errNotHeld
	}
	dead, err := w.redis.Tombstoned(context.WithoutCancel(run), []protocol.Pair{{ID: x.task.ID, Delivery: x.task.Delivery}})
	if err != nil {
		return err
	}
	if dead[0] {
		w.callOff(x, task.ErrCancelled)
	}
	if run.Err() != nil {
		return context.Cause(run)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.concluded || x.lost {
		return errNotHeld
	}
	x.started, x.share = time.Now(), share
	x.claimAt = x.started.Add(claimReportAfter)
	return nil
}

// notRun hands back a suspect that was not started.
func (w *Worker) notRun(x *execution, why error) {
	o := x.conclude()
	if o == nil { // handed back by drain
		return
	}
	if x.isLost() {
		w.forget(x)
		return
	}
	o.Kind, o.Error = protocol.OutcomeReleased, why.Error()
	if errors.Is(why, task.ErrCancelled) {
		o.Kind = protocol.OutcomeSkipped
	} else if !errors.Is(why, errStopping) && !errors.Is(why, task.ErrShutdown) {
		d := min(soloDelay<<soloRound(x.task), maxSoloDelay)
		o.Delay = d + rand.N(d)
	}
	w.o.Log.Info("suspect handed back", "type", x.task.Type, "task_id", x.task.TaskID, "reason", why, "delay", max(o.Delay, 0).String())
	w.submit(x, o)
}

func (x *execution) isLost() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.lost
}
