package streams

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// ErrNoStream means that an entry was not added because its stream does not
// exist: Redis lost it, or nobody created its group yet.
var ErrNoStream = errors.New("streams: the stream does not exist")

// Added is the result of one XADD: the entry's id, or why there is none.
type Added struct {
	ID  string
	Err error
}

// Add appends entries to a task stream in one pipeline, in order. It never
// creates the stream, because a stream without its group would be dropped
// when the group is made. Each result is for itself; an Ambiguous one must be
// looked up, never repeated.
func (c *Client) Add(ctx context.Context, stream string, entries [][]any) []Added {
	return c.add(ctx, stream, entries, true)
}

// Append is Add for streams whose reader creates the group at the beginning:
// stream:result and stream:dlq. Repeats of their entries are recognised by
// content, so a caller may append again after an Ambiguous result.
func (c *Client) Append(ctx context.Context, stream string, entries [][]any) []Added {
	return c.add(ctx, stream, entries, false)
}

func (c *Client) add(ctx context.Context, stream string, entries [][]any, exists bool) []Added {
	pipe := c.write.Pipeline()
	cmds := make([]*redis.StringCmd, len(entries))
	for i, e := range entries {
		cmds[i] = pipe.XAdd(ctx, &redis.XAddArgs{Stream: stream, NoMkStream: exists, Values: e})
	}
	// Exec's error is that of some command; each command carries its own.
	_, execErr := pipe.Exec(ctx)
	out := make([]Added, len(entries))
	for i, cmd := range cmds {
		id, err := cmd.Result()
		switch {
		case errors.Is(err, redis.Nil):
			err = ErrNoStream
		case err == nil && id == "": // never sent
			err = execErr
		}
		if err != nil && !errors.Is(err, ErrNoStream) {
			err = fmt.Errorf("XADD %s: %w", stream, err)
		}
		out[i] = Added{ID: id, Err: err}
	}
	return out
}

// CanAdd reports whether Redis takes new entries now, without adding any: it
// may be out of memory or read-only.
func (c *Client) CanAdd(ctx context.Context) error {
	const never = "stream:never" // no such stream
	err := c.write.XAdd(ctx, &redis.XAddArgs{Stream: never, NoMkStream: true, Values: []any{"probe", ""}}).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("XADD: %w", err)
	}
	return nil
}

// LastID returns the id of the newest entry ever added to the stream, or
// "0-0" if there is no stream.
func (c *Client) LastID(ctx context.Context, stream string) (string, error) {
	info, err := c.write.XInfoStream(ctx, stream).Result()
	if LostGroup(err) {
		return "0-0", nil
	}
	if err != nil {
		return "", fmt.Errorf("XINFO STREAM %s: %w", stream, err)
	}
	return info.LastGeneratedID, nil
}
