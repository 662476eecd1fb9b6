package streams

import (
	"context"
	"fmt"
)

// Trim removes entries that the group has acknowledged, and no others: those
// before the oldest pending one and not after the last delivered one, and
// before limit ("" for no limit). It never removes the last delivered entry
// itself, so that the group's lag stays exact. It returns how many it removed.
func (c *Client) Trim(ctx context.Context, stream, group, limit string) (int64, error) {
	// The order matters: what is delivered after this read is newer than it.
	info, err := c.Info(ctx, stream, group)
	if err != nil {
		return 0, err
	}
	oldest, err := c.OldestPending(ctx, stream, group)
	if err != nil {
		return 0, err
	}
	upTo := info.LastDelivered
	if oldest != "" {
		upTo = MinID(upTo, oldest)
	}
	if limit != "" {
		upTo = MinID(upTo, limit)
	}
	if upTo == "0-0" || upTo == "" {
		return 0, nil
	}
	n, err := c.write.XTrimMinID(ctx, stream, upTo).Result()
	if err != nil {
		return 0, fmt.Errorf("XTRIM %s: %w", stream, err)
	}
	return n, nil
}
