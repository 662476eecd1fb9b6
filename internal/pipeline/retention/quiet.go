package retention

import (
	"context"
	"errors"
	"time"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// clockSkew is how far the clocks of Redis and Postgres may be apart, and how
// long after its task has finished an entry may still be added.
const clockSkew = time.Hour

// quietBefore is a time, by Postgres' clock, for which holds: of no task of the
// queue that finished before it is there an entry that a worker has not
// acknowledged, or an outcome that was not applied.
func (j *Janitor) quietBefore(ctx context.Context, queue string) (time.Time, error) {
	now, err := j.o.Redis.Now(ctx)
	if err != nil {
		return time.Time{}, err
	}
	oldest := streams.IDAt(now)
	for stream, group := range map[string]string{protocol.TaskStream(queue): protocol.GroupWorkers, protocol.StreamResult: protocol.GroupOrchestrators} {
		id, err := j.oldestOpen(ctx, stream, group)
		if err != nil {
			return time.Time{}, err
		}
		oldest = streams.MinID(oldest, id)
	}
	return streams.TimeOf(oldest).Add(-clockSkew), nil
}

// oldestOpen is the id of the oldest entry that the group has not acknowledged;
// "" if there is none.
func (j *Janitor) oldestOpen(ctx context.Context, stream, group string) (string, error) {
	info, err := j.o.Redis.Info(ctx, stream, group)
	switch {
	case errors.Is(err, streams.ErrNoGroup) && stream != protocol.StreamResult:
		return "", nil // nothing can be fetched, and a new group starts with an empty stream
	case errors.Is(err, streams.ErrNoGroup): // a new group reads all of it
	case err != nil:
		return "", err
	}
	// Undelivered entries first: what is delivered meanwhile is pending then.
	first := ""
	err = j.o.Redis.Range(ctx, stream, info.LastDelivered, func(e streams.Entry) bool { first = e.ID; return false })
	if err != nil {
		return "", err
	}
	pending, err := j.o.Redis.OldestPending(ctx, stream, group)
	if err != nil && !streams.LostGroup(err) {
		return "", err
	}
	return streams.MinID(first, pending), nil
}
