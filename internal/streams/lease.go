package streams

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/mutant"
)

// maxClaims bounds how many small entries are claimed at once.
const maxClaims = 100

// Claim takes entries that have been idle for at least minIdle from their
// consumers, starting at id from, and returns those it got together with the
// ids of ghosts: entries that were deleted while pending and have only to be
// acknowledged. next is where to go on; "" when the scan is complete. An empty
// page does not mean that the scan is.
func (c *Client) Claim(ctx context.Context, stream, group, consumer, from string, minIdle time.Duration) (got []Entry, ghosts []string, next string, err error) {
	if from == "" {
		from = "0-0"
	}
	count := min(max(c.claims.Load(), 1), maxClaims)
	ms, next, deleted, err := c.lease.XAutoClaimWithDeleted(ctx, &redis.XAutoClaimArgs{
		Stream: stream, Group: group, Consumer: consumer, Start: from, MinIdle: minIdle, Count: count,
	}).Result()
	if err != nil && (errors.Is(err, redis.Nil) || strings.Contains(strings.ToLower(err.Error()), "unknown command")) {
		// Missing, or Redis 6.2 with a ghost: it sends a nil in its place, and
		// no id.
		return c.claimByHand(ctx, stream, group, consumer, from, minIdle, count)
	}
	if err != nil {
		c.claims.Store(1) // perhaps more than arrives in time
		return nil, nil, "", fmt.Errorf("XAUTOCLAIM %s: %w", stream, err)
	}
	c.claims.Store(int64(nextPage(ms)))
	for _, m := range ms {
		if m.Values == nil {
			ghosts = append(ghosts, m.ID)
			continue
		}
		got = append(got, Entry{ID: m.ID, Values: m.Values})
	}
	if next == "0-0" {
		next = ""
	}
	return got, append(ghosts, deleted...), next, nil
}

// claimByHand is Claim with XPENDING and XCLAIM, for servers without
// XAUTOCLAIM.
func (c *Client) claimByHand(ctx context.Context, stream, group, consumer, from string, minIdle time.Duration, count int64) (got []Entry, ghosts []string, next string, err error) {
	ps, err := c.lease.XPendingExt(ctx, &redis.XPendingExtArgs{
		Stream: stream, Group: group, Idle: minIdle, Start: from, End: "+", Count: count,
	}).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, nil, "", fmt.Errorf("XPENDING %s: %w", stream, err)
	}
	if len(ps) == 0 {
		return nil, nil, "", nil
	}
	ids := make([]string, len(ps))
	for i, p := range ps {
		ids[i] = p.ID
	}
	claimed, err := c.lease.XClaimJustID(ctx, &redis.XClaimArgs{
		Stream: stream, Group: group, Consumer: consumer, MinIdle: minIdle, Messages: ids,
	}).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, nil, "", fmt.Errorf("XCLAIM %s: %w", stream, err)
	}
	es, err := c.Fetch(ctx, stream, claimed)
	if err != nil {
		return nil, nil, "", err
	}
	for _, e := range es {
		if e.Values == nil {
			ghosts = append(ghosts, e.ID)
		} else {
			got = append(got, e)
		}
	}
	if int64(len(ps)) == count {
		ms, seq := splitID(ids[count-1])
		next = fmt.Sprintf("%d-%d", ms, seq+1)
	}
	return got, ghosts, next, nil
}

// Ownership is what XPENDING says about an entry that a consumer believes to
// hold.
type Ownership int

const (
	// Held: the consumer owns the entry.
	Held Ownership = iota
	// Taken: another consumer owns it.
	Taken
	// Gone: nobody does; it was acknowledged, or Redis lost it.
	Gone
)

// Owned tells, for each id, whether the consumer still owns it. If Redis lost
// the whole group, every entry is Gone.
func (c *Client) Owned(ctx context.Context, stream, group, consumer string, ids []string) ([]Ownership, error) {
	out := make([]Ownership, 0, len(ids))
	if mutant.On(mutant.ForceClaim) {
		return append(out, make([]Ownership, len(ids))...), nil // all Held
	}
	for len(ids) > 0 {
		n := min(len(ids), page)
		pipe := c.lease.Pipeline()
		cmds := make([]*redis.XPendingExtCmd, n)
		for i, id := range ids[:n] {
			cmds[i] = pipe.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: stream, Group: group, Start: id, End: id, Count: 1})
		}
		if _, err := pipe.Exec(ctx); err != nil && !LostGroup(err) && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("XPENDING %s: %w", stream, err)
		}
		for _, cmd := range cmds {
			o := Gone
			if ps := cmd.Val(); len(ps) == 1 {
				o = Taken
				if ps[0].Consumer == consumer {
					o = Held
				}
			}
			out = append(out, o)
		}
		ids = ids[n:]
	}
	return out, nil
}

// Acked tells which of the entries, which nobody holds, were acknowledged: those
// that are still in the stream of a group that exists, and those whose Content,
// known from before they were seen pending, is still the present one, so that they
// were trimmed since. Of others it is not known whether Redis lost them. seen
// holds the Content of each entry.
func (c *Client) Acked(ctx context.Context, stream, group string, ids []string, seen []Content) ([]bool, error) {
	out := make([]bool, len(ids))
	info, err := c.position(ctx, c.lease, stream, group)
	if errors.Is(err, ErrNoGroup) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	es, err := c.Fetch(ctx, stream, ids)
	if err != nil {
		return nil, err
	}
	now, err := c.Content(ctx) // last, so that it holds for what was read before
	if err != nil {
		now = Content{} // a stranger's key must not stop renewals
	}
	for i, e := range es {
		same := now.Known() && seen[i] == now
		// One beyond the last delivered is undelivered again: Redis lost the lease.
		out[i] = (e.Values != nil || same) && !Less(info.LastDelivered, ids[i])
	}
	return out, nil
}

// Renew resets the idle time of entries that the consumer holds. The caller
// has just checked with Owned that it does: XCLAIM itself does not ask. It
// never revives an entry that was acknowledged. dropped are those that it did
// not find: from 7.0 on it also ends the lease of an entry that a stranger deleted.
func (c *Client) Renew(ctx context.Context, stream, group, consumer string, ids []string) (dropped []string, err error) {
	for len(ids) > 0 {
		n := min(len(ids), page)
		if mutant.On(mutant.ForceClaim) {
			c.forceClaim(ctx, stream, group, consumer, ids[:n])
		}
		got, err := c.lease.XClaimJustID(ctx, &redis.XClaimArgs{
			Stream: stream, Group: group, Consumer: consumer, MinIdle: 0, Messages: ids[:n],
		}).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return dropped, fmt.Errorf("XCLAIM %s: %w", stream, err)
		}
		for _, id := range ids[:n] { // the reply keeps their order
			if len(got) > 0 && got[0] == id {
				got = got[1:]
			} else {
				dropped = append(dropped, id)
			}
		}
		ids = ids[n:]
	}
	return dropped, nil
}

// forceClaim is a bug on purpose; see package mutant.
func (c *Client) forceClaim(ctx context.Context, stream, group, consumer string, ids []string) {
	args := []any{"xclaim", stream, group, consumer, 0}
	for _, id := range ids {
		args = append(args, id)
	}
	_ = c.lease.Do(ctx, append(args, "force", "justid")...).Err()
}

// LeaveGroup removes a consumer that holds nothing. A consumer with pending
// entries is left alone, because removing it would make them undeliverable;
// false is returned then, and also if it was given some at that moment, which then
// wait for somebody to take them over: see dropConsumer.
func (c *Client) LeaveGroup(ctx context.Context, stream, group, consumer string) (bool, error) {
	ps, err := c.lease.XPendingExt(ctx, &redis.XPendingExtArgs{
		Stream: stream, Group: group, Start: "-", End: "+", Count: 1, Consumer: consumer,
	}).Result()
	if LostGroup(err) {
		return true, nil
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, fmt.Errorf("XPENDING %s: %w", stream, err)
	}
	if len(ps) > 0 {
		return false, nil
	}
	return c.dropConsumer(ctx, stream, group, consumer)
}
