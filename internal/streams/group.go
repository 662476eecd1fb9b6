package streams

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/mutant"
)

// CreateGroup makes the group at the stream's beginning, with the stream if
// needed, and reports whether it did. A group that exists already is fine.
func (c *Client) CreateGroup(ctx context.Context, stream, group string) (made bool, err error) {
	from := "0"
	if mutant.On(mutant.GroupAtEnd) {
		from = "$"
	}
	err = c.write.XGroupCreateMkStream(ctx, stream, group, from).Err()
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		return false, fmt.Errorf("XGROUP CREATE %s %s: %w", stream, group, err)
	}
	return err == nil, nil
}

// CreateTaskGroup makes the group of a task stream if it is missing and
// reports whether it did. A task stream that survived its group is dropped
// with it, because a new group would hand out finished work again; the live
// tasks of that stream must then be reconciled. A group that exists is never
// touched, even if another replica makes it at this very moment.
func (c *Client) CreateTaskGroup(ctx context.Context, stream, group string) (made bool, err error) {
	for range 5 {
		err = c.write.Watch(ctx, func(tx *redis.Tx) error {
			ok, err := hasGroup(ctx, tx, stream, group)
			if err != nil || ok {
				return err
			}
			// Not in the transaction: on a cluster the key is another node's. A crash
			// in between only makes workers more careful.
			if err := c.Remade(ctx); err != nil {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				if mutant.On(mutant.GroupAtEnd) {
					p.XGroupCreateMkStream(ctx, stream, group, "$")
					return nil
				}
				p.Del(ctx, stream)
				p.XGroupCreateMkStream(ctx, stream, group, "0")
				return nil
			})
			made = err == nil
			return err
		}, stream)
		if !errors.Is(err, redis.TxFailedErr) {
			break
		}
	}
	if err != nil {
		return false, fmt.Errorf("make group %s of %s: %w", group, stream, err)
	}
	return made, nil
}

func hasGroup(ctx context.Context, r redis.Cmdable, stream, group string) (bool, error) {
	groups, err := r.XInfoGroups(ctx, stream).Result()
	if LostGroup(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, g := range groups {
		if g.Name == group {
			return true, nil
		}
	}
	return false, nil
}

// ErrNoGroup means that the stream or its group does not exist.
var ErrNoGroup = errors.New("NOGROUP streams: no such group")

// GroupInfo is what a group still has to do.
type GroupInfo struct {
	// Undelivered entries wait for a consumer, Pending ones for their XACK.
	Undelivered, Pending int64
	// Length counts all entries of the stream, acknowledged ones included.
	Length int64
	// LastDelivered is the newest id that was given to a consumer, LastID the
	// newest that was added.
	LastDelivered, LastID string
	Consumers             int64
}

// Info reads a group. Where Redis does not know the lag (before 7.0, or after
// a stranger's XDEL), undelivered entries are counted. ErrNoGroup if the
// stream or the group is missing.
func (c *Client) Info(ctx context.Context, stream, group string) (GroupInfo, error) {
	out, err := c.position(ctx, c.write, stream, group)
	if err == nil && out.Undelivered < 0 {
		out.Undelivered, err = c.countAfter(ctx, stream, out.LastDelivered)
	}
	return out, err
}

// position is Info without the counting: Undelivered is -1 if Redis does not
// know it.
func (c *Client) position(ctx context.Context, r *redis.Client, stream, group string) (GroupInfo, error) {
	pipe := r.Pipeline()
	g := pipe.XInfoGroups(ctx, stream)
	s := pipe.XInfoStream(ctx, stream)
	if _, err := pipe.Exec(ctx); LostGroup(err) {
		return GroupInfo{}, ErrNoGroup
	} else if err != nil {
		return GroupInfo{}, fmt.Errorf("XINFO %s: %w", stream, err)
	}
	for _, gi := range g.Val() {
		if gi.Name != group {
			continue
		}
		out := GroupInfo{
			Undelivered: gi.Lag, Pending: gi.Pending, Length: s.Val().Length,
			LastDelivered: gi.LastDeliveredID, LastID: s.Val().LastGeneratedID, Consumers: gi.Consumers,
		}
		switch {
		case !Less(gi.LastDeliveredID, s.Val().LastGeneratedID):
			out.Undelivered = 0 // the lag may say otherwise after a stranger's XDEL
		case gi.Lag <= 0:
			out.Undelivered = -1
		}
		return out, nil
	}
	return GroupInfo{}, ErrNoGroup
}

// Undelivered tells how many entries of a stream wait for a consumer of the group,
// and which is next; none if the stream or the group is missing. It counts them
// only where Redis does not know how many they are; see Info.
func (c *Client) Undelivered(ctx context.Context, stream, group string) (n int64, next Entry, err error) {
	groups, err := c.write.XInfoGroups(ctx, stream).Result()
	if LostGroup(err) {
		return 0, next, nil
	}
	if err != nil {
		return 0, next, fmt.Errorf("XINFO GROUPS %s: %w", stream, err)
	}
	for _, g := range groups {
		if g.Name != group {
			continue
		}
		ms, err := c.write.XRangeN(ctx, stream, "("+g.LastDeliveredID, "+", 1).Result()
		if err != nil {
			return 0, next, fmt.Errorf("XRANGE %s: %w", stream, err)
		}
		if len(ms) == 0 {
			return 0, next, nil
		}
		if n = g.Lag; n <= 0 {
			n, err = c.countAfter(ctx, stream, g.LastDeliveredID)
		}
		return n, Entry{ID: ms[0].ID, Values: ms[0].Values}, err
	}
	return 0, next, nil
}

func (c *Client) countAfter(ctx context.Context, stream, after string) (n int64, err error) {
	err = c.Range(ctx, stream, after, func(Entry) bool { n++; return true })
	return n, err
}
