// Package streams is the hot path: everything that Penstock does in Redis. It
// holds the rules that producing, consuming, creating groups and trimming
// streams must follow so that no entry is lost or doubled by the client
// itself.
//
// The clients never retry: go-redis' hidden retry turns one XADD whose reply
// was lost into two. Callers decide what an unknown outcome means, see
// Ambiguous.
package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/penstock-dev/penstock/internal/mutant"
)

// Block is how long a blocking read waits at most. A cancelled context does
// not end a blocked read (UnblockAt does), and an unset block would wait for
// ever.
const Block = time.Second

// Client holds separate pools for blocking reads, for lease work and for
// writes, so that readers that block cannot starve an acknowledgement.
type Client struct {
	read, lease, write *redis.Client
	readers            readers
	log                *slog.Logger
	// claims is how many entries to claim at once: as nextPage says.
	claims atomic.Int64
	owner  owner
	prefix string
	rights rights
}

// Options are the settings of a Client.
type Options struct {
	// URL is redis://, rediss:// or unix://.
	URL string
	// Readers is the number of blocking readers; each needs a connection.
	Readers int
	// Name is shown in CLIENT LIST.
	Name string
	// Prefix is put in front of every key; see CheckPrefix.
	Prefix string
	// LeaseTimeout is how long lease work waits for a connection, and for a reply;
	// 0 and more than 5 s: 5 s. Renewals must be able to fail and be repeated
	// before a lease ends.
	LeaseTimeout time.Duration
	Log          *slog.Logger
}

// New makes a Client; it does not connect yet. The error is about the URL, or
// the prefix.
func New(o Options) (*Client, error) {
	if err := CheckPrefix(o.Prefix); err != nil {
		return nil, fmt.Errorf("redis.key_prefix: %w", err)
	}
	c := &Client{log: o.Log, prefix: o.Prefix}
	make1 := func(kind string, size int, wait time.Duration) (*redis.Client, error) {
		r, err := redis.ParseURL(o.URL)
		if err != nil {
			// The parser's error would repeat the URL, password included.
			return nil, errors.New("redis.url: not a URL such as redis://:password@host:6379/0, rediss://… or unix://…")
		}
		r.MaxRetries = -1 // see the package comment
		if mutant.On(mutant.ClientRetries) {
			r.MaxRetries = 3
		}
		r.ClientName = "penstock-" + o.Name + "-" + kind
		r.DisableIdentity = true // CLIENT SETINFO is refused by strict ACLs
		r.DialTimeout = min(2*time.Second, wait)
		r.ReadTimeout, r.WriteTimeout, r.PoolTimeout = wait, wait, wait
		r.PoolSize = size
		r.DialerRetries = 1
		r.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled} // for managed Redis only; costs a command a connection
		r.ContextTimeoutEnabled = false                                                                // a deadline would close a socket with a reply under way
		r.OnConnect = c.owner.connected
		if kind == "read" {
			r.OnConnect = func(ctx context.Context, cn *redis.Conn) error {
				if err := c.readers.connected(ctx, cn); err != nil {
					return err
				}
				return c.owner.connected(ctx, cn)
			}
		}
		client := redis.NewClient(r)
		if c.rights = "default"; r.Username != "" {
			c.rights = rights(r.Username)
		}
		client.AddHook(&c.owner)
		client.AddHook(c.rights)
		client.AddHook(prefixer(c.prefix))
		return client, nil
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.claims.Store(firstPage)
	var err error
	const usual = 5 * time.Second
	leases := usual
	if o.LeaseTimeout > 0 {
		leases = min(o.LeaseTimeout, usual)
	}
	if c.read, err = make1("read", max(o.Readers, 1)+1, usual); err != nil {
		return nil, err
	}
	if c.lease, err = make1("lease", 4, leases); err != nil {
		return nil, err
	}
	if c.write, err = make1("write", 8, usual); err != nil {
		return nil, err
	}
	return c, nil
}

// Key returns a key's name as it is in Redis, for people.
func (c *Client) Key(name string) string { return c.prefix + name }

// Close closes all connections; a blocked read ends with an error.
func (c *Client) Close() error {
	return errors.Join(c.read.Close(), c.lease.Close(), c.write.Close())
}

// Ping reports whether Redis answers and accepts writes.
func (c *Client) Ping(ctx context.Context) error {
	if err := c.write.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

// Prompt is Ping, and an error if the answer took longer than within: a server
// that stood still for so long took nothing from anybody meanwhile.
func (c *Client) Prompt(ctx context.Context, within time.Duration) error {
	began := time.Now()
	err := c.Ping(ctx)
	if took := time.Since(began); err == nil && took > within {
		return fmt.Errorf("redis: it took %s to answer", took.Round(time.Millisecond))
	}
	return err
}

// Requirements checks what the server must be like: version 6.2 or newer, and
// no eviction policy that could remove a stream. Unfit tells an error about that
// from a failure to ask.
func (c *Client) Requirements(ctx context.Context) error {
	info, err := c.write.InfoMap(ctx).Result() // before 7.0 INFO takes one section, or none for all
	if err != nil {
		return fmt.Errorf("redis: INFO: %w", err)
	}
	v := info["Server"]["redis_version"]
	major, minor := version(v)
	if major < 6 || major == 6 && minor < 2 {
		return unfit(fmt.Sprintf("redis %s is too old: 6.2 or newer is needed, 7.0 recommended", v))
	}
	if p := info["Memory"]["maxmemory_policy"]; strings.HasPrefix(p, "allkeys-") {
		return unfit(fmt.Sprintf("redis maxmemory-policy is %s, which evicts whole streams under memory pressure: set it to noeviction", p))
	}
	return nil
}

// Unfit reports whether err says that the server is not what it must be, which
// waiting can't cure.
func Unfit(err error) bool {
	_, ok := errors.AsType[unfit](err)
	return ok
}

type unfit string

func (u unfit) Error() string { return string(u) }

// Uptime returns how long the server has been running.
func (c *Client) Uptime(ctx context.Context) (time.Duration, error) {
	info, err := c.write.InfoMap(ctx, "server").Result()
	if err != nil {
		return 0, fmt.Errorf("redis: INFO: %w", err)
	}
	s, err := strconv.ParseInt(info["Server"]["uptime_in_seconds"], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("redis: INFO uptime_in_seconds: %w", err)
	}
	return time.Duration(s) * time.Second, nil
}

func version(s string) (major, minor int) {
	parts := strings.SplitN(s, ".", 3)
	if len(parts) >= 2 {
		major, _ = strconv.Atoi(parts[0])
		minor, _ = strconv.Atoi(parts[1])
	}
	return major, minor
}

// Ambiguous reports whether a write that failed with err may have been carried
// out nevertheless: the connection broke, so the reply is unknown. An error
// that Redis itself replied is definite.
func Ambiguous(err error) bool {
	if err == nil || errors.Is(err, ErrNoStream) || Foreign(err) {
		return false
	}
	return replied(err) == ""
}

// replied returns the error that Redis itself sent, without what callers
// wrapped around it; "" if err is of another kind.
func replied(err error) string {
	if e, ok := errors.AsType[redis.Error](err); ok {
		return e.Error()
	}
	return ""
}

// LostGroup reports whether err says that the stream or its group is gone, in
// the words of any Redis version.
func LostGroup(err error) bool {
	s := replied(err)
	return errors.Is(err, ErrNoGroup) || strings.HasPrefix(s, "NOGROUP") || strings.HasPrefix(s, "UNBLOCKED") ||
		strings.HasPrefix(s, "ERR no such key")
}

// Full reports whether Redis refused a write for lack of memory.
func Full(err error) bool { return strings.HasPrefix(replied(err), "OOM") }

// Now returns the server's clock, by which entry ids are made.
func (c *Client) Now(ctx context.Context) (time.Time, error) {
	t, err := c.lease.Time(ctx).Result()
	if err != nil {
		return time.Time{}, fmt.Errorf("redis: TIME: %w", err)
	}
	return t, nil
}
