package streams

import (
	"context"
	"fmt"
)

// Trim removes entries that the group has acknowledged, and no others: those
// before Acknowledged and before limit ("" for no limit). It returns how many
// it removed.
func (c *Client) Trim(ctx context.Context, stream, group, limit string) (int64, error) {
	upTo, err := c.Acknowledged(ctx, stream, group)
	if err != nil {
		return 0, err
	}
	return c.TrimBefore(ctx, stream, MinID(upTo, limit))
}

// Acknowledged returns an id before which every entry has been acknowledged:
// that of the oldest pending entry, else of the last delivered one, which itself
// is never removed, so that the group's lag stays exact.
func (c *Client) Acknowledged(ctx context.Context, stream, group string) (string, error) {
	// The order matters: what is delivered after this read is newer than it.
	info, err := c.Info(ctx, stream, group)
	if err != nil {
		return "", err
	}
	oldest, err := c.OldestPending(ctx, stream, group)
	if err != nil {
		return "", err
	}
	return MinID(info.LastDelivered, oldest), nil
}

// TrimBefore removes the entries before an id that Acknowledged returned, or a
// smaller one, and returns how many.
func (c *Client) TrimBefore(ctx context.Context, stream, id string) (int64, error) {
	if id == "0-0" || id == "" {
		return 0, nil
	}
	n, err := c.write.XTrimMinID(ctx, stream, id).Result()
	if err != nil {
		return 0, fmt.Errorf("XTRIM %s: %w", stream, err)
	}
	return n, nil
}
