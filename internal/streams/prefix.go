package streams

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// prefixPattern keeps prefixes out of the way of Redis' patterns (SCAN, ACL),
// and apart from each other: with the colon at its end, no key of one prefix has
// another prefix of the same depth. Braces are refused: this client speaks to one
// node, and a hash tag in the prefix would only look as if clusters were supported.
var prefixPattern = regexp.MustCompile(`^[A-Za-z0-9._:-]{0,63}:$`)

// CheckPrefix returns what is wrong with a prefix of keys; the empty one is fine.
func CheckPrefix(s string) error {
	switch {
	case s == "":
		return nil
	case !prefixPattern.MatchString(s):
		return fmt.Errorf("must be up to 64 of A-Z a-z 0-9 . _ : - and end with a colon, such as shop:, got %q", s)
	case strings.HasPrefix(s, "stream:") || strings.HasPrefix(s, "penstock:"):
		return fmt.Errorf("must not begin with stream: or penstock:, as the keys of a deployment without a prefix do, got %q", s)
	}
	return nil
}

// prefixer puts the prefix in front of every key and channel that a client names.
// It is the only place that does: the rest of the package, the contract and
// Postgres know the names without it. A command that it does not know is refused,
// so that none can be added whose keys it misses.
type prefixer string

// Where a command names its keys.
const (
	noKey    = iota // nowhere
	firstArg        // as its first argument
	second          // as its second argument, after a subcommand
	allArgs         // as all its arguments
	streams         // as the first half of what follows STREAMS
	match           // as the pattern that follows MATCH
)

var keysOf = map[string]int{
	"auth": noKey, "client": noKey, "discard": noKey, "exec": noKey, "hello": noKey, "info": noKey, "multi": noKey, "ping": noKey, "quit": noKey,
	"select": noKey, "time": noKey, "unwatch": noKey,

	"lpop": firstArg, "lrange": firstArg, "lrem": firstArg, "pexpire": firstArg, "publish": firstArg, "rpush": firstArg,
	"zadd": firstArg, "zmscore": firstArg, "zremrangebyscore": firstArg,
	"hget": firstArg, "hgetall": firstArg, "hincrby": firstArg, "hset": firstArg, "hsetnx": firstArg,
	"sadd": firstArg, "scard": firstArg, "sismember": firstArg, "smismember": firstArg, "srem": firstArg, "sscan": firstArg,
	"xack": firstArg, "xadd": firstArg, "xautoclaim": firstArg, "xclaim": firstArg, "xdel": firstArg, "xpending": firstArg, "xrange": firstArg, "xtrim": firstArg,

	"xgroup": second, "xinfo": second,
	"del": allArgs, "exists": allArgs, "watch": allArgs,
	"xreadgroup": streams,
	"scan":       match,
}

// apply renames the keys of a command in place.
func (p prefixer) apply(cmd redis.Cmder) error {
	where, known := keysOf[cmd.Name()]
	if !known {
		return fmt.Errorf("streams: which keys %s names is not known; see prefixer", cmd.Name())
	}
	args := cmd.Args()
	rename := func(from, to int) error {
		for i := from; i < to && i < len(args); i++ {
			key, ok := args[i].(string)
			if !ok {
				return fmt.Errorf("streams: %s: argument %d is no key", cmd.Name(), i)
			}
			args[i] = string(p) + key
		}
		return nil
	}
	switch where {
	case firstArg:
		return rename(1, 2)
	case second:
		return rename(2, 3)
	case allArgs:
		return rename(1, len(args))
	case streams:
		i := indexOf(args, "streams") + 1
		return rename(i, i+(len(args)-i)/2)
	case match:
		i := indexOf(args, "match") + 1
		return rename(i, i+1)
	}
	return nil
}

func indexOf(args []any, word string) int {
	for i, a := range args {
		if s, ok := a.(string); ok && strings.EqualFold(s, word) {
			return i
		}
	}
	return len(args)
}

// DialHook implements redis.Hook.
func (p prefixer) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (p prefixer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := p.apply(cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (p prefixer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if err := p.apply(cmd); err != nil {
				for _, cmd := range cmds {
					cmd.SetErr(err)
				}
				return err
			}
		}
		return next(ctx, cmds)
	}
}
