package alert

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

const (
	// hysteresis: what is measured must fall to this part of its threshold
	// before an alert resolves, so that one that hovers around it is one alert.
	hysteresis = 0.8
	// maxTenants is how many tenants one evaluation looks at, those with most
	// dead letters first.
	maxTenants = 1000
)

// counts are live tasks by state.
type counts map[protocol.State]int64

// underWay is how many tasks are due or begun and not finished.
func (c counts) underWay() (n int64) {
	for state, k := range c {
		if state != protocol.StatePending && state != protocol.StateWaitingApproval {
			n += k
		}
	}
	return n
}

// share is the part of the tasks under way that is retrying, 0 to 1.
func (c counts) share() float64 {
	return float64(c[protocol.StateRetrying]) / float64(max(c.underWay(), 1))
}

func (s *Stage) countLive(ctx context.Context) (counts, error) {
	rows, err := s.o.Store.CountLive(ctx)
	if err != nil {
		return nil, fmt.Errorf("count live tasks: %w", err)
	}
	tasks := counts{}
	for _, r := range rows {
		tasks[protocol.State(r.State)] = r.Count
	}
	return tasks, nil
}

// finding is an alert that is to fire.
type finding struct {
	kind             protocol.AlertKind
	tenant           string
	value, threshold float64
	window           time.Duration
	reason           string
}

func (s *Stage) retryingShare(ctx context.Context, tasks counts) error {
	n, percent := tasks[protocol.StateRetrying], 100*tasks.share()
	f := finding{
		kind: protocol.AlertRetryingShare, value: percent, threshold: float64(s.o.RetryingPercent),
		reason: fmt.Sprintf("%.1f %% of the tasks under way are retrying (%d of %d), more than alerts.retrying_percent = %d: "+
			"see their errors in `orchestrator task list --state retrying -o json`, and check what their handlers depend on",
			percent, n, tasks.underWay(), s.o.RetryingPercent),
	}
	minimum := float64(s.o.RetryingMinimum)
	switch {
	case percent > f.threshold && float64(n) >= minimum:
		return s.fire(ctx, f)
	case percent <= hysteresis*f.threshold || float64(n) < hysteresis*minimum:
		return s.resolve(ctx, f.kind, "")
	}
	_, err := s.keep(ctx, f)
	return err
}

func (s *Stage) dlqGrowth(ctx context.Context) error {
	threshold := float64(s.o.DLQGrowth)
	rows, err := s.o.Store.DeadGrowth(ctx, dbsqlc.DeadGrowthParams{
		WindowMs: s.o.Window.Milliseconds(), MinCount: hysteresis * threshold, MaxRows: maxTenants,
	})
	if err != nil {
		return fmt.Errorf("count new dead letters: %w", err)
	}
	var errs error
	above := map[string]bool{}
	for _, r := range rows {
		above[r.Tenant] = true
		f := finding{
			kind: protocol.AlertDLQGrowth, tenant: r.Tenant, value: float64(r.Count), threshold: threshold, window: s.o.Window,
			reason: fmt.Sprintf("tenant %s got %d new dead letters within %s, more than alerts.dlq_growth = %d: "+
				"see their errors in `dlq-replay list --tenant %s --group-by fingerprint`, and requeue them when the cause is gone",
				r.Tenant, r.Count, s.o.Window, s.o.DLQGrowth, r.Tenant),
		}
		if r.Count > int64(s.o.DLQGrowth) {
			errs = errors.Join(errs, s.fire(ctx, f))
		} else {
			_, err := s.keep(ctx, f)
			errs = errors.Join(errs, err)
		}
	}
	if len(rows) == maxTenants {
		return errs // a tenant that is missing may have been left out
	}
	firing, err := s.o.Store.FiringAlerts(ctx, string(protocol.AlertDLQGrowth))
	if err != nil {
		return errors.Join(errs, fmt.Errorf("read firing alerts: %w", err))
	}
	for _, tenant := range firing {
		if !above[tenant] {
			errs = errors.Join(errs, s.resolve(ctx, protocol.AlertDLQGrowth, tenant))
		}
	}
	return errs
}

// invalidTransitions resolves: each process raises what it sees; see report.
func (s *Stage) invalidTransitions(ctx context.Context) error {
	tenants, err := s.o.Store.ResolveQuietAlerts(ctx, string(protocol.AlertInvalidTransitions), s.o.Window.Milliseconds())
	if err != nil {
		return fmt.Errorf("resolve %s: %w", protocol.AlertInvalidTransitions, err)
	}
	for _, tenant := range tenants {
		s.resolved(protocol.AlertInvalidTransitions, tenant)
	}
	return nil
}

// report raises what this process saw refused in a row.
func (s *Stage) report(ctx context.Context) error {
	n := s.row.take()
	if n == 0 {
		return nil
	}
	err := s.fire(ctx, finding{
		kind: protocol.AlertInvalidTransitions, value: float64(n), threshold: float64(s.o.InvalidInARow), window: s.o.Window,
		reason: fmt.Sprintf("%d outcomes in a row were refused with %s within %s, alerts.invalid_in_a_row = %d: "+
			"see `orchestrator task watch --type %s --position earliest`, and look for workers that were stalled or that run an old version, "+
			"and for a foreign writer to %s", n, protocol.CodeInvalidTransition, s.o.Window, s.o.InvalidInARow, protocol.EventTransitionRejected, protocol.StreamResult),
	})
	if err != nil {
		s.row.putBack(n)
	}
	return err
}

// keep notes that an alert goes on; found is false if it is not firing.
func (s *Stage) keep(ctx context.Context, f finding) (found bool, err error) {
	n, err := s.o.Store.KeepAlert(ctx, dbsqlc.KeepAlertParams{Kind: string(f.kind), Tenant: f.tenant, Value: f.value, Threshold: f.threshold})
	if err != nil {
		return false, fmt.Errorf("keep alert %s: %w", f.kind, err)
	}
	return n > 0, nil
}

// fire raises an alert unless it is firing already. Of several replicas that
// raise the same one at once, one gets through.
func (s *Stage) fire(ctx context.Context, f finding) error {
	if found, err := s.keep(ctx, f); found || err != nil {
		return err
	}
	id, severity := protocol.AlertID(f.kind, f.tenant), f.kind.Severity()
	n, err := s.o.Store.RaiseAlert(ctx, dbsqlc.RaiseAlertParams{
		Kind: string(f.kind), Tenant: f.tenant, ID: pgid.ID(id), Value: f.value, Threshold: f.threshold,
		Reason: f.reason, Actor: protocol.ActorAlerts,
		Data: protocol.AlertData{
			Kind: f.kind, Severity: severity, Tenant: f.tenant, Value: f.value, Threshold: f.threshold, WindowMS: f.window.Milliseconds(),
		}.JSON(),
	})
	if err != nil {
		return fmt.Errorf("raise alert %s: %w", f.kind, err)
	}
	if n == 0 {
		return nil
	}
	s.raised.WithLabelValues(string(f.kind)).Inc()
	s.o.Log.Warn("alert raised", "kind", f.kind, "severity", severity, "tenant", f.tenant, "value", f.value, "threshold", f.threshold, "reason", f.reason)
	return nil
}

func (s *Stage) resolve(ctx context.Context, kind protocol.AlertKind, tenant string) error {
	n, err := s.o.Store.ResolveAlert(ctx, string(kind), tenant)
	if err != nil {
		return fmt.Errorf("resolve alert %s: %w", kind, err)
	}
	if n > 0 {
		s.resolved(kind, tenant)
	}
	return nil
}

func (s *Stage) resolved(kind protocol.AlertKind, tenant string) {
	s.o.Log.Info("alert resolved", "kind", kind, "tenant", tenant)
}
