package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Verdict is what Check found and counted.
type Verdict struct {
	Asked      int            `json:"asked"`
	Accepted   int            `json:"accepted"`
	ByState    map[string]int `json:"by_state"`
	Executions int            `json:"executions"`
	// Histogram counts tasks by how often they were executed.
	Histogram map[int]int `json:"tasks_by_executions"`
	// Ended counts executions that did not end by their own outcome, by cause.
	Ended map[string]int `json:"executions_ended_by"`
	// Reclaims, Redispatches and Fenced count events: task.reclaimed,
	// task.redispatched, task.transition_rejected.
	Reclaims     int `json:"reclaims"`
	Redispatches int `json:"redispatches"`
	Fenced       int `json:"fenced_rejections"`
	// Recovery are the times from a worker's death to the next start of what it
	// was executing, in order; Undisturbed are those of tasks that met no other
	// fault until then.
	Recovery    []time.Duration `json:"-"`
	Undisturbed []time.Duration `json:"-"`
	// Slowest is the task that waited longest for its recovery.
	Slowest Violation `json:"slowest_recovery"`
	// Finished are the times of terminal events.
	Finished []time.Time `json:"-"`
	// Counts has how often each rule was violated, Violations the first of each.
	Counts     map[Rule]int `json:"violations"`
	Violations []Violation  `json:"examples"`
}

// perRule is how many violations of one rule are kept.
const perRule = 5

// Check judges a run. next returns Postgres' records one by one, nil after the
// last; its error ends the check.
func Check(h *History, next func() (*Record, error)) (*Verdict, error) {
	h.prepare()
	v := &Verdict{ByState: map[string]int{}, Histogram: map[int]int{}, Ended: map[string]int{}, Counts: map[Rule]int{}}
	for {
		r, err := next()
		if err != nil {
			return nil, err
		}
		if r == nil {
			break
		}
		j := &judge{h: h, id: r.ID, t: h.Tasks[r.ID], r: r, xs: h.Executions[r.ID]}
		v.count(h, j)
		for _, f := range j.all() {
			f.Timeline = timeline(r, j.xs)
			v.Fail(f)
		}
	}
	for id, t := range h.Tasks {
		if t.counted {
			continue
		}
		t.counted = true
		if v.Asked++; !t.Accepted {
			continue
		}
		if v.Accepted++; !t.found {
			v.Fail(Violation{Rule: RuleLost, Task: id, Text: "its enqueue was answered, and Postgres does not have it"})
		}
	}
	slices.Sort(v.Recovery)
	slices.Sort(v.Undisturbed)
	slices.SortFunc(v.Finished, time.Time.Compare)
	slices.SortStableFunc(v.Violations, func(a, b Violation) int { return cmp.Compare(a.Rule, b.Rule) })
	return v, nil
}

// Fail counts a violation, and keeps it if it is one of the first of its rule.
func (v *Verdict) Fail(f Violation) {
	if v.Counts[f.Rule]++; v.Counts[f.Rule] <= perRule {
		v.Violations = append(v.Violations, f)
	}
}

// OK reports whether every rule held.
func (v *Verdict) OK() bool { return len(v.Counts) == 0 }

// count adds one task to the statistics.
func (v *Verdict) count(h *History, j *judge) {
	v.ByState[j.r.State]++
	v.Executions += len(j.xs)
	v.Histogram[len(j.xs)]++
	for _, e := range j.r.Events {
		switch {
		case e.Type == "task.reclaimed":
			v.Reclaims++
			v.Ended[j.reclaimed(e)]++
		case e.Type == "task.redispatched":
			v.Redispatches++
		case e.Type == "task.transition_rejected":
			v.Fenced++
		case e.Type == "task.interrupted" && e.Actor == "reconciler":
			v.Ended["lost by Redis"]++
		case e.Type == "task.interrupted" && e.Actor == "worker":
			v.Ended["handed back"]++
		case terminal(e.Type):
			v.Finished = append(v.Finished, e.At)
		}
	}
	for i, x := range j.xs {
		at, dead := h.Ended[x.Worker]
		if !dead || !x.End.IsZero() {
			continue
		}
		for _, y := range j.xs[i+1:] {
			if y.Start.After(at) {
				v.recovered(h, j, x, y, at)
				break
			}
		}
	}
}

// recovered notes that y was the first execution after the one that a dead
// worker did not finish.
func (v *Verdict) recovered(h *History, j *judge, x, y Execution, at time.Time) {
	took := y.Start.Sub(at)
	if len(v.Recovery) == 0 || took > slices.Max(v.Recovery) {
		v.Slowest = Violation{Task: j.id, Text: fmt.Sprintf("waited %s after the end of %s", took.Round(time.Millisecond), x.Worker), Timeline: timeline(j.r, j.xs)}
	}
	v.Recovery = append(v.Recovery, took)
	// A task that was interrupted before runs alone in its worker, and waits for
	// that.
	if y.Delivery == x.Delivery+1 && !j.interrupted(at) && !any1(h.Lossy, at, y.Start) && !any1(h.Troubled, at, y.Start) {
		v.Undisturbed = append(v.Undisturbed, took)
	}
}

// interrupted reports whether the task was before a moment.
func (j *judge) interrupted(at time.Time) bool {
	return slices.ContainsFunc(j.r.Events, func(e Event) bool { return e.Type == "task.interrupted" && e.At.Before(at) })
}

// reclaimed says why an execution's lease ran out.
func (j *judge) reclaimed(e Event) string {
	x := Execution{Worker: e.Worker, Message: e.Message, Start: e.At}
	started := false
	for _, y := range j.xs {
		if y.Worker == e.Worker && y.Message == e.Message {
			x, started = y, true
		}
	}
	switch {
	case j.h.stolen(j.id, x, e.At):
		return "stolen lease"
	case j.h.died(x, e.At) && started:
		return "dead worker"
	case j.h.died(x, e.At):
		return "dead worker, before its start"
	case any1(j.h.Frozen[e.Worker], e.At.Add(-4*j.h.Visibility), e.At):
		return "worker that stood still"
	}
	return "other lost leases"
}

// timeline tells a task's events and executions in order of time.
func timeline(r *Record, xs []Execution) []string {
	type line struct {
		at   time.Time
		text string
	}
	var lines []line
	for _, e := range r.Events {
		text := fmt.Sprintf("event %d %s → %s, attempt %d, delivery %d, by %s", e.Seq, e.Type, e.Status, e.Attempt, e.Delivery, e.Actor)
		for _, s := range []string{e.Worker, e.Message, e.Code, e.Reason} {
			if s != "" {
				text += ", " + s
			}
		}
		lines = append(lines, line{e.At, text})
	}
	for _, x := range xs {
		lines = append(lines, line{x.Start, fmt.Sprintf("delivery %d started on %s, entry %s", x.Delivery, x.Worker, x.Message)})
		if !x.End.IsZero() {
			lines = append(lines, line{x.End, fmt.Sprintf("delivery %d ended on %s: %s %s", x.Delivery, x.Worker, x.Ending, x.Cause)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = clock(l.at) + " " + l.text
	}
	return out
}

// Percentile returns the p-th of sorted durations, 0 if there are none.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}
