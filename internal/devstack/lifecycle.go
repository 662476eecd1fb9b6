package devstack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
)

// errStopped reports a call on a stack after Stop.
var errStopped = errors.New("devstack: the stack has been stopped; start a new one")

// Stop stops the servers, both at once, and gives up the data directory; a
// temporary one is removed. Postgres gets SIGINT (fast shutdown), Redis SIGTERM.
// A server that does not comply is killed, Postgres after 27 s and Redis after
// 10 s, or within seconds once ctx has ended, and the error says so. A start in
// progress is called off. Further calls do nothing and return the same error.
func (s *Stack) Stop(ctx context.Context) error {
	s.halt()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return s.stopErr
	}
	s.stopped = true
	redisErr := make(chan error, 1)
	go func() { redisErr <- end(ctx, &s.redisProc, orderlyStop) }()
	errs := []error{end(ctx, &s.postgresProc, fastStop), <-redisErr}
	for _, cleanup := range slices.Backward(s.cleanups) {
		errs = append(errs, cleanup())
	}
	s.stopErr = errors.Join(errs...)
	return s.stopErr
}

// KillPostgres stops Postgres at once with SIGQUIT (immediate shutdown), as if
// it had crashed, and returns when it has exited. With Options.FsyncOff the last
// commits are lost. It does nothing when Postgres is not running.
func (s *Stack) KillPostgres() error {
	return s.endOne(s.postgres != nil, &s.postgresProc, "Postgres", immediateStop)
}

// StartPostgres starts Postgres again, after KillPostgres or a crash, on the
// same data and the same address, and returns when clients can connect. It is
// an error when Postgres is running, is not part of the stack, or is not ready
// within 30 s.
func (s *Stack) StartPostgres(ctx context.Context) error {
	if s.postgres == nil {
		return notPart("Postgres")
	}
	return s.startOne(ctx, &s.postgresProc, "Postgres", func(ctx context.Context) (*process, error) {
		// Workers of a server that was killed outright hold on to its memory
		// until they notice.
		if pids := awaitNone(ctx, s.postgres.data(), orphanLimit); len(pids) > 0 {
			return nil, fmt.Errorf("devstack: processes %v of the Postgres that died do not end", pids)
		}
		return s.postgres.start(ctx)
	})
}

// StopRedis stops Redis, with SIGKILL if kill is set and in an orderly way
// otherwise, and returns when it has exited. It does nothing when Redis is not
// running. Unless the stack is durable, the data is gone either way.
func (s *Stack) StopRedis(kill bool) error {
	steps := orderlyStop
	if kill {
		steps = nil
	}
	return s.endOne(s.redis != nil, &s.redisProc, "Redis", steps)
}

// StartRedis starts Redis again, after StopRedis or a crash, on the same data
// directory and the same address, and returns when it answers. It is an error
// when Redis is running, is not part of the stack, or is not ready within 30 s.
func (s *Stack) StartRedis(ctx context.Context) error {
	if s.redis == nil {
		return notPart("Redis")
	}
	return s.startOne(ctx, &s.redisProc, "Redis", s.redis.start)
}

// PostgresPID returns the process id of the Postgres server, or 0 when it is
// not running.
func (s *Stack) PostgresPID() int { return s.postgresProc.Load().pid() }

// RedisPID returns the process id of the Redis server, or 0 when it is not
// running.
func (s *Stack) RedisPID() int { return s.redisProc.Load().pid() }

// endOne stops one server of a stack that goes on.
func (s *Stack) endOne(part bool, slot *atomic.Pointer[process], name string, steps []step) error {
	if !part {
		return notPart(name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopped
	}
	return end(s.life, slot, steps)
}

// startOne starts one server of a stack that goes on.
func (s *Stack) startOne(ctx context.Context, slot *atomic.Pointer[process], name string, start func(context.Context) (*process, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopped
	}
	if pid := slot.Load().pid(); pid != 0 {
		return fmt.Errorf("devstack: %s is running already (pid %d); stop it first", name, pid)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	return launch(ctx, slot, start)
}

// end stops the process in slot, if one is running.
func end(ctx context.Context, slot *atomic.Pointer[process], steps []step) error {
	p := slot.Load()
	if p.pid() == 0 {
		return nil
	}
	return p.stop(ctx, steps...)
}

func notPart(name string) error {
	return fmt.Errorf("devstack: %s is not part of this stack; set Options.%s", name, name)
}
