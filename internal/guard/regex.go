package guard

import (
	"fmt"
	"regexp"
	"regexp/syntax"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

// Bounds of regular expressions, whose time is that of their size times the
// text's.
const (
	maxPattern     = MaxExpression // bytes
	maxPatternSize = 10_000        // nodes, repetitions counted
	matchedAStep   = 8             // bytes of text times nodes
	stepsAPattern  = 50            // to compile a byte or a node of one
)

// pattern is a regular expression and its size.
type pattern struct {
	re   *regexp.Regexp
	size int
}

func compilePattern(s string) (*pattern, error) {
	if len(s) > maxPattern {
		return nil, fmt.Errorf("a regular expression has %d bytes, at most %d are allowed", len(s), maxPattern)
	}
	tree, err := syntax.Parse(s, syntax.Perl)
	if err != nil {
		return nil, err
	}
	size := nodes(tree)
	if size > maxPatternSize {
		return nil, fmt.Errorf("a regular expression has %d nodes with its repetitions, at most %d are allowed", size, maxPatternSize)
	}
	re, err := regexp.Compile(s)
	return &pattern{re, size}, err
}

// nodes is about how large the program of a regular expression is.
func nodes(re *syntax.Regexp) int {
	n := 1
	switch re.Op {
	case syntax.OpLiteral:
		n = len(re.Rune)
	case syntax.OpCharClass: // of ranges, in which Go looks by halves
		n += min(len(re.Rune)/2, 8)
	}
	for _, sub := range re.Sub {
		n += nodes(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, 1<<20)
}

// matcher is the function matches. A pattern of the rule itself is compiled once.
func matcher(c interpreter.InterpretableCall, text, pat interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	var own *pattern
	if k, ok := pat.(interpreter.InterpretableConst); ok {
		s, ok := k.Value().(types.String)
		if !ok {
			return c, nil
		}
		var err error
		if own, err = compilePattern(string(s)); err != nil {
			return nil, err
		}
	}
	match := &call{InterpretableCall: c, a: text, b: pat, run: func(m *meter, a, b ref.Val) ref.Val {
		s, ok := a.(types.String)
		if !ok {
			return types.MaybeNoSuchOverloadErr(a)
		}
		p := own
		if p == nil {
			expr, ok := b.(types.String)
			if !ok {
				return types.MaybeNoSuchOverloadErr(b)
			}
			m.spend(stepsAPattern * min(len(expr), maxPattern))
			var err error
			if p, err = compilePattern(string(expr)); err != nil {
				return types.WrapErr(err)
			}
			m.spend(stepsAPattern * p.size)
		}
		m.spend((len(s) + 1) * p.size / matchedAStep)
		return types.Bool(p.re.MatchString(string(s)))
	}}
	return &opaque{match}, nil
}

// opaque hides that a node is a call: CEL would replace it by its own, which is
// not metered.
type opaque struct{ interpreter.InterpretableV2 }
