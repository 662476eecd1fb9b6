package app

import (
	"context"
	"fmt"

	"github.com/penstock-dev/penstock/internal/lifecycle"
)

// configureGuard stores the rules of the configuration, if it names any or none,
// which count from now on for every orchestrator.
func (o *Orchestrator) configureGuard(ctx context.Context) error {
	rules := o.cfg.GuardRules()
	if rules == nil { // one that was started without its file must not remove any
		return nil
	}
	return lifecycle.Retry(ctx, o.log, "the guard's rules", o.cfg.Server.StartDeadline, func(ctx context.Context) error {
		if err := o.approval.Configure(ctx, rules); err != nil {
			return fmt.Errorf("guard.rules: %w", err)
		}
		return nil
	})
}

// named reports whether it matters to approvals that a caller has no name.
func (o *Orchestrator) named() bool { return !o.cfg.Guard.AllowAnonymous && o.entrance.tokens.Named() }
