// Package mutant plants bugs on purpose, to prove that the chaos harness finds
// them. The code asks On at the places where each bug would be. In a normal
// build the answer is a constant no, and the compiler removes what depends on
// it; a program built with -tags mutants has the bug that its environment names:
//
//	PENSTOCK_MUTANT=ack-before-outcome
//
// A normal build refuses the variable, as it does every unknown setting.
package mutant

import (
	"fmt"
	"strings"
)

// Env is the environment variable that names the bug.
const Env = "PENSTOCK_MUTANT"

// The bugs.
const (
	// ClientRetries: go-redis repeats commands whose reply was lost.
	ClientRetries = "client-retries"
	// AckBeforeOutcome: a worker acknowledges an entry before its outcome is in
	// stream:result.
	AckBeforeOutcome = "ack-before-outcome"
	// GroupAtEnd: a group that was lost is made anew at the end of its stream.
	GroupAtEnd = "group-at-end"
	// FenceIgnored: an outcome counts whatever its delivery.
	FenceIgnored = "fence-ignored"
	// ForceClaim: a renewal takes the lease by force, whoever has it.
	ForceClaim = "force-claim"
	// EffectDoubtIsFree: a side effect whose execution was lost is run again.
	EffectDoubtIsFree = "effect-doubt-is-free"
)

// Names lists every bug.
func Names() []string {
	return []string{ClientRetries, AckBeforeOutcome, GroupAtEnd, FenceIgnored, ForceClaim, EffectDoubtIsFree}
}

// parse checks a value of Env.
func parse(value string) (string, error) {
	for _, name := range Names() {
		if name == value {
			return name, nil
		}
	}
	return "", fmt.Errorf("%s: there is no bug %q; there are %s", Env, value, strings.Join(Names(), ", "))
}
