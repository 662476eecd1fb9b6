// Command model explores the protocol of dispatch, lease and outcome
// exhaustively within bounds, on the state machine of package protocol; see
// docs/model.md. Without flags it makes the explorations of that page.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// flags defines the flags of the command.
func flags(fs *flag.FlagSet, cfg *Config, faults, mutant *string) {
	fs.IntVar(&cfg.Tasks, "tasks", 1, "tasks, 1 or 2")
	fs.IntVar(&cfg.Workers, "workers", 2, "workers with one slot each, 1 to 3")
	fs.IntVar(&cfg.Retries, "retries", 0, "max_retries of the tasks")
	fs.IntVar(&cfg.Interruptions, "interruptions", 0, "max_interruptions")
	fs.StringVar(faults, "faults", "none", "faults that may happen, with commas between: all, none, or some of "+strings.Join(faultNames, ","))
	fs.IntVar(&cfg.Budget, "budget", 1, "the most faults of one run, 0 to 3")
	fs.IntVar(&cfg.Cancels, "cancels", 0, "the most cancellations of one run, 0 to 3")
	fs.IntVar(&cfg.Releases, "releases", 0, "the most hand-backs of one run, 0 to 3")
	fs.BoolVar(&cfg.Fine, "fine", false, "take steps apart, two passes and two reclaims of a task at once")
	fs.BoolVar(&cfg.Strict, "strict", false, "let no fault excuse anything, to see what it can do; don't stop at the first violation")
	fs.StringVar(mutant, "mutant", "", "explore a wrong protocol; see docs/model.md")
	fs.IntVar(&cfg.MaxStates, "max-states", 100_000_000, "give up beyond this many states")
}

func main() {
	var cfg Config
	var faults, mutant string
	flags(flag.CommandLine, &cfg, &faults, &mutant)
	flag.Parse()
	cfg.Stop = !cfg.Strict
	if flag.NFlag() == 0 {
		os.Exit(everything())
	}
	var err error
	if cfg.Faults, err = ParseFaults(faults); err == nil {
		cfg.Mutant = Mutant(mutant)
		err = cfg.Validate()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(2)
	}
	if !report(&cfg, Explore(cfg)) {
		os.Exit(1)
	}
}

// everything makes the explorations of make model.
func everything() (code int) {
	began := time.Now()
	fmt.Println("wrong protocols, which must be caught:")
	for _, w := range Wrongs() {
		r := Explore(w.Config)
		if len(r.Violations) == 0 {
			fmt.Printf("  NOT CAUGHT %s\n", &w.Config)
			code = 1
			continue
		}
		v := r.Violations[0]
		fmt.Printf("  %-22s (%s): %s, after %d steps\n", w.Mutant, w.Faults, v.Property, len(v.Trace))
	}
	fmt.Println("the protocol:")
	for _, cfg := range Large() {
		cfg.Stop = true
		if !report(&cfg, Explore(cfg)) {
			code = 1
		}
		runtime.GC()
	}
	fmt.Printf("%s, exit code %d\n", time.Since(began).Round(time.Second), code)
	return code
}

// report prints a result and tells whether all is well.
func report(cfg *Config, r *Result) bool {
	verdict := "complete, clean, live"
	switch {
	case len(r.Violations) > 0:
		verdict = "WRONG"
	case !r.Complete:
		verdict = "cut, clean so far"
	}
	fmt.Printf("  %s\n    %s: %d states, %d edges, %d blocks, %d rows, %s\n",
		cfg, verdict, r.States, r.Edges, r.Blocks, r.Rows, r.Took.Round(100*time.Millisecond))
	for _, v := range r.Violations {
		fmt.Print(v)
	}
	return len(r.Violations) == 0
}
