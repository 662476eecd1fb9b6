package reconcile

import (
	"context"

	"github.com/penstock-dev/penstock/internal/streams"
)

// Scan calls see for every entry of a stream that the group is not done with:
// first those that nobody was given, then those that are pending. An entry goes
// from the former to the latter, never back, so one that is there during the
// whole scan is seen, maybe twice. after is called after each of the two
// readings, with "undelivered" and "pending"; nil: nobody is told.
//
// The error is streams.ErrNoGroup if the stream or the group is missing.
func Scan(ctx context.Context, redis *streams.Client, stream, group string, see func(streams.Entry), after func(reading string)) error {
	if after == nil {
		after = func(string) {}
	}
	info, err := redis.Info(ctx, stream, group)
	if err != nil {
		return err
	}
	all := func(e streams.Entry) bool {
		see(e)
		return true
	}
	if err := redis.Range(ctx, stream, info.LastDelivered, all); err != nil {
		return err
	}
	after("undelivered")
	last := ""
	for more := true; more; {
		var ps []streams.Pending
		if ps, more, err = redis.PendingAfter(ctx, stream, group, last, 0); err != nil {
			return err
		}
		ids := make([]string, len(ps))
		for i, p := range ps {
			ids[i], last = p.ID, p.ID
		}
		if err := redis.FetchEach(ctx, stream, ids, see); err != nil {
			return err
		}
	}
	after("pending")
	return nil
}
