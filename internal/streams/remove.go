package streams

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// RemoveIdle deletes a task stream together with its group, if the group is
// done with every entry. It reports whether it did; it leaves the stream alone,
// and returns no error, if something is undelivered or pending, or the stream
// changes at this very moment. The queue must have no live task, and nobody
// must enqueue to it meanwhile.
func (c *Client) RemoveIdle(ctx context.Context, stream, group string) (bool, error) {
	removed := false
	err := c.write.Watch(ctx, func(tx *redis.Tx) error {
		info, err := c.Info(ctx, stream, group)
		if err != nil || info.Undelivered > 0 || info.Pending > 0 {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Del(ctx, stream)
			return nil
		})
		removed = err == nil
		return err
	}, stream)
	if err != nil && !errors.Is(err, redis.TxFailedErr) && !errors.Is(err, ErrNoGroup) {
		return false, fmt.Errorf("remove %s: %w", stream, err)
	}
	return removed, nil
}
