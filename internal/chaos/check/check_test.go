package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const visibility = 3 * time.Second

var base = time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)

// at is a moment of a history, in seconds.
func at(s float64) time.Time { return base.Add(time.Duration(s * float64(time.Second))) }

// scene is a history of one task, "t", that holds every rule until a test
// changes it: executed once, as delivery 1 on worker a.
type scene struct {
	History
	r *Record
}

func newScene() *scene {
	return &scene{
		History: History{
			Visibility: visibility,
			Tasks:      map[string]*Task{"t": {Kind: "short", Accepted: true, State: "succeeded", Attempt: 1, Sum: "5"}},
			Executions: map[string][]Execution{"t": {run("a", 1, 1, 2)}},
			Ended:      map[string]time.Time{}, Frozen: map[string][]Span{},
		},
		r: &Record{
			ID: "t", State: "succeeded", Attempt: 1, Delivery: 1, Sum: "5", ResultDelivery: 1,
			Events: []Event{
				{Seq: 1, Type: "task.created", Status: "queued", Attempt: 1, Delivery: 1, Actor: "api", At: at(0)},
				outcome("task.claimed", "a", 1, 1), outcome("task.succeeded", "a", 1, 2),
			},
		},
	}
}

// keyed has a second request, "u", ask for the task by the same key.
func keyed(s *scene) {
	s.Tasks["t"].Key = &Key{Answer: "t"}
	s.Tasks["u"] = s.Tasks["t"]
}

// run is an execution that ends well; its entry is named after its worker and
// delivery.
func run(worker string, delivery int64, from, to float64) Execution {
	return Execution{Delivery: delivery, Attempt: 1, Worker: worker, Message: fmt.Sprint(worker, delivery), Start: at(from), End: at(to), Ending: EndOK}
}

func outcome(typ, worker string, delivery int64, when float64) Event {
	return Event{Type: typ, Attempt: 1, Delivery: delivery, Actor: "worker", Worker: worker, Message: fmt.Sprint(worker, delivery), At: at(when)}
}

// again has a second execution succeed as delivery 2 on worker b instead.
func (s *scene) again(from, to float64) {
	s.Executions["t"] = append(s.Executions["t"], run("b", 2, from, to))
	s.r.Delivery, s.r.ResultDelivery = 2, 2
	s.r.Events = []Event{s.r.Events[0], outcome("task.claimed", "b", 2, from), outcome("task.succeeded", "b", 2, to)}
}

// late has delivery 2 succeed on worker b, and delivery 1 start on worker a
// afterwards.
func (s *scene) late() {
	s.again(1, 2)
	s.Executions["t"] = []Execution{run("b", 2, 1, 2), run("a", 1, 5, 6)}
}

func (s *scene) check(t *testing.T) *Verdict {
	t.Helper()
	rs := []*Record{s.r, nil}
	v, err := Check(&s.History, func() (*Record, error) {
		r := rs[0]
		rs = rs[1:]
		if r == nil {
			rs = []*Record{nil}
		}
		return r, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Of the requests with one key only one may become a task, and it counts once.
func TestTwoTasksOfOneKey(t *testing.T) {
	t.Parallel()
	s := newScene()
	keyed(s)
	u := *s.r
	u.ID, s.Executions["u"] = "u", s.Executions["t"]
	rs := []*Record{s.r, &u, nil}
	v, err := Check(&s.History, func() (r *Record, _ error) {
		r, rs = rs[0], rs[1:]
		return r, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if v.Counts[RuleKey] != 2 || len(v.Counts) != 1 || v.Asked != 1 || v.Accepted != 1 {
		t.Errorf("%v, %d asked for, %d accepted", v.Counts, v.Asked, v.Accepted)
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *scene)
		want   []Rule
	}{
		"a task that is executed once": {func(*scene) {}, nil},

		"accepted and not there":           {func(s *scene) { s.r = nil }, []Rule{RuleLost}},
		"not there, and never answered":    {func(s *scene) { s.r = nil; s.Tasks["t"].Accepted = false }, nil},
		"there, and never answered":        {func(s *scene) { s.Tasks["t"].Accepted = false }, nil},
		"still running":                    {func(s *scene) { s.r.State = "running"; s.r.Events = s.r.Events[:2] }, []Rule{RuleLost}},
		"back from the dead":               {func(s *scene) { s.r.State = "queued" }, []Rule{RuleLost, RuleTerminal}},
		"nobody asked for it":              {func(s *scene) { delete(s.Tasks, "t") }, []Rule{RuleInvented}},
		"one task of two with its key":     {keyed, nil},
		"one task, the key not answered":   {func(s *scene) { keyed(s); s.Tasks["t"].Accepted, s.Tasks["t"].Key.Answer = false, "" }, nil},
		"no task of two with its key":      {func(s *scene) { keyed(s); s.r = nil }, []Rule{RuleLost}},
		"another than the key's answer":    {func(s *scene) { keyed(s); s.Tasks["t"].Key.Answer = "u" }, []Rule{RuleKey}},
		"two terminal events":              {func(s *scene) { s.r.Events = append(s.r.Events, outcome("task.succeeded", "a", 1, 3)) }, []Rule{RuleTerminal}},
		"the terminal event of another":    {func(s *scene) { s.r.Events[2].Type = "task.cancelled" }, []Rule{RuleTerminal}},
		"failed, but never fails":          {func(s *scene) { s.r.State, s.r.DeadLetter = "failed", true; s.r.Events[2].Type = "task.failed" }, []Rule{RuleEnd}},
		"one attempt too many":             {func(s *scene) { s.r.Attempt = 2 }, []Rule{RuleEnd}},
		"failed without a dead letter":     {func(s *scene) { s.Tasks["t"].State, s.r.State, s.r.Events[2].Type = "failed", "failed", "task.failed" }, []Rule{RuleEnd}},
		"a dead letter without a failure":  {func(s *scene) { s.r.DeadLetter = true }, []Rule{RuleEnd}},
		"another's result":                 {func(s *scene) { s.r.Sum = "6" }, []Rule{RuleResult}},
		"the result of an older delivery":  {func(s *scene) { s.again(1, 3); s.Lossy = spans(0, 1); s.r.ResultDelivery = 1 }, []Rule{RuleStale}},
		"the outcome of an older delivery": {stale, []Rule{RuleStale}},
		"an outcome of nobody":             {func(s *scene) { s.r.Events[2].Message = "x" }, []Rule{RuleStale}},
		"a claim without a start": {func(s *scene) {
			s.Executions["t"] = append([]Execution{}, s.Executions["t"]...)
			s.r.Events[1].Message = "x"
		}, nil},

		"one delivery twice": {func(s *scene) { s.Executions["t"] = append(s.Executions["t"], run("b", 1, 3, 4)) }, []Rule{RuleTwice}},
		"one delivery twice, after a flush": {func(s *scene) {
			s.Executions["t"] = append(s.Executions["t"], run("b", 1, 3, 4))
			s.Lossy = spans(2, 2)
		}, []Rule{RuleTwice}},

		"two at once":                         {func(s *scene) { s.again(1.5, 3) }, []Rule{RuleOverlap}},
		"two at once, after a pause":          {func(s *scene) { s.again(1.5, 3); s.Frozen["a"] = spans(1.1, 1.2) }, nil},
		"two at once, another was paused":     {func(s *scene) { s.again(1.5, 3); s.Frozen["b"] = spans(1.1, 1.2) }, []Rule{RuleOverlap}},
		"two at once, after a flush":          {func(s *scene) { s.again(1.5, 3); s.Lossy = spans(1.4, 1.4) }, nil},
		"two at once, a flush came later":     {func(s *scene) { s.again(1.5, 3); s.Lossy = spans(1.6, 1.6) }, []Rule{RuleOverlap}},
		"two at once, after a theft":          {func(s *scene) { s.again(1.5, 3); s.Thefts = []Theft{{"t", "a", "a1", at(1.2)}} }, nil},
		"two at once, its worker was killed":  {func(s *scene) { s.again(1.5, 3); die(s, 1.2) }, nil},
		"two at once, it was killed too late": {func(s *scene) { s.again(1.5, 3); die(s, 1.6) }, []Rule{RuleOverlap}},

		"again for no reason":                                {func(s *scene) { s.again(3, 4) }, []Rule{RuleAgain}},
		"an older delivery for no reason":                    {func(s *scene) { s.late() }, []Rule{RuleAgain}},
		"an older delivery, its orchestrator stood still":    {func(s *scene) { s.late(); s.Stalled = spans(0.5, 4.9) }, nil},
		"an older delivery, its worker stood still":          {func(s *scene) { s.late(); s.Frozen["a"] = spans(0.5, 4.9) }, nil},
		"an older delivery, another worker stood still":      {func(s *scene) { s.late(); s.Frozen["c"] = spans(0.5, 4.9) }, []Rule{RuleAgain}},
		"an older delivery, its worker stood still before":   {func(s *scene) { s.late(); s.Frozen["a"] = spans(0.5, 2.9) }, []Rule{RuleAgain}},
		"again, though its own worker had stood still":       {func(s *scene) { s.again(3, 4); s.Frozen["b"] = spans(2, 2.9) }, []Rule{RuleAgain}},
		"an older delivery, one stood still long before":     {func(s *scene) { s.late(); s.Stalled = spans(-20, -19) }, []Rule{RuleAgain}},
		"again, though only an orchestrator had stood still": {func(s *scene) { s.again(3, 4); s.Stalled = spans(2, 2.9) }, []Rule{RuleAgain}},
		"again, after its worker had died":                   {func(s *scene) { s.again(3, 4); s.Ended["a"] = at(2.5) }, nil},
		"again, because the first attempt failed": {func(s *scene) {
			s.again(3, 4)
			s.Executions["t"][0].Ending = EndFailed
		}, nil},

		"vanished":                           {func(s *scene) { vanish(s) }, []Rule{RuleVanished}},
		"vanished in a flush":                {func(s *scene) { vanish(s); s.Lossy = spans(1.5, 1.5) }, nil},
		"vanished before anybody fetched it": {func(s *scene) { vanish(s); s.Executions["t"] = s.Executions["t"][1:] }, nil},

		"cancelled":                        {func(s *scene) { cancelled(s); s.Executions["t"] = nil }, nil},
		"cancelled, and nobody asked":      {func(s *scene) { cancelled(s); s.Tasks["t"].CancelAsked, s.Tasks["t"].Cancelled = false, time.Time{} }, []Rule{RuleEnd}},
		"cancelled, without an answer":     {func(s *scene) { cancelled(s); s.Tasks["t"].Cancelled = time.Time{} }, nil},
		"a cancel that came too late":      {func(s *scene) { s.Tasks["t"].CancelAsked = true }, nil},
		"succeeded, though cancelled":      {func(s *scene) { s.Tasks["t"].CancelAsked, s.Tasks["t"].Cancelled = true, at(0.5) }, []Rule{RuleEnd}},
		"cancelled while it ran":           {cancelled, nil},
		"cancelled, and it ran on":         {func(s *scene) { cancelled(s); long(s) }, []Rule{RuleCancel}},
		"cancelled, and it ran on, paused": {func(s *scene) { cancelled(s); long(s); s.Frozen["a"] = spans(2, 5) }, nil},
		"cancelled, and started":           {func(s *scene) { cancelled(s); s.Executions["t"][0].Start, s.Executions["t"][0].End = at(3), at(4) }, []Rule{RuleCancel}},
		"cancelled, and started after a flush": {func(s *scene) {
			cancelled(s)
			s.Executions["t"][0].Start, s.Executions["t"][0].End = at(3), at(4)
			s.Lossy = spans(2.5, 2.5)
		}, nil},

		"a theft that is noticed":     {func(s *scene) { s.Thefts = []Theft{{"t", "a", "a1", at(1.5)}} }, nil},
		"a theft that is not noticed": {func(s *scene) { long(s); s.Thefts = []Theft{{"t", "a", "a1", at(1.5)}} }, []Rule{RuleTheft}},
		"a theft while Redis was away": {func(s *scene) {
			long(s)
			s.Thefts, s.Troubled = []Theft{{"t", "a", "a1", at(1.5)}}, spans(2, 3)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene()
			c.change(s)
			v := s.check(t)
			var got []Rule
			for rule := range v.Counts {
				got = append(got, rule)
			}
			slices.Sort(got)
			slices.Sort(c.want)
			if !slices.Equal(got, c.want) {
				t.Errorf("violated: %v, want %v\n%v", got, c.want, v.Violations)
			}
			if v.OK() != (len(c.want) == 0) {
				t.Errorf("OK is %t", v.OK())
			}
		})
	}
}

func spans(from, to float64) []Span { return []Span{{at(from), at(to)}} }

// die kills worker a, whose execution does not end.
func die(s *scene, when float64) {
	s.Executions["t"][0].End, s.Executions["t"][0].Ending = time.Time{}, ""
	s.Ended["a"] = at(when)
}

// stale has delivery 2 end with what worker a did as delivery 1.
func stale(s *scene) {
	s.again(1.5, 3)
	s.Lossy = spans(1, 1)
	s.r.Events[2] = outcome("task.succeeded", "a", 1, 2)
	s.r.Events[2].Delivery = 2
}

// vanish has the reconciler find delivery 1 nowhere.
func vanish(s *scene) {
	s.again(3, 4)
	die(s, 1.2)
	s.r.Events = append(s.r.Events, Event{Type: "task.redispatched", Actor: "reconciler", Delivery: 2, At: at(2.5)})
}

// cancelled has the client cancel the task at 1.5.
func cancelled(s *scene) {
	s.Tasks["t"].CancelAsked, s.Tasks["t"].Cancelled = true, at(1.5)
	s.r.State, s.r.Sum = "cancelled", ""
	s.r.Events = append(s.r.Events[:2], Event{Type: "task.cancelled", Actor: "user:anonymous", Delivery: 2, At: at(1.5)})
	s.Executions["t"][0].Ending = EndCancelled
}

// long makes the execution take 9 s.
func long(s *scene) { s.Executions["t"][0].End = at(10) }

func TestCounts(t *testing.T) {
	t.Parallel()
	s := newScene()
	s.again(6, 7)
	die(s, 1.5)
	s.Executions["t"][0], s.Executions["t"][1] = s.Executions["t"][1], s.Executions["t"][0] // logs come in any order
	s.r.Events = append(s.r.Events,
		Event{Type: "task.reclaimed", Actor: "reclaimer", Worker: "a", Message: "a1", At: at(5)},
		Event{Type: "task.transition_rejected", Actor: "worker", At: at(5)},
		Event{Type: "task.interrupted", Actor: "worker", At: at(5)})
	v := s.check(t)
	if v.Asked != 1 || v.Accepted != 1 || v.ByState["succeeded"] != 1 || v.Executions != 2 || v.Histogram[2] != 1 {
		t.Errorf("%+v", v)
	}
	if v.Reclaims != 1 || v.Fenced != 1 || v.Redispatches != 0 || v.Ended["dead worker"] != 1 || v.Ended["handed back"] != 1 {
		t.Errorf("%+v", v)
	}
	if len(v.Recovery) != 1 || v.Recovery[0] != 4500*time.Millisecond || len(v.Finished) != 1 || v.Slowest.Task != "t" {
		t.Errorf("recovery %v, finished %v", v.Recovery, v.Finished)
	}
}

// A recovery during which something else went wrong says little about reclaiming.
func TestUndisturbedRecovery(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *scene)
		want   int
	}{
		"nothing else":            {func(*scene) {}, 1},
		"Redis was away":          {func(s *scene) { s.Troubled = spans(2, 3) }, 0},
		"a flush":                 {func(s *scene) { s.Lossy = spans(5, 5) }, 0},
		"a flush afterwards":      {func(s *scene) { s.Lossy = spans(7, 7) }, 1},
		"another delivery before": {func(s *scene) { s.Executions["t"][1].Delivery = 3 }, 0},
		"interrupted before":      {func(s *scene) { s.r.Events = append(s.r.Events, Event{Type: "task.interrupted", At: at(1)}) }, 0},
	} {
		s := newScene()
		s.again(6, 7)
		die(s, 1.5)
		c.change(s)
		if v := s.check(t); len(v.Undisturbed) != c.want {
			t.Errorf("%s: %v", name, v.Undisturbed)
		}
	}
}

// Why a lease ran out is told by what happened to its worker.
func TestReclaimedBecause(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(s *scene){
		"dead worker":                   func(s *scene) { die(s, 2) },
		"dead worker, before its start": func(s *scene) { s.Ended["a"] = at(2); s.Executions = nil },
		"worker that stood still":       func(s *scene) { s.Frozen["a"] = spans(2, 6) },
		"stolen lease":                  func(s *scene) { s.Thefts = []Theft{{"t", "a", "a1", at(2)}} },
		"other lost leases":             func(*scene) {},
	} {
		s := newScene()
		change(s)
		s.r.Events = append(s.r.Events, Event{Type: "task.reclaimed", Actor: "reclaimer", Worker: "a", Message: "a1", At: at(6)})
		if v := s.check(t); v.Ended[want] != 1 {
			t.Errorf("%s: %v", want, v.Ended)
		}
	}
}

// What is shown of a violation tells the whole story in order.
func TestTimeline(t *testing.T) {
	t.Parallel()
	s := newScene()
	s.r.Sum = "6"
	v := s.check(t)
	if len(v.Violations) != 1 {
		t.Fatalf("%v", v.Violations)
	}
	lines := v.Violations[0].Timeline
	inOrder := slices.IsSortedFunc(lines, func(a, b string) int { return strings.Compare(a[:12], b[:12]) })
	if len(lines) != 5 || !inOrder || !strings.Contains(lines[0], "task.created") || !strings.HasSuffix(lines[4], "ended on a: ok ") {
		t.Errorf("%q", lines)
	}
}

// Of a rule that is violated often only the first are kept; all are counted.
func TestManyViolations(t *testing.T) {
	t.Parallel()
	v := &Verdict{Counts: map[Rule]int{}}
	for range 100 {
		v.Fail(Violation{Rule: RuleLost})
	}
	if v.Counts[RuleLost] != 100 || len(v.Violations) != perRule {
		t.Errorf("%d counted, %d kept", v.Counts[RuleLost], len(v.Violations))
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	ds := []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for p, want := range map[float64]time.Duration{0: 1, 0.5: 6, 0.99: 10, 1: 10} {
		if got := Percentile(ds, p); got != want {
			t.Errorf("p%v is %d, want %d", 100*p, got, want)
		}
	}
	if Percentile(nil, 0.5) != 0 {
		t.Error("of nothing")
	}
}
