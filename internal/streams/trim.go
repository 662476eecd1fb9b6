package streams

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Trim removes entries that the group has acknowledged, and no others: those
// before Acknowledged and before limit ("" for no limit). It returns how many
// it removed.
func (c *Client) Trim(ctx context.Context, stream, group, limit string) (int64, error) {
	upTo, _, err := c.Acknowledged(ctx, stream, group)
	if err != nil {
		return 0, err
	}
	return c.TrimBefore(ctx, stream, MinID(upTo, limit))
}

// Acknowledged returns an id before which every entry has been acknowledged:
// that of the oldest pending entry, else of the last delivered one, which itself
// is never removed, so that the group's lag stays exact. delivered is the id of
// the last delivered entry.
func (c *Client) Acknowledged(ctx context.Context, stream, group string) (upTo, delivered string, err error) {
	// The order matters: what is delivered after this read is newer than it.
	info, err := c.position(ctx, c.write, stream, group)
	if err != nil {
		return "", "", err
	}
	oldest, err := c.OldestPending(ctx, stream, group)
	if err != nil {
		return "", "", err
	}
	return MinID(info.LastDelivered, oldest), info.LastDelivered, nil
}

// sweepPages bounds the work of one DropAcknowledged.
const sweepPages = 40

// DropAcknowledged removes acknowledged entries one by one where an old pending
// entry keeps more than keep of them from being trimmed. It removes entries
// before an id only, which must not be beyond what was delivered: the last
// delivered entry stays, so that the group's lag stays exact. It returns how
// many it removed; a long stream takes several calls.
func (c *Client) DropAcknowledged(ctx context.Context, stream, group, before string, keep int64) (n int64, err error) {
	info, err := c.Info(ctx, stream, group)
	if err != nil || info.Length-info.Pending-info.Undelivered <= keep || before == "" {
		return 0, err
	}
	before = MinID(before, info.LastDelivered)
	after := "0-0"
	for range sweepPages {
		ms, err := c.lease.XRangeN(ctx, stream, "("+after, "("+before, page).Result()
		if err != nil {
			return n, fmt.Errorf("XRANGE %s: %w", stream, err)
		}
		if len(ms) == 0 {
			return n, nil
		}
		after = ms[len(ms)-1].ID
		held, err := c.lease.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: stream, Group: group, Start: ms[0].ID, End: after, Count: page + 1,
		}).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return n, fmt.Errorf("XPENDING %s: %w", stream, err)
		}
		if len(held) > page {
			continue // maybe not all of them: more are pending here than entries exist
		}
		pending := make(map[string]bool, len(held))
		for _, p := range held {
			pending[p.ID] = true
		}
		var drop []string
		for _, m := range ms {
			if !pending[m.ID] {
				drop = append(drop, m.ID)
			}
		}
		if len(drop) == 0 {
			continue
		}
		k, err := c.write.XDel(ctx, stream, drop...).Result()
		if n += k; err != nil {
			return n, fmt.Errorf("XDEL %s: %w", stream, err)
		}
	}
	return n, nil
}

// TrimBefore removes the entries before an id that Acknowledged returned, or a
// smaller one, and returns how many.
func (c *Client) TrimBefore(ctx context.Context, stream, id string) (int64, error) {
	if id == "0-0" || id == "" {
		return 0, nil
	}
	n, err := c.write.XTrimMinID(ctx, stream, id).Result()
	if err != nil && (strings.Contains(strings.ToLower(err.Error()), "syntax error") || strings.Contains(strings.ToLower(err.Error()), "unknown command")) {
		return c.dropBefore(ctx, stream, id) // Redis before 6.2: XTRIM knows no MINID
	}
	if err != nil {
		return 0, fmt.Errorf("XTRIM %s: %w", stream, err)
	}
	return n, nil
}

// dropBefore is TrimBefore, entry by entry. A long stream takes several calls.
func (c *Client) dropBefore(ctx context.Context, stream, id string) (n int64, err error) {
	for range sweepPages {
		// Not "(" + id: exclusive ranges came with 6.2, too.
		ms, err := c.lease.XRangeN(ctx, stream, "-", Before(id), page).Result()
		if err != nil {
			return n, fmt.Errorf("XRANGE %s: %w", stream, err)
		}
		if len(ms) == 0 {
			return n, nil
		}
		ids := make([]string, len(ms))
		for i, m := range ms {
			ids[i] = m.ID
		}
		k, err := c.write.XDel(ctx, stream, ids...).Result()
		if n += k; err != nil {
			return n, fmt.Errorf("XDEL %s: %w", stream, err)
		}
	}
	return n, nil
}

// DropDelivered removes entries that were delivered, but for the last one, which
// stays so that the group's lag stays exact.
func (c *Client) DropDelivered(ctx context.Context, stream, group string, ids []string) error {
	info, err := c.Info(ctx, stream, group)
	if errors.Is(err, ErrNoGroup) {
		return nil
	}
	if err != nil {
		return err
	}
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return MinID(id, info.LastDelivered) != id || id == info.LastDelivered })
	if len(ids) == 0 {
		return nil
	}
	return c.Drop(ctx, stream, ids)
}

// Drop removes entries one by one. They must be acknowledged.
func (c *Client) Drop(ctx context.Context, stream string, ids []string) error {
	if err := c.lease.XDel(ctx, stream, ids...).Err(); err != nil {
		return fmt.Errorf("XDEL %s: %w", stream, err)
	}
	return nil
}
