package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/internal/guard"
)

// many is a JSON list of n equal elements.
func many(element string, n int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
}

// patient is a context that ends long after each evaluation must have.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// members is a JSON object of n members.
func members(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"k%d":0,`, i)
	}
	return "{" + strings.TrimSuffix(b.String(), ",") + "}"
}

// TestLongPayloadsAreJudged: an ordinary rule goes through whatever fits into a
// payload of the default size.
func TestLongPayloadsAreJudged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ expression, payload string }{
		{`task.payload.to.exists(x, x.a > 5)`, `{"to":` + many(`{"a":1}`, 25_000) + `}`},
		{`task.payload.exists(x, x == 5)`, many("0", 130_000)},
		{`!task.payload.all(x, x < 5)`, many("0", 130_000)},
		{`5 in task.payload`, many("0", 130_000)},
		{`task.payload.exists(x, x.endsWith("@example.com"))`, many(`"somebody@example.org"`, 11_000)},
		{`task.payload.exists(x, x.matches("^[a-z0-9._]+@example\\.com$"))`, many(`"somebody@example.org"`, 11_000)},
		{`task.payload.exists(x, x.matches("^[\\pL.]{1,64}@example\\.com$"))`, many(`"somebody@example.org"`, 1000)},
		{`task.payload.a != task.payload.b`, `{"a":` + many("0", 60_000) + `,"b":` + many("0", 60_000) + `}`},
		{`task.payload == null || task.payload.exists(k, k == "x")`, members(20_000)},
		{`task.payload.contains("b") || task.payload + "b" == task.payload`, `"` + strings.Repeat("a", 250_000) + `"`},
	} {
		if stops, problem := compile(t, c.expression).Test(patient(t), &guard.Task{Payload: []byte(c.payload)}); stops || problem != nil {
			t.Errorf("%s: stops %v, problem %v", c.expression, stops, problem)
		}
	}
}

// TestWorkIsBounded: whatever a rule does, it ends; and what is too much stops the
// task, even where CEL would pass over an error.
func TestWorkIsBounded(t *testing.T) {
	t.Parallel()
	objects, numbers, deep := many(`{"a":1}`, 25_000), many("0", 130_000), many(strings.Repeat("[", 60)+strings.Repeat("]", 60), 2000)
	text := `{"s":"` + strings.Repeat("a", 200_000) + `","l":` + many("0", 20_000) + `}`
	grow := "task.payload.s"
	for range 20 {
		grow = "[" + grow + "].map(x, x+x+x+x+x+x+x+x+x+x)[0]"
	}
	double := "task.payload"
	for range 20 {
		double = "[" + double + "].map(x, x+x)[0]"
	}
	for _, c := range []struct{ expression, payload string }{
		{`task.payload.exists(x, task.payload.exists(y, x.a + y.a > 5))`, objects},
		{`task.payload.all(x, task.payload.all(y, true)) && false`, numbers},
		{`task.payload.filter(x, task.payload.filter(y, false) != []) != []`, numbers},
		{`task.payload.map(x, task.payload.map(y, [])) == []`, numbers},
		{`task.payload.map(x, task.payload.exists_one(y, y == 1), x) == []`, numbers},
		{`task.payload.exists(x, task.payload == task.payload && false)`, objects},
		{`task.payload.exists(x, task.payload != task.payload)`, objects},
		{`task.payload.exists(x, task.payload == task.payload && false)`, deep},
		{`task.payload.exists(x, [x] in [task.payload, [1]] || x in task.payload && false)`, numbers},
		{`task.payload.exists(k, task.payload == task.payload && false)`, members(20_000)},
		{`task.payload.all(k, task.payload.exists(l, true)) && false`, members(20_000)},
		{`task.payload.l.exists(x, task.payload.s.contains("aab"))`, text},
		{`task.payload.l.exists(x, size(task.payload.s) == 1)`, text},
		{`task.payload.l.exists(x, int(task.payload.s) == 1)`, text},
		{`task.payload.l.exists(x, timestamp(task.payload.s) == timestamp(0))`, text},
		{`task.payload.l.exists(x, task.payload.s < task.payload.s)`, text},
		{`task.payload.l.exists(x, timestamp(0).getHours("Europe/Berlin") == 99)`, text},
		{`task.payload.s.matches("(a?){300}c")`, text},
		{`task.payload.l.exists(x, task.payload.s.matches("(a|b|[c-z])*(a|x)*(a|y)*b"))`, text},
		{`task.payload.l.exists(x, "x".matches("a{900}" + string(x)))`, text},
		{grow + ` == "b"`, text},
		{double + ` == []`, many("0", 10)},
	} {
		ctx := patient(t)
		stops, problem := compile(t, c.expression).Test(ctx, &guard.Task{Payload: []byte(c.payload)})
		if !stops || problem == nil || !strings.Contains(problem.Error(), "too much work") || ctx.Err() != nil {
			t.Errorf("%.80s: stops %v, problem %v, %v", c.expression, stops, problem, ctx.Err())
		}
	}
}

// TestNobodyWaits: an evaluation ends with its caller.
func TestNobodyWaits(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone"))
	stops, problem := compile(t, `task.payload.exists(x, x == 1)`).Test(ctx, &guard.Task{Payload: []byte(many("0", 1000))})
	if !stops || problem == nil || !strings.Contains(problem.Error(), "gone") {
		t.Errorf("stops %v, problem %v", stops, problem)
	}
}

// TestDeepPayloadsAreRefused: JSON's reader of tokens has no limit of its own.
func TestDeepPayloadsAreRefused(t *testing.T) {
	t.Parallel()
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	if _, err := guard.Decode([]byte(nested(guard.MaxDepth))); err != nil {
		t.Error(err)
	}
	c := compile(t, "false")
	for name, p := range map[string]string{
		"lists": nested(guard.MaxDepth + 1), "open lists": strings.Repeat("[", 4_000_000), "open objects": strings.Repeat(`{"a":`, 800_000),
	} {
		if _, err := guard.Decode([]byte(p)); !errors.Is(err, guard.ErrDepth) {
			t.Errorf("%s: %v", name, err)
		}
		if stops, problem := c.Test(t.Context(), &guard.Task{Payload: []byte(p)}); !stops || problem == nil {
			t.Errorf("%s: stops %v, problem %v", name, stops, problem)
		}
	}
}

// TestMeteredOperators: what is metered has the values that CEL gives it.
func TestMeteredOperators(t *testing.T) {
	t.Parallel()
	env, err := cel.NewEnv(cel.CrossTypeNumericComparisons(true), cel.Variable("task.payload", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	value := rapid.SampledFrom([]string{
		`null`, `true`, `0`, `1`, `1.0`, `0.5`, `18446744073709551615`, `""`, `"a"`, `"ab"`, `"(a|b)+"`, `"("`, `[]`, `[1]`, `[1, 2]`, `[[1], {"a": 1.0}]`, `[[1.0], {"a": 1}]`,
		`{}`, `{"a": 1}`, `{"a": 1.0, "b": []}`, `{"b": [], "a": 1}`, `{"a": 1, "c": []}`,
	})
	expression := rapid.SampledFrom([]string{
		`task.payload.a == task.payload.b`, `task.payload.a != task.payload.b`, `task.payload.a in task.payload.b`, `task.payload.a + task.payload.b == task.payload.c`,
		`(task.payload.a + task.payload.b + task.payload.c).size() == 3`, `(task.payload.a + task.payload.b).exists(x, x == task.payload.c)`,
		`task.payload.a.matches(task.payload.b)`, `matches(task.payload.a, "^(a|b)+$")`, `task.payload.a == task.payload.b || task.payload.c in ["a", "ab"]`,
		`task.payload.b.map(x, x + task.payload.a) == task.payload.c`, `task.payload.b.filter(x, x != task.payload.a) == [task.payload.c]`,
		`task.payload.a.exists_one(x, x in task.payload.b)`, `bytes(task.payload.a) + b"x" == b"ax"`, `task.payload.a[0] == task.payload.b`,
	})
	rapid.Check(t, func(t *rapid.T) {
		e := expression.Draw(t, "expression")
		p := fmt.Sprintf(`{"a": %s, "b": %s, "c": %s}`, value.Draw(t, "a"), value.Draw(t, "b"), value.Draw(t, "c"))
		ast, issues := env.Compile(e)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatal(err)
		}
		payload, err := guard.Decode([]byte(p))
		if err != nil {
			t.Fatal(err)
		}
		want, _, failed := program.Eval(map[string]any{"task.payload": payload})
		c, err := (&guard.Rule{Name: "r", Expression: e}).Check()
		if err != nil {
			t.Fatal(err)
		}
		stops, problem := c.Test(context.Background(), &guard.Task{Payload: []byte(p)})
		if (problem != nil) != (failed != nil) || failed == nil && stops != want.Value() {
			t.Fatalf("%s for %s: %v, problem %v; CEL says %v, problem %v", e, p, stops, problem, want, failed)
		}
	})
}
