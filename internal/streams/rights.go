package streams

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// rights puts Redis' refusals into words: which command was refused to which user,
// and where the rights are listed that it needs.
type rights string // the user

// RightsPage lists the rights that Penstock needs in Redis.
const RightsPage = "docs/redis-rights.md"

// RightError says that the user may not carry out a command, or not with this key
// or channel.
type RightError struct {
	Command, User string
	Err           error // Redis' own
}

func (e *RightError) Error() string {
	return fmt.Sprintf("user %s has not the right to %s (%s lists the rights that it needs): %v", e.User, e.Command, RightsPage, e.Err)
}

// Unwrap returns what Redis said.
func (e *RightError) Unwrap() error { return e.Err }

func (r rights) words(command string, err error) error {
	if s := replied(err); strings.HasPrefix(s, "NOPERM") {
		return &RightError{Command: strings.ToUpper(command), User: string(r), Err: err}
	}
	return err
}

// words is for commands that no hook sees.
func (c *Client) words(command string, err error) error {
	return c.rights.words(command, err)
}

func commandName(cmd redis.Cmder) string {
	name := cmd.Name()
	if args := cmd.Args(); len(args) > 1 && (name == "xgroup" || name == "xinfo" || name == "client") {
		name += fmt.Sprint(" ", args[1])
	}
	return name
}

// DialHook implements redis.Hook.
func (r rights) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (r rights) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil {
			return nil
		}
		worded := r.words(commandName(cmd), err)
		if worded != err { //nolint:errorlint // whether it is another one
			cmd.SetErr(worded)
		}
		return worded
	}
}

// ProcessPipelineHook implements redis.Hook.
func (r rights) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if err == nil {
			return nil
		}
		for _, cmd := range cmds {
			if e := cmd.Err(); e != nil && strings.HasPrefix(replied(e), "NOPERM") {
				worded := r.words(commandName(cmd), e)
				cmd.SetErr(worded)
				if replied(err) == replied(e) {
					err = worded
				}
			}
		}
		return err
	}
}
