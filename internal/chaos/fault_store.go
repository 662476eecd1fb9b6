package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/protocol"
)

// until repeats what needs a store until it succeeds.
func until(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		if perr := pause(ctx, 100*time.Millisecond); perr != nil {
			return errors.Join(err, perr)
		}
	}
}

// losing does something after which entries or leases of task streams may be
// gone.
func (h *harness) losing(do func() error) error {
	from := time.Now()
	err := do()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lossy = append(h.lossy, check.Span{From: from, To: time.Now()})
	return err
}

func flushAll(h *harness, ctx context.Context, _ *rand.Rand) error {
	return until(ctx, func() error {
		return h.losing(func() error {
			err := h.redis.FlushAll(ctx).Err()
			h.note("flushall", "%v", err)
			return err
		})
	})
}

func redisRestart(h *harness, ctx context.Context, r *rand.Rand) error {
	h.stores.Lock()
	defer h.stores.Unlock()
	defer h.trouble(time.Now())
	if err := h.stack.StopRedis(false); err != nil {
		return err
	}
	h.note("redis-restart", "stopped")
	_ = pause(ctx, time.Duration(100+r.IntN(2000))*time.Millisecond)
	defer h.note("redis-restart", "started")
	return until(context.WithoutCancel(ctx), func() error { return h.stack.StartRedis(context.WithoutCancel(ctx)) })
}

// pauseRedis has Redis stand still, its connections open, for around a visibility
// timeout. It loses nothing, and no lease may end by it.
func pauseRedis(h *harness, ctx context.Context, r *rand.Rand) error {
	h.stores.Lock()
	defer h.stores.Unlock()
	defer h.trouble(time.Now())
	d := h.visibility/2 + time.Duration(r.Int64N(int64(h.visibility)))
	p, err := os.FindProcess(h.stack.RedisPID())
	if err != nil {
		return err
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	h.note("pause-redis", "for %s", d)
	_ = pause(ctx, d)
	return p.Signal(syscall.SIGCONT)
}

func redisEmpty(h *harness, ctx context.Context, r *rand.Rand) error {
	h.stores.Lock()
	defer h.stores.Unlock()
	defer h.trouble(time.Now())
	return h.losing(func() error {
		if err := h.stack.StopRedis(true); err != nil {
			return err
		}
		h.note("redis-empty", "killed")
		dir := filepath.Join(h.stack.Dir, "redis")
		files, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, f := range files {
			if err := os.RemoveAll(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
		}
		_ = pause(ctx, time.Duration(100+r.IntN(2000))*time.Millisecond)
		return until(context.WithoutCancel(ctx), func() error { return h.stack.StartRedis(context.WithoutCancel(ctx)) })
	})
}

func postgresRestart(h *harness, ctx context.Context, r *rand.Rand) error {
	h.stores.Lock()
	defer h.stores.Unlock()
	defer h.trouble(time.Now())
	if err := h.stack.KillPostgres(); err != nil {
		return err
	}
	h.note("postgres-restart", "killed")
	_ = pause(ctx, time.Duration(100+r.IntN(2000))*time.Millisecond)
	defer h.note("postgres-restart", "started")
	return until(context.WithoutCancel(ctx), func() error { return h.stack.StartPostgres(context.WithoutCancel(ctx)) })
}

// thief is the consumer that steals leases and does nothing with them.
const thief = "chaos-thief"

// steal takes a lease: by turns that of a task that runs for long, and that of an
// effect whose call the receiver has and does not answer yet.
func steal(h *harness, ctx context.Context, _ *rand.Rand) error {
	queue, worth := queues[2], func(id string) bool { return h.load.kindOf(id) == marathon }
	if h.steals.Add(1)%2 == 0 {
		queue, worth = queues[effectsQueue], func(id string) bool { return h.receiver.has(id, h.visibility/2) }
	}
	stream := protocol.TaskStream(queue)
	return until(ctx, func() error {
		ps, err := h.redis.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: stream, Group: protocol.GroupWorkers, Start: "-", End: "+", Count: 1000}).Result()
		if err != nil {
			return err
		}
		slices.Reverse(ps) // the youngest have most of their time before them
		for _, p := range ps {
			if p.Consumer == thief || p.Idle > h.visibility/2 {
				continue
			}
			ms, err := h.redis.XRange(ctx, stream, p.ID, p.ID).Result()
			if err != nil || len(ms) == 0 {
				continue
			}
			pair, ok := protocol.PairOf(ms[0].Values)
			if !ok || !worth(pair.ID.String()) {
				continue
			}
			return h.rob(ctx, stream, p, pair.ID.String())
		}
		return errors.New("no lease that is worth stealing")
	})
}

// rob claims the entry. A renewal that was under way may take it back at once:
// then nothing was stolen.
func (h *harness) rob(ctx context.Context, stream string, p redis.XPendingExt, task string) error {
	at := time.Now()
	err := h.redis.XClaimJustID(ctx, &redis.XClaimArgs{Stream: stream, Group: protocol.GroupWorkers, Consumer: thief, Messages: []string{p.ID}}).Err()
	if err == nil {
		err = pause(ctx, 20*time.Millisecond)
	}
	if err != nil {
		return err
	}
	now, err := h.redis.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: stream, Group: protocol.GroupWorkers, Start: p.ID, End: p.ID, Count: 1}).Result()
	if err != nil || len(now) == 0 || now[0].Consumer != thief {
		return fmt.Errorf("entry %s is not the thief's: %v", p.ID, err)
	}
	h.note("steal", "%s of %s, task %s", p.ID, p.Consumer, task)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.thefts = append(h.thefts, check.Theft{Task: task, Worker: p.Consumer, Message: p.ID, At: at})
	return nil
}

func strangerAck(h *harness, ctx context.Context, r *rand.Rand) error {
	return until(ctx, func() error {
		stream := protocol.TaskStream(queues[r.IntN(len(queues))])
		ps, err := h.redis.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: stream, Group: protocol.GroupWorkers, Start: "-", End: "+", Count: 5}).Result()
		if err != nil {
			return err
		}
		if len(ps) == 0 {
			return errors.New("nothing is pending")
		}
		return h.losing(func() error {
			var ids []string
			for _, p := range ps {
				ids = append(ids, p.ID)
			}
			n, err := h.redis.XAck(ctx, stream, protocol.GroupWorkers, ids...).Result()
			h.note("stranger-ack", "%s %v: %d, %v", stream, ids, n, err)
			return err
		})
	})
}

func delStream(h *harness, ctx context.Context, r *rand.Rand) error {
	return until(ctx, func() error {
		stream := protocol.TaskStream(queues[r.IntN(len(queues))])
		return h.losing(func() error {
			n, err := h.redis.Del(ctx, stream).Result()
			h.note("del-stream", "%s: %d, %v", stream, n, err)
			if err == nil && n == 0 {
				return fmt.Errorf("there is no %s", stream)
			}
			return err
		})
	})
}

func taskGroup(h *harness, ctx context.Context, r *rand.Rand) error {
	return until(ctx, func() error {
		stream := protocol.TaskStream(queues[r.IntN(len(queues))])
		return h.losing(func() error {
			n, err := h.redis.XGroupDestroy(ctx, stream, protocol.GroupWorkers).Result()
			h.note("task-group", "%s: %d, %v", stream, n, err)
			if err == nil && n == 0 {
				return fmt.Errorf("%s has no group", stream)
			}
			return err
		})
	})
}

// resultGroup destroys the group of the outcomes; in half of the cases while
// there are many that nobody has read. They are all still in the stream: nothing
// is lost.
func resultGroup(h *harness, ctx context.Context, r *rand.Rand) error {
	if r.IntN(2) == 0 {
		defer h.pileUp(ctx)()
	}
	return until(ctx, func() error {
		n, err := h.redis.XGroupDestroy(ctx, protocol.StreamResult, protocol.GroupOrchestrators).Result()
		h.note("result-group", "%d, %v", n, err)
		if err == nil && n == 0 {
			return errors.New("stream:result has no group")
		}
		return err
	})
}

// pileUp makes outcomes that no orchestrator reads until the returned function
// is called: the workers stand still until tasks wait for them, then the
// orchestrators do. Both are much shorter than a visibility timeout.
func (h *harness) pileUp(ctx context.Context) (end func()) {
	all := append(h.orchestrators[:orchestrators:orchestrators], h.workers...)
	for _, s := range all { // always in this order, so that two never wait for each other
		s.fault.Lock()
	}
	signal := func(slots []*slot, sig syscall.Signal) {
		for _, s := range slots {
			s.signal(sig)
		}
	}
	signal(h.workers, syscall.SIGSTOP)
	_ = pause(ctx, 500*time.Millisecond)
	signal(h.orchestrators, syscall.SIGSTOP)
	signal(h.workers, syscall.SIGCONT)
	_ = pause(ctx, 300*time.Millisecond)
	return func() {
		signal(h.orchestrators, syscall.SIGCONT)
		for _, s := range all {
			s.fault.Unlock()
		}
	}
}
