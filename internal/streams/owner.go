package streams

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// owner keeps a client from another deployment's Redis, which may come to stand
// under the same address: by a change of DNS, a proxy, a failover, or SWAPDB. Each
// new connection is asked whose Redis it leads to, CheckOwner asks again, and
// entries that were read come with the answer at that moment. Once a stranger's is
// found, every command is refused until CheckOwner finds the own one again.
type owner struct {
	mu      sync.Mutex
	adopts  bool
	id      string
	foreign *ForeignError
}

// Bind has the client work for one deployment only; "" is the first that it sees,
// which CheckOwner looks for. It is called once, before the client is used by
// others.
func (c *Client) Bind(deployment string) {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	c.owner.id, c.owner.adopts = deployment, deployment == ""
}

// Foreign reports whether err is a *ForeignError.
func Foreign(err error) bool {
	_, ok := errors.AsType[*ForeignError](err)
	return ok
}

// lookKey marks the context of a command that is carried out nevertheless.
type lookKey struct{}

// CheckOwner asks Redis whose it is. The error is a *ForeignError if it is another
// deployment's. A Redis that is nobody's is not.
func (c *Client) CheckOwner(ctx context.Context) error {
	deployment, err := c.lease.HGet(context.WithValue(ctx, lookKey{}, true), epochKey, epochDeployment).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		if Foreign(err) { // of the connection
			return err
		}
		return fmt.Errorf("redis: HGET %s: %w", epochKey, err)
	}
	return c.owner.note(deployment, true)
}

// seen takes note of a stranger's. That it is the own one may be old news; it is
// for CheckOwner to find.
func (o *owner) seen(deployment string) error { return o.note(deployment, false) }

// note takes note of whose Redis is. What was found before stays in force until a
// look that clears finds otherwise, without a gap in which commands would pass.
func (o *owner) note(deployment string, clears bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.adopts && o.id == "" {
		o.id = deployment
	}
	if o.id != "" && deployment != "" && deployment != o.id {
		o.foreign = &ForeignError{Deployment: deployment, Own: o.id}
		return o.foreign
	}
	if clears {
		o.foreign = nil
	}
	return nil
}

func (o *owner) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.foreign == nil {
		return nil
	}
	return o.foreign
}

// connected refuses a connection to another deployment's Redis. One that can't be
// asked is taken: it will not take commands either.
func (o *owner) connected(ctx context.Context, cn *redis.Conn) error {
	o.mu.Lock()
	bound := o.id != ""
	o.mu.Unlock()
	if !bound {
		return nil
	}
	deployment, err := cn.HGet(ctx, epochKey, epochDeployment).Result()
	if _, replied := errors.AsType[redis.Error](err); err != nil && !replied {
		return err // a late answer would be taken for that of the first command
	}
	if err != nil {
		return nil
	}
	return o.seen(deployment)
}

// DialHook implements redis.Hook.
func (o *owner) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (o *owner) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := o.err(); err != nil && ctx.Value(lookKey{}) == nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (o *owner) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := o.err(); err != nil && ctx.Value(lookKey{}) == nil { // a look's new connection is set up by one
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}
}
