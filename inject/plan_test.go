package inject_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/inject"
	"github.com/penstock-dev/penstock/task"
)

func TestValidateNamesTheField(t *testing.T) {
	t.Parallel()
	const m = inject.TransientError
	for _, tt := range []struct {
		plan inject.Plan
		want string // "": valid
	}{
		{inject.Plan{Mode: m, Always: true}, ""},
		{inject.Plan{Mode: m, Times: 1, Text: "boom"}, ""},
		{inject.Plan{Mode: inject.PermanentError, Attempts: []int{3, 1}, Text: "boom"}, ""},
		{inject.Plan{Mode: inject.Timeout, Probability: 1, Seed: math.MaxUint64, AfterHandler: true}, ""},
		{inject.Plan{Mode: inject.ProcessRestartInterrupt, Times: 2, Attempts: []int{4}, Probability: 0.1, Restart: func() {}}, ""},
		{inject.Plan{}, `mode is ""`},
		{inject.Plan{Always: true}, `mode is "", want timeout, transient_error, permanent_error or process_restart_interrupt`},
		{inject.Plan{Mode: inject.Mode(strings.Repeat("x", 99)), Always: true}, `mode is "xxx`},
		{inject.Plan{Mode: m}, "chooses no execution: set always, times, attempts or probability"},
		{inject.Plan{Mode: m, Attempts: []int{}}, "chooses no execution"},
		{inject.Plan{Mode: m, Times: -1}, "times is -1"},
		{inject.Plan{Mode: m, Attempts: []int{1, 0}}, "attempts has 0"},
		{inject.Plan{Mode: m, Probability: -0.1}, "probability is -0.1"},
		{inject.Plan{Mode: m, Probability: 1.1}, "probability is 1.1"},
		{inject.Plan{Mode: m, Probability: math.NaN()}, "probability is NaN"},
		{inject.Plan{Mode: m, Always: true, Probability: math.Inf(1)}, "probability is +Inf"},
		{inject.Plan{Mode: m, Times: 1, Seed: 7}, "seed is set"},
		{inject.Plan{Mode: inject.Timeout, Times: 1, Text: "boom"}, "text is set"},
		{inject.Plan{Mode: m, Times: 1, Restart: func() {}}, "restart is set"},
	} {
		err := tt.plan.Validate()
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%+v: %v", tt.plan, err)
		case tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "inject: ") || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 200):
			t.Errorf("got %v, want an error with %q", err, tt.want)
		}
		if panicked := panics(func() { inject.Wrap(tt.plan, succeed) }); panicked != (err != nil) {
			t.Errorf("%v: Wrap panics: %t", err, panicked)
		}
		if panicked := panics(func() { inject.Func(tt.plan, work(nil)) }); panicked != (err != nil) {
			t.Errorf("%v: Func panics: %t", err, panicked)
		}
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

func execution(id string, attempt int, delivery int64) task.Info {
	return task.Info{TaskID: id, Attempt: attempt, Delivery: delivery}
}

func TestWhichExecutionsFail(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		plan inject.Plan
		// fails lists, for deliveries 1 to 5 of a task, whether they fail. The
		// second delivery follows an interruption, the others a failure.
		fails string
	}{
		{"always", inject.Plan{Always: true}, "yyyyy"},
		{"first", inject.Plan{Times: 1}, "ynnnn"},
		{"first two, interrupted or not", inject.Plan{Times: 2}, "yynnn"},
		{"more than there are", inject.Plan{Times: math.MaxInt}, "yyyyy"},
		{"attempt 1, again after the interruption", inject.Plan{Attempts: []int{1}}, "yynnn"},
		{"attempts in any order", inject.Plan{Attempts: []int{4, 2}}, "nnyny"},
		{"any of several", inject.Plan{Times: 1, Attempts: []int{3}}, "ynnyn"},
		{"certain", inject.Plan{Probability: 1}, "yyyyy"},
		{"all but impossible", inject.Plan{Probability: math.SmallestNonzeroFloat64}, "nnnnn"},
		{"nothing set", inject.Plan{}, "nnnnn"},
	} {
		got := ""
		for i, attempt := range []int{1, 1, 2, 3, 4} {
			got += map[bool]string{true: "y", false: "n"}[tt.plan.Fails(execution("a", attempt, int64(i+1)))]
		}
		if got != tt.fails {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.fails)
		}
	}
	if (inject.Plan{Mode: inject.Timeout, Attempts: []int{1}}).Fails(task.Info{}) {
		t.Error("an execution without an attempt is chosen")
	}
}

// What was decided once is decided again, by another copy of the plan, in
// another order, and whatever else the execution is.
func TestDecisionsArePure(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		plan := inject.Plan{
			Mode: inject.TransientError, Always: rapid.Bool().Draw(t, "always"), Times: rapid.IntRange(0, 4).Draw(t, "times"),
			Attempts: rapid.SliceOfN(rapid.IntRange(1, 5), 0, 3).Draw(t, "attempts"), Probability: rapid.Float64Range(0, 1).Draw(t, "probability"),
		}
		if plan.Probability > 0 {
			plan.Seed = rapid.Uint64().Draw(t, "seed")
		}
		if plan.Validate() != nil { // it chooses nothing
			plan.Times = 1
		}
		es := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) task.Info {
			return execution(rapid.StringN(1, 20, 40).Draw(t, "id"), rapid.IntRange(1, 6).Draw(t, "attempt"), rapid.Int64Range(1, 8).Draw(t, "delivery"))
		}), 1, 20).Draw(t, "executions")
		first := make([]bool, len(es))
		for i, e := range es {
			first[i] = plan.Fails(e)
		}
		again := plan
		again.Attempts = append([]int(nil), plan.Attempts...)
		h := inject.Wrap(again, succeed)
		for _, i := range rapid.Permutation(indices(len(es))).Draw(t, "order") {
			e := es[i]
			e.Tenant, e.TraceID, e.MaxRetries = "other", "other", 9
			if got := again.Fails(e); got != first[i] {
				t.Fatalf("%+v: %t, and then %t", e, first[i], got)
			}
			if _, err := h(t.Context(), &task.Raw{Info: e}); (err != nil) != first[i] {
				t.Fatalf("%+v: decided %t, but the handler returned %v", e, first[i], err)
			}
		}
	})
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// A share of executions fails that differs from the probability by no more
// than chance allows, over tasks as well as over the deliveries of one, and
// what one seed, task or delivery decides says nothing about the next.
func TestProbability(t *testing.T) {
	t.Parallel()
	const n = 50_000
	for _, p := range []float64{0.01, 0.3, 0.5, 0.97} {
		for name, at := range map[string]func(i int) (inject.Plan, task.Info){
			"tasks": func(i int) (inject.Plan, task.Info) {
				return inject.Plan{Seed: 7}, execution(fmt.Sprint("task-", i), 1, 1)
			},
			"deliveries": func(i int) (inject.Plan, task.Info) { return inject.Plan{Seed: 7}, execution("task", 1, int64(i+1)) },
			"seeds":      func(i int) (inject.Plan, task.Info) { return inject.Plan{Seed: uint64(i)}, execution("task", 1, 1) },
		} {
			failed, pairs, last := 0, 0, false
			for i := range n {
				plan, e := at(i)
				plan.Probability = p
				now := plan.Fails(e)
				if now {
					failed++
				}
				if now && last {
					pairs++
				}
				last = now
			}
			within(t, fmt.Sprintf("%s at %v: failures", name, p), failed, n, p)
			within(t, fmt.Sprintf("%s at %v: failures in a row", name, p), pairs, n-1, p*p)
		}
	}
}

// within fails if a count is further than 4.5 standard deviations from its
// expectation. The inputs are fixed, so it passes always or never.
func within(t *testing.T, what string, got, n int, p float64) {
	t.Helper()
	want := float64(n) * p
	if off := math.Abs(float64(got)-want) / math.Sqrt(want*(1-p)); off > 4.5 {
		t.Errorf("%s: %d of %d, want about %.0f; that is %.1f standard deviations off", what, got, n, want, off)
	}
}

// A higher probability fails all that a lower one fails.
func TestProbabilityIsMonotone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := inject.Plan{Probability: rapid.Float64Range(0, 1).Draw(t, "p"), Seed: rapid.Uint64().Draw(t, "seed")}
		q := inject.Plan{Probability: rapid.Float64Range(p.Probability, 1).Draw(t, "q"), Seed: p.Seed}
		e := execution(rapid.String().Draw(t, "id"), 1, rapid.Int64Min(1).Draw(t, "delivery"))
		if p.Fails(e) && !q.Fails(e) {
			t.Fatalf("fails at %v, but not at %v", p.Probability, q.Probability)
		}
	})
}

// A seed that was written down shows the same failures in every version.
func TestDecisionsStayTheSameInEveryVersion(t *testing.T) {
	t.Parallel()
	got := ""
	for seed := range uint64(2) {
		for _, id := range []string{"order-1", "order-2", "0198c3f0-0000-7000-8000-000000000001"} {
			for delivery := range int64(6) {
				got += map[bool]string{true: "y", false: "n"}[inject.Plan{Probability: 0.4, Seed: seed}.Fails(execution(id, 1, delivery+1))]
			}
			got += " "
		}
	}
	if want := "yyyynn ynnnyy nnynnn nnyyny nynyny ynynyy"; strings.TrimSpace(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
