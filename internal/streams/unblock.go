package streams

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// readers are the connections of a client's blocking reads, by Redis' ids.
type readers struct {
	mu  sync.Mutex
	ids []int64
}

// maxReaders is how many of the latest connections are remembered; the reads of
// others end by themselves.
const maxReaders = 1024

// connected remembers a connection. A user without the right to ask for its id
// has reads that end by themselves, after Block. Any other error ends the
// connection: a late answer would be taken for that of the first read.
func (r *readers) connected(ctx context.Context, cn *redis.Conn) error {
	id, err := cn.ClientID(ctx).Result()
	if _, refused := errors.AsType[redis.Error](err); refused {
		return nil
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids = append(r.ids, id)
	r.ids = r.ids[max(0, len(r.ids)-maxReaders):]
	return nil
}

func (r *readers) known() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]int64(nil), r.ids...)
}

// UnblockAt has the blocked reads of this client end when ctx does, as if
// nothing had come within Block, so that a program stops at once. An entry that
// comes at that moment is not lost: Redis either gives it to the read or leaves
// it undelivered. Call stop when the last read has returned; it does not wait for
// a command under way, which Close ends.
func (c *Client) UnblockAt(ctx context.Context) (stop func()) {
	done := make(chan struct{})
	release := context.AfterFunc(ctx, func() {
		// Again, for a read that is on its way to Redis. After Block none is left.
		for pause := time.Millisecond; pause < Block; pause *= 2 {
			c.unblock(context.WithoutCancel(ctx))
			select {
			case <-done:
				return
			case <-time.After(pause):
			}
		}
	})
	return func() { release(); close(done) }
}

// Unblock ends the reads that are blocked now, as if nothing had come within
// Block.
func (c *Client) Unblock(ctx context.Context) { c.unblock(ctx) }

// unblock ends the reads that are blocked now. Errors mean that they end by
// themselves.
func (c *Client) unblock(ctx context.Context) {
	ids := c.readers.known()
	if len(ids) == 0 {
		return
	}
	args := []any{"CLIENT", "LIST", "ID"}
	for _, id := range ids {
		args = append(args, id)
	}
	list, err := c.lease.Do(ctx, args...).Text()
	if err != nil {
		return
	}
	for line := range strings.Lines(list) {
		id, ours := blocked(line, c.read.Options().ClientName)
		if ours {
			_ = c.lease.Do(ctx, "CLIENT", "UNBLOCK", id).Err()
		}
	}
}

// blocked returns the id of a line of CLIENT LIST, and whether it is that of a
// blocked read under this name: the ids of connections that are gone may be
// those of strangers once Redis was restarted.
func blocked(line, name string) (id string, ok bool) {
	f := map[string]string{}
	for _, field := range strings.Fields(line) {
		k, v, _ := strings.Cut(field, "=")
		f[k] = v
	}
	return f["id"], f["name"] == name && f["cmd"] == "xreadgroup" && strings.Contains(f["flags"], "b")
}
