package guard

import (
	"errors"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// plan tells which nodes of an expression are metered, by their ids.
type plan struct {
	turns  map[int64]int  // the steps of a loop's turn, at the node that is its body
	ranges map[int64]bool // what a loop goes through
	args   map[int64]bool // what a function reads
	loops  int            // turns that are metered
}

func newPlan(root ast.Expr) *plan {
	p := &plan{map[int64]int{}, map[int64]bool{}, map[int64]bool{}, 0}
	ast.PostOrderVisit(root, ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.ComprehensionKind:
			c := e.AsComprehension()
			p.turns[c.LoopStep().ID()] = stepsATurn + steps(c.LoopStep()) + steps(c.LoopCondition())
			p.ranges[c.IterRange().ID()] = true
		case ast.CallKind:
			c := e.AsCall()
			switch c.FunctionName() {
			case operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.Conditional, operators.Index, operators.NotStrictlyFalse:
				return // they read no text, and the planner looks at what they are made of
			}
			if c.IsMemberFunction() {
				p.args[c.Target().ID()] = true
			}
			for _, a := range c.Args() {
				p.args[a.ID()] = true
			}
		}
	}))
	return p
}

// What costs more than a node: a turn of a loop by itself, making a value, and a
// function that may read a time zone's file.
const (
	stepsATurn = 4
	stepsAList = 10
	stepsAMap  = 30
	stepsAZone = 500
)

// steps are those of an expression without the turns of its loops.
func steps(e ast.Expr) int {
	n := 1
	switch e.Kind() {
	case ast.CallKind:
		c := e.AsCall()
		if c.IsMemberFunction() {
			n += steps(c.Target())
			if _, ok := zoned[c.FunctionName()]; ok && len(c.Args()) > 0 {
				n += stepsAZone
			}
		}
		for _, a := range c.Args() {
			n += steps(a)
		}
	case ast.SelectKind:
		n += steps(e.AsSelect().Operand())
	case ast.ListKind:
		n += stepsAList
		for _, el := range e.AsList().Elements() {
			n += steps(el)
		}
	case ast.MapKind:
		n += stepsAMap
		for _, entry := range e.AsMap().Entries() {
			n += steps(entry.AsMapEntry().Key()) + steps(entry.AsMapEntry().Value())
		}
	case ast.StructKind:
		n += stepsAMap
		for _, f := range e.AsStruct().Fields() {
			n += steps(f.AsStructField().Value())
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		n += steps(c.IterRange()) + steps(c.AccuInit()) + steps(c.Result()) + stepsAList
	}
	return n
}

var zoned = map[string]bool{
	overloads.TimeGetFullYear: true, overloads.TimeGetMonth: true, overloads.TimeGetDayOfYear: true, overloads.TimeGetDayOfMonth: true,
	overloads.TimeGetDate: true, overloads.TimeGetDayOfWeek: true, overloads.TimeGetHours: true, overloads.TimeGetMinutes: true,
	overloads.TimeGetSeconds: true, overloads.TimeGetMilliseconds: true,
}

// decorate puts meters into a program while it is made.
func (p *plan) decorate(node interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	id, made := node.ID(), node
	if c, ok := node.(interpreter.InterpretableCall); ok {
		var err error
		if made, err = heavy(c); err != nil {
			return nil, err
		}
	}
	_, isConst := node.(interpreter.InterpretableConst)
	_, isMade := node.(interpreter.InterpretableConstructor)
	if p.ranges[id] || p.args[id] && !isConst && !isMade { // the planner looks at those two
		made = &metered{InterpretableV2: made, text: p.args[id], members: p.ranges[id]}
	}
	if n, ok := p.turns[id]; ok {
		p.loops++
		made = &metered{InterpretableV2: made, before: n}
	}
	return made, nil
}

// complete reports whether each loop is metered.
func (p *plan) complete() error {
	if p.loops < len(p.turns) {
		return errors.New("its loops can't be bounded")
	}
	return nil
}

// metered counts steps before a node, and what its value costs.
type metered struct {
	interpreter.InterpretableV2
	before        int
	text, members bool
}

// Exec implements interpreter.InterpretableV2.
func (n *metered) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	if n.before > 0 {
		meterOf(frame).spend(n.before)
	}
	v := n.InterpretableV2.Exec(frame)
	switch v := v.(type) {
	case types.String:
		if n.text && len(v) > shortText {
			meterOf(frame).read(len(v), bytesAStep)
		}
	case types.Bytes:
		if n.text && len(v) > shortText {
			meterOf(frame).read(len(v), bytesAStep)
		}
	case traits.Mapper:
		if size, ok := v.Size().(types.Int); ok && n.members { // a loop gathers all keys first
			meterOf(frame).spend(stepsAMember * int(size))
		}
	}
	return v
}

// Eval implements interpreter.Interpretable.
func (n *metered) Eval(vars interpreter.Activation) ref.Val { return n.Exec(interpreter.AsFrame(vars)) }

// call is a function of two values that counts what it does with them.
type call struct {
	interpreter.InterpretableCall
	a, b interpreter.InterpretableV2
	run  func(m *meter, a, b ref.Val) ref.Val
}

// Exec implements interpreter.InterpretableV2.
func (c *call) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	a := c.a.Exec(frame)
	if types.IsUnknownOrError(a) {
		return a
	}
	b := c.b.Exec(frame)
	if types.IsUnknownOrError(b) {
		return b
	}
	return types.LabelErrNode(c.ID(), c.run(meterOf(frame), a, b))
}

// Eval implements interpreter.Interpretable.
func (c *call) Eval(vars interpreter.Activation) ref.Val { return c.Exec(interpreter.AsFrame(vars)) }

// heavy replaces calls that may take long in one step.
func heavy(c interpreter.InterpretableCall) (interpreter.InterpretableV2, error) {
	args := c.Args()
	if len(args) != 2 {
		return c, nil
	}
	out := &call{InterpretableCall: c, a: args[0], b: args[1]}
	switch c.Function() {
	case operators.Equals:
		out.run = func(m *meter, a, b ref.Val) ref.Val {
			m.equal(a, b)
			return types.Equal(a, b)
		}
	case operators.NotEquals:
		out.run = func(m *meter, a, b ref.Val) ref.Val {
			m.equal(a, b)
			return types.Bool(types.Equal(a, b) != types.True)
		}
	case operators.In:
		out.run = in
	case operators.Add:
		out.run = (*meter).add
	case overloads.Matches:
		return matcher(c, args[0], args[1])
	default:
		return c, nil
	}
	return out, nil
}

func in(m *meter, v, all ref.Val) ref.Val {
	if !all.Type().HasTrait(traits.ContainerType) {
		return types.MaybeNoSuchOverloadErr(all)
	}
	if list, ok := all.(traits.Lister); ok {
		m.contains(list, v)
	}
	return all.(traits.Container).Contains(v)
}
