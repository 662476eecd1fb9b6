package reclaim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

const (
	// maxReason and maxName bound what an eviction is told, in bytes.
	maxReason = 1024
	maxName   = 4096
	// busy is how lately a worker without heartbeats must have asked Redis for
	// something to be taken for alive.
	busy = 3 * time.Second
)

// Eviction is an order to take over what a worker holds.
type Eviction struct {
	// Worker is its consumer name, or that in double quotes with escapes.
	Worker string
	// Principal is who orders it; "" if that is not known.
	Principal string
	// Reason is 1 to 1,024 bytes.
	Reason string
	// Force evicts a worker that is evidently alive.
	Force bool
}

// Evicted says what an eviction did.
type Evicted struct {
	// Reclaimed is how many tasks were interrupted, Entries how many entries the
	// worker held.
	Reclaimed, Entries int
}

// Evict interrupts the tasks that a worker holds, at once. Nothing is claimed: an
// execution that the worker reports before its task is interrupted counts, one that
// it reports later is fenced, as after any reclaim. Errors: TASK_INPUT_INVALID;
// TASK_NOT_FOUND; TASK_INVALID_TRANSITION if it is evidently alive and Force is not
// set; or a store's. What was done before an error stays, and the same order goes
// on from there.
func (r *Reclaimer) Evict(ctx context.Context, e Eviction) (Evicted, error) {
	var out Evicted
	name, err := e.check()
	if err != nil {
		return out, err
	}
	queues, err := r.o.Queues(ctx)
	if err != nil {
		return out, fmt.Errorf("list queues: %w", err)
	}
	if err := r.evictable(ctx, name, queues, e.Force); err != nil {
		return out, err
	}
	why := cause{protocol.ActorUser(e.Principal), "its worker was evicted: " + e.Reason}
	for _, q := range queues {
		stream := protocol.TaskStream(q)
		end, err := r.o.Redis.LastID(ctx, stream) // one that goes on fetching is not chased
		if err != nil {
			return out, fmt.Errorf("queue %s: %w", q, err)
		}
		for after, more := "", true; more; {
			got, ghosts, held, last, err := r.o.Redis.HeldBy(ctx, stream, protocol.GroupWorkers, name, after)
			if err != nil {
				return out, fmt.Errorf("queue %s: %w", q, err)
			}
			n, err := r.take(ctx, stream, got, ghosts, held, why)
			out.Reclaimed, out.Entries = out.Reclaimed+n, out.Entries+len(got)+len(ghosts)
			if err != nil {
				return out, fmt.Errorf("queue %s: %w", q, err)
			}
			after, more = last, streams.Less(last, end) && last != ""
		}
	}
	r.o.Log.Warn("worker evicted", "worker_id", shown(name), "by", why.actor, "reason", e.Reason, "tasks", out.Reclaimed, "entries", out.Entries, "forced", e.Force)
	return out, nil
}

// check returns the consumer name that is meant.
func (e Eviction) check() (string, error) {
	name := e.Worker
	if len(name) >= 2 && name[0] == '"' && name[len(name)-1] == '"' {
		raw, err := strconv.Unquote(name)
		if err != nil {
			return "", bad("worker_id", "is in double quotes, but %s is no name with escapes such as \\xff", shown(name))
		}
		name = raw
	}
	switch {
	case name == "" || len(name) > maxName:
		return "", bad("worker_id", "has %d bytes, want 1 to %d", len(name), maxName)
	case e.Reason == "" || len(e.Reason) > maxReason:
		return "", bad("reason", "has %d bytes, want 1 to %d: say why the worker is evicted", len(e.Reason), maxReason)
	case protocol.Text(e.Reason) != e.Reason:
		return "", bad("reason", "contains characters that can't be stored")
	}
	return name, nil
}

// evictable refuses names that no worker has, and workers that are evidently alive.
func (r *Reclaimer) evictable(ctx context.Context, name string, queues []string, force bool) error {
	beats, lately, ago := false, false, 0.0
	if utf8.ValidString(name) && strings.IndexByte(name, 0) < 0 { // else it sends none
		seen, err := r.o.Store.WorkerSeen(ctx, name)
		switch {
		case err == nil:
			beats, lately, ago = true, seen.Lately, seen.Seconds
		case !errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("look for worker %s: %w", shown(name), err)
		}
	}
	if lately && !force {
		return protocol.Errorf(protocol.CodeInvalidTransition, "worker_id",
			"worker %s has sent a heartbeat %.0f s ago: drain it, or force the eviction (--force) if its process or host is certainly gone", shown(name), ago)
	}
	known := beats
	for _, q := range queues {
		idle, found, err := r.o.Redis.ConsumerIdle(ctx, protocol.TaskStream(q), protocol.GroupWorkers, name)
		if err != nil {
			return fmt.Errorf("queue %s: %w", q, err)
		}
		known = known || found
		if found && !beats && !force && idle < busy {
			return protocol.Errorf(protocol.CodeInvalidTransition, "worker_id",
				"worker %s has asked Redis for something less than %.0f s ago: stop it, try again in a moment, or force the eviction (--force)", shown(name), busy.Seconds())
		}
	}
	if !known {
		return protocol.Errorf(protocol.CodeNotFound, "worker_id", "no worker is called %s: none of that name has sent a heartbeat, or is a consumer of a queue", shown(name))
	}
	return nil
}

// shown is a name as messages and commands have it: in quotes, with escapes.
func shown(name string) string { return strconv.Quote(protocol.Clip(name, 200)) }

func bad(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInputInvalid, field, format, args...)
}
