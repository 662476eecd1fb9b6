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

// ErrInterrupted is Run's error if its grace period was cut short. It is a
// context.Canceled.
var ErrInterrupted = fmt.Errorf("told to stop at once: %w", context.Canceled)

// rush is how long the loops have to stop once the grace period is cut short.
const rush = 2 * time.Second

// Run starts all loops and waits until ctx ends or one of them fails. Then it
// stops them one after the other in the order given, each before the next, all
// within grace; what has not stopped by then is abandoned. If hurry ends
// meanwhile, so does the grace period, and 2 s are left for all of them. It
// returns the error of the loop that failed first, or an error that names the
// abandoned; with either, or alone, ErrInterrupted if hurry ended.
func Run(ctx, hurry context.Context, log *slog.Logger, grace time.Duration, loops []Loop) error {
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
	began := time.Now()
	polite, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	limit, giveUp := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer giveUp()
	defer context.AfterFunc(hurry, func() {
		cancel()
		time.AfterFunc(rush, giveUp)
	})()
	for i, l := range loops {
		if l.Stop != nil && !done[i] {
			l.Stop(polite)
		}
		cancels[i]()
		for !done[i] {
			select {
			case e := <-ends:
				note(e)
			case <-limit.Done():
				took := time.Since(began).Round(time.Millisecond)
				log.Error("not stopped within the grace period", "loop", l.Name, "grace", grace, "waited", took)
				return interrupted(hurry, errors.Join(first, fmt.Errorf("%s did not stop within %s", l.Name, took)))
			}
		}
	}
	return interrupted(hurry, first)
}

func interrupted(hurry context.Context, err error) error {
	if hurry.Err() == nil {
		return err
	}
	return errors.Join(err, ErrInterrupted)
}

// Detach runs fn and returns its error, or that of ctx as soon as ctx ends. fn is
// left behind then, so it must end by itself some time, and touch nothing that
// others go on to use.
func Detach(ctx context.Context, fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
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
