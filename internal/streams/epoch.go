package streams

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/protocol"
)

// epochKey is a hash that tells one content of Redis from another.
const epochKey = "penstock:epoch"

const (
	epochID         = "id"
	epochAfter      = "after"
	epochDeployment = "deployment"
	epochGeneration = "generation"
	epochRemade     = "remade"
)

// Epoch is what Redis knows of itself.
type Epoch struct {
	// ID was chosen when Redis' content was begun; empty: Redis does not know,
	// because it lost everything or never had it.
	ID string
	// After is the ID of the content that whoever began this one missed; empty:
	// none was known.
	After string
	// Deployment is whose content it is: the id that a database was made with.
	// Empty if ID is.
	Deployment string
	// Generation is the greatest number that RaiseGeneration wrote; 0: none.
	Generation int64
	// Remade changes before a task group is made; only to be compared. Empty:
	// none was made.
	Remade string
	// Server names the process and the replication history: another one was
	// restarted, or took over. Empty if Redis does not tell this client.
	Server string
}

// Epoch reads the epoch. An error may mean that the key was written by a
// stranger and can't be read.
func (c *Client) Epoch(ctx context.Context) (Epoch, error) {
	pipe := c.lease.Pipeline()
	hash := pipe.HGetAll(ctx, epochKey)
	server, replication := pipe.InfoMap(ctx, "server"), pipe.InfoMap(ctx, "replication")
	if _, err := pipe.Exec(ctx); err != nil && Ambiguous(err) {
		return Epoch{}, fmt.Errorf("redis: read the epoch: %w", err)
	}
	if err := hash.Err(); err != nil {
		return Epoch{}, fmt.Errorf("redis: HGETALL %s: %w", epochKey, err)
	}
	e, err := parseEpoch(hash.Val())
	if server.Err() == nil && replication.Err() == nil {
		e.Server = server.Val()["Server"]["run_id"] + "/" + replication.Val()["Replication"]["master_replid"]
	}
	return e, err
}

func parseEpoch(h map[string]string) (e Epoch, err error) {
	e.ID, e.After, e.Deployment, e.Remade = h[epochID], h[epochAfter], h[epochDeployment], h[epochRemade]
	if g := h[epochGeneration]; g != "" {
		if e.Generation, err = strconv.ParseInt(g, 10, 64); err != nil || e.Generation < 0 {
			return e, fmt.Errorf("redis: %s: field %s is %q, want a number: delete the key", epochKey, epochGeneration, g)
		}
	}
	return e, nil
}

// Content tells one content of the task groups from another. While it stays the
// same, Redis was not emptied, not restarted or replaced by a replica, and made
// no task group: what is not pending any more was acknowledged.
type Content struct{ id, remade, server string }

// Known is false of a Content that can't be told from another.
func (c Content) Known() bool { return c.id != "" }

// Content reads the present one.
func (c *Client) Content(ctx context.Context) (Content, error) {
	e, err := c.Epoch(ctx)
	if err != nil {
		return Content{}, err
	}
	return Content{id: e.ID, remade: e.Remade, server: e.Server}, nil
}

// Remade notes that leases of task groups may have been lost, or are about to
// be: from now on Content is another one, so workers no longer take an entry
// that is gone for one that was acknowledged. It must come before what it is
// about.
func (c *Client) Remade(ctx context.Context) error {
	if err := c.write.HIncrBy(ctx, epochKey, epochRemade, 1).Err(); err != nil {
		return fmt.Errorf("redis: HINCRBY %s %s: %w", epochKey, epochRemade, err)
	}
	return nil
}

// ForeignError: Redis belongs to another deployment. Two of them on one Redis
// database would run and remove each other's tasks.
type ForeignError struct {
	// Deployment is whose Redis is, Own for whom the caller works.
	Deployment, Own string
}

func (e *ForeignError) Error() string {
	return "redis belongs to deployment " + protocol.Clip(strings.ToValidUTF8(e.Deployment, "?"), 64) + ", and this process works for " + e.Own + ": give each a Redis database of its own; " +
		"if the former is gone, empty this database; if the latter is, restart this process"
}

// Owned returns a *ForeignError if the epoch is another deployment's.
func (e Epoch) Owned(deployment string) error {
	if e.Deployment != "" && e.Deployment != deployment {
		return &ForeignError{Deployment: e.Deployment, Own: deployment}
	}
	return nil
}

// BeginEpoch gives Redis an id if it has none, and returns the one that it has:
// of several callers at once, one gets through. after is the content that is
// missed, if any. The error is a *ForeignError if the id that Redis has was
// another deployment's.
func (c *Client) BeginEpoch(ctx context.Context, deployment, id, after string) (string, error) {
	if err := c.write.HSetNX(ctx, epochKey, epochDeployment, deployment).Err(); err != nil {
		return "", fmt.Errorf("redis: HSETNX %s: %w", epochKey, err)
	}
	owner, err := c.write.HGet(ctx, epochKey, epochDeployment).Result()
	if err != nil {
		return "", fmt.Errorf("redis: HGET %s: %w", epochKey, err)
	}
	if err := (Epoch{Deployment: owner}).Owned(deployment); err != nil {
		return "", err
	}
	// Before the id: who sees that must see what it follows.
	if err := c.write.HSetNX(ctx, epochKey, epochAfter, after).Err(); err != nil {
		return "", fmt.Errorf("redis: HSETNX %s: %w", epochKey, err)
	}
	if err := c.write.HSetNX(ctx, epochKey, epochID, id).Err(); err != nil {
		return "", fmt.Errorf("redis: HSETNX %s: %w", epochKey, err)
	}
	id, err = c.write.HGet(ctx, epochKey, epochID).Result()
	if err != nil {
		return "", fmt.Errorf("redis: HGET %s: %w", epochKey, err)
	}
	return id, nil
}

// RaiseGeneration writes a generation into the epoch with this id, unless it
// holds a greater one; it never lowers it. false: Redis is in another epoch, or
// knows less than was seen, so that it went back: to write would hide that.
func (c *Client) RaiseGeneration(ctx context.Context, id string, seen, generation int64) (ok bool, err error) {
	for range 10 {
		err = c.write.Watch(ctx, func(tx *redis.Tx) error {
			h, err := tx.HGetAll(ctx, epochKey).Result()
			if err != nil {
				return err
			}
			e, err := parseEpoch(h)
			ok = e.ID == id && e.Generation >= seen
			if err != nil || !ok || e.Generation >= generation {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.HSet(ctx, epochKey, epochGeneration, generation)
				return nil
			})
			return err
		}, epochKey)
		if !errors.Is(err, redis.TxFailedErr) {
			break
		}
	}
	if err != nil {
		return false, fmt.Errorf("redis: write generation %d: %w", generation, err)
	}
	return ok, nil
}

// TaskStreams lists the names of all task streams that there are, whoever made
// them. It looks at every key, so it is for rare moments.
func (c *Client) TaskStreams(ctx context.Context, prefix string) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	for cursor := uint64(0); ; {
		keys, next, err := c.lease.ScanType(ctx, cursor, prefix+"*", 1000, "stream").Result()
		if err != nil {
			return nil, fmt.Errorf("redis: SCAN: %w", err)
		}
		for _, k := range keys {
			k = strings.TrimPrefix(k, c.prefix)
			if (k == prefix || strings.HasPrefix(k, prefix+":")) && !seen[k] {
				seen[k] = true
				out = append(out, k)
			}
		}
		if cursor = next; cursor == 0 {
			return out, nil
		}
	}
}
