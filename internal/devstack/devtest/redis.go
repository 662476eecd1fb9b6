package devtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// claimTTL is how long a claim outlives a process that this host cannot
	// check on. Claims of live tests are renewed three times as often.
	claimTTL = 2 * time.Minute
	// claimWait bounds the wait for a number when all are claimed, claimEvery
	// spaces out the attempts.
	claimWait  = 2 * time.Minute
	claimEvery = 50 * time.Millisecond
)

// Redis claims a logical database on the shared server, empties it and returns
// its URL, in a form for redis.ParseURL. No other test, in this process or
// another, gets the same database until the test ends, when it is emptied again.
//
// Claims are kept in database 0, so a test that runs FLUSHALL, or changes the
// server's configuration, needs a private Stack instead.
func Redis(t testing.TB) string {
	t.Helper()
	base := redisServer.get(t)
	ctx, cancel := context.WithTimeout(context.Background(), claimWait)
	defer cancel()
	c, err := claim(ctx, base)
	if err != nil {
		t.Fatalf("devtest: claiming a Redis database: %v", err)
	}
	t.Cleanup(func() {
		if err := c.release(); err != nil {
			t.Errorf("devtest: releasing Redis database %d: %v", c.db, err)
		}
	})
	if err := c.flush(ctx); err != nil {
		t.Fatalf("devtest: emptying Redis database %d: %v", c.db, err)
	}
	return redisURL(base, c.db)
}

// redisClaim is a claimed database number.
type redisClaim struct {
	base  string
	db    int
	key   string // in database 0
	owner owner

	mu       sync.Mutex
	renew    *time.Timer
	released bool
}

// claim takes a free database number, waiting for one if need be.
func claim(ctx context.Context, base string) (*redisClaim, error) {
	client, err := redisClient(base, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	count, err := databaseCount(ctx, client)
	if err != nil {
		return nil, err
	}
	me := thisOwner()
	tick := time.NewTicker(claimEvery)
	defer tick.Stop()
	for {
		first := rand.IntN(count - 1)
		for i := range count - 1 {
			db := 1 + (first+i)%(count-1)
			key := fmt.Sprintf("penstock:devtest:db:%d", db)
			ok, err := tryClaim(ctx, client, key, me)
			if err != nil {
				return nil, err
			}
			if ok {
				c := &redisClaim{base: base, db: db, key: key, owner: me}
				c.renewLater()
				return c, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("all %d databases stayed in use; give the server more with its setting databases", count-1)
		case <-tick.C:
		}
	}
}

// tryClaim claims key unless it belongs to an owner that may be alive.
func tryClaim(ctx context.Context, client *redis.Client, key string, me owner) (bool, error) {
	ok, err := client.SetNX(ctx, key, string(me), claimTTL).Result()
	if ok || err != nil {
		return ok, err
	}
	holder, err := client.Get(ctx, key).Result()
	if err == redis.Nil {
		return client.SetNX(ctx, key, string(me), claimTTL).Result()
	}
	if err != nil || !owner(holder).dead() {
		return false, err
	}
	return takeOver.Run(ctx, client, []string{key}, holder, string(me), claimTTL.Milliseconds()).Bool()
}

var (
	// takeOver replaces the claim of a dead owner unless someone else has.
	takeOver = redis.NewScript(`
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('set', KEYS[1], ARGV[2], 'px', ARGV[3])
return 1`)

	// extendClaim prolongs the owner's claim.
	extendClaim = redis.NewScript(`
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('pexpire', KEYS[1], ARGV[2])`)

	// dropClaim removes the owner's claim.
	dropClaim = redis.NewScript(`
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('del', KEYS[1])`)
)

// renewLater schedules the next renewal, unless the claim has been released.
func (c *redisClaim) renewLater() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.released {
		c.renew = time.AfterFunc(claimTTL/3, c.extend)
	}
}

// stopRenewing ends the renewals.
func (c *redisClaim) stopRenewing() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.released = true
	c.renew.Stop()
}

// extend renews the claim and schedules the next renewal. A failed one is made
// up for by the next.
func (c *redisClaim) extend() {
	ctx, cancel := context.WithTimeout(context.Background(), claimTTL/6)
	defer cancel()
	if client, err := redisClient(c.base, 0); err == nil {
		_ = extendClaim.Run(ctx, client, []string{c.key}, string(c.owner), claimTTL.Milliseconds()).Err()
		_ = client.Close()
	}
	c.renewLater()
}

// flush empties the claimed database.
func (c *redisClaim) flush(ctx context.Context) error {
	client, err := redisClient(c.base, c.db)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return client.FlushDB(ctx).Err()
}

// release empties the database and gives its number back.
func (c *redisClaim) release() error {
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	c.stopRenewing()
	if err := c.flush(ctx); err != nil {
		return err
	}
	client, err := redisClient(c.base, 0)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return dropClaim.Run(ctx, client, []string{c.key}, string(c.owner)).Err()
}

// databaseCount asks the server how many databases it has.
func databaseCount(ctx context.Context, client *redis.Client) (int, error) {
	conf, err := client.ConfigGet(ctx, "databases").Result()
	if err != nil {
		return 0, fmt.Errorf("asking the shared server for its number of databases: %w", err)
	}
	n, err := strconv.Atoi(conf["databases"])
	if err != nil || n < 2 {
		return 0, fmt.Errorf("the shared server has %q databases; it needs at least 2, number 0 being for claims", conf["databases"])
	}
	return n, nil
}

// redisClient returns a client of one connection for database db.
func redisClient(base string, db int) (*redis.Client, error) {
	o, err := redis.ParseURL(base)
	if err != nil {
		return nil, fmt.Errorf("%s must hold a redis:// or unix:// URL: %w", RedisEnv, err)
	}
	o.DB, o.PoolSize = db, 1
	return redis.NewClient(o), nil
}

// redisURL returns the server's URL with another database. redis.ParseURL has
// accepted base before.
func redisURL(base string, db int) string {
	u, err := url.Parse(base)
	if err != nil {
		return base
	}
	if strings.HasPrefix(u.Scheme, "redis") {
		u.Path = "/" + strconv.Itoa(db)
	}
	q := u.Query()
	q.Del("db")
	if u.Scheme == "unix" {
		q.Set("db", strconv.Itoa(db))
	}
	u.RawQuery = q.Encode()
	return u.String()
}
