package approval

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// errUnchanged rolls a change back that would change nothing.
var errUnchanged = errors.New("unchanged")

// byConfig is who changed the rules of the configuration.
const byConfig = "config"

// maxConfigRules is the most rules that are read at once.
const maxConfigRules = 10_000

// RuleOf is a stored rule.
func RuleOf(r *dbsqlc.GuardRule) *guard.Rule {
	return &guard.Rule{
		Name: r.Name, Expression: r.Expression, Required: int(r.Required), Approvers: r.Approvers, Timeout: time.Duration(r.TimeoutMs) * time.Millisecond,
		Enabled: r.Enabled, Description: r.Description, Source: r.Source, Revision: r.Revision,
	}
}

// SaveRule stores a rule under the name of principal. It counts for every task
// that is enqueued after it returns, on every replica. expected, if not nil, is
// the revision that the caller saw, 0: no rule. unchanged: it was stored as it is.
// Errors: TASK_INPUT_INVALID if it can't be used; TASK_INVALID_TRANSITION if
// another revision is stored, or the rule belongs to the configuration; or
// Postgres'.
func (s *Stage) SaveRule(ctx context.Context, r guard.Rule, expected *int64, principal string) (saved *guard.Rule, unchanged bool, err error) {
	r.Source = guard.SourceRPC
	if _, err := r.Check(); err != nil {
		return nil, false, err
	}
	err = s.changeRules(ctx, func(q *dbsqlc.Queries) error {
		was, err := stored(ctx, q, r.Name)
		if err != nil {
			return err
		}
		var revision int64
		if was != nil {
			revision = was.Revision
		}
		switch {
		case expected != nil && *expected != revision:
			return ruleConflict("expected_revision", "rule %s is at revision %d, not %d: look at it again", r.Name, revision, *expected)
		case was != nil && was.Source == guard.SourceConfig:
			return ruleConflict("name", "rule %s belongs to the configuration (guard.rules): change it there", r.Name)
		case was != nil && was.Same(&r):
			saved = was
			return errUnchanged
		}
		saved = &r
		r.Revision, err = saveRule(ctx, q, &r, principal)
		return err
	})
	if errors.Is(err, errUnchanged) {
		return saved, true, nil
	}
	return saved, false, err
}

// DeleteRule removes a rule. Tasks that it stopped go on waiting. Errors are those
// of SaveRule, and TASK_NOT_FOUND.
func (s *Stage) DeleteRule(ctx context.Context, name, principal string) error {
	return s.changeRules(ctx, func(q *dbsqlc.Queries) error {
		was, err := stored(ctx, q, name)
		switch {
		case err != nil:
			return err
		case was == nil:
			return protocol.Errorf(protocol.CodeNotFound, "name", "no rule %q", name)
		case was.Source == guard.SourceConfig:
			return ruleConflict("name", "rule %s belongs to the configuration (guard.rules): remove it there", name)
		}
		_, err = q.DeleteRule(ctx, person(principal), name)
		return err
	})
}

// Configure replaces the rules of the configuration: those given are stored, and
// others that came from it are removed. Rules that do not differ keep their
// revision. What changed is logged. The error names the rule that can't be used;
// nothing is stored then.
func (s *Stage) Configure(ctx context.Context, rules []guard.Rule) error {
	wanted := make(map[string]bool, len(rules))
	for i := range rules {
		r := &rules[i]
		r.Source = guard.SourceConfig
		if _, err := r.Check(); err != nil {
			return fmt.Errorf("guard.rules[%q]: %w", r.Name, err)
		}
		wanted[r.Name] = true
	}
	var changed []change
	err := s.changeRules(ctx, func(q *dbsqlc.Queries) (err error) {
		if changed, err = configure(ctx, q, rules, wanted); err == nil && len(changed) == 0 {
			return errUnchanged
		}
		return err
	})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, c := range changed {
		level := slog.LevelInfo
		if c.what != "added" { // tasks may run now that people were to look at before
			level = slog.LevelWarn
		}
		s.o.Log.Log(ctx, level, "the configuration (guard.rules) changed a rule of the guard", "rule", c.rule, "change", c.what, "was", c.was)
	}
	return nil
}

// change is what a configuration did to one rule; was is the expression before.
type change struct{ rule, what, was string }

// configure stores the wanted rules and removes the others of the configuration.
func configure(ctx context.Context, q *dbsqlc.Queries, rules []guard.Rule, wanted map[string]bool) (changed []change, err error) {
	rows, err := q.ListRules(ctx, "", maxConfigRules)
	if err != nil {
		return nil, fmt.Errorf("read the guard's rules: %w", err)
	}
	have := map[string]*guard.Rule{}
	for _, row := range rows {
		have[row.Name] = RuleOf(row)
		if row.Source == guard.SourceConfig && !wanted[row.Name] {
			changed = append(changed, change{row.Name, "removed", row.Expression})
			if _, err := q.DeleteRule(ctx, byConfig, row.Name); err != nil {
				return nil, fmt.Errorf("remove rule %s: %w", row.Name, err)
			}
		}
	}
	for i := range rules {
		r := &rules[i]
		c := change{rule: r.Name, what: "added"}
		if was := have[r.Name]; was != nil {
			if was.Same(r) {
				continue
			}
			c.what, c.was = "changed", was.Expression
		}
		changed = append(changed, c)
		if _, err := saveRule(ctx, q, r, byConfig); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

// changeRules runs fn in a transaction that changes the rules; one at a time.
func (s *Stage) changeRules(ctx context.Context, fn func(q *dbsqlc.Queries) error) error {
	err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		if _, err := q.ChangeGuard(ctx); err != nil {
			return fmt.Errorf("change the guard's rules: %w", err)
		}
		return fn(q)
	})
	if err == nil {
		_, err = s.o.Rules.Current(ctx, s.o.Store.Queries)
	}
	return err
}

func stored(ctx context.Context, q *dbsqlc.Queries, name string) (*guard.Rule, error) {
	row, err := q.GetRule(ctx, name)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read rule %s: %w", name, err)
	}
	return RuleOf(row), nil
}

func saveRule(ctx context.Context, q *dbsqlc.Queries, r *guard.Rule, principal string) (int64, error) {
	revision, err := q.SaveRule(ctx, dbsqlc.SaveRuleParams{
		Name: r.Name, Expression: r.Expression, Required: int32(r.Required), Approvers: r.Approvers, TimeoutMs: r.Timeout.Milliseconds(),
		Enabled: r.Enabled, Description: r.Description, Source: r.Source, ChangedBy: person(principal),
	})
	if err != nil {
		return 0, fmt.Errorf("store rule %s: %w", r.Name, err)
	}
	return revision, nil
}

func person(principal string) string {
	if principal == "" {
		return protocol.Anonymous
	}
	return principal
}

func ruleConflict(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidTransition, field, format, args...)
}
