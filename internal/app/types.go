package app

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/schema"
	"github.com/penstock-dev/penstock/protocol"
)

// Limits are the bounds and defaults of enqueue requests that cfg asks for. It
// compiles the schemas; the error joins those that can't be used, each with its
// key.
func Limits(cfg config.Orchestrator) (enqueue.Limits, error) {
	l := enqueue.Limits{
		MaxPayloadBytes: cfg.Enqueue.MaxPayloadBytes, MaxPayloadDepth: cfg.Enqueue.MaxPayloadDepth,
		MaxScheduleAhead: cfg.Enqueue.MaxScheduleAhead,
		Defaults: enqueue.Defaults{
			Timeout: cfg.Enqueue.DefaultTimeout, MaxRetries: cfg.Retry.MaxRetries, Policy: policy(cfg.Retry),
		},
		Types: make(map[string]*enqueue.Defaults, len(cfg.Types)),
	}
	var errs []error
	for _, typ := range slices.Sorted(maps.Keys(cfg.Types)) {
		d := cfg.DefaultsOf(typ)
		t := &enqueue.Defaults{Timeout: d.Timeout, HeartbeatTimeout: d.HeartbeatTimeout, MaxRetries: d.Retry.MaxRetries, Policy: policy(d.Retry)}
		if d.Schema != "" {
			var err error
			if t.Schema, err = schema.Load(d.Schema); err != nil {
				errs = append(errs, fmt.Errorf("types[%q].schema: %w", typ, err))
			}
		}
		l.Types[typ] = t
	}
	return l, errors.Join(errs...)
}

// Policies returns the retry policy of tasks of each type that bring none.
func Policies(cfg config.Orchestrator) func(typ string) protocol.RetryPolicy {
	byType, common := make(map[string]protocol.RetryPolicy, len(cfg.Types)), policy(cfg.Retry)
	for typ := range cfg.Types {
		byType[typ] = policy(cfg.DefaultsOf(typ).Retry)
	}
	return func(typ string) protocol.RetryPolicy {
		if p, ok := byType[typ]; ok {
			return p
		}
		return common
	}
}

// policy translates a section; see protocol.RetryPolicy for its meaning.
func policy(r config.Retry) protocol.RetryPolicy {
	p := protocol.RetryPolicy{
		Strategy: protocol.Strategy(r.Strategy), BaseMS: r.Base.Milliseconds(),
		MaxBackoffMS: r.MaxBackoff.Milliseconds(), JitterMaxMS: r.JitterMax.Milliseconds(),
	}
	for _, d := range r.Schedule {
		p.ScheduleMS = append(p.ScheduleMS, d.Milliseconds())
	}
	return p
}
