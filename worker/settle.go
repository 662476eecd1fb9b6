package worker

import (
	"context"
	"time"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// report is something to be written to Redis for an execution: an outcome, a
// dead letter, or (both nil) only the acknowledgement.
type report struct {
	x       *execution
	outcome *protocol.Outcome
	letter  *protocol.DeadLetter
	// claim: not the end of the execution; nothing is acknowledged.
	claim bool
}

// submit hands in an execution's outcome; the entry is acknowledged after it
// is safely in stream:result.
func (w *Worker) submit(x *execution, o *protocol.Outcome) {
	w.settleLater(x, &report{x: x, outcome: o})
}

func (w *Worker) settleLater(x *execution, r *report) {
	if err := w.outcomes.Go(r); err != nil { // closed: the entry stays pending
		w.o.Log.Warn("outcome not reported: the worker has stopped", "stream", x.stream, "message_id", x.entryID)
	}
}

// flush writes a batch of reports, again and again until all are written: an
// outcome that was added twice is recognised by the orchestrator. It gives up
// only when the worker is closed.
func (w *Worker) flush(ctx context.Context, reports []*report) []batch.Result[struct{}] {
	todo := reports
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		var err error
		if todo, err = w.write(ctx, todo); len(todo) == 0 {
			w.reporting.Mark()
			break
		}
		w.reporting.Fail("wait for Redis")
		w.o.Log.Warn("outcomes wait for Redis", "outcomes", len(todo), "error", err, "retry_in", pause.String())
		select {
		case <-ctx.Done():
			return make([]batch.Result[struct{}], len(reports))
		case <-time.After(pause):
		}
	}
	return make([]batch.Result[struct{}], len(reports))
}

// write tries once and returns what is left.
func (w *Worker) write(ctx context.Context, reports []*report) (left []*report, err error) {
	byStream := map[string][]*report{}
	for _, r := range reports {
		switch {
		case r.outcome != nil:
			byStream[protocol.StreamResult] = append(byStream[protocol.StreamResult], r)
		case r.letter != nil:
			byStream[protocol.StreamDLQ] = append(byStream[protocol.StreamDLQ], r)
		default:
			if e := w.redis.Ack(ctx, r.x.stream, protocol.GroupWorkers, []string{r.x.entryID}); e != nil {
				left, err = append(left, r), e
			} else {
				w.settled(r)
			}
		}
	}
	for stream, rs := range byStream {
		values := make([][]any, len(rs))
		acks := make([]streams.Ack, len(rs))
		for i, r := range rs {
			if r.outcome != nil {
				values[i] = r.outcome.Values()
			} else {
				values[i] = r.letter.Values()
			}
			r.x.mu.Lock()
			if !r.claim && !r.x.lost {
				acks[i] = streams.Ack{Stream: r.x.stream, Group: protocol.GroupWorkers, ID: r.x.entryID}
			}
			r.x.mu.Unlock()
		}
		for i, e := range w.redis.AppendAndAck(ctx, stream, values, acks) {
			switch {
			case e == nil || streams.LostGroup(e): // a lost group needs no acknowledgement
				w.settled(rs[i])
			case rs[i].claim: // must not hold up outcomes: another report will follow
				rs[i].x.claimAgain(time.Now().Add(claimRetry))
			default:
				left, err = append(left, rs[i]), e
			}
		}
	}
	return left, err
}

// settled forgets an execution whose end is on record.
func (w *Worker) settled(r *report) {
	if !r.claim {
		w.forget(r.x)
	}
}

// forget drops an execution that this worker has nothing left to do for.
func (w *Worker) forget(x *execution) {
	w.mu.Lock()
	delete(w.running, x.key)
	w.mu.Unlock()
	<-w.unsettled
}
