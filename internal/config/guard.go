package config

import (
	"maps"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/protocol"
)

// Guard says which tasks wait for people.
type Guard struct {
	Rules map[string]GuardRule `mapstructure:"rules" doc:"Rules by name (file only): tasks that a rule's expression is true for wait until people approve. They replace those that came from a configuration before; rules that were saved by RPC are left alone. With several orchestrators, the one that started last decides. A configuration without the key leaves all rules as they are; {} removes those that came from one."`

	AllowAnonymous bool `mapstructure:"allow_anonymous" doc:"Let people approve tasks that a caller without a token had a hand in, although there is a tokens file: the caller may be the very person who approves. false: an anonymous caller can't enqueue a task that a rule stops, and nobody can approve one that was stopped later."`
}

// GuardRule is one of them.
type GuardRule struct {
	Expression  string        `mapstructure:"expression" doc:"CEL of type bool over task (docs/approvals.md), e.g. task.type == \"payment.refund\" && task.payload.amount > 1000. A task for which it can't be evaluated waits, too."`
	Required    int           `mapstructure:"required" doc:"How many different people must approve. 0: one." min:"1" max:"2" zero:"true"`
	Approvers   []string      `mapstructure:"approvers" doc:"Who may approve: principals, and role:NAME. Empty: role:approver."`
	Timeout     time.Duration `mapstructure:"timeout" doc:"A task about which nobody decided for this long is rejected. Whole milliseconds. 0: 24h." min:"1s" max:"8784h" zero:"true"`
	Enabled     *bool         `mapstructure:"enabled" doc:"false: the rule stops nothing. Unset: true."`
	Description string        `mapstructure:"description" doc:"What people are told who are asked."`
}

// GuardRuleKeys lists the keys of one entry of an orchestrator's guard.rules.
func GuardRuleKeys() []Key { return entryKeys(GuardRule{}) }

// GuardRules are the rules of the configuration, in order of their names; nil: it
// does not say which there are.
func (c Orchestrator) GuardRules() []guard.Rule {
	if c.Guard.Rules == nil {
		return nil
	}
	out := make([]guard.Rule, 0, len(c.Guard.Rules))
	for _, name := range slices.Sorted(maps.Keys(c.Guard.Rules)) {
		r := c.Guard.Rules[name]
		out = append(out, guard.Rule{
			Name: name, Expression: r.Expression, Required: r.Required, Approvers: r.Approvers, Timeout: r.Timeout,
			Enabled: r.Enabled == nil || *r.Enabled, Description: r.Description, Source: guard.SourceConfig,
		})
	}
	return out
}

// guard checks each rule as saving it would.
func (f *faults) guard(c Orchestrator) {
	for _, r := range c.GuardRules() {
		key := `guard.rules["` + r.Name + `"]`
		_, err := r.Check()
		switch e, ok := err.(*protocol.Error); {
		case err == nil:
		case ok && e.Field != "name":
			field := e.Field
			if field == "timeout_ms" {
				field = "timeout"
			}
			f.addf(key+"."+field, "%s", e.Message)
		case ok:
			f.addf(key, "%s", e.Message)
		default:
			f.addf(key, "%v", err)
		}
	}
}
