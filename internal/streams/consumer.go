package streams

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// ConsumerIdle tells whether the group has a consumer, and how long ago that did
// anything. A stream or group that is gone has none.
func (c *Client) ConsumerIdle(ctx context.Context, stream, group, consumer string) (idle time.Duration, found bool, err error) {
	cs, err := c.lease.XInfoConsumers(ctx, stream, group).Result()
	if LostGroup(err) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("XINFO CONSUMERS %s: %w", stream, err)
	}
	for _, x := range cs {
		if x.Name == consumer {
			return x.Idle, true, nil
		}
	}
	return 0, false, nil
}

// HeldBy reads the first entries that a consumer holds after an id ("" for the
// first), in order of id, with how they are held; ghosts are the ids of those that
// were deleted. last is where to go on; "" when there are no more.
func (c *Client) HeldBy(ctx context.Context, stream, group, consumer, after string) (got []Entry, ghosts []string, held map[string]Pending, last string, err error) {
	start := "-"
	if after != "" {
		start = "(" + after
	}
	ps, err := c.lease.XPendingExt(ctx, &redis.XPendingExtArgs{
		Stream: stream, Group: group, Start: start, End: "+", Count: firstPage, Consumer: consumer,
	}).Result()
	if LostGroup(err) || errors.Is(err, redis.Nil) {
		return nil, nil, nil, "", nil
	}
	if err != nil {
		return nil, nil, nil, "", fmt.Errorf("XPENDING %s: %w", stream, err)
	}
	held = make(map[string]Pending, len(ps))
	size := 0
	for _, p := range ps { // one by one: they may be large
		if size > pageBytes {
			return got, ghosts, held, last, nil
		}
		es, err := c.Fetch(ctx, stream, []string{p.ID})
		if err != nil {
			return nil, nil, nil, "", err
		}
		held[p.ID] = Pending{ID: p.ID, Consumer: p.Consumer, Idle: p.Idle}
		if last = p.ID; es[0].Values == nil {
			ghosts = append(ghosts, p.ID)
			continue
		}
		got, size = append(got, es[0]), size+Size(es)
	}
	return got, ghosts, held, last, nil
}
