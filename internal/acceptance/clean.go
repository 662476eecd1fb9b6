package acceptance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// queues are all that an acceptance may have used.
func (r *run) queues() []string {
	return []string{r.name, r.queue(queueIdle), r.queue(queueStop), r.queue(queueAck)}
}

// clean ends every task that has not ended, lets a worker acknowledge what is
// left in the streams, stops the workers and removes the streams. It says what
// is left otherwise.
func (r *run) clean() (left string) {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	err := r.cancelAll(ctx)
	for _, q := range []string{r.queue(queueIdle), r.queue(queueStop)} {
		if _, ierr := r.redis.Info(ctx, protocol.TaskStream(q), protocol.GroupWorkers); ierr == nil {
			err = errors.Join(err, r.startWorker(q, 4, r.handlers()))
		}
	}
	for _, q := range r.queues() {
		err = errors.Join(err, r.ackAll(ctx, protocol.TaskStream(q)), r.drained(ctx, protocol.TaskStream(q)))
	}
	r.mu.Lock()
	stops := slices.Clone(r.stops)
	r.stops = nil
	r.mu.Unlock()
	for _, stop := range stops {
		err = errors.Join(err, stop())
	}
	for _, q := range r.queues() {
		err = errors.Join(err, r.remove(ctx, protocol.TaskStream(q)))
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// cancelAll cancels what has not ended.
func (r *run) cancelAll(ctx context.Context) error {
	r.mu.Lock()
	ids := slices.Clone(r.ids)
	r.mu.Unlock()
	for _, id := range ids {
		t, err := r.o.Client.Get(ctx, Tenant, id)
		if err != nil {
			return fmt.Errorf("task %s: %w", id, err)
		}
		if protocol.State(t.State).Terminal() {
			continue
		}
		_, err = r.o.Client.RPC().CancelTask(ctx, connect.NewRequest(&penstockv1.CancelTaskRequest{TaskId: id, Tenant: Tenant, Reason: "the acceptance is over"}))
		if err != nil && connect.CodeOf(err) != connect.CodeFailedPrecondition {
			return fmt.Errorf("cancel task %s (%s): %w", id, t.State, err)
		}
	}
	return nil
}

// ackAll acknowledges what is pending: it is of tasks that have ended, and who
// held it may be a worker that was made to vanish.
func (r *run) ackAll(ctx context.Context, stream string) error {
	for after := ""; ; {
		ps, more, err := r.redis.PendingAfter(ctx, stream, protocol.GroupWorkers, after, 0)
		if streams.LostGroup(err) {
			return nil
		}
		if err != nil || len(ps) == 0 {
			return err
		}
		ids := make([]string, len(ps))
		for i, p := range ps {
			ids[i] = p.ID
		}
		if err := r.redis.Ack(ctx, stream, protocol.GroupWorkers, ids); err != nil {
			return err
		}
		if after = ids[len(ids)-1]; !more {
			return nil
		}
	}
}

// drained waits until nothing of a stream waits for a worker or its XACK.
func (r *run) drained(ctx context.Context, stream string) error {
	return r.until(ctx, func() (bool, error) {
		info, err := r.redis.Info(ctx, stream, protocol.GroupWorkers)
		if errors.Is(err, streams.ErrNoGroup) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if info.Undelivered+info.Pending > 0 {
			return false, fmt.Errorf("%s: %d entries undelivered, %d pending", stream, info.Undelivered, info.Pending)
		}
		return true, nil
	})
}

func (r *run) remove(ctx context.Context, stream string) error {
	return r.until(ctx, func() (bool, error) {
		if _, err := r.redis.Info(ctx, stream, protocol.GroupWorkers); errors.Is(err, streams.ErrNoGroup) {
			return true, nil
		}
		removed, err := r.redis.RemoveIdle(ctx, stream, protocol.GroupWorkers)
		if err == nil && !removed {
			err = fmt.Errorf("%s is not idle", stream)
		}
		return removed, err
	})
}

// until asks again and again. When ctx ends it returns what the last answer was,
// or ctx's error.
func (r *run) until(ctx context.Context, ask func() (done bool, err error)) error {
	for {
		done, err := ask()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			if err == nil || ctx.Err() == err {
				err = ctx.Err()
			}
			return err
		case <-time.After(look):
		}
	}
}
