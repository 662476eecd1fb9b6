// Package lifecycle starts loops together and stops them in order.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Loop is a part of a program that runs until it is told to stop.
type Loop struct {
	Name string
	// Run works until its context ends. An error stops the whole program.
	Run func(ctx context.Context) error
	// Stop, if set, is called to stop the loop before its context is
	// cancelled; grace bounds it.
	Stop func(grace context.Context)
}

// Run starts all loops and waits until ctx ends or one of them fails. Then it
// stops them one after the other in the order given, each before the next, all
// within grace; what has not stopped by then is abandoned. It returns the
// error of the loop that failed first, or an error that names the abandoned.
func Run(ctx context.Context, log *slog.Logger, grace time.Duration, loops []Loop) error {
	type ended struct {
		i   int
		err error
	}
	ends := make(chan ended, len(loops))
	cancels := make([]context.CancelFunc, len(loops))
	done := make([]bool, len(loops))
	for i, l := range loops {
		lctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancels[i] = cancel
		defer cancel()
		go func() { ends <- ended{i, l.Run(lctx)} }()
	}
	var first error
	note := func(e ended) {
		done[e.i] = true
		if e.err != nil && first == nil {
			first = fmt.Errorf("%s: %w", loops[e.i].Name, e.err)
		}
	}
	select {
	case <-ctx.Done():
	case e := <-ends:
		note(e)
		if first == nil {
			first = fmt.Errorf("%s ended by itself", loops[e.i].Name)
		}
	}
	gctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	for i, l := range loops {
		if l.Stop != nil && !done[i] {
			l.Stop(gctx)
		}
		cancels[i]()
		for !done[i] {
			select {
			case e := <-ends:
				note(e)
			case <-gctx.Done():
				log.Error("not stopped within the grace period", "loop", l.Name, "grace", grace)
				return errors.Join(first, fmt.Errorf("%s did not stop within %s", l.Name, grace))
			}
		}
	}
	return first
}

type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }

// Fatal marks an error of Retry's function as one that waiting can't cure.
func Fatal(err error) error { return fatal{err} }

// Retry calls fn until it succeeds, with growing pauses, for at most limit.
// what names what is being reached, for the log and the error.
func Retry(ctx context.Context, log *slog.Logger, what string, limit time.Duration, fn func(ctx context.Context) error) error {
	deadline := time.Now().Add(limit)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 3*time.Second) {
		err := fn(ctx)
		if err == nil {
			return nil
		}
		if f, ok := errors.AsType[fatal](err); ok {
			return f.error
		}
		if ctx.Err() != nil {
			return fmt.Errorf("stopped while waiting for %s: %w", what, err)
		}
		if time.Now().Add(pause).After(deadline) {
			return fmt.Errorf("%s could not be used within %s (server.start_deadline): %w", what, limit, err)
		}
		log.Warn("waiting for "+what, "error", err, "retry_in", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
