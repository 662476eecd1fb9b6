package streams

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/protocol"
)

// Kind is a type of tasks in a queue: what a worker knows or does not know.
type Kind struct{ Queue, Type string }

// member is the kind's name in KeyTypes, and in messages on KeyOffers.
func (k Kind) member() string { return k.Queue + " " + k.Type }

// offersKey is the list of the entries of this kind that are offered.
func (k Kind) offersKey() string { return protocol.KeyOffers + ":" + k.Queue + ":" + k.Type }

// maxKnown is how far ahead a worker may say that it lives: what says more was
// not written by one.
const maxKnown = time.Minute

// Know says that a worker that knows these kinds lives for ttl more, which is at
// most a minute, and forgets what nobody has said for long.
func (c *Client) Know(ctx context.Context, kinds []Kind, ttl time.Duration) error {
	now, err := c.Now(ctx)
	if err != nil {
		return err
	}
	until := float64(now.Add(min(ttl, maxKnown)).UnixMilli())
	for len(kinds) > 0 {
		n := min(len(kinds), maxMembers)
		members := make([]redis.Z, n)
		for i, k := range kinds[:n] {
			members[i] = redis.Z{Score: until, Member: k.member()}
		}
		pipe := c.lease.Pipeline()
		add := pipe.ZAddArgs(ctx, protocol.KeyTypes, redis.ZAddArgs{GT: true, Members: members})
		pipe.ZRemRangeByScore(ctx, protocol.KeyTypes, "-inf", fmt.Sprintf("(%d", now.UnixMilli()))
		if _, err := pipe.Exec(ctx); err != nil || add.Err() != nil {
			return fmt.Errorf("ZADD %s: %w", c.Key(protocol.KeyTypes), errors.Join(add.Err(), err))
		}
		kinds = kinds[n:]
	}
	return nil
}

// Known tells, for each kind, whether a worker that lives knows it.
func (c *Client) Known(ctx context.Context, kinds []Kind) ([]bool, error) {
	out := make([]bool, 0, len(kinds))
	for len(kinds) > 0 {
		n := min(len(kinds), maxMembers)
		members := make([]string, n)
		for i, k := range kinds[:n] {
			members[i] = k.member()
		}
		pipe := c.lease.Pipeline()
		now := pipe.Time(ctx)
		scores := pipe.ZMScore(ctx, protocol.KeyTypes, members...)
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, fmt.Errorf("ZMSCORE %s: %w", c.Key(protocol.KeyTypes), err)
		}
		ms := float64(now.Val().UnixMilli())
		for _, s := range scores.Val() {
			out = append(out, s >= ms && s <= ms+float64(maxKnown.Milliseconds()))
		}
		kinds = kinds[n:]
	}
	return out, nil
}

// Offer is a pending entry that its holder can't run. Whoever removes it from its
// list, and nobody else, may act on the entry: a worker that knows its kind and
// takes it over (Take, TakeOver), or its holder (Withdraw).
type Offer struct{ ID, Holder string }

func (o Offer) String() string { return o.ID + " " + o.Holder }

// maxHolder is the longest name of a consumer in an offer.
const maxHolder = 512

// parseOffer reads an offer, which may be a stranger's.
func parseOffer(s string) (Offer, bool) {
	id, holder, ok := strings.Cut(s, " ")
	ms, seq, dash := strings.Cut(id, "-")
	return Offer{id, holder}, ok && dash && digits(ms) && digits(seq) && holder != "" && len(holder) <= maxHolder
}

func digits(s string) bool {
	return s != "" && len(s) <= 20 && strings.Trim(s, "0123456789") == ""
}

// Offer offers entries of a kind for ttl, and tells the workers that listen. After
// an Ambiguous error they may have been offered or not.
func (c *Client) Offer(ctx context.Context, k Kind, offers []Offer, ttl time.Duration) error {
	if len(offers) == 0 {
		return nil
	}
	pipe := c.write.Pipeline()
	push := pipe.RPush(ctx, k.offersKey(), names(offers)...)
	pipe.PExpire(ctx, k.offersKey(), ttl)
	pipe.Publish(ctx, protocol.KeyOffers, k.member()) // who misses it looks every few seconds
	_, err := pipe.Exec(ctx)
	if push.Err() != nil {
		return fmt.Errorf("RPUSH %s: %w", c.Key(k.offersKey()), push.Err())
	}
	if push.Val() == 0 { // never sent
		return fmt.Errorf("RPUSH %s: %w", c.Key(k.offersKey()), errors.Join(err, errors.New("no reply")))
	}
	return nil
}

func names(offers []Offer) []any {
	out := make([]any, len(offers))
	for i, o := range offers {
		out[i] = o.String()
	}
	return out
}

// Withdraw takes offers back, and tells of each whether it did: else somebody else
// has taken it.
func (c *Client) Withdraw(ctx context.Context, k Kind, offers []Offer) ([]bool, error) {
	pipe := c.write.Pipeline()
	cmds := make([]*redis.IntCmd, len(offers))
	for i, o := range offers {
		cmds[i] = pipe.LRem(ctx, k.offersKey(), 0, o.String())
	}
	_, err := pipe.Exec(ctx)
	out := make([]bool, len(offers))
	for i, cmd := range cmds {
		out[i] = cmd.Err() == nil && cmd.Val() > 0
	}
	if err != nil {
		return out, fmt.Errorf("LREM %s: %w", c.Key(k.offersKey()), err)
	}
	return out, nil
}

// maxOffersRead bounds how many offers of a kind are looked at.
const maxOffersRead = 4096

// Offered lists the offers of a kind and keeps them for ttl more. all is false if
// there are more than are listed.
func (c *Client) Offered(ctx context.Context, k Kind, ttl time.Duration) (offers map[Offer]bool, all bool, err error) {
	pipe := c.write.Pipeline()
	list := pipe.LRange(ctx, k.offersKey(), 0, maxOffersRead-1)
	pipe.PExpire(ctx, k.offersKey(), ttl)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, false, fmt.Errorf("LRANGE %s: %w", c.Key(k.offersKey()), err)
	}
	offers = make(map[Offer]bool, len(list.Val()))
	for _, s := range list.Val() {
		if o, ok := parseOffer(s); ok {
			offers[o] = true
		}
	}
	return offers, len(list.Val()) < maxOffersRead, nil
}

// AnyOffers reports whether there are offers of any of these kinds.
func (c *Client) AnyOffers(ctx context.Context, kinds []Kind) (bool, error) {
	for len(kinds) > 0 {
		n := min(len(kinds), maxMembers)
		keys := make([]string, n)
		for i, k := range kinds[:n] {
			keys[i] = k.offersKey()
		}
		found, err := c.lease.Exists(ctx, keys...).Result()
		if err != nil {
			return false, fmt.Errorf("EXISTS %s: %w", c.Key(protocol.KeyOffers), err)
		}
		if found > 0 {
			return true, nil
		}
		kinds = kinds[n:]
	}
	return false, nil
}

// Take removes up to n offers of a kind from its list. The caller must take them
// over soon (TakeOver) or leave them: nobody else will. more tells whether there
// may be others.
func (c *Client) Take(ctx context.Context, k Kind, n int) (offers []Offer, more bool, err error) {
	got, err := c.lease.LPopCount(ctx, k.offersKey(), n).Result()
	if errors.Is(err, redis.Nil) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("LPOP %s: %w", c.Key(k.offersKey()), err)
	}
	for _, s := range got {
		if o, ok := parseOffer(s); ok {
			offers = append(offers, o)
		}
	}
	return offers, len(got) == n, nil
}

// errLate means that taking over took so long that somebody may have reclaimed the
// entries meanwhile.
var errLate = errors.New("streams: it took too long to take entries over")

// TakeOver makes offered entries the consumer's. XCLAIM does not ask who holds an
// entry; so those are left out that are no longer their holder's, or whose lease
// is more than half over: the others can't have been reclaimed before half of the
// visibility timeout is over, and after a third this gives up. After an error,
// doubt are the ids of entries that may be the consumer's, and may have been taken
// from a reclaimer: they must not be started, but left to be reclaimed.
func (c *Client) TakeOver(ctx context.Context, stream, group, consumer string, offers []Offer, visibility time.Duration) (es []Entry, doubt []string, err error) {
	began := time.Now()
	pipe := c.lease.Pipeline()
	cmds := make([]*redis.XPendingExtCmd, len(offers))
	for i, o := range offers {
		cmds[i] = pipe.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: stream, Group: group, Start: o.ID, End: o.ID, Count: 1})
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, nil, fmt.Errorf("XPENDING %s: %w", stream, err)
	}
	var ids []string
	for i, cmd := range cmds {
		if ps := cmd.Val(); len(ps) == 1 && ps[0].Consumer == offers[i].Holder && ps[0].Idle < visibility/2 {
			ids = append(ids, offers[i].ID)
		}
	}
	if len(ids) == 0 || time.Since(began) > visibility/3 { // they stay their holder's
		return nil, nil, nil
	}
	ms, err := c.lease.XClaim(ctx, &redis.XClaimArgs{Stream: stream, Group: group, Consumer: consumer, MinIdle: 0, Messages: ids}).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, ids, fmt.Errorf("XCLAIM %s: %w", stream, err)
	}
	if time.Since(began) > visibility/3 {
		return nil, ids, errLate
	}
	return entries(ms), nil, nil
}

// OnOffers calls fn for each kind of which entries are offered, until ctx ends.
// What is offered while the connection is away is missed. It returns early, with
// the error, if Redis refuses the subscription.
func (c *Client) OnOffers(ctx context.Context, fn func(Kind)) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := c.listen(ctx, func(k Kind) { pause = 100 * time.Millisecond; fn(k) })
		if ctx.Err() != nil || replied(err) != "" {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (c *Client) listen(ctx context.Context, fn func(Kind)) error {
	sub := c.lease.Subscribe(ctx, c.Key(protocol.KeyOffers))
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })()
	defer func() { _ = sub.Close() }()
	for {
		got, err := sub.ReceiveTimeout(ctx, math.MaxInt32*time.Second)
		if err != nil {
			return c.words("SUBSCRIBE", err)
		}
		if m, ok := got.(*redis.Message); ok {
			if queue, typ, ok := strings.Cut(m.Payload, " "); ok {
				fn(Kind{queue, typ})
			}
		}
	}
}
