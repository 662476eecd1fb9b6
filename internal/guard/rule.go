// Package guard judges tasks by rules: CEL expressions over a task's fields and
// payload that say which tasks people must approve before they run. A rule that
// can't be evaluated for a task stops it, too.
package guard

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/protocol"
)

// Bounds of a rule.
const (
	// MaxExpression is the most bytes of an expression.
	MaxExpression = 4096
	// MaxApprovers is the most entries of a list of approvers.
	MaxApprovers = protocol.MaxApprovers
	maxText      = 1000
)

// Sources of rules.
const (
	SourceConfig = "config"
	SourceRPC    = "rpc"
)

// Rule says which tasks wait for whom.
type Rule struct {
	// Name is 1 to 64 of A-Z a-z 0-9 . _ -
	Name string
	// Expression is CEL of type bool over task; see Compile.
	Expression string
	// Required is how many different people must approve, 1 or 2.
	Required int
	// Approvers are principals, and role:NAME, in lower case.
	Approvers []string
	// Timeout is how long people have to decide, whole milliseconds.
	Timeout     time.Duration
	Enabled     bool
	Description string
	Source      string
	// Revision counts the changes of the name, from 1; 0: not stored yet.
	Revision int64
}

var ruleName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// Check fills in what is left out and compiles the rule. The error is an
// *protocol.Error with code TASK_INPUT_INVALID that names the field.
func (r *Rule) Check() (*Compiled, error) {
	if !ruleName.MatchString(r.Name) {
		return nil, bad("name", "is %q, want 1 to 64 of A-Z a-z 0-9 . _ -", clip(r.Name))
	}
	var err error
	if r.Required, r.Approvers, r.Timeout, err = protocol.CheckApprovers(r.Required, r.Approvers, r.Timeout); err != nil {
		return nil, err
	}
	if len(r.Description) > maxText || protocol.Text(r.Description) != r.Description {
		return nil, bad("description", "must be at most %d bytes of UTF-8 without NUL", maxText)
	}
	return r.Compile()
}

// Same reports whether two rules stop the same tasks for the same people.
func (r *Rule) Same(o *Rule) bool {
	return r.Name == o.Name && r.Expression == o.Expression && r.Required == o.Required && slices.Equal(r.Approvers, o.Approvers) &&
		r.Timeout == o.Timeout && r.Enabled == o.Enabled && r.Description == o.Description && r.Source == o.Source
}

func bad(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInputInvalid, field, format, args...)
}

func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}
