// Command with-servers runs a command with a private Postgres and Redis:
//
//	go run ./internal/devstack/with-servers -- go test ./...
//
// It starts both servers in a temporary directory, passes their addresses in
// PENSTOCK_TEST_POSTGRES_URL and PENSTOCK_TEST_REDIS_URL, forwards SIGINT and
// SIGTERM to the command, and exits with the command's exit code: 128 plus the
// signal's number when a signal ended it, 127 when it could not be run, 125 when
// the servers failed and 2 when with-servers was called wrongly. The servers and
// their data are gone afterwards; if with-servers itself is killed, the servers
// and the command are stopped at once and the data goes with the next start.
//
// Note that `go run` turns every exit code but 0 into 1. Build the command first
// where the code matters.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
)

const (
	exitUsage   = 2
	exitServers = 125
	exitCommand = 127

	stopLimit = time.Minute
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: with-servers -- command [argument ...]")
		return exitUsage
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	stack, err := startStack(signals)
	if err != nil {
		fmt.Fprintln(os.Stderr, "with-servers:", err)
		return exitServers
	}
	code := runCommand(args, stack, signals)

	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	if err := stack.Stop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "with-servers: stopping the servers:", err)
		if code == 0 {
			code = exitServers
		}
	}
	return code
}

// startStack starts the servers. A signal meanwhile calls the start off.
func startStack(signals <-chan os.Signal) (*devstack.Stack, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	started, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case sig := <-signals:
			cancel(fmt.Errorf("%s received", sig))
		case <-started:
		}
	}()
	stack, err := devstack.Start(ctx, devstack.Options{
		FsyncOff:       true,
		TempDir:        devtest.MemoryDir(),
		RedisDatabases: 2048,
		MaxConnections: 500,
		Log:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	close(started)
	<-watched
	if err == nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), stack.Stop(context.Background()))
	}
	return stack, err
}

// runCommand runs the command and returns the exit code to pass on.
func runCommand(args []string, stack *devstack.Stack, signals <-chan os.Signal) int {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(),
		devtest.PostgresEnv+"="+stack.PostgresURL,
		devtest.RedisEnv+"="+stack.RedisURL,
	)
	cmd.SysProcAttr = dieWithParent()

	started, done := make(chan error, 1), make(chan error, 1)
	go func() {
		// The parent-death signal follows the thread that started the command.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		fmt.Fprintln(os.Stderr, "with-servers: running the command:", err)
		return exitCommand
	}
	for {
		select {
		case sig := <-signals:
			if sig == os.Interrupt && interruptReachesChildren() {
				continue // the terminal has delivered it already
			}
			_ = cmd.Process.Signal(sig) // fails only if the command has just ended
		case err := <-done:
			return exitCode(err)
		}
	}
}

// exitCode maps the result of Wait to an exit code as shells do.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		fmt.Fprintln(os.Stderr, "with-servers: waiting for the command:", err)
		return exitCommand
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return exit.ExitCode()
}
