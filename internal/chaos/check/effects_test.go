package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// deeds is a history of one task with an effect, "t", that holds until a test
// changes it: delivery 1 on worker a looked, and called the receiver at 1.1.
type deeds struct {
	h     History
	tasks map[string]*EffectTask
	calls map[string][]Call
}

func newDeeds() *deeds {
	return &deeds{
		h: History{
			Visibility: visibility, DoubtAfter: 5 * time.Second,
			Executions: map[string][]Execution{"t": {run("a", 1, 1, 2)}}, Frozen: map[string][]Span{},
		},
		tasks: map[string]*EffectTask{"t": {State: "succeeded", Receipt: "1", Checked: true}},
		calls: map[string][]Call{"t": {{"a", 1, at(1.1)}}},
	}
}

// doubted has worker a stopped from 1.05 to 8, before its call, which arrives at
// 8.01; the check of delivery 3 on worker b, which starts at 7, sees nothing, and
// its call comes at the given moment. Worker c executed delivery 2 in between: it
// found the effect busy.
func (d *deeds) doubted(other float64) {
	d.h.Executions["t"] = []Execution{run("a", 1, 1, 8.1), run("c", 2, 4, 4.1), run("b", 3, 7, 9)}
	d.h.Frozen["a"] = spans(1.05, 8)
	d.calls["t"] = []Call{{"a", 1, at(8.01)}, {"b", 3, at(other)}}
}

// stopped has a worker stopped at that time instead, and no other.
func (d *deeds) stopped(worker string, from, to float64) {
	d.doubted(7.1)
	d.h.Frozen = map[string][]Span{worker: spans(from, to)}
}

// late has the stopped process' call come at that time.
func (d *deeds) late(when float64) {
	d.doubted(7.1)
	d.calls["t"][0].At = at(when)
}

func TestJudgeEffects(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(d *deeds)
		want    []Rule
		excused int
	}{
		"one call":                      {func(*deeds) {}, nil, 0},
		"one call, and executed twice":  {func(d *deeds) { d.doubted(7.1); d.calls["t"] = d.calls["t"][:1] }, nil, 0},
		"no call, and no success":       {func(d *deeds) { d.tasks["t"].State = "failed"; delete(d.calls, "t") }, nil, 0},
		"succeeded without a call":      {func(d *deeds) { delete(d.calls, "t") }, []Rule{RuleEffectLost}, 0},
		"a wrong receipt":               {func(d *deeds) { d.tasks["t"].Receipt = "2" }, []Rule{RuleEffectLost}, 0},
		"no receipt":                    {func(d *deeds) { d.tasks["t"].Receipt = "" }, []Rule{RuleEffectLost}, 0},
		"a call for a task that is not": {func(d *deeds) { d.calls["u"] = d.calls["t"] }, []Rule{RuleInvented}, 0},

		"two calls":                  {func(d *deeds) { d.doubted(7.1); d.h.Frozen = nil }, []Rule{RuleEffectTwice}, 0},
		"two calls of one execution": {func(d *deeds) { d.calls["t"] = append(d.calls["t"], Call{"a", 1, at(1.2)}) }, []Rule{RuleEffectTwice}, 0},
		"two calls, and no success":  {func(d *deeds) { d.stopped("b", 1.05, 8); d.tasks["t"].State = "failed" }, []Rule{RuleEffectTwice}, 0},
		"one delivery called twice": {func(d *deeds) {
			d.doubted(8.2)
			d.h.Executions["t"][2].Delivery, d.calls["t"][1].Delivery = 1, 1
		}, []Rule{RuleEffectTwice}, 0},
		"three calls, one process":     {func(d *deeds) { d.doubted(7.1); d.calls["t"] = append(d.calls["t"], Call{"c", 2, at(9)}) }, []Rule{RuleEffectTwice}, 0},
		"stopped, and a person allows": {func(d *deeds) { d.doubted(7.1); d.tasks["t"].Checked = false }, []Rule{RuleEffectTwice}, 0},

		"stopped before its call, which is the second": {func(d *deeds) { d.doubted(7.1) }, nil, 1},
		"stopped before its call, which is the first":  {func(d *deeds) { d.doubted(8.2) }, nil, 1},
		"calls in another order":                       {func(d *deeds) { d.doubted(7.1); slices.Reverse(d.calls["t"]) }, nil, 1},
		"stopped when the later one had just started":  {func(d *deeds) { d.stopped("a", 7.5, 13); d.calls["t"][0].At = at(13.1) }, nil, 1},

		"the later one's process was stopped":       {func(d *deeds) { d.stopped("b", 1.05, 8) }, []Rule{RuleEffectTwice}, 0},
		"a third process was stopped":               {func(d *deeds) { d.stopped("c", 1.05, 8) }, []Rule{RuleEffectTwice}, 0},
		"stopped before it began":                   {func(d *deeds) { d.stopped("a", -7, 0.9) }, []Rule{RuleEffectTwice}, 0},
		"stopped, and went on long before its call": {func(d *deeds) { d.stopped("a", 1.05, 6.5) }, []Rule{RuleEffectTwice}, 0},
		"stopped after its call":                    {func(d *deeds) { d.stopped("a", 8.02, 14) }, []Rule{RuleEffectTwice}, 0},
		"stopped too briefly for a doubt":           {func(d *deeds) { d.stopped("a", 5.5, 8) }, []Rule{RuleEffectTwice}, 0},
		"stopped long after the later one started":  {func(d *deeds) { d.stopped("a", 8.5, 13); d.calls["t"][0].At = at(13.1) }, []Rule{RuleEffectTwice}, 0},
		"stopped just before its handler started": {func(d *deeds) {
			d.stopped("a", -7, 0.9)
			d.h.Executions["t"][2].Start = at(1.05)
			d.calls["t"] = []Call{{"a", 1, at(1.1)}, {"b", 3, at(1.2)}}
		}, []Rule{RuleEffectTwice}, 0},
		"stopped just after its call": {func(d *deeds) { d.stopped("a", 7.6, 14); d.calls["t"][0].At = at(7.5) }, []Rule{RuleEffectTwice}, 0},
		"its process went on, called, and began the later one": {func(d *deeds) {
			d.doubted(8.2)
			d.h.Executions["t"][2], d.calls["t"][1].Worker = run("a", 3, 8.1, 9), "a"
		}, []Rule{RuleEffectTwice}, 0},
		"its process went on, began the later one, and called": {func(d *deeds) {
			d.doubted(8.2)
			d.h.Executions["t"][2], d.calls["t"][1].Worker = run("a", 3, 8.005, 9), "a"
		}, nil, 1},
		"the check had its call before its eyes":    {func(d *deeds) { d.late(6.9); d.h.Frozen["a"] = spans(1.05, 6.9) }, []Rule{RuleEffectTwice}, 0},
		"a call of an execution that nobody logged": {func(d *deeds) { d.doubted(7.1); d.calls["t"][0].Worker = "x"; d.h.Frozen["x"] = d.h.Frozen["a"] }, []Rule{RuleEffectTwice}, 0},

		"as many excused as may be":       {func(d *deeds) { d.excused(mayExcuse, 0) }, nil, mayExcuse},
		"too many excused":                {func(d *deeds) { d.excused(mayExcuse+1, 0) }, []Rule{RuleEffectTwice}, mayExcuse + 1},
		"as many excused, of many":        {func(d *deeds) { d.excused(4, 1996) }, nil, 4},
		"too many excused, of many":       {func(d *deeds) { d.excused(5, 1996) }, []Rule{RuleEffectTwice}, 5},
		"excused, and another one is not": {func(d *deeds) { d.excused(2, 1); d.calls["u0"] = append(d.calls["u0"], Call{"a", 1, at(3)}) }, []Rule{RuleEffectTwice}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeeds()
			c.change(d)
			seen, found := JudgeEffects(&d.h, d.tasks, d.calls)
			var got []Rule
			for _, v := range found {
				got = append(got, v.Rule)
			}
			if !slices.Equal(got, c.want) || seen.Excused != c.excused {
				t.Errorf("violated: %v, want %v; excused %d, want %d\n%v", got, c.want, seen.Excused, c.excused, found)
			}
		})
	}
}

// excused has n tasks that happened twice for the good reason, and others that
// did not.
func (d *deeds) excused(n, others int) {
	d.doubted(7.1)
	for i := range n - 1 {
		id := fmt.Sprint("t", i)
		d.tasks[id], d.calls[id], d.h.Executions[id] = d.tasks["t"], d.calls["t"], d.h.Executions["t"]
	}
	for i := range others {
		id := fmt.Sprint("u", i)
		d.tasks[id], d.calls[id] = d.tasks["t"], []Call{{"a", 1, at(1.1)}}
	}
}

// What befell a task counts only after its call.
func TestEffectsMet(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change                   func(d *deeds)
		calls, reclaimed, robbed int
	}{
		"nothing":                  {func(*deeds) {}, 1, 0, 0},
		"reclaimed":                {func(d *deeds) { d.tasks["t"].Reclaims = []time.Time{at(0.5), at(3)} }, 1, 1, 0},
		"reclaimed before it":      {func(d *deeds) { d.tasks["t"].Reclaims = []time.Time{at(0.5)} }, 1, 0, 0},
		"robbed":                   {func(d *deeds) { d.h.Thefts = []Theft{{"t", "a", "a1", at(1.5)}} }, 1, 0, 1},
		"robbed before it":         {func(d *deeds) { d.h.Thefts = []Theft{{"t", "a", "a1", at(1.05)}} }, 1, 0, 0},
		"another was robbed":       {func(d *deeds) { d.h.Thefts = []Theft{{"u", "a", "a1", at(1.5)}} }, 1, 0, 0},
		"reclaimed, never a call":  {func(d *deeds) { delete(d.calls, "t"); d.tasks["t"].Reclaims = []time.Time{at(3)} }, 0, 0, 0},
		"two calls, and reclaimed": {func(d *deeds) { d.doubted(7.1); d.tasks["t"].Reclaims = []time.Time{at(9)} }, 2, 1, 0},
	} {
		d := newDeeds()
		c.change(d)
		e, _ := JudgeEffects(&d.h, d.tasks, d.calls)
		if e.Tasks != 1 || e.Calls != c.calls || e.Reclaimed != c.reclaimed || e.Robbed != c.robbed {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// A violation tells who called, and what was executed.
func TestEffectViolation(t *testing.T) {
	t.Parallel()
	d := newDeeds()
	d.stopped("b", 1.05, 8)
	_, found := JudgeEffects(&d.h, d.tasks, d.calls)
	if len(found) != 1 || found[0].Task != "t" || !strings.Contains(found[0].Text, "by delivery 3 on b at 03:04:07.100") || len(found[0].Timeline) != 6 {
		t.Errorf("%+v", found)
	}
}

func TestUntested(t *testing.T) {
	t.Parallel()
	all := Effects{Answered: 1, Checked: 1, Reclaimed: 1, Robbed: 1}
	for name, c := range map[string]struct {
		change        func(e *Effects)
		kills, thefts int
		want          string
	}{
		"everything was met":             {func(*Effects) {}, 100, 100, ""},
		"few faults":                     {func(e *Effects) { *e = Effects{} }, killsForDoubts - 1, theftsForEffects - 1, ""},
		"no person":                      {func(e *Effects) { e.Answered = 0 }, killsForDoubts, 0, "by the person"},
		"no check":                       {func(e *Effects) { e.Checked = 0 }, killsForDoubts, 0, "by a check"},
		"no reclaim":                     {func(e *Effects) { e.Reclaimed = 0 }, killsForReclaims, 0, "was reclaimed"},
		"no reclaim, but few kills":      {func(e *Effects) { e.Reclaimed = 0 }, killsForReclaims - 1, 0, ""},
		"no theft":                       {func(e *Effects) { e.Robbed = 0 }, 0, theftsForEffects, "was stolen"},
		"no theft, and none was planned": {func(e *Effects) { e.Robbed = 0 }, 100, 0, ""},
	} {
		e := all
		c.change(&e)
		got := e.Untested(c.kills, c.thefts)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
