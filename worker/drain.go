package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// ErrSecondSignal is Run's error if a second signal cut its drain short. It is a
// context.Canceled. Nothing is lost then either: a task that could not be handed
// back runs again after the visibility timeout.
var ErrSecondSignal = fmt.Errorf("worker: a second signal cut the drain short: %w", context.Canceled)

// Bounds of the last steps of a shutdown, and of the same in a hurry. An exec
// handler kills its program 2 s after its context ended: it must not outlive
// this process.
const (
	handBackWindow, hurriedHandBack = 5 * time.Second, 3 * time.Second
	flushDeadline, hurriedFlush     = 10 * time.Second, 3 * time.Second
	// fetchWindow is how long a read that is under way may take to return: it is
	// unblocked, else it blocks for streams.Block, and longer only if Redis hangs.
	fetchWindow = streams.Block + time.Second
)

// drain ends the worker once its context has ended: fetching stops, running
// tasks finish within the grace, the rest is handed back, outcomes are flushed,
// and the groups are left. fetched is closed when nothing fetches any more.
func (w *Worker) drain(hurry context.Context, fetched <-chan struct{}) error {
	w.o.Log.Info("worker draining", "running", w.count())
	grace, cancel := context.WithTimeout(hurry, w.o.ShutdownGrace)
	defer cancel()
	leave := w.stopStarting(fetched)
	window, cancelWindow := hurried(hurry, handBackWindow, hurriedHandBack)
	defer cancelWindow()
	_ = lifecycle.Detach(window, func() error { w.closeOffers(context.WithoutCancel(hurry)); return nil })
	finished := make(chan struct{})
	go func() { w.done.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-grace.Done():
		w.handBack(hurry, finished)
	}
	flush, cancel2 := hurried(hurry, flushDeadline, hurriedFlush)
	defer cancel2()
	err := w.outcomes.Close(flush)
	switch {
	case err != nil:
		err = fmt.Errorf("worker: %d outcomes could not be reported in time; their tasks run again after the visibility timeout", w.count())
	case leave: // else Redis may yet give this consumer an entry, which would be lost with it
		w.leaveGroups(flush)
	}
	if hurry.Err() != nil {
		err = errors.Join(err, ErrSecondSignal)
	}
	w.o.Log.Info("worker stopped", "worker_id", w.id)
	return err
}

// hurried is a context that ends after d, or d2 after hurry.
func hurried(hurry context.Context, d, d2 time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	stop := context.AfterFunc(hurry, func() { time.AfterFunc(d2, cancel) })
	return ctx, func() { stop(); cancel() }
}

// stopStarting waits for reads under way, whose entries are handed back, and
// reports whether they returned. If they do not, nothing that they may yet bring
// is started.
func (w *Worker) stopStarting(fetched <-chan struct{}) (returned bool) {
	select {
	case <-fetched:
		returned = true
	case <-time.After(fetchWindow):
		w.o.Log.Warn("Redis does not answer; what it may have delivered runs again after the visibility timeout")
	}
	w.mu.Lock()
	w.draining = true
	w.mu.Unlock()
	return returned
}

// enter reports whether entries that were fetched may be started; if so,
// w.done.Done must follow once they are. Otherwise the worker drains, and does
// not wait for handlers any more.
func (w *Worker) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.draining {
		return false
	}
	w.done.Add(1)
	return true
}

// leaveGroups removes this consumer from each group in which it has nothing
// pending.
func (w *Worker) leaveGroups(ctx context.Context) {
	for _, q := range w.o.Queues {
		err := lifecycle.Detach(ctx, func() error {
			left, err := w.redis.LeaveGroup(ctx, protocol.TaskStream(q), protocol.GroupWorkers, w.id)
			if err == nil && !left {
				err = errors.New("entries are pending")
			}
			return err
		})
		if err != nil {
			w.o.Log.Warn("consumer not removed from its group", "queue", q, "worker_id", w.id, "error", err)
		}
	}
}

// handBack cancels what still runs, waits a moment for handlers to return,
// and releases the tasks of those that do not.
func (w *Worker) handBack(hurry context.Context, finished <-chan struct{}) {
	w.mu.Lock()
	for _, x := range w.running {
		x.cancel(task.ErrShutdown)
	}
	w.mu.Unlock()
	wait, cancel := hurried(hurry, handBackWindow, hurriedHandBack)
	defer cancel()
	select {
	case <-finished:
		return
	case <-wait.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.running {
		if x.task == nil {
			continue // only its acknowledgement is left
		}
		if o := x.conclude(); o != nil {
			o.Kind, o.Error = protocol.OutcomeReleased, "the worker stopped before the handler returned"
			if x.isCancelled() {
				o.Kind = protocol.OutcomeSkipped
			}
			w.submit(x, o)
		}
	}
}
