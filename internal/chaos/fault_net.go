package main

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/internal/chaosproxy"
)

// losable are commands whose replies can be lost: whose, on the way to what,
// and how they look.
var losable = []struct {
	name, proxy string
	worker      bool
	match       func([]byte) bool
}{
	{"a worker's outcome", "redis", true, outcome},
	{"a worker's outcome", "redis", true, outcome},
	{"a worker's fetch", "redis", true, chaosproxy.Has("xreadgroup")},
	{"a worker's XACK", "redis", true, chaosproxy.Has("xack")},
	{"a renewal", "redis", true, chaosproxy.Has("xclaim")},
	{"a dispatch", "redis", false, chaosproxy.Has("xadd", "stream:task")},
	{"a dispatch", "redis", false, chaosproxy.Has("xadd", "stream:task")},
	{"a fetch of outcomes", "redis", false, chaosproxy.Has("xreadgroup", "stream:result")},
	{"an orchestrator's XACK", "redis", false, chaosproxy.Has("xack")},
	{"a reclaim", "redis", false, chaosproxy.Has("xautoclaim")},
	{"a dead letter", "redis", false, chaosproxy.Has("xadd", "stream:dlq")},
	{"a commit", "postgres", false, chaosproxy.Has("commit")},
	{"a begin", "postgres", false, chaosproxy.Has("begin")},
	{"the answer to an enqueue", "http", false, chaosproxy.Has("EnqueueBatch")},
}

// loseReply loses replies, with the end of the connection or without one, or cuts
// a pipeline off after some commands.
func loseReply(h *harness, ctx context.Context, r *rand.Rand) error {
	for ctx.Err() == nil {
		l := losable[r.IntN(len(losable))]
		slots := h.orchestrators
		if l.worker {
			slots = h.workers
		}
		s := slots[r.IntN(len(slots))]
		rule := chaosproxy.Rule{Match: l.match, Forward: -1, Times: 1 + r.IntN(2)}
		switch {
		case l.proxy != "redis":
		case r.IntN(4) == 0:
			rule.Forward = r.IntN(4)
		case r.IntN(4) == 0:
			rule.Silent, rule.Times = true, 1 // a client needs seconds to notice
		}
		if h.loses(ctx, s.proxies[l.proxy], rule) {
			h.note("lost-reply", "%s of %s, forward %d, silent %t, %d times", l.name, s.name, rule.Forward, rule.Silent, rule.Times)
			return nil
		}
	}
	return errors.New("no command came whose reply could be lost")
}

// loses reports whether the rule was applied.
func (h *harness) loses(ctx context.Context, p *chaosproxy.Proxy, rule chaosproxy.Rule) bool {
	hit := p.Lose(rule)
	defer p.Spare()
	select {
	case <-hit:
		return true
	case <-ctx.Done():
	case <-time.After(momentLimit):
	}
	return false
}

// proxy picks one on the way from a process to a store.
func (h *harness) proxy(r *rand.Rand) (s *slot, to string) {
	if r.IntN(2) == 0 {
		return h.workers[r.IntN(len(h.workers))], "redis"
	}
	return h.orchestrators[r.IntN(len(h.orchestrators))], []string{"redis", "postgres", "http"}[r.IntN(3)]
}

func cut(h *harness, ctx context.Context, r *rand.Rand) error {
	s, to := h.proxy(r)
	p := s.proxies[to]
	away := time.Duration(r.IntN(1000)) * time.Millisecond
	if r.IntN(2) == 0 {
		away = 0
	}
	h.note("cut", "%s → %s, away for %s", s.name, to, away)
	defer h.trouble(time.Now())
	if away == 0 {
		p.Cut()
		return nil
	}
	p.Down(true)
	_ = pause(ctx, away)
	p.Down(false)
	return nil
}

func delay(h *harness, ctx context.Context, r *rand.Rand) error {
	s, to := h.proxy(r)
	d := time.Duration(20+r.IntN(200)) * time.Millisecond
	h.note("delay", "%s → %s, %s", s.name, to, d)
	defer h.trouble(time.Now())
	s.proxies[to].Delay(d)
	_ = pause(ctx, time.Duration(1000+r.IntN(2000))*time.Millisecond)
	s.proxies[to].Delay(0)
	return nil
}

// trouble notes that since a moment a store was away, or a worker may not have
// reached Redis.
func (h *harness) trouble(since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.troubled = append(h.troubled, check.Span{From: since, To: time.Now().Add(h.visibility / 2)})
}

// clockOffset has a worker report times of a clock that is off. Nothing can
// change the clock of a single process without help from outside, so the times
// are changed on their way: they are all that others ever see of it.
func clockOffset(h *harness, ctx context.Context, r *rand.Rand) error {
	s := h.workers[r.IntN(len(h.workers))]
	off := time.Duration(r.Int64N(int64(4*time.Hour))) - 2*time.Hour
	h.note("clock", "%s is off by %s", s.name, off)
	s.proxies["redis"].Rewrite(func(b []byte) []byte { return shiftTimes(b, off) })
	_ = pause(ctx, time.Duration(5+r.IntN(10))*time.Second)
	s.proxies["redis"].Rewrite(nil)
	return nil
}

// shiftTimes changes the times of an outcome in a Redis command.
func shiftTimes(command []byte, off time.Duration) []byte {
	if !bytes.Contains(command, []byte("stream:result")) {
		return command
	}
	for _, field := range []string{"started_at", "finished_at"} {
		const digits = 13 // milliseconds since 1970, for the next centuries
		mark := []byte(field + "\r\n$" + strconv.Itoa(digits) + "\r\n")
		i := bytes.Index(command, mark)
		if i < 0 {
			continue
		}
		at := i + len(mark)
		if at+digits > len(command) {
			continue
		}
		ms, err := strconv.ParseInt(string(command[at:at+digits]), 10, 64)
		if err != nil {
			continue
		}
		out := append([]byte(nil), command...)
		copy(out[at:], strconv.FormatInt(ms+off.Milliseconds(), 10))
		command = out
	}
	return command
}
