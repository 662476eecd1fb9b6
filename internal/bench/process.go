package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/penstock-dev/penstock/internal/devstack"
)

// process is a child of this one.
type process struct {
	proc *os.Process
	done chan struct{} // closed once it has ended
	err  error         // how; valid after done
}

// spawn starts a process from a thread that stays until it has ended: the kernel
// ends it with that thread, and so with this process.
func spawn(cmd *exec.Cmd) (*process, error) {
	p, started := &process{done: make(chan struct{})}, make(chan error)
	cmd.SysProcAttr = procAttr()
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.proc = cmd.Process
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	return p, <-started
}

func (p *process) pid() int { return p.proc.Pid }

// orchestrator is one process of the orchestrator's program.
type orchestrator struct {
	*process
	url   string
	debug string // where it serves profiles, if it was asked to
	log   string
}

// startOrchestrator starts one with its default configuration, and returns once
// it is ready.
func startOrchestrator(ctx context.Context, opts options, stack *devstack.Stack, dir string, number int) (*orchestrator, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	o := &orchestrator{url: "http://" + addr, log: filepath.Join(dir, fmt.Sprintf("orchestrator-%d.log", number))}
	args := []string{"serve", "--server-listen", addr}
	if opts.profile != "" {
		if o.debug, err = freeAddr(); err != nil {
			return nil, err
		}
		args = append(args, "--debug-listen", o.debug)
	}
	out, err := os.Create(o.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(opts.orchestrator, args...)
	cmd.Dir = dir
	if cmd.Path, err = filepath.Abs(opts.orchestrator); err != nil {
		return nil, err
	}
	// Nothing of this process' environment is configuration.
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + os.TempDir(),
		"PENSTOCK_POSTGRES_URL=" + stack.PostgresURL, "PENSTOCK_REDIS_URL=" + stack.RedisURL,
	}
	cmd.Stdout, cmd.Stderr = out, out
	if o.process, err = spawn(cmd); err != nil {
		return nil, fmt.Errorf("start the orchestrator: %w", err)
	}
	if err := o.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, o.stop())
	}
	return o, nil
}

// readyLimit and stopLimit bound the waits for a start and for an end.
const (
	readyLimit = time.Minute
	stopLimit  = 30 * time.Second
)

func (o *orchestrator) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for {
		if answersOK(ctx, o.url+"/readyz") {
			return nil
		}
		select {
		case <-o.done:
			return fmt.Errorf("the orchestrator ended before it was ready: %v:\n%s", o.err, o.tail())
		case <-ctx.Done():
			return fmt.Errorf("the orchestrator is not ready: %w:\n%s", ctx.Err(), o.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func answersOK(ctx context.Context, url string) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	return res.StatusCode == http.StatusOK && res.Body.Close() == nil
}

// stop ends the process in its orderly way. It is an error if it had ended before.
func (o *orchestrator) stop() error {
	select {
	case <-o.done:
		return fmt.Errorf("the orchestrator ended by itself: %v:\n%s", o.err, o.tail())
	default:
	}
	_ = o.proc.Signal(syscall.SIGTERM)
	select {
	case <-o.done:
		if o.err != nil {
			return fmt.Errorf("the orchestrator stopped with %w:\n%s", o.err, o.tail())
		}
		return nil
	case <-time.After(stopLimit):
		_ = o.proc.Kill()
		<-o.done
		return fmt.Errorf("the orchestrator did not stop within %s of SIGTERM", stopLimit)
	}
}

// tail is the end of its log.
func (o *orchestrator) tail() string {
	const most = 2000
	b, err := os.ReadFile(o.log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}

// freeAddr returns an address that was free just now.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
