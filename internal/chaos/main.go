// Command chaos runs a whole system of real processes under load, breaks it in
// every way it can think of, and proves at the end that nothing was lost and
// nothing counted twice. It starts its own Postgres and Redis, puts a proxy
// between every process and its stores, and follows a schedule of faults that
// its seed decides. What must hold is in package check; docs/chaos.md tells how
// to read the report.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// options are the settings of one run.
type options struct {
	duration, visibility time.Duration
	seed                 uint64
	rate                 int
	// fast, backlog and atLeast are those of the load in full batches.
	fast, backlog, atLeast int
	faults                 string
	dir, json              string
	keep                   bool
	orchestrator           string
	// mutant is the bug that all processes have; see package mutant.
	mutant string
	// out gets the report, progress what goes on.
	out, progress io.Writer
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		exit(work(os.Args[2:]))
	}
	o := options{out: os.Stdout, progress: os.Stderr}
	flag.DurationVar(&o.duration, "duration", 2*time.Minute, "how long there is load; the number of faults grows with it")
	flag.DurationVar(&o.visibility, "visibility", 3*time.Second, "the visibility timeout of all processes")
	flag.Uint64Var(&o.seed, "seed", 0, "decides which faults there are, when and where; 0: a random one, which is printed")
	flag.IntVar(&o.rate, "rate", 120, "tasks enqueued a second")
	flag.IntVar(&o.fast, "fast", 0, "cheap tasks enqueued a second in full batches, beside those of -rate; 0: none")
	flag.IntVar(&o.backlog, "backlog", 50_000, "the load of -fast pauses while more tasks than this have not ended")
	flag.IntVar(&o.atLeast, "at-least", 0, "fail if fewer tasks a second ended on average, outages and pauses included")
	flag.StringVar(&o.faults, "faults", "", "only these faults, separated by commas, each with its number if wanted (kill-worker=10); empty: all; list: show them")
	flag.StringVar(&o.dir, "dir", "", "directory for data and logs; empty: a temporary one")
	flag.BoolVar(&o.keep, "keep", false, "keep the directory; it is kept anyway if the run fails")
	flag.StringVar(&o.json, "json", "", "write the report as JSON to a file, too")
	flag.StringVar(&o.orchestrator, "orchestrator", filepath.Join("bin", "orchestrator"), "the orchestrator program")
	mutants := flag.Bool("mutants", false, "plant each bug of package mutant and demand that it is found; programs must be built with -tags mutants")
	flag.StringVar(&o.mutant, "mutant", "", "plant one bug")
	flag.Parse()
	if o.faults == "list" {
		listFaults(os.Stdout)
		return
	}
	if o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000_000)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if *mutants {
		exit(runMutants(ctx, o))
	}
	rep, err := run(ctx, o)
	if err == nil && !rep.OK {
		err = errFailed
	}
	exit(err)
}

// errFailed: the report says what is wrong.
var errFailed = errors.New("the run failed; see the report")

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run makes one run and prints its report. The error is about the harness
// itself; what the system did wrong is in the report.
func run(ctx context.Context, o options) (_ *report, err error) {
	if o.duration < 20*time.Second || o.visibility < 2*time.Second || o.rate < 1 {
		return nil, errors.New("-duration must be at least 20s, -visibility 2s and -rate 1")
	}
	if o.fast < 0 || o.fast > maxFast || o.backlog < maxBatch || o.atLeast < 0 {
		return nil, fmt.Errorf("-fast must be 0 to %d, -backlog at least %d and -at-least not negative", maxFast, maxBatch)
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "penstock-chaos-"); err != nil {
			return nil, fmt.Errorf("make a directory: %w", err)
		}
	}
	h, err := newHarness(ctx, o)
	if err != nil {
		return nil, err
	}
	rep, err := h.run(ctx)
	err = errors.Join(err, h.close())
	if err != nil {
		return nil, fmt.Errorf("%w; logs are in %s", err, o.dir)
	}
	if !rep.OK || o.keep {
		rep.Logs = o.dir
	} else if err := os.RemoveAll(o.dir); err != nil {
		return nil, fmt.Errorf("remove the directory: %w", err)
	}
	rep.print(o.out)
	if o.json != "" {
		err = rep.write(o.json)
	}
	return rep, err
}
