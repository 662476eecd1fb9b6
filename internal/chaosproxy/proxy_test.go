package chaosproxy_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
)

func TestMain(m *testing.M) { devtest.Main(m) }

func connect(t *testing.T, url string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	o.MaxRetries = -1
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A pipeline of five is cut off after some, or has all its replies lost.
func TestRedisLosesReplies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ forward, arrived int }{
		"none arrive": {0, 0}, "some arrive": {2, 2}, "all arrive, exactly counted": {5, 5}, "all arrive": {-1, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			url := devtest.Redis(t)
			p := chaosproxy.Redis(t, url)
			direct, through := connect(t, url), connect(t, p.URL)
			if err := through.Ping(ctx).Err(); err != nil {
				t.Fatal(err)
			}
			lost := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has("rpush"), Forward: c.forward})
			pipe := through.Pipeline()
			for i := range 5 {
				pipe.RPush(ctx, "list", i)
			}
			if _, err := pipe.Exec(ctx); err == nil {
				t.Error("the pipeline whose replies were lost reports success")
			}
			<-lost
			if n := direct.LLen(ctx, "list").Val(); int(n) != c.arrived {
				t.Errorf("%d commands were carried out, want %d", n, c.arrived)
			}
			if err := through.RPush(ctx, "list", "later").Err(); err != nil {
				t.Errorf("after the rule was used up: %v", err)
			}
		})
	}
}

// A rule that lets more commands through than the client sends ends the
// connection all the same: a lost reply must not look like a silent network.
func TestRedisLosesRepliesOfFewerCommands(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := devtest.Redis(t)
	p := chaosproxy.Redis(t, url)
	direct, through := connect(t, url), connect(t, p.URL)
	lost := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has("rpush"), Forward: 3})
	err := through.RPush(ctx, "list", "one").Err()
	var timeout net.Error
	if err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("%v, want the end of the connection", err)
	}
	<-lost
	if n := direct.LLen(ctx, "list").Val(); n != 1 {
		t.Errorf("%d commands were carried out, want the one that was sent", n)
	}
	if err := through.RPush(ctx, "list", "later").Err(); err != nil {
		t.Errorf("after the rule was used up: %v", err)
	}
}

// A silent connection stays open: its commands arrive, its replies do not. A new
// one works.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := devtest.Redis(t)
	p := chaosproxy.Redis(t, url)
	direct := connect(t, url)
	o, err := redis.ParseURL(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	o.MaxRetries, o.ReadTimeout = -1, time.Second
	through := redis.NewClient(o)
	defer func() { _ = through.Close() }()
	if err := through.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	silent := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has("rpush"), Silent: true})
	err = through.RPush(ctx, "list", "one").Err()
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("%v, want a timeout", err)
	}
	<-silent
	if n := direct.LLen(ctx, "list").Val(); n != 1 {
		t.Errorf("%d commands were carried out, want one", n)
	}
	if err := through.Ping(ctx).Err(); err != nil {
		t.Errorf("on a new connection: %v", err)
	}
}

func TestDownAndHang(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := chaosproxy.Redis(t, devtest.Redis(t))
	c := connect(t, p.URL)
	p.Down(true)
	if err := c.Ping(ctx).Err(); err == nil {
		t.Error("answers while it is down")
	}
	p.Down(false)
	if err := c.Ping(ctx).Err(); err != nil {
		t.Errorf("after coming back: %v", err)
	}
	p.Hang(true)
	done := make(chan error, 1)
	go func() { done <- c.Set(context.WithoutCancel(ctx), "k", "v", 0).Err() }()
	p.Hang(false)
	if err := <-done; err != nil {
		t.Errorf("after hanging: %v", err)
	}
}

// A commit is carried out and its reply lost, or does not arrive.
func TestPostgresLosesCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ forward, rows int }{"carried out": {-1, 1}, "not carried out": {0, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			url := devtest.Postgres(t)
			p := chaosproxy.Postgres(t, url)
			direct, err := pgx.Connect(ctx, url)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = direct.Close(ctx) }()
			through, err := pgx.Connect(ctx, p.URL)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := direct.Exec(ctx, "CREATE TABLE x (n int)"); err != nil {
				t.Fatal(err)
			}
			lost := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has("commit"), Forward: c.forward})
			err = pgx.BeginFunc(ctx, through, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO x VALUES (1)")
				return err
			})
			if err == nil {
				t.Error("the lost commit reports success")
			}
			<-lost
			var rows int
			if err := direct.QueryRow(ctx, "SELECT count(*) FROM x").Scan(&rows); err != nil || rows != c.rows {
				t.Errorf("%d rows, %v, want %d", rows, err, c.rows)
			}
		})
	}
}
