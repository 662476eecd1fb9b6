package devstack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// startLimit bounds the wait for a started server to accept connections.
	startLimit = 30 * time.Second
	// probeLimit bounds one attempt to connect, probeEvery spaces them out.
	probeLimit = 3 * time.Second
	probeEvery = 10 * time.Millisecond
	// killLimit bounds the wait for a process to vanish after SIGKILL.
	killLimit = 10 * time.Second
	// hurriedLimit bounds each step of a stop whose context has ended.
	hurriedLimit = 2 * time.Second
)

// command describes a child process.
type command struct {
	name     string // for messages, such as "postgres"
	path     string // absolute path of the program
	args     []string
	dir      string // working directory
	logPath  string // receives stdout and stderr
	account  *account
	deathSig syscall.Signal // sent when this process dies
}

// process is a child process that has been started.
type process struct {
	command
	log      *slog.Logger
	logStart int64
	proc     *os.Process
	done     chan struct{} // closed once the process has been reaped
	err      error         // how it exited; valid after done
	watched  atomic.Bool   // an exit now is unexpected
}

// startProcess starts c. The kernel ties the parent-death signal to the thread
// that forked, not to the whole process, so a goroutine that owns its thread
// starts the child and stays on that thread until the child has been reaped.
func startProcess(c command, log *slog.Logger) (*process, error) {
	out, logStart, err := openLog(c.logPath)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()

	cmd := exec.Command(c.path, c.args...)
	cmd.Dir = c.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + c.dir,
		"LANG=C.UTF-8",
		"LC_ALL=C.UTF-8",
		"TZ=UTC",
	}
	cmd.Env = append(cmd.Env, fakedClock()...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = procAttr(c.deathSig, c.account.credential())

	p := &process{command: c, log: log, logStart: logStart, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.proc = cmd.Process
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
		p.reportExit()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("devstack: starting %s: %w", c.name, err)
	}
	return p, nil
}

// fakedClock returns the environment by which a server has another clock, that
// of the library TEST_CLOCK_LIB: clients and servers must agree about the day.
// hack/soak-tests.sh sets it.
func fakedClock() []string {
	lib := os.Getenv("TEST_CLOCK_LIB")
	if lib == "" {
		return nil
	}
	return []string{"LD_PRELOAD=" + lib, "TEST_CLOCK_OFFSET=" + os.Getenv("TEST_CLOCK_OFFSET")}
}

// pid returns the process id, or 0 when p is nil or has exited.
func (p *process) pid() int {
	if p == nil || p.exited() {
		return 0
	}
	return p.proc.Pid
}

// exited reports whether the process has been reaped.
func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// watch makes an exit from now on, or one that has just happened, unexpected.
func (p *process) watch() {
	p.watched.Store(true)
	if p.exited() {
		p.reportExit()
	}
}

// unwatch announces that an exit from now on is wanted.
func (p *process) unwatch() { p.watched.Store(false) }

// reportExit logs an unexpected exit, once.
func (p *process) reportExit() {
	if !p.watched.CompareAndSwap(true, false) {
		return
	}
	p.log.Error("a development server exited unexpectedly",
		"server", p.name, "pid", p.proc.Pid, "exit", exitText(p.err),
		"log_file", p.logPath, "log_tail", logTail(p.logPath, p.logStart))
}

// await calls probe until it succeeds. It gives up when the process exits, when
// probe returns an error wrapped by permanent, after startLimit, or when ctx
// ends. The error then quotes the end of the server's log.
func (p *process) await(ctx context.Context, probe func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		attempt, cancelAttempt := context.WithTimeout(limited, probeLimit)
		err := probe(attempt)
		cancelAttempt()
		if err == nil {
			return nil
		}
		if perm, ok := errors.AsType[permanentError](err); ok {
			return p.failure(fmt.Sprintf("refuses the supervisor: %v", perm.error), perm.error)
		}
		select {
		case <-p.done:
			return p.failure("exited while starting: "+exitText(p.err), nil)
		case <-limited.Done():
			if ctx.Err() != nil {
				return p.failure("was not ready when the start was called off", context.Cause(ctx))
			}
			return p.failure(fmt.Sprintf("accepted no connection within %s: %v", startLimit, err), err)
		case <-tick.C:
		}
	}
}

// failure returns an error about the process that quotes its log.
func (p *process) failure(what string, cause error) error {
	return &serverError{name: p.name, what: what, cause: cause,
		logPath: p.logPath, tail: logTail(p.logPath, p.logStart)}
}

// step is one attempt at stopping a process: a signal and how long to wait.
type step struct {
	sig  syscall.Signal
	wait time.Duration
}

// stop sends the signals of steps, one after the other, until the process has
// been reaped, with SIGKILL as the last resort. Once ctx has ended every step
// is cut short. It returns an error when the first step was not enough.
func (p *process) stop(ctx context.Context, steps ...step) error {
	p.unwatch()
	steps = append(steps, step{syscall.SIGKILL, killLimit})
	begun := time.Now()
	for i, s := range steps {
		if err := p.proc.Signal(s.sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("devstack: sending %s to %s (pid %d): %w", s.sig, p.name, p.proc.Pid, err)
		}
		if !p.waitExit(ctx, s.wait) {
			continue
		}
		if i > 0 && steps[0].sig != s.sig {
			return fmt.Errorf("devstack: %s (pid %d) ignored %s and had to be stopped with %s after %s",
				p.name, p.proc.Pid, steps[0].sig, s.sig, time.Since(begun).Round(time.Millisecond))
		}
		return nil
	}
	return fmt.Errorf("devstack: %s (pid %d) is still there %s after SIGKILL", p.name, p.proc.Pid, killLimit)
}

// waitExit waits for the process to be reaped and reports whether it was. It
// waits for limit, or for hurriedLimit at most once ctx has ended.
func (p *process) waitExit(ctx context.Context, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return p.exited()
	case <-ctx.Done():
	}
	hurried := time.NewTimer(min(limit, hurriedLimit))
	defer hurried.Stop()
	select {
	case <-p.done:
		return true
	case <-hurried.C:
		return p.exited()
	}
}

// exitText describes the result of Wait.
func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}
