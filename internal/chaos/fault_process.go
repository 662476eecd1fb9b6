package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/internal/chaosproxy"
)

// pick takes a slot that no other fault works on; the caller unlocks its fault.
func pick(ctx context.Context, r *rand.Rand, slots []*slot, steady bool) (*slot, error) {
	for {
		for _, i := range r.Perm(len(slots)) {
			s := slots[i]
			if s.steady && !steady || !s.fault.TryLock() {
				continue
			}
			if s.alive() {
				return s, nil
			}
			s.fault.Unlock()
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return nil, fmt.Errorf("every process is busy with another fault: %w", err)
		}
	}
}

// moment is when a process is killed: at any time if there is no match, else
// when a command comes by.
type moment struct {
	name, proxy string
	match       func([]byte) bool
	// forward is that of chaosproxy.Rule: 0 kills before the command is carried
	// out, -1 after it.
	forward int
	// effect: the call of an effect whose doubts are ended so has reached the
	// receiver, and has no answer.
	effect string
}

// outcome matches commands that append an outcome, but not a claim.
func outcome(b []byte) bool {
	return chaosproxy.Has("xadd", "stream:result")(b) && !bytes.Contains(b, []byte("claimed"))
}

var workerMoments = []moment{
	{}, {},
	{"before an outcome", "redis", outcome, 0, ""},
	{"after an outcome, before its XACK", "redis", outcome, -1, ""},
	{"after a fetch", "redis", chaosproxy.Has("xreadgroup"), -1, ""},
}

// effectMoments are those of the second and the fourth of every four kills of
// workers, so that every run has doubts of both kinds.
var effectMoments = map[int64]moment{
	2: {name: "after an effect that is checked, before it is recorded", effect: byCheck},
	0: {name: "after an effect that a person is asked about, before it is recorded", effect: byPerson},
}

var orchestratorMoments = []moment{
	{}, {}, {},
	{"before a dispatch", "redis", chaosproxy.Has("xadd", "stream:task"), 0, ""},
	{"after a dispatch", "redis", chaosproxy.Has("xadd", "stream:task"), -1, ""},
	{"before an XACK", "redis", chaosproxy.Has("xack"), 0, ""},
	{"before a commit", "postgres", chaosproxy.Has("commit"), 0, ""},
	{"after a commit", "postgres", chaosproxy.Has("commit"), -1, ""},
}

// momentLimit is how long a kill waits for its moment.
const momentLimit = 3 * time.Second

// await waits for the moment. That of an effect must come; of others any will do
// after momentLimit.
func (m moment) await(ctx context.Context, h *harness, s *slot) error {
	if m.effect != "" {
		defer h.receiver.spare(s.name)
		select {
		case <-h.receiver.hold(s.name, m.effect):
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%s called no effect: %w", s.name, ctx.Err())
		}
	}
	if m.match == nil {
		return nil
	}
	p := s.proxies[m.proxy]
	hit := p.Lose(chaosproxy.Rule{Match: m.match, Forward: m.forward})
	defer p.Spare()
	select {
	case <-hit:
	case <-ctx.Done():
	case <-time.After(momentLimit):
	}
	return nil
}

func killWorker(h *harness, ctx context.Context, r *rand.Rand) error {
	if m, ok := effectMoments[h.kills.Add(1)%4]; ok {
		return h.kill(ctx, r, "kill-worker", h.workers[:effectWorkers], m)
	}
	return h.kill(ctx, r, "kill-worker", h.workers, workerMoments[r.IntN(len(workerMoments))])
}

func killOrchestrator(h *harness, ctx context.Context, r *rand.Rand) error {
	return h.kill(ctx, r, "kill-orchestrator", h.orchestrators, orchestratorMoments[r.IntN(len(orchestratorMoments))])
}

func (h *harness) kill(ctx context.Context, r *rand.Rand, kind string, slots []*slot, m moment) error {
	s, err := pick(ctx, r, slots, false)
	if err != nil {
		return err
	}
	defer s.fault.Unlock()
	if err := m.await(ctx, h, s); err != nil {
		return err
	}
	if err := s.end(syscall.SIGKILL, 10*time.Second); err != nil {
		return err
	}
	h.note(kind, "%s %s", s.name, m.name)
	_ = pause(ctx, time.Duration(r.IntN(1500))*time.Millisecond)
	return s.start()
}

func restartWorker(h *harness, ctx context.Context, r *rand.Rand) error {
	return h.restart(ctx, r, "restart-worker", h.workers)
}

func restartOrchestrator(h *harness, ctx context.Context, r *rand.Rand) error {
	return h.restart(ctx, r, "restart-orchestrator", h.orchestrators)
}

// restartLimit is how long a process may take to end on SIGTERM, whatever state
// the stores are in.
const restartLimit = 20 * time.Second

func (h *harness) restart(ctx context.Context, r *rand.Rand, kind string, slots []*slot) error {
	s, err := pick(ctx, r, slots, false)
	if err != nil {
		return err
	}
	defer s.fault.Unlock()
	if err := s.end(syscall.SIGTERM, restartLimit); err != nil {
		s.complain(err.Error())
	}
	h.note(kind, "%s", s.name)
	return s.start()
}

func pauseWorker(h *harness, ctx context.Context, r *rand.Rand) error {
	return h.stop(ctx, r, "pause-worker", h.workers)
}

func pauseOrchestrator(h *harness, ctx context.Context, r *rand.Rand) error {
	return h.stop(ctx, r, "pause-orchestrator", h.orchestrators)
}

// stop stops a process for longer than the visibility timeout and the scan for
// what it left.
func (h *harness) stop(ctx context.Context, r *rand.Rand, kind string, slots []*slot) error {
	s, err := pick(ctx, r, slots, true)
	if err != nil {
		return err
	}
	defer s.fault.Unlock()
	d := h.visibility*3/2 + time.Duration(r.Int64N(int64(h.visibility)))
	began := time.Now()
	s.signal(syscall.SIGSTOP)
	h.note(kind, "%s for %s", s.name, d)
	_ = pause(ctx, d)
	s.signal(syscall.SIGCONT)
	if kind == "pause-orchestrator" {
		h.mu.Lock()
		h.stalled = append(h.stalled, check.Span{From: began, To: time.Now()})
		h.mu.Unlock()
	}
	return nil
}
