package streams_test

import (
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/testkit"
)

// A switch to another deployment's Redis and back, each with all connections cut,
// as a failover or a change of DNS does it. Nothing reaches the stranger's.
func TestOwnRedisComesBackAfterItsConnectionsWereCut(t *testing.T) {
	t.Parallel()
	own, other := server(t, "mine"), server(t, "theirs")
	var mu sync.Mutex
	to, conns := own, []net.Conn(nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			s, err := net.Dial("unix", to.Options().Addr)
			if err != nil {
				_ = c.Close()
				mu.Unlock()
				continue
			}
			conns = append(conns, c, s)
			mu.Unlock()
			go pump(c, s)
			go pump(s, c)
		}
	}()
	turn := func(target *redis.Client) {
		mu.Lock()
		defer mu.Unlock()
		to = target
		for _, c := range conns {
			_ = c.Close()
		}
		conns = nil
	}
	t.Cleanup(func() { turn(own) })
	c, err := streams.New(streams.Options{URL: "redis://" + l.Addr().String(), Readers: 1, Name: "owner"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	c.Bind("mine")
	if err := c.CheckOwner(t.Context()); err != nil {
		t.Fatal(err)
	}
	turn(other)
	testkit.Eventually(t, "the stranger is found", func() (bool, string) {
		return streams.Foreign(c.CheckOwner(t.Context())), ""
	})
	var checks sync.WaitGroup
	checks.Go(func() {
		for range 500 {
			_ = c.CheckOwner(t.Context())
		}
	})
	for range 500 {
		if a := c.Append(t.Context(), "leak", [][]any{{"a", "b"}})[0]; a.Err == nil {
			t.Error("an entry reached the stranger's Redis")
			break
		}
	}
	checks.Wait()
	if n := other.Exists(t.Context(), "leak").Val(); n != 0 {
		t.Error("the stranger's Redis was written to")
	}
	turn(own)
	testkit.Eventually(t, "the own Redis is back", func() (bool, string) {
		err := errors.Join(c.CheckOwner(t.Context()), c.Ping(t.Context()))
		return err == nil, ""
	})
}

func pump(to, from net.Conn) {
	b := make([]byte, 4096)
	for {
		n, err := from.Read(b)
		if err == nil {
			_, err = to.Write(b[:n])
		}
		if err != nil {
			_, _ = to.Close(), from.Close()
			return
		}
	}
}

// server is a Redis of a deployment.
func server(t *testing.T, deployment string) *redis.Client {
	t.Helper()
	c := testkit.Stores{RedisURL: testkit.StartRedis(t)}.Redis(t)
	if err := c.HSet(t.Context(), "penstock:epoch", "deployment", deployment, "id", deployment).Err(); err != nil {
		t.Fatal(err)
	}
	return c
}
