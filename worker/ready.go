package worker

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Phases of a worker.
const (
	starting int32 = iota
	consuming
	stopping
)

const (
	// fetchQuiet is how long a round of fetching may take, which waits for
	// streams.Block at most; a free slot is waited for outside of it.
	fetchQuiet = 5 * time.Second
	// leasesQuiet is how long a renewal may take, and renewals may fail.
	leasesQuiet = 10 * time.Second
	// outcomesPatience is how long Redis may refuse outcomes.
	outcomesPatience = 5 * time.Second
	never            = time.Duration(math.MaxInt64)
)

// Check returns nil while the worker does its work, or has none to do. Otherwise
// it says why not, each reason one error of those joined: it has not started or
// is stopping; a queue cannot be fetched from, or Redis does not answer; no
// orchestrator has set up this Redis; Redis takes no outcomes; leases are not
// renewed; or handlers that ignore their timeout hold all slots. It never
// blocks.
func (w *Worker) Check() error {
	switch w.phase.Load() {
	case starting:
		return errors.New("starting")
	case stopping:
		return errors.New("stopping")
	}
	err := w.pulse.Check()
	if w.Stuck() >= w.o.Concurrency {
		err = errors.Join(err, errors.New("every slot is held by a handler that ignores its cancellation"))
	}
	return err
}

// Ready reports whether Check finds nothing.
func (w *Worker) Ready() bool { return w.Check() == nil }

// watchFetch watches the loop that fetches from a queue.
func (w *Worker) watchFetch(queue string) *lifecycle.Beat {
	b := w.pulse.Watch("queue "+queue, fetchQuiet, 0)
	b.Fail("not fetched from yet")
	return b
}

// awaitsFirstTask reports whether a group is missing only because its queue has
// not had a task yet. If stream:result has no group either, no orchestrator has
// set up this Redis, or it has lost everything.
func (w *Worker) awaitsFirstTask(ctx context.Context) bool {
	_, err := w.redis.Info(ctx, protocol.StreamResult, protocol.GroupOrchestrators)
	return err == nil
}

// noTaskYet is the reason that is no trouble.
const noTaskYet = "the queue has had no task yet"

// unfetched notes and returns why a queue could not be fetched from.
func (w *Worker) unfetched(ctx context.Context, queue string, b *lifecycle.Beat, err error) (why string) {
	foreign, ok := errors.AsType[*streams.ForeignError](err)
	right, refused := errors.AsType[*streams.RightError](err)
	switch {
	case ok:
		why = foreign.Error()
	case refused:
		why = right.Error()
	case !streams.LostGroup(err):
		why = "cannot be fetched from"
	case w.awaitsFirstTask(context.WithoutCancel(ctx)):
		b.Mark()
		return noTaskYet
	default:
		why = "no orchestrator has made its group for " + w.redis.Key(protocol.TaskStream(queue)) + "; key prefixes must be the same"
	}
	b.Fail(why)
	return why
}

// ownerInterval is how often a worker asks whether Redis is still the one of the
// deployment that it works for.
const ownerInterval = time.Second

// watchOwner stops all that this worker does in Redis while it is another
// deployment's: handlers run on, and outcomes wait.
func (w *Worker) watchOwner(ctx context.Context) {
	tick := time.NewTicker(ownerInterval)
	defer tick.Stop()
	foreign := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := w.redis.CheckOwner(ctx)
		switch now := streams.Foreign(err); {
		case now && !foreign:
			w.o.Log.Error("nothing is fetched or reported until the Redis of this worker's deployment is back", "error", err)
			foreign = true
		case err == nil && foreign:
			w.o.Log.Warn("the Redis of this worker's deployment is back")
			foreign = false
		}
	}
}
