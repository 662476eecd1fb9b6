package streams

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Entries are read in pages of at most page, and fewer where they are large: as
// many as make about pageBytes, going by those that were just read.
const (
	page      = 500
	firstPage = 32
	pageBytes = 4 << 20
)

// nextPage returns how many entries to read after these.
func nextPage(last []redis.XMessage) int {
	if len(last) == 0 {
		return firstPage
	}
	size := 0
	for _, m := range last {
		size += sizeOf(m.Values)
	}
	return PageOf(len(last), size)
}

func sizeOf(values map[string]any) (n int) {
	for _, v := range values {
		if s, ok := v.(string); ok {
			n += len(s)
		}
	}
	return n
}

// FirstPage is how many things of unknown size to read at once that may be as
// large as a payload.
const FirstPage = firstPage

// PageOf returns how many of the kind to read next, after n that had size bytes:
// as many as make about 4 MiB, at most 500, and FirstPage after none.
func PageOf(n, size int) int {
	if n == 0 {
		return firstPage
	}
	return min(max(pageBytes*n/max(size, 1), 1), page)
}

// Page is PageOf for entries.
func Page(es []Entry) int { return PageOf(len(es), Size(es)) }

// Size is how many bytes the values of entries have.
func Size(es []Entry) (n int) {
	for _, e := range es {
		n += sizeOf(e.Values)
	}
	return n
}

// Less reports whether stream id a comes before b. Ids that are no stream ids
// count as 0-0.
func Less(a, b string) bool {
	am, as := splitID(a)
	bm, bs := splitID(b)
	return am < bm || am == bm && as < bs
}

func splitID(id string) (ms, seq uint64) {
	m, s, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(m, 10, 64)
	seq, _ = strconv.ParseUint(s, 10, 64)
	return ms, seq
}

// MinID returns the smaller of two ids; an empty one counts as none.
func MinID(a, b string) string {
	if a == "" || b != "" && Less(b, a) {
		return b
	}
	return a
}

// Before is the largest id smaller than an id.
func Before(id string) string {
	ms, seq := splitID(id)
	if seq--; seq == math.MaxUint64 {
		ms = max(ms, 1) - 1
	}
	return fmt.Sprintf("%d-%d", ms, seq)
}

// IDAt is the smallest id of a moment, by Redis' clock.
func IDAt(t time.Time) string { return strconv.FormatInt(max(t.UnixMilli(), 0), 10) + "-0" }

// TimeOf is the moment of an id, by Redis' clock.
func TimeOf(id string) time.Time {
	ms, _ := splitID(id)
	return time.UnixMilli(int64(min(ms, math.MaxInt64)))
}

// Range calls fn for each entry after an id, in order, until fn returns false.
func (c *Client) Range(ctx context.Context, stream, after string, fn func(Entry) bool) error {
	if after == "" {
		after = "0-0"
	}
	for n := firstPage; ; {
		ms, err := c.lease.XRangeN(ctx, stream, "("+after, "+", int64(n)).Result()
		if err != nil {
			return fmt.Errorf("XRANGE %s: %w", stream, err)
		}
		for _, m := range ms {
			if !fn(Entry{ID: m.ID, Values: m.Values}) {
				return nil
			}
			after = m.ID
		}
		if len(ms) < n {
			return nil
		}
		n = nextPage(ms)
	}
}

// Head returns the first entries after an id, at most n.
func (c *Client) Head(ctx context.Context, stream, after string, n int) ([]Entry, error) {
	ms, err := c.lease.XRangeN(ctx, stream, "("+after, "+", int64(n)).Result()
	if err != nil {
		return nil, fmt.Errorf("XRANGE %s: %w", stream, err)
	}
	return entries(ms), nil
}

// Pending is one entry that a consumer holds.
type Pending struct {
	ID string
	// Consumer is as its holder chose it: any bytes, of any number.
	Consumer string
	Idle     time.Duration
}

// PendingAfter lists up to page entries of the group that are pending after an
// id ("" for the first), idle for at least minIdle, in order of id. more tells
// whether to go on after the last one.
func (c *Client) PendingAfter(ctx context.Context, stream, group, after string, minIdle time.Duration) (out []Pending, more bool, err error) {
	start := "-"
	if after != "" {
		start = "(" + after
	}
	ps, err := c.lease.XPendingExt(ctx, &redis.XPendingExtArgs{
		Stream: stream, Group: group, Idle: minIdle, Start: start, End: "+", Count: page,
	}).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, false, fmt.Errorf("XPENDING %s: %w", stream, err)
	}
	for _, p := range ps {
		out = append(out, Pending{ID: p.ID, Consumer: p.Consumer, Idle: p.Idle})
	}
	return out, len(ps) == page, nil
}

// Fetch reads entries by id, in pipelines. Entries that do not exist any more
// come back with nil Values.
func (c *Client) Fetch(ctx context.Context, stream string, ids []string) ([]Entry, error) {
	out := make([]Entry, 0, len(ids))
	err := c.FetchEach(ctx, stream, ids, func(e Entry) { out = append(out, e) })
	return out, err
}

// FetchEach is Fetch that hands the entries to fn one by one, in the order of
// the ids, and keeps none of them.
func (c *Client) FetchEach(ctx context.Context, stream string, ids []string, fn func(Entry)) error {
	for size := firstPage; len(ids) > 0; {
		n := min(len(ids), size)
		pipe := c.lease.Pipeline()
		cmds := make([]*redis.XMessageSliceCmd, n)
		for i, id := range ids[:n] {
			cmds[i] = pipe.XRange(ctx, stream, id, id)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return fmt.Errorf("XRANGE %s: %w", stream, err)
		}
		var found []redis.XMessage
		for i, cmd := range cmds {
			e := Entry{ID: ids[i]}
			if ms := cmd.Val(); len(ms) == 1 {
				e.Values = ms[0].Values
				found = append(found, ms[0])
			}
			fn(e)
		}
		ids, size = ids[n:], nextPage(found)
	}
	return nil
}

// OldestPending returns the smallest pending id of the group, "" if nothing is
// pending.
func (c *Client) OldestPending(ctx context.Context, stream, group string) (string, error) {
	p, err := c.lease.XPending(ctx, stream, group).Result()
	if err != nil {
		if errors.Is(err, redis.Nil) {
			return "", nil
		}
		return "", fmt.Errorf("XPENDING %s: %w", stream, err)
	}
	if p.Count == 0 {
		return "", nil
	}
	return p.Lower, nil
}

// waitPoll is how often WaitApplied looks again.
const waitPoll = 20 * time.Millisecond

// WaitApplied waits until everything that is in the stream now has been
// delivered to the group and acknowledged. ctx bounds the wait.
func (c *Client) WaitApplied(ctx context.Context, stream, group string) error {
	tail, err := c.LastID(ctx, stream)
	if err != nil {
		return err
	}
	for {
		info, err := c.position(ctx, c.write, stream, group)
		if err != nil {
			return err
		}
		if !Less(info.LastDelivered, tail) {
			oldest := ""
			if info.Pending > 0 {
				if oldest, err = c.OldestPending(ctx, stream, group); err != nil {
					return err
				}
			}
			if oldest == "" || Less(tail, oldest) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s is applied up to %s: %w", stream, tail, ctx.Err())
		case <-time.After(waitPoll):
		}
	}
}
