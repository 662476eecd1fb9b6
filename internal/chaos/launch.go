package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/mutant"
)

// launch makes the slots and starts all processes: the orchestrators first,
// and the first of them before the others, for it makes the tables.
func (h *harness) launch(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for i := range orchestrators {
		s, err := h.orchestratorSlot(i)
		if err != nil {
			return err
		}
		h.orchestrators = append(h.orchestrators, s)
	}
	for i := range workers {
		s, err := h.workerSlot(i, self)
		if err != nil {
			return err
		}
		h.workers = append(h.workers, s)
	}
	if err := h.orchestrators[0].start(); err != nil {
		return err
	}
	if err := h.waitReady(ctx, h.orchestrators[:1]); err != nil {
		return err
	}
	for _, s := range append(h.orchestrators[1:], h.workers...) {
		if err := s.start(); err != nil {
			return err
		}
	}
	return h.waitReady(ctx, h.orchestrators)
}

func (h *harness) orchestratorSlot(i int) (*slot, error) {
	s := &slot{name: fmt.Sprintf("orchestrator-%d", i), proxies: map[string]*chaosproxy.Proxy{}, steady: i == 0, dir: h.dir, spawner: h.spawner}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	var errs [3]error
	s.proxies["redis"], errs[0] = chaosproxy.NewRedis(h.stack.RedisURL)
	s.proxies["postgres"], errs[1] = chaosproxy.NewPostgres(h.stack.PostgresURL)
	s.proxies["http"], errs[2] = chaosproxy.NewTCP(addr)
	v := h.visibility
	s.command = func(int) (string, []string, []string) {
		return h.orchestrator, []string{"serve"}, h.env(
			"PENSTOCK_SERVER_LISTEN="+addr, "PENSTOCK_POSTGRES_URL="+s.proxies["postgres"].URL, "PENSTOCK_REDIS_URL="+s.proxies["redis"].URL,
			"PENSTOCK_POSTGRES_MAX_CONNS=9", "PENSTOCK_RECOVERY_VISIBILITY_TIMEOUT="+v.String(), "PENSTOCK_RECOVERY_RECONCILE_INTERVAL=2s",
			"PENSTOCK_RECOVERY_INSTANCE_TTL=2s", "PENSTOCK_RESULT_TAKE_OVER=1s", "PENSTOCK_RETENTION_TRIM_GRACE=10s",
			// Long tasks are interrupted often here, and must end all the same.
			"PENSTOCK_RECOVERY_MAX_INTERRUPTIONS=1000", "PENSTOCK_EFFECTS_DOUBT_AFTER="+doubtAfter.String(),
			"PENSTOCK_RETRY_BASE=50ms", "PENSTOCK_RETRY_MAX_BACKOFF=500ms", "PENSTOCK_RETRY_JITTER_MAX=50ms",
			"PENSTOCK_SERVER_SHUTDOWN_GRACE=5s", "PENSTOCK_LOG_FORMAT=text", "PENSTOCK_LOG_LEVEL=info",
		)
	}
	return s, errors.Join(errs[:]...)
}

func (h *harness) workerSlot(i int, self string) (*slot, error) {
	s := &slot{name: fmt.Sprintf("worker-%d", i), proxies: map[string]*chaosproxy.Proxy{}, steady: i == 0, dir: h.dir, spawner: h.spawner}
	var err error
	s.proxies["redis"], err = chaosproxy.NewRedis(h.stack.RedisURL)
	// One of them needs Redis only, as every worker may; the others send
	// heartbeats.
	var urls []string
	if i < effectWorkers {
		for _, o := range h.orchestrators {
			urls = append(urls, o.proxies["http"].URL)
		}
	}
	s.command = func(n int) (string, []string, []string) {
		names := queues
		if len(urls) == 0 {
			names = queues[:effectsQueue]
		}
		return self, []string{"worker", filepath.Join(h.dir, fmt.Sprintf("%s-%d.jsonl", s.name, n))}, h.env(
			"PENSTOCK_REDIS_URL="+s.proxies["redis"].URL, "PENSTOCK_QUEUES="+strings.Join(names, ","), envReceiver+"="+h.receiver.url, envSlot+"="+s.name,
			"PENSTOCK_CONCURRENCY="+strconv.Itoa(concurrency), "PENSTOCK_VISIBILITY_TIMEOUT="+h.visibility.String(), "PENSTOCK_SHUTDOWN_GRACE=500ms",
			"PENSTOCK_ORCHESTRATOR_URL="+strings.Join(urls, ","), "PENSTOCK_HEARTBEAT_INTERVAL=500ms",
		)
	}
	return s, err
}

// env adds the bug that was asked for, if any.
func (h *harness) env(vars ...string) []string {
	if h.mutant != "" {
		vars = append(vars, mutant.Env+"="+h.mutant)
	}
	return vars
}

// freeAddr returns an address that was free just now; a process that is
// started again needs the one it had before.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// readyLimit bounds the wait for all orchestrators.
const readyLimit = 90 * time.Second

func (h *harness) waitReady(ctx context.Context, slots []*slot) error {
	end := time.Now().Add(readyLimit)
	for _, s := range slots {
		for !ready(s.proxies["http"].URL + "/readyz") {
			if time.Now().After(end) {
				return fmt.Errorf("%s is not ready after %s", s.name, readyLimit)
			}
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}
