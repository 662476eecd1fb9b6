package streams

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/mutant"
)

// Entry is one stream entry as read.
type Entry struct {
	ID     string
	Values map[string]any // nil if the entry was deleted while pending
}

// History is the position that reads a consumer's own pending entries again;
// Fresh reads what nobody has been given.
const (
	History = "0"
	Fresh   = ">"
)

// Read reads up to count entries for the consumer. from is Fresh (waits up to
// Block if there are none) or a position in the consumer's own pending
// entries, History for the first. No entries and no error means that there
// are none now.
//
// After any error, entries may have been delivered without the caller seeing
// them: read the history before reading Fresh again.
func (c *Client) Read(ctx context.Context, stream, group, consumer, from string, count int) ([]Entry, error) {
	pipe := c.read.Pipeline()
	read := pipe.XReadGroup(ctx, readArgs(stream, group, consumer, from, count))
	whose := pipe.HGet(ctx, epochKey, epochDeployment)
	_, _ = pipe.Exec(ctx)
	return c.readEntries(stream, read, whose)
}

// ReadNow is Read of new entries without waiting.
func (c *Client) ReadNow(ctx context.Context, stream, group, consumer string, count int) ([]Entry, error) {
	args := readArgs(stream, group, consumer, Fresh, count)
	args.Block = -1
	return readEntries(stream, c.read.XReadGroup(ctx, args))
}

// readEntries is readEntries of a Redis that whose tells the owner of.
func (c *Client) readEntries(stream string, read *redis.XStreamSliceCmd, whose *redis.StringCmd) ([]Entry, error) {
	es, err := readEntries(stream, read)
	if err != nil || whose.Err() != nil {
		return es, err // who may not ask can't know
	}
	if err := c.owner.seen(whose.Val()); err != nil {
		return nil, fmt.Errorf("XREADGROUP %s: %w", stream, err)
	}
	return es, nil
}

func readArgs(stream, group, consumer, from string, count int) *redis.XReadGroupArgs {
	block := Block
	if from != Fresh {
		block = -1 // do not wait
	}
	return &redis.XReadGroupArgs{Group: group, Consumer: consumer, Streams: []string{stream, from}, Count: int64(count), Block: block}
}

func readEntries(stream string, cmd *redis.XStreamSliceCmd) ([]Entry, error) {
	res, err := cmd.Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("XREADGROUP %s: %w", stream, err)
	}
	if len(res) == 0 {
		return nil, nil
	}
	return entries(res[0].Messages), nil
}

func entries(ms []redis.XMessage) []Entry {
	out := make([]Entry, len(ms))
	for i, m := range ms {
		out[i] = Entry{ID: m.ID, Values: m.Values}
	}
	return out
}

// Ack acknowledges entries of a group. Acknowledging twice is harmless.
func (c *Client) Ack(ctx context.Context, stream, group string, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	if err := c.write.XAck(ctx, stream, group, ids...).Err(); err != nil {
		return fmt.Errorf("XACK %s: %w", stream, err)
	}
	return nil
}

// AppendAndAck appends outcomes to one stream and then, for those that were
// added, acknowledges entries of another. An entry is acknowledged only after
// its outcome is known to be in the stream. The result has one error for each
// outcome: that of the append, else that of the acknowledgement.
func (c *Client) AppendAndAck(ctx context.Context, to string, outcomes [][]any, acks []Ack) []error {
	out := make([]error, len(outcomes))
	byStream := map[string][]string{}
	at := map[string][]int{}
	if mutant.On(mutant.AckBeforeOutcome) {
		for _, a := range acks {
			if a.ID != "" {
				_ = c.Ack(ctx, a.Stream, a.Group, []string{a.ID})
			}
		}
	}
	for i, a := range c.Append(ctx, to, outcomes) {
		switch {
		case a.Err != nil:
			out[i] = a.Err
		case acks[i].ID != "":
			byStream[acks[i].Stream] = append(byStream[acks[i].Stream], acks[i].ID)
			at[acks[i].Stream] = append(at[acks[i].Stream], i)
		}
	}
	for stream, ids := range byStream {
		if err := c.Ack(ctx, stream, acks[at[stream][0]].Group, ids); err != nil {
			for _, i := range at[stream] {
				out[i] = &AckError{err}
			}
		}
	}
	return out
}

// Ack names an entry to acknowledge; an empty ID acknowledges none.
type Ack struct{ Stream, Group, ID string }

// AckError means that the outcome was added and only the acknowledgement
// failed.
type AckError struct{ Err error }

func (e *AckError) Error() string { return e.Err.Error() }
func (e *AckError) Unwrap() error { return e.Err }
