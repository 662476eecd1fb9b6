package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/internal/mutant"
)

// scenario is a short run in which a bug must show.
type scenario struct {
	bug, faults string
	duration    time.Duration
	// rules are those of which at least one must be violated.
	rules []check.Rule
}

var scenarios = []scenario{
	{mutant.ClientRetries, "lost-reply=40", 40 * time.Second, []check.Rule{check.RuleTwice}},
	{mutant.AckBeforeOutcome, "kill-worker=20", 50 * time.Second, []check.Rule{check.RuleVanished}},
	{mutant.GroupAtEnd, "result-group=12", 40 * time.Second, []check.Rule{check.RuleVanished}},
	{mutant.FenceIgnored, "pause-worker=5", 40 * time.Second, []check.Rule{check.RuleStale}},
	{mutant.ForceClaim, "steal=12", 40 * time.Second, []check.Rule{check.RuleTheft}},
	{mutant.EffectDoubtIsFree, "kill-worker=20", 50 * time.Second, []check.Rule{check.RuleEffectTwice}},
}

// runMutants plants each bug, or only that of the options, and demands that the
// checker finds it, for the right reason, where the same faults without the bug
// violate nothing.
func runMutants(ctx context.Context, o options) error {
	if !mutant.Built {
		return errors.New("this program can't have bugs on purpose: build it, and the orchestrator, with -tags mutants")
	}
	var missed []string
	for _, s := range scenarios {
		if o.mutant != "" && o.mutant != s.bug {
			continue
		}
		so := o
		so.duration, so.faults, so.dir, so.json, so.keep, so.out = s.duration, s.faults, "", "", false, io.Discard
		so.mutant = ""
		clean, err := run(ctx, so)
		if err != nil {
			return fmt.Errorf("%s, without the bug: %w", s.bug, err)
		}
		if !clean.OK {
			clean.print(o.out)
			missed = append(missed, s.bug+": the same run without the bug fails, too")
			continue
		}
		so.mutant = s.bug
		bad, err := run(ctx, so)
		if err != nil {
			return fmt.Errorf("%s: %w", s.bug, err)
		}
		caught := slices.ContainsFunc(s.rules, func(r check.Rule) bool { return bad.Verdict.Counts[r] > 0 })
		_, _ = fmt.Fprintf(o.out, "%-20s caught: %-5t seed %d, faults %s; without the bug: nothing; with it: %s\n",
			s.bug, caught, bad.Seed, s.faults, pairs(bad.Verdict.Counts, ", "))
		if caught {
			if err := os.RemoveAll(bad.Logs); err != nil {
				return err
			}
		} else {
			bad.print(o.out)
			missed = append(missed, fmt.Sprintf("%s: none of the rules %v was violated", s.bug, s.rules))
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("not every bug was caught: %q", missed)
	}
	return nil
}
