// Command bench measures what users run: the orchestrator's program in a process
// of its own with its default configuration, Redis with an append-only file, and
// a Postgres with fsync and the settings that initdb writes. Each part gets a new
// pair of servers. This process is the client and the worker, by the public
// packages. A raw go-redis loop over the same streams, which keeps no record, is
// measured in the same minutes. Figures are medians of several repetitions, and
// what is compared is measured in turn within each of them. See docs/benchmark.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the sizes of what is measured.
type options struct {
	n, reps                    int
	latency, window, idle      time.Duration
	steps, burst, dead, timers int
	span                       time.Duration
	future, backlog, finished  int
	orchestrator, profile      string
}

// flags declares the options with their defaults.
func (o *options) flags(set *flag.FlagSet) {
	set.IntVar(&o.n, "n", 50_000, "tasks of each measurement of a rate")
	set.IntVar(&o.reps, "reps", 3, "repetitions; the median counts. Parts that say so are measured once")
	set.DurationVar(&o.latency, "latency", 5*time.Second, "how long each start latency is measured, at least 1s; the first tenth is not counted")
	set.DurationVar(&o.idle, "idle", 10*time.Second, "how long an idle system is looked at; at 1m and more the minute's rounds are in it")
	set.DurationVar(&o.window, "window", 2*time.Second, "how long each case of poison is measured")
	set.IntVar(&o.steps, "steps", 200, "steps of each case of retries")
	set.IntVar(&o.burst, "burst", 100_000, "retries that become due within one second")
	set.IntVar(&o.dead, "dead", 20_000, "dead letters of each measurement")
	set.IntVar(&o.timers, "timers", 10_000, "tasks of timers")
	set.DurationVar(&o.span, "span", time.Minute, "within how long these become due")
	set.IntVar(&o.future, "future", 1_000_000, "tasks that wait in future and, at most, in idle")
	set.IntVar(&o.backlog, "backlog", 1_000_000, "queued tasks of backlog")
	set.IntVar(&o.finished, "finished", 20_000_000, "finished tasks of finished; fewer if the disk has no room for them")
	set.StringVar(&o.orchestrator, "orchestrator", filepath.Join("bin", "orchestrator"), "the orchestrator's program")
	set.StringVar(&o.profile, "profile", "", "write profiles and statements of one part, which -only names, into this directory")
}

// smoke makes everything small: it shows that the parts work, and measures nothing.
func (o *options) smoke() {
	o.n, o.reps, o.latency, o.idle, o.window, o.steps = 400, 1, time.Second, 200*time.Millisecond, 200*time.Millisecond, 2
	o.burst, o.dead, o.timers, o.span, o.future, o.backlog, o.finished = 300, 100, 50, time.Second, 1000, 1000, 2000
}

func (o *options) check() error {
	for name, n := range map[string]int{
		"n": o.n, "reps": o.reps, "steps": o.steps, "burst": o.burst, "dead": o.dead, "timers": o.timers,
		"future": o.future, "backlog": o.backlog, "finished": o.finished,
	} {
		if n < 1 || n > 1_000_000_000 {
			return fmt.Errorf("-%s must be 1 to 1000000000, got %d", name, n)
		}
	}
	for name, d := range map[string]time.Duration{"latency": o.latency, "idle": o.idle, "window": o.window, "span": o.span} {
		if d <= 0 || d > time.Hour {
			return fmt.Errorf("-%s must be above 0s and at most 1h, got %s", name, d)
		}
	}
	if o.n < 100 || o.latency < time.Second {
		return errors.New("-n must be at least 100 and -latency at least 1s")
	}
	if _, err := os.Stat(o.orchestrator); err != nil {
		return fmt.Errorf("-orchestrator: %w; make build makes it", err)
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := mainFlood(ctx, os.Args)
	if errors.Is(err, errNoFlood) {
		err = mainBench(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func mainBench(ctx context.Context) error {
	o := &options{}
	o.flags(flag.CommandLine)
	only := flag.String("only", "", "the parts, or groups of them, to measure, separated by commas; empty: all. "+listParts())
	small := flag.Bool("smoke", false, "make everything small: the parts are tried, not measured")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("there are no arguments, got %q; parts are named with -only", flag.Arg(0))
	}
	if *small {
		o.smoke()
	}
	if err := o.check(); err != nil {
		return err
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	if o.profile != "" {
		if len(chosen) != 1 {
			return errors.New("-profile is of one part: name it with -only")
		}
		o.reps = 1
	}
	return measure(ctx, os.Stdout, *o, chosen)
}

// choose returns the parts that are named, in their own order.
func choose(only string) ([]*part, error) {
	if only == "" {
		return parts, nil
	}
	names := strings.Split(only, ",")
	for i, n := range names {
		names[i] = strings.TrimSpace(n)
		if !slices.ContainsFunc(parts, func(p *part) bool { return p.name == names[i] || p.group == names[i] }) {
			return nil, fmt.Errorf("-only names %q, which is no part and no group. %s", names[i], listParts())
		}
	}
	return slices.DeleteFunc(slices.Clone(parts), func(p *part) bool {
		return !slices.Contains(names, p.name) && !slices.Contains(names, p.group)
	}), nil
}

// measure measures the parts, one after the other, and reports to w.
func measure(ctx context.Context, w io.Writer, o options, chosen []*part) error {
	began := time.Now()
	for _, p := range chosen {
		b := &bench{options: o, part: p, payload: payloadOf(smallPayload), systems: map[string]*system{}}
		if err := b.measure(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	_, err := fmt.Fprintf(w, "\nmeasured in %s\n", time.Since(began).Round(time.Second))
	return err
}
