package streams

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/redis/go-redis/v9"
)

// janitor is the consumer that holds what another one was given while it was
// removed. It never reads, so its leases lapse.
const janitor = "penstock-janitor"

// DropIdleConsumers removes the consumers of a group that hold nothing and have
// done nothing for longer than idle, and returns how many. A group that is gone
// has none. Removing one that is alive is harmless: its next read makes it again.
// That happens, because before Redis 7.2 a consumer that waits for entries of a
// quiet stream counts as idle; so idle should be an hour or more, to keep it rare.
//
// What Redis gives a consumer while it is being removed is not lost: see
// dropConsumer.
func (c *Client) DropIdleConsumers(ctx context.Context, stream, group string, idle time.Duration) (int, error) {
	cs, err := c.lease.XInfoConsumers(ctx, stream, group).Result()
	if LostGroup(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("XINFO CONSUMERS %s: %w", stream, err)
	}
	n := 0
	for _, x := range cs {
		if x.Pending > 0 || x.Idle <= idle {
			continue
		}
		dropped, err := c.dropConsumer(ctx, stream, group, x.Name)
		if err != nil {
			return n, err
		}
		if dropped {
			n++
		}
	}
	return n, nil
}

// dropConsumer removes a consumer that held nothing when somebody looked. XGROUP
// DELCONSUMER throws away the leases of what it has been given since, and WATCH
// does not notice a delivery. So one transaction lists them and removes the
// consumer, and they are made pending again at once with XCLAIM FORCE. An entry
// that was acknowledged in between is pending again too, and it must not be under
// the name of the consumer, which could run it a second time. Under janitor's
// nobody reads or renews it: whoever takes it over when its lease has lapsed finds
// its work done. It reports whether the consumer held nothing; a group that is gone
// counts as that.
func (c *Client) dropConsumer(ctx context.Context, stream, group, consumer string) (bool, error) {
	ctx = context.WithoutCancel(ctx) // between the two steps entries have no lease
	var held *redis.XPendingExtCmd
	_, err := c.lease.TxPipelined(ctx, func(p redis.Pipeliner) error {
		held = p.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: stream, Group: group, Start: "-", End: "+", Count: math.MaxInt32, Consumer: consumer,
		})
		p.XGroupDelConsumer(ctx, stream, group, consumer)
		return nil
	})
	if LostGroup(err) {
		return true, nil
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, fmt.Errorf("XGROUP DELCONSUMER %s: %w", stream, err)
	}
	args := []any{"xclaim", stream, group, janitor, 0}
	for _, p := range held.Val() {
		args = append(args, p.ID)
	}
	if len(held.Val()) == 0 {
		return true, nil
	}
	if err := c.lease.Do(ctx, append(args, "force", "justid")...).Err(); err != nil && !errors.Is(err, redis.Nil) {
		return false, fmt.Errorf("XCLAIM %s: keep %d entries that %s was given while it was removed: %w", stream, len(held.Val()), consumer, err)
	}
	return false, nil
}
