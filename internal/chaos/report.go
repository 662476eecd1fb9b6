package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/internal/version"
)

// report is what a run found.
type report struct {
	OK       bool              `json:"ok"`
	Seed     uint64            `json:"seed"`
	Duration string            `json:"duration"`
	Mutant   string            `json:"mutant,omitempty"`
	Versions map[string]string `json:"versions"`
	// Faults counts what was done, Planned what was to be.
	Faults  map[string]int `json:"faults"`
	Planned map[string]int `json:"faults_planned"`
	Verdict *check.Verdict `json:"verdict"`
	// Verified is what `orchestrator verify` counts.
	Verified verify.Summary `json:"verify"`
	Effects  *check.Effects `json:"effects"`
	// Recovery is from the death of a worker to the next start of what it ran, in
	// seconds; Undisturbed is that of tasks that met no other fault until then.
	Recovery    map[string]float64 `json:"recovery_seconds"`
	Undisturbed map[string]float64 `json:"undisturbed_recovery_seconds"`
	// Throughput is in finished tasks a second, by phase.
	Throughput map[string]float64 `json:"throughput"`
	// Fast is what the load in full batches came to, nil if there was none.
	Fast *fastReport `json:"fast,omitempty"`
	// SlowestEnqueue and Drained are in seconds.
	SlowestEnqueue float64 `json:"slowest_enqueue_seconds"`
	Drained        float64 `json:"drained_seconds"`
	// Growth compares the census before the faults with that after them.
	Growth map[string][2]int `json:"growth"`
	Logs   string            `json:"logs,omitempty"`

	h                                               *harness
	loadFrom, faultsFrom, faultsTo, loadTo, drained time.Time
	quiet                                           []string
}

// Rules about the run as a whole, beside those of package check.
const (
	ruleDrain    check.Rule = "drain"              // everything ends, and no stream holds anything
	ruleProcess  check.Rule = "process"            // no process ends by itself, panics, or hangs on SIGTERM
	ruleRefused  check.Rule = "refused"            // no enqueue of a valid task is refused
	ruleSchedule check.Rule = "schedule"           // every fault of the schedule was done
	ruleGrowth   check.Rule = "growth"             // goroutines and connections do not grow
	ruleRate     check.Rule = "rate"               // with -at-least, so many tasks a second ended
	ruleNothing  check.Rule = "nothing_was_tested" // there were reclaims, fenced outcomes, effects in doubt
)

// idleConns is how many connections a worker keeps to each orchestrator once it has
// needed them, as it does when many effects end at once.
const idleConns = 8

// compare checks that nothing has grown.
func (r *report) compare(before, after map[string]int) {
	r.Growth = map[string][2]int{}
	for what, n := range after {
		r.Growth[what] = [2]int{before[what], n}
		// Pools fill up to their bounds as they are needed.
		room := 24
		if what == r.h.workers[0].name+" goroutines" {
			room += perConn * idleConns * orchestrators
		}
		if n > before[what]*3/2+room {
			r.fail(ruleGrowth, "%s: %d before the faults, %d after them", what, before[what], n)
		}
	}
}

func (r *report) fail(rule check.Rule, format string, a ...any) {
	r.Verdict.Fail(check.Violation{Rule: rule, Text: fmt.Sprintf(format, a...)})
}

// enough: a schedule with this many faults of a kind that makes stale outcomes
// or lets leases run out must show some.
const enough = 2

// finish applies the rules about the whole run and sums up.
func (r *report) finish() {
	h := r.h
	r.Seed, r.Duration, r.Mutant = h.seed, h.duration.String(), h.mutant
	for _, what := range r.quiet {
		r.fail(ruleDrain, "left after %s: %s", h.drainLimit(), what)
	}
	for _, s := range append(h.orchestrators[:orchestrators:orchestrators], h.workers...) {
		_, unasked := s.history()
		for _, what := range append(unasked, s.panicked()...) {
			r.fail(ruleProcess, "%s", what)
		}
	}
	for _, what := range h.load.refused {
		r.fail(ruleRefused, "%s", what)
	}
	r.Faults, r.Planned = h.done, map[string]int{}
	fences, reclaims := 0, 0
	for _, p := range h.planned {
		r.Planned[p.kind.name]++
		if p.kind.fences {
			fences++
		}
		if p.kind.reclaims {
			reclaims++
		}
	}
	for name, n := range r.Planned {
		if h.done[name] < n {
			r.fail(ruleSchedule, "%d of %d faults of kind %s were done", h.done[name], n, name)
		}
	}
	if fences >= enough && r.Verdict.Fenced == 0 {
		r.fail(ruleNothing, "no outcome was refused")
	}
	if reclaims >= enough && r.Verdict.Reclaims == 0 {
		r.fail(ruleNothing, "nothing was reclaimed")
	}
	for _, what := range r.Effects.Untested(r.Planned["kill-worker"], r.Planned["steal"]) {
		r.fail(ruleNothing, "%s", what)
	}
	r.Recovery, r.Undisturbed = percentiles(r.Verdict.Recovery), percentiles(r.Verdict.Undisturbed)
	r.Throughput = map[string]float64{
		"before": r.rate(r.loadFrom.Add(2*time.Second), r.faultsFrom), "during": r.rate(r.faultsFrom, r.faultsTo), "after": r.rate(r.faultsTo, r.loadTo),
	}
	r.judgeFast()
	r.SlowestEnqueue, r.Drained = h.load.late.Seconds(), r.drained.Sub(r.loadTo).Seconds()
	r.OK = r.Verdict.OK()
}

func percentiles(ds []time.Duration) map[string]float64 {
	return map[string]float64{
		"count": float64(len(ds)), "p50": check.Percentile(ds, 0.5).Seconds(), "p99": check.Percentile(ds, 0.99).Seconds(), "max": check.Percentile(ds, 1).Seconds(),
	}
}

// rate is the number of tasks a second that ended between two moments.
func (r *report) rate(from, to time.Time) float64 {
	n := 0
	for _, at := range r.Verdict.Finished {
		if at.After(from) && !at.After(to) {
			n++
		}
	}
	return float64(n) / to.Sub(from).Seconds()
}

// print writes the report for people.
func (r *report) print(w io.Writer) {
	v := r.Verdict
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, a ...any) {
		_, _ = fmt.Fprintf(out, "%s\t%s\n", name, fmt.Sprintf(format, a...))
	}
	row("seed", "%d", r.Seed)
	row("duration", "%s; visibility timeout %s; %d orchestrators, %d workers", r.Duration, r.h.visibility, orchestrators, workers)
	row("versions", "%s", pairs(r.Versions, ", "))
	if r.Mutant != "" {
		row("planted bug", "%s", r.Mutant)
	}
	total := 0
	for _, n := range r.Faults {
		total += n
	}
	row("faults", "%d: %s", total, pairs(r.Faults, ", "))
	row("tasks", "%d asked for, %d accepted; ended: %s", v.Asked, v.Accepted, pairs(v.ByState, ", "))
	row("executions", "%d; tasks by number of executions: %s", v.Executions, pairs(v.Histogram, ", "))
	row("leases ended by others", "%s", pairs(v.Ended, ", "))
	row("reclaims", "%d", v.Reclaims)
	row("redispatches", "%d", v.Redispatches)
	row("fenced rejections", "%d", v.Fenced)
	e := r.Effects
	row("effects", "%d tasks, %d calls at the receiver; after the call: %d reclaimed, %d robbed of their lease; doubts ended by the person %d, by a check %d; %d given out again; excused %d",
		e.Tasks, e.Calls, e.Reclaimed, e.Robbed, e.Answered, e.Checked, e.RunAgain, e.Excused)
	const recovery = "%.0f tasks of killed workers started again after p50 %.2fs, p99 %.2fs, max %.2fs"
	row("recovery", recovery, r.Recovery["count"], r.Recovery["p50"], r.Recovery["p99"], r.Recovery["max"])
	row("of it, no other fault", recovery, r.Undisturbed["count"], r.Undisturbed["p50"], r.Undisturbed["p99"], r.Undisturbed["max"])
	row("throughput", "%.0f tasks/s before the faults, %.0f during, %.0f after", r.Throughput["before"], r.Throughput["during"], r.Throughput["after"])
	if f := r.Fast; f != nil {
		row("all of it", "%s", f)
	}
	row("slowest enqueue", "%.2fs until it was answered", r.SlowestEnqueue)
	row("drained", "%.2fs after the last enqueue", r.Drained)
	row("verify", "%d tasks, %d events: %d differences", r.Verified.Tasks, r.Verified.Events, r.Verified.Differences)
	for _, what := range slices.Sorted(maps.Keys(r.Growth)) {
		row(what, "%d before the faults, %d after them", r.Growth[what][0], r.Growth[what][1])
	}
	_ = out.Flush()
	if r.OK {
		_, _ = fmt.Fprintln(w, "\nlost 0, ended twice 0, stale outcomes 0, differences 0, left in streams 0: all holds")
	} else {
		_, _ = fmt.Fprintf(w, "\nVIOLATED: %s\n", pairs(v.Counts, ", "))
		for _, f := range v.Violations {
			_, _ = fmt.Fprintf(w, "\n%s: %s %s\n", f.Rule, f.Task, f.Text)
			for _, l := range f.Timeline {
				_, _ = fmt.Fprintf(w, "    %s\n", l)
			}
		}
	}
	if r.Logs != "" {
		_, _ = fmt.Fprintf(w, "\nlogs of all processes, of their handlers and of the faults: %s\n", r.Logs)
	}
}

// pairs shows a map in order of its keys.
func pairs[K cmp.Ordered, V any](m map[K]V, sep string) string {
	parts := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%v %v", k, m[k]))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, sep)
}

// write writes the report as JSON.
func (r *report) write(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o600)
}

// programVersions are those of this build.
func programVersions() map[string]string {
	return map[string]string{"penstock": version.String(), "go": runtime.Version()}
}
