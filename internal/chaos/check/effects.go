package check

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// EffectTask is what Postgres says about a task with a side effect.
type EffectTask struct {
	State string
	// Receipt is what its result says that the receiver answered, "" if nothing.
	Receipt string
	// Checked: a check ends its doubts; else a person does.
	Checked bool
	// Reclaims are the times at which it was reclaimed.
	Reclaims []time.Time
}

// Call is one that the receiver of side effects counted, and who made it.
type Call struct {
	Worker   string
	Delivery int64
	At       time.Time
}

// Effects is what a run had of side effects.
type Effects struct {
	Tasks int `json:"tasks"`
	Calls int `json:"calls"`
	// Reclaimed are the tasks that were reclaimed after their call, Robbed those
	// whose lease was stolen after it.
	Reclaimed int `json:"reclaimed_after_call"`
	Robbed    int `json:"robbed_after_call"`
	// Answered are the doubts that the person ended, Checked those that a check
	// did, RunAgain effects that were given out more than once.
	Answered int `json:"answered"`
	Checked  int `json:"checked"`
	RunAgain int `json:"given_again"`
	// Excused are those that happened twice under the eyes of a check because the
	// process of the earlier execution was stopped in the moment before its call.
	Excused int `json:"excused"`
}

const (
	// fresh is how old a reservation may be when its effect begins: worker.Once
	// asks again after that. What happens later, happens in a process that was
	// stopped.
	fresh = time.Second
	// mayExcuse and excusedOf bound the excused effects: so many, or one of so
	// many if that is more. The moment is so short that hardly any pause hits one.
	mayExcuse, excusedOf = 2, 500
)

// JudgeEffects compares what the receiver counted with what was to happen. It is
// the receiver's count that matters.
func JudgeEffects(h *History, tasks map[string]*EffectTask, calls map[string][]Call) (*Effects, []Violation) {
	seen := &Effects{Tasks: len(tasks)}
	var found []Violation
	fail := func(rule Rule, task, format string, a ...any) {
		found = append(found, Violation{Rule: rule, Task: task, Text: fmt.Sprintf(format, a...), Timeline: timeline(&Record{}, h.Executions[task])})
	}
	for _, id := range slices.Sorted(maps.Keys(calls)) {
		cs := calls[id]
		if seen.Calls += len(cs); tasks[id] == nil && len(cs) > 0 {
			fail(RuleInvented, id, "the receiver was called for it, and Postgres has no such task with an effect")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(tasks)) {
		t, cs := tasks[id], calls[id]
		slices.SortFunc(cs, func(a, b Call) int { return a.At.Compare(b.At) })
		seen.met(h, id, t, cs)
		switch {
		case len(cs) > 1 && t.Checked && h.stoppedBefore(id, cs):
			seen.Excused++
		case len(cs) > 1:
			fail(RuleEffectTwice, id, "the receiver was called %d times: %s", len(cs), describe(cs))
		case t.State == "succeeded" && len(cs) == 0:
			fail(RuleEffectLost, id, "it succeeded, and the receiver was never called")
		case t.State == "succeeded" && t.Receipt != "1":
			fail(RuleEffectLost, id, "it succeeded with the receipt %q, the receiver gave 1", t.Receipt)
		}
	}
	if most := max(mayExcuse, len(tasks)/excusedOf); seen.Excused > most {
		fail(RuleEffectTwice, "", "%d effects happened twice under the eyes of a check, at most %d of %d may", seen.Excused, most, len(tasks))
	}
	return seen, found
}

// met counts what befell a task after its call.
func (e *Effects) met(h *History, id string, t *EffectTask, calls []Call) {
	if len(calls) == 0 {
		return
	}
	called := calls[0].At
	if slices.ContainsFunc(t.Reclaims, called.Before) {
		e.Reclaimed++
	}
	if slices.ContainsFunc(h.Thefts, func(s Theft) bool { return s.Task == id && s.At.After(called) }) {
		e.Robbed++
	}
}

func describe(calls []Call) (s string) {
	for _, c := range calls {
		s += fmt.Sprintf("by delivery %d on %s at %s; ", c.Delivery, c.Worker, clock(c.At))
	}
	return s
}

// stoppedBefore reports whether two calls are the one case that neither the ledger
// nor a check can see. The process of the earlier delivery was stopped between its
// last look at the ledger and its call; its lease ran out, its reservation came in
// doubt, and the check of a later delivery looked at the receiver before that call
// arrived. Whose call came first does not matter: the check may allow the other
// call, and it may arrive before or after the late one.
//
// So much is certain then, and demanded. The late call came after the later
// delivery had begun, else the check saw it. The process of the late call, and no
// other, was stopped. The stop ended after its handler had started; it began at the
// latest fresh after the later delivery's start, for a look tells which delivery is
// current; it lasted until the late call, and for about as long as it takes a
// reservation to come in doubt.
func (h *History) stoppedBefore(task string, calls []Call) bool {
	if len(calls) != 2 || calls[0].Delivery == calls[1].Delivery {
		return false
	}
	late, other := calls[0], calls[1]
	if late.Delivery > other.Delivery {
		late, other = other, late
	}
	x, y := h.execution(task, late), h.execution(task, other)
	if x == nil || y == nil || !late.At.After(y.Start) {
		return false
	}
	unseen := h.Visibility / 4 // shorter stops do not show
	return slices.ContainsFunc(h.Frozen[late.Worker], func(s Span) bool {
		return s.To.After(x.Start) && !s.From.After(y.Start.Add(fresh)) &&
			!s.From.After(late.At) && !s.To.Before(late.At.Add(-unseen)) &&
			s.To.Sub(s.From) >= h.DoubtAfter-fresh-unseen
	})
}

// execution returns the one that made a call, nil if the handlers' log has none.
func (h *History) execution(task string, c Call) *Execution {
	xs := h.Executions[task]
	i := slices.IndexFunc(xs, func(x Execution) bool { return x.Worker == c.Worker && x.Delivery == c.Delivery })
	if i < 0 {
		return nil
	}
	return &xs[i]
}

// Kills and thefts from which on a run must have met effects. Every fourth kill
// waits for the call of an effect whose doubts a check ends, and every fourth for
// one that a person is asked about: each leaves a doubt. A lease that a killed
// worker leaves is reclaimed unless Redis loses data just then, so that it takes
// more of them. Every second theft waits for an effect under way.
const (
	killsForDoubts   = 8
	killsForReclaims = 12
	theftsForEffects = 2
)

// Untested says what a run with so many planned kills of workers and thefts should
// have had of effects, and had not.
func (e *Effects) Untested(kills, thefts int) (missing []string) {
	for _, f := range []struct {
		enough bool
		n      int
		what   string
	}{
		{kills >= killsForDoubts, e.Answered, "no doubt about an effect was ended by the person"},
		{kills >= killsForDoubts, e.Checked, "no doubt about an effect was ended by a check"},
		{kills >= killsForReclaims, e.Reclaimed, "no task was reclaimed after the call of its effect"},
		{thefts >= theftsForEffects, e.Robbed, "no lease was stolen after the call of an effect"},
	} {
		if f.enough && f.n == 0 {
			missing = append(missing, f.what)
		}
	}
	return missing
}
