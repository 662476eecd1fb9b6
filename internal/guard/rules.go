package guard

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// Rules keeps the rules in force, as this process knows them. Who uses them in a
// transaction makes sure that they are still those of guard_state. It is safe for
// concurrent use; a nil *Rules has none, and is for databases without rules.
type Rules struct {
	known atomic.Pointer[Set]
}

// NewRules makes a Rules that knows none yet: Current reads them.
func NewRules() *Rules {
	r := &Rules{}
	r.known.Store(&Set{})
	return r
}

// without is what a database has whose rules never changed.
var without = &Set{Revision: 1}

// Known returns the rules that this process knows, without a look at Postgres.
// Others may have changed them since.
func (r *Rules) Known() *Set {
	if r == nil {
		return without
	}
	return r.known.Load()
}

// Current returns the rules in force, as q sees them. It costs one read of a row
// where they have not changed.
func (r *Rules) Current(ctx context.Context, q *dbsqlc.Queries) (*Set, error) {
	if r == nil {
		return without, nil
	}
	revision, err := q.GuardRevision(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the revision of the guard's rules: %w", err)
	}
	if known := r.known.Load(); known.Revision == revision {
		return known, nil
	}
	rows, err := q.GuardRules(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the guard's rules: %w", err)
	}
	var rules []*Rule
	for _, row := range rows {
		revision = row.GuardRevision
		if row.Name == nil {
			continue
		}
		rules = append(rules, &Rule{
			Name: *row.Name, Expression: store.Deref(row.Expression), Required: int(store.Deref(row.Required)), Approvers: row.Approvers,
			Timeout: time.Duration(store.Deref(row.TimeoutMs)) * time.Millisecond, Enabled: true, Description: store.Deref(row.Description),
			Revision: store.Deref(row.Revision),
		})
	}
	set := NewSet(revision, rules)
	// Revisions have no order. Whoever stores an older set here costs others one
	// look at Postgres.
	r.known.Store(set)
	return set, nil
}

// Rule returns the rule of a name that is in force; nil: there is none.
func (s *Set) Rule(name string) *Rule {
	for _, c := range s.rules {
		if c.Name == name {
			return &c.Rule
		}
	}
	for _, f := range s.broken {
		if f.Rule.Name == name {
			return f.Rule
		}
	}
	return nil
}

// Ask is the request to decide about a task that the rule stops.
func (f *Finding) Ask(task protocol.ID) *store.Ask {
	return &store.Ask{
		Task: task, Kind: protocol.ApprovalGuard, Name: f.Rule.Name, Revision: f.Rule.Revision, Digest: f.Digest, Required: f.Rule.Required,
		Approvers: f.Rule.Approvers, Timeout: f.Rule.Timeout, RuleError: f.Error, Prompt: f.Rule.Description,
	}
}
