package streams

import (
	"context"
	"fmt"

	"github.com/penstock-dev/penstock/protocol"
)

// maxMembers is how many members of a set one command names.
const maxMembers = 1000

// ReadTasks is Read of a worker. tombstones tells whether there were any just
// after the entries had been delivered: if not, none of them is of a task that
// was cancelled before.
func (c *Client) ReadTasks(ctx context.Context, stream, group, consumer, from string, count int) (es []Entry, tombstones bool, err error) {
	pipe := c.read.Pipeline() // one round trip: an idle worker pays nothing for the look
	read := pipe.XReadGroup(ctx, readArgs(stream, group, consumer, from, count))
	exists := pipe.Exists(ctx, protocol.KeyTombstones)
	whose := pipe.HGet(ctx, epochKey, epochDeployment)
	_, _ = pipe.Exec(ctx)
	es, err = c.readEntries(stream, read, whose)
	if err == nil && exists.Err() != nil {
		err = fmt.Errorf("EXISTS %s: %w", protocol.KeyTombstones, exists.Err())
	}
	if err != nil {
		return nil, false, err
	}
	return es, exists.Val() > 0, nil
}

// HasTombstones reports whether there are any.
func (c *Client) HasTombstones(ctx context.Context) (bool, error) {
	n, err := c.lease.Exists(ctx, protocol.KeyTombstones).Result()
	if err != nil {
		return false, fmt.Errorf("EXISTS %s: %w", protocol.KeyTombstones, err)
	}
	return n > 0, nil
}

// Tombstoned tells, for each delivery, whether it has a tombstone.
func (c *Client) Tombstoned(ctx context.Context, pairs []protocol.Pair) ([]bool, error) {
	out := make([]bool, 0, len(pairs))
	for _, names := range pagesOf(pairs) {
		found, err := c.lease.SMIsMember(ctx, protocol.KeyTombstones, names...).Result()
		if err != nil {
			return nil, fmt.Errorf("SMISMEMBER %s: %w", protocol.KeyTombstones, err)
		}
		out = append(out, found...)
	}
	return out, nil
}

// AddTombstones tells workers not to start these deliveries. Adding one twice
// is harmless.
func (c *Client) AddTombstones(ctx context.Context, pairs []protocol.Pair) error {
	for _, names := range pagesOf(pairs) {
		if err := c.write.SAdd(ctx, protocol.KeyTombstones, names...).Err(); err != nil {
			return fmt.Errorf("SADD %s: %w", protocol.KeyTombstones, err)
		}
	}
	return nil
}

// RemoveTombstones forgets tombstones.
func (c *Client) RemoveTombstones(ctx context.Context, pairs []protocol.Pair) error {
	for _, names := range pagesOf(pairs) {
		if err := c.write.SRem(ctx, protocol.KeyTombstones, names...).Err(); err != nil {
			return fmt.Errorf("SREM %s: %w", protocol.KeyTombstones, err)
		}
	}
	return nil
}

// CountTombstones returns how many there are.
func (c *Client) CountTombstones(ctx context.Context) (int64, error) {
	n, err := c.write.SCard(ctx, protocol.KeyTombstones).Result()
	if err != nil {
		return 0, fmt.Errorf("SCARD %s: %w", protocol.KeyTombstones, err)
	}
	return n, nil
}

// EachTombstone calls see with the tombstones, page by page, until it fails.
// Members that are no delivery, which a stranger added, are left out.
func (c *Client) EachTombstone(ctx context.Context, see func([]protocol.Pair) error) error {
	for cursor := uint64(0); ; {
		names, next, err := c.lease.SScan(ctx, protocol.KeyTombstones, cursor, "", maxMembers).Result()
		if err != nil {
			return fmt.Errorf("SSCAN %s: %w", protocol.KeyTombstones, err)
		}
		pairs := make([]protocol.Pair, 0, len(names))
		for _, n := range names {
			if p, ok := protocol.ParsePair(n); ok {
				pairs = append(pairs, p)
			}
		}
		if len(pairs) > 0 {
			if err := see(pairs); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// Exists reports whether there is a stream, with or without entries.
func (c *Client) Exists(ctx context.Context, stream string) (bool, error) {
	n, err := c.lease.Exists(ctx, stream).Result()
	if err != nil {
		return false, fmt.Errorf("EXISTS %s: %w", stream, err)
	}
	return n > 0, nil
}

func pagesOf(pairs []protocol.Pair) (pages [][]any) {
	for len(pairs) > 0 {
		n := min(len(pairs), maxMembers)
		names := make([]any, n)
		for i, p := range pairs[:n] {
			names[i] = p.String()
		}
		pages, pairs = append(pages, names), pairs[n:]
	}
	return pages
}
