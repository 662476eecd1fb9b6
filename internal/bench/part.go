package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// bench measures one part.
type bench struct {
	options
	part    *part
	payload []byte
	systems map[string]*system // by what tells them apart
	results []result
	peak    float64       // RSS of an orchestrator, MB
	turns   int           // see inTurn
	lead    time.Duration // see burstRetries
}

// part is one subject; it is measured on servers of its own.
type part struct {
	// group is what several parts are chosen by; ratio says what ratios are to.
	name, group, ratio string
	about              func(*bench) string
	// most is the most repetitions; 0: as many as asked for.
	most int
	// fresh: each repetition gets new servers, for it leaves them full.
	fresh bool
	// once are the steps of a repetition, on the system that they all share.
	once []func(*bench, context.Context, *system) error
}

var parts = []*part{
	drain, through, latency, beside,
	orchestrators, queues, payloads,
	backlog, finished, partitions, future, idle,
	retries, burst, poison, deadLetters,
	timers,
}

// listParts names the parts by group.
func listParts() string {
	var b strings.Builder
	group := ""
	for _, p := range parts {
		switch {
		case p.group != group:
			fmt.Fprintf(&b, "; %s: %s", p.group, p.name)
		default:
			fmt.Fprintf(&b, ", %s", p.name)
		}
		group = p.group
	}
	return "Groups and their parts: " + strings.TrimPrefix(b.String(), "; ")
}

// measure measures the part in each repetition, and reports.
func (b *bench) measure(ctx context.Context, w io.Writer) (err error) {
	if b.part.most > 0 {
		b.reps = min(b.reps, b.part.most)
	}
	defer func() { err = errors.Join(err, b.closeSystems()) }() // after an error
	others := watchOthers()
	for i := range b.reps {
		fmt.Fprintf(os.Stderr, "%s: repetition %d of %d\n", b.part.name, i+1, b.reps)
		if b.part.fresh {
			if err := b.closeSystems(); err != nil {
				return err
			}
		}
		s, err := b.system(ctx, "", nil)
		if err != nil {
			return err
		}
		for _, step := range b.part.once {
			if err := step(b, ctx, s); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	if err := b.closeSystems(); err != nil {
		return err
	}
	if b.peak > 0 {
		b.add("an orchestrator's RSS, most (target < 150)", "MB", "", b.peak)
	}
	return b.report(w, others())
}

// system returns the system of a name. The first time it is started and filled.
func (b *bench) system(ctx context.Context, name string, fill func(context.Context, *system) error) (*system, error) {
	if s := b.systems[name]; s != nil {
		return s, nil
	}
	s, err := b.start(ctx)
	if err == nil && fill != nil {
		if err = fill(ctx, s); err != nil {
			err = errors.Join(err, s.close())
		}
	}
	if err != nil {
		return nil, err
	}
	b.systems[name] = s
	return s, nil
}

// closeSystems stops what the part has started.
func (b *bench) closeSystems() (err error) {
	for name, s := range b.systems {
		err = errors.Join(err, s.close())
		b.peak = max(b.peak, s.peak)
		delete(b.systems, name)
	}
	return err
}
