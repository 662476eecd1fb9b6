package guard

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/interpreter"
)

// maxRecursion bounds how deep an expression is nested.
const maxRecursion = 100

// fields are what an expression can use, with their types. Each is a variable
// with a dot in its name, so that a field that does not exist is an error of the
// expression, not of each task.
var fields = map[string]*cel.Type{
	"type":            cel.StringType,
	"queue":           cel.StringType,
	"tenant":          cel.StringType,
	"task_id":         cel.StringType,
	"payload":         cel.DynType,
	"schedule_type":   cel.StringType,
	"scheduled_at":    cel.DynType, // a timestamp, or null
	"delay_ms":        cel.IntType,
	"max_retries":     cel.IntType,
	"timeout_ms":      cel.IntType,
	"idempotency_key": cel.StringType,
	"requested_by":    cel.StringType,
}

// FieldNames lists what an expression can use as task.NAME.
func FieldNames() []string {
	return []string{"type", "queue", "tenant", "task_id", "payload", "schedule_type", "scheduled_at", "delay_ms",
		"max_retries", "timeout_ms", "idempotency_key", "requested_by"}
}

var environment = sync.OnceValues(func() (*cel.Env, error) {
	opts := []cel.EnvOption{
		cel.CrossTypeNumericComparisons(true), cel.ParserExpressionSizeLimit(MaxExpression), cel.ParserRecursionLimit(maxRecursion),
	}
	for name, typ := range fields {
		opts = append(opts, cel.Variable("task."+name, typ))
	}
	return cel.NewEnv(opts...)
})

// Compiled is a rule that can be evaluated. It is safe for concurrent use.
type Compiled struct {
	Rule
	program cel.Program
}

// Compile checks the expression's syntax, its names and its types: it must be a
// bool. The error is an *protocol.Error with code TASK_INPUT_INVALID and field
// "expression".
func (r *Rule) Compile() (*Compiled, error) {
	switch {
	case strings.TrimSpace(r.Expression) == "":
		return nil, bad("expression", "is empty: write CEL over task, e.g. task.type == \"payment.refund\" && task.payload.amount > 1000")
	case len(r.Expression) > MaxExpression:
		return nil, bad("expression", "has %d bytes, at most %d are allowed", len(r.Expression), MaxExpression)
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("prepare CEL: %w", err)
	}
	ast, issues := env.Compile(r.Expression)
	if err := issues.Err(); err != nil {
		return nil, bad("expression", "is not usable: %s (fields: task.%s)", oneLine(err.Error()), strings.Join(FieldNames(), ", task."))
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) {
		return nil, bad("expression", "is of type %s, want bool: compare it with something, e.g. %s", t, `task.payload.urgent == true`)
	}
	// CEL's own cost limit is not used: what it takes to track the cost grows with
	// the square of a list's length, and comparing any two values costs one.
	p := newPlan(ast.NativeRep().Expr())
	program, err := env.Program(ast, cel.CustomDecoratorV2(p.decorate), cel.EvalOptions(cel.OptOptimize))
	if err == nil {
		err = p.complete()
	}
	if err != nil {
		return nil, bad("expression", "is not usable: %s", oneLine(err.Error()))
	}
	return &Compiled{Rule: *r, program: program}, nil
}

// oneLine makes a message of several lines fit for an error.
func oneLine(s string) string {
	lines := strings.Split(s, "\n")
	kept := lines[:0]
	for _, l := range lines {
		if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "|") {
			kept = append(kept, strings.TrimPrefix(l, "ERROR: <input>:"))
		}
	}
	s = strings.ReplaceAll(strings.Join(kept, "; "), "undeclared reference to 'task' (in container '')", "task has no such field")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

// matches evaluates the rule, before a time. Whatever goes wrong is an error: the
// caller stops the task then.
func (c *Compiled) matches(ctx context.Context, vars map[string]any, end time.Time) (match bool, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interpreter.EvalCancelledError:
			err = p
		default:
			err = fmt.Errorf("evaluating it panicked: %v", p)
		}
	}()
	m := &meter{ctx: ctx, until: end, left: maxSteps}
	m.look()
	vars[meterName] = m
	v, _, err := c.program.Eval(vars)
	if err != nil && strings.HasPrefix(err.Error(), "no such overload") { // all that CEL says
		return false, fmt.Errorf("%w: a value is of another type than the expression needs, such as a string that is compared with a number", err)
	}
	if err != nil {
		return false, err
	}
	b, ok := v.Value().(bool)
	if !ok {
		return false, fmt.Errorf("it is %v, not true or false", v)
	}
	return b, nil
}
