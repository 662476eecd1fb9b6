//go:build unix

package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/penstock-dev/penstock/task"
)

// execSupported tells whether the system has process groups and signals.
const execSupported = true

// exitDataErr is EX_DATAERR of sysexits.h: the payload is wrong. All other
// statuses but 0 are failures that a retry may cure, EX_TEMPFAIL (75) among
// them.
const exitDataErr = 65

// run runs the program once: the payload on standard input, standard output as
// the result, see resultOf. Errors:
//
//   - permanent: exit status 65, more output than max_output_bytes (the program
//     is then stopped) or output that can't be kept, a value that can't be an
//     argument;
//   - retryable: any other exit status but 0, death by a signal, a program that
//     can't be started;
//   - the cause of ctx, if the program was stopped because ctx ended, whatever
//     its exit status.
//
// docs/handlers.md has the whole table.
//
// The program is the leader of a process group. The group gets SIGTERM when ctx
// ends and SIGKILL after the grace period; what is left of it when the program
// exits gets SIGKILL. A process that leaves the group is not followed, but its
// hold on the pipes is given up after the grace period.
func (p *program) run(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("exec %s: %w", p.name, context.Cause(ctx))
	}
	c, err := p.prepare(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("exec %s: %w", p.name, err)
	}
	if p.dir == "" {
		dir, err := os.MkdirTemp("", "penstock-task-")
		if err != nil {
			return nil, fmt.Errorf("exec %s: working directory: %w", p.name, err)
		}
		c.cmd.Dir = dir
		defer func() {
			if err := os.RemoveAll(dir); err != nil {
				p.log.LogAttrs(ctx, slog.LevelWarn, "working directory of a task could not be removed",
					logAttrs(r), slog.Any("error", err))
			}
		}()
	}
	start := time.Now()
	err = c.runGroup(ctx)
	p.log.LogAttrs(ctx, slog.LevelDebug, "program ended", logAttrs(r),
		slog.String("state", c.cmd.ProcessState.String()), slog.Duration("after", time.Since(start)))
	res, err := c.outcome(ctx, err)
	if err != nil {
		return nil, fmt.Errorf("exec %s: %w", p.name, err)
	}
	return res, nil
}

// child is one run of a program.
type child struct {
	cmd    *exec.Cmd
	grace  time.Duration
	stdout *capped
	stderr *lastBytes
	// ended: the group was signalled because the context had ended.
	ended bool
}

// prepare makes the command of an execution, whose standard error is its
// heartbeat.
func (p *program) prepare(ctx context.Context, r *task.Raw) (*child, error) {
	argv := []string{p.name}
	for i := range p.args {
		s, err := p.args[i].expand(&r.Info)
		if err != nil {
			return nil, err
		}
		argv = append(argv, s)
	}
	env, err := p.taskEnv(&r.Info)
	if err != nil {
		return nil, err
	}
	c := &child{grace: p.grace, stdout: newCapped(p.maxOutput), stderr: &lastBytes{max: maxErrorOutput}}
	c.stderr.line = func() { _ = task.Heartbeat(ctx) } // when ctx ends the group is stopped anyway
	c.cmd = &exec.Cmd{
		Path: p.path, Args: argv, Env: env, Dir: p.dir,
		Stdin: bytes.NewReader(payloadOf(r)), Stdout: c.stdout, Stderr: c.stderr,
		WaitDelay:   p.grace,
		SysProcAttr: groupAttr(),
	}
	return c, nil
}

// runGroup starts the program and returns what exec.Cmd.Wait does once it, and
// its process group, have ended.
//
// The parent-death signal that groupAttr asks for comes when the *thread* that
// forked the child ends, not the process. Go ends a thread when a goroutine
// exits while locked to it, so an unlocked fork could run on a thread that
// other code later takes down, and the child with it. Locking keeps the thread
// to this function until the child is gone. It costs no extra thread: waiting
// for a child occupies one anyway.
func (c *child) runGroup(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("can't be started: %w", err)
	}
	exited, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		c.supervise(ctx, exited)
	}()
	return c.await(func() {
		close(exited)
		<-done
	})
}

// supervise stops the group when ctx ends or the output is too long. It returns
// once exited is closed.
func (c *child) supervise(ctx context.Context, exited <-chan struct{}) {
	select {
	case <-exited:
		return
	case <-ctx.Done():
		select {
		case <-exited: // both at once: the program's own outcome counts
			return
		default:
			c.ended = true
		}
	case <-c.stdout.full:
	}
	c.signal(unix.SIGTERM)
	t := time.NewTimer(c.grace)
	defer t.Stop()
	select {
	case <-exited:
		return
	case <-t.C:
	}
	c.signal(unix.SIGKILL)
	<-exited
}

// signal sends sig to the process group. That the group is empty is no error.
func (c *child) signal(sig unix.Signal) { _ = unix.Kill(-c.cmd.Process.Pid, sig) }

// outcome makes the task's outcome of that of the program.
func (c *child) outcome(ctx context.Context, err error) (json.RawMessage, error) {
	switch {
	case c.cmd.ProcessState == nil:
		return nil, err // not started
	case c.stdout.over:
		return nil, c.quote(task.Permanent(fmt.Errorf(
			"standard output is longer than max_output_bytes (%d) and can't be kept as the result", c.stdout.max)))
	case c.ended:
		return nil, c.quote(fmt.Errorf("stopped: %w", context.Cause(ctx)))
	}
	ws, _ := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case ws.Signaled():
		return nil, c.quote(fmt.Errorf("killed by %s", signalName(ws.Signal())))
	case ws.ExitStatus() == exitDataErr:
		return nil, c.quote(task.Permanent(fmt.Errorf("exit status %d", exitDataErr)))
	case ws.ExitStatus() != 0:
		return nil, c.quote(fmt.Errorf("exit status %d", ws.ExitStatus()))
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return nil, c.quote(fmt.Errorf("standard input or output: %w", err))
	}
	return resultOf("standard output", c.stdout.buf)
}

// quote adds the end of standard error to err, which it wraps.
func (c *child) quote(err error) error {
	b := c.stderr.buf
	for len(b) > 0 && !utf8.RuneStart(b[0]) {
		b = b[1:] // the rest of a rune whose start was dropped
	}
	text := tail(clean(string(b)), maxErrorOutput)
	if text == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, strings.TrimSpace(text))
}

// signalName returns a signal's name such as SIGSEGV.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}
