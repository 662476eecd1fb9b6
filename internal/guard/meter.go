package guard

import (
	"context"
	"fmt"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// Bounds of an evaluation, so that no rule holds up the tasks that it judges.
// Whatever ends an evaluation stops the task.
const (
	// maxSteps lets a rule go through each payload of the default size once. That
	// takes up to 0.1 s of a CPU (20 to 40 ns a step, measured). A step is about one
	// node of the expression in one turn of a loop. Steps are the same on each
	// machine, busy or not, so a rule always judges the same.
	maxSteps = 2_000_000
	// maxJudging bounds all rules of one task: many of them, or what steps do not
	// tell. A transaction may be open meanwhile, and Postgres ends it after 30 s.
	maxJudging = 10 * time.Second
	// lookEvery is how many steps are made between two looks at the clock.
	lookEvery = 2000
)

// meterName is under which the meter of an evaluation is found. No expression can
// have such a name.
const meterName = "@meter"

// meter counts what one evaluation does. A nil meter counts nothing.
type meter struct {
	ctx         context.Context
	until       time.Time
	left, quiet int
}

func meterOf(frame *interpreter.ExecutionFrame) *meter {
	v, _ := frame.ResolveName(meterName)
	m, _ := v.(*meter)
	return m
}

// spend counts steps. It ends the evaluation if there were too many: by a panic,
// as CEL itself does it, since a value that is an error may be caught by || and &&.
func (m *meter) spend(steps int) {
	if m == nil {
		return
	}
	if steps < 0 || steps > m.left {
		m.left = 0
		stop("it is too much work: more than %d steps for one task", maxSteps)
	}
	m.left -= steps
	if m.quiet += steps; m.quiet >= lookEvery {
		m.quiet = 0
		m.look()
	}
}

// look ends an evaluation that takes too long or that nobody waits for.
func (m *meter) look() {
	if m.ctx.Err() != nil {
		stop("it was not evaluated to its end: %v", context.Cause(m.ctx))
	}
	if time.Now().After(m.until) {
		stop("it takes too long: the rules of one task take more than %s", maxJudging)
	}
}

func stop(format string, args ...any) {
	panic(interpreter.EvalCancelledError{Message: fmt.Sprintf(format, args...), Cause: interpreter.CostLimitExceeded})
}

// What calls cost, in bytes or elements a step, from measurements.
const (
	bytesAStep     = 4 // that are read, copied or quoted in an error
	comparedAStep  = 256
	stepsAnElement = 4
	stepsAMember   = 10
	// shortText is not worth a look.
	shortText = 64
)

// read counts a text that a function reads.
func (m *meter) read(n, aStep int) {
	if n > shortText {
		m.spend(n / aStep)
	}
}

// equal counts what comparing two values takes, which must be done afterwards,
// and reports whether they seem to be equal. It stops where that would stop, but
// goes through all members of a map: they have no order, and the steps must not
// depend on it.
func (m *meter) equal(a, b ref.Val) bool {
	m.spend(1)
	switch a := a.(type) {
	case types.String:
		b, ok := b.(types.String)
		if !ok || len(a) != len(b) {
			return false
		}
		m.read(len(a), comparedAStep)
		return a == b
	case traits.Lister:
		b, ok := b.(traits.Lister)
		if !ok || a.Size() != b.Size() {
			return false
		}
		m.spend(stepsAMember)
		n, _ := a.Size().(types.Int)
		for i := types.Int(0); i < n; i++ {
			m.spend(stepsAnElement)
			if !m.equal(a.Get(i), b.Get(i)) {
				return false
			}
		}
		return true
	case traits.Mapper:
		b, ok := b.(traits.Mapper)
		return ok && a.Size() == b.Size() && m.equalMaps(a, b)
	}
	return types.Equal(a, b) == types.True
}

func (m *meter) equalMaps(a, b traits.Mapper) bool {
	n, _ := a.Size().(types.Int)
	m.spend(stepsAMember * (1 + int(n)))
	same := true
	for it := a.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		mine, _ := a.Find(key)
		other, ok := b.Find(key)
		same = ok && m.equal(mine, other) && same
	}
	return same
}

// contains counts what looking for a value in a list takes.
func (m *meter) contains(list traits.Lister, v ref.Val) {
	n, _ := list.Size().(types.Int)
	for i := types.Int(0); i < n; i++ {
		m.spend(stepsAnElement)
		if m.equal(list.Get(i), v) {
			return
		}
	}
}

// add is a + b. A list is made as one list, not as a view of two: those would be
// nested, and slow to read.
func (m *meter) add(a, b ref.Val) ref.Val {
	if !a.Type().HasTrait(traits.AdderType) {
		return types.MaybeNoSuchOverloadErr(a)
	}
	if a, ok := a.(types.String); ok {
		if b, ok := b.(types.String); ok {
			m.read(len(a)+len(b), bytesAStep)
		}
	}
	if a, ok := a.(types.Bytes); ok {
		if b, ok := b.(types.Bytes); ok {
			m.read(len(a)+len(b), bytesAStep)
		}
	}
	sum := a.(traits.Adder).Add(b)
	list, ok := sum.(traits.Lister)
	if _, own := sum.(traits.MutableLister); !ok || own { // own: of map and filter
		return sum
	}
	n, _ := list.Size().(types.Int)
	m.spend(stepsAnElement * int(n))
	elems := make([]ref.Val, n)
	for i := range elems {
		elems[i] = list.Get(types.Int(i))
	}
	return types.NewRefValList(types.DefaultTypeAdapter, elems)
}
