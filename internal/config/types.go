package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	jsonschema "github.com/penstock-dev/penstock/internal/schema"
)

// Type is what applies to tasks of one type that bring nothing of their own.
// What is nil, or "" for Schema, is unset; see Orchestrator.DefaultsOf.
type Type struct {
	MaxRetries       *int            `mapstructure:"max_retries" doc:"Additional attempts after the first." min:"0" max:"1000" inherits:"retry.max_retries"`
	Timeout          *time.Duration  `mapstructure:"timeout" doc:"Start-to-close timeout. Whole milliseconds." min:"1ms" max:"596h31m23.647s" inherits:"enqueue.default_timeout"`
	HeartbeatTimeout *time.Duration  `mapstructure:"heartbeat_timeout" doc:"How long a handler may go without reporting progress before its execution is ended (TASK_TIMEOUT). Unset: as long as it likes. Whole milliseconds." min:"1ms" max:"596h31m23.647s"`
	Strategy         *string         `mapstructure:"strategy" doc:"How the delay grows with each retry, as in retry.strategy." oneof:"exponential,linear,fixed,schedule" inherits:"retry.strategy"`
	Base             *time.Duration  `mapstructure:"base" doc:"Delay before the first retry, without jitter. Whole milliseconds." min:"1ms" max:"8760h" inherits:"retry.base"`
	MaxBackoff       *time.Duration  `mapstructure:"max_backoff" doc:"Upper bound of a delay before jitter, at least the base. Whole milliseconds." min:"1ms" max:"8760h" inherits:"retry.max_backoff"`
	JitterMax        *time.Duration  `mapstructure:"jitter_max" doc:"Largest random addition to a delay, inclusive. Whole milliseconds." min:"0s" max:"8760h" inherits:"retry.jitter_max"`
	Schedule         []time.Duration `mapstructure:"schedule" doc:"The delays of strategy schedule, as in retry.schedule." min:"1ms" max:"8760h" inherits:"retry.schedule"`
	Schema           string          `mapstructure:"schema" doc:"File with the JSON Schema that payloads must follow; a relative name is below the configuration file's directory. Empty: any payload."`
}

// TypeDefaults is what applies to a task that brings nothing of its own.
type TypeDefaults struct {
	// Retry has a Schedule only with strategy schedule.
	Retry   Retry
	Timeout time.Duration
	// HeartbeatTimeout is 0 if there is none.
	HeartbeatTimeout time.Duration
	// Schema is the file of a JSON Schema, or "".
	Schema string
}

// DefaultsOf returns what applies to tasks of a type: its entry in Types, and
// retry and enqueue.default_timeout for whatever that leaves unset.
func (c Orchestrator) DefaultsOf(typ string) TypeDefaults {
	t := c.Types[typ]
	d := TypeDefaults{Retry: c.Retry, Timeout: c.Enqueue.DefaultTimeout, Schema: t.Schema}
	take(&d.Retry.MaxRetries, t.MaxRetries)
	take(&d.Timeout, t.Timeout)
	take(&d.HeartbeatTimeout, t.HeartbeatTimeout)
	take(&d.Retry.Strategy, t.Strategy)
	take(&d.Retry.Base, t.Base)
	take(&d.Retry.MaxBackoff, t.MaxBackoff)
	take(&d.Retry.JitterMax, t.JitterMax)
	if t.Schedule != nil {
		d.Retry.Schedule = t.Schedule
	}
	if d.Retry.Strategy != strategySchedule {
		d.Retry.Schedule = nil
	}
	return d
}

// take stores *from if that is set.
func take[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

const (
	strategySchedule = "schedule"
	// maxSchedule is the most delays of a schedule.
	maxSchedule = 100
)

// typeKey is how messages name an entry of types: types may have dots.
func typeKey(typ string) string { return fmt.Sprintf("types[%q]", typ) }

// retry checks the policy of tasks whose type has none.
func (f *faults) retry(r Retry) {
	f.wholeMillis("retry.base", r.Base)
	f.wholeMillis("retry.max_backoff", r.MaxBackoff)
	f.wholeMillis("retry.jitter_max", r.JitterMax)
	if r.MaxBackoff < r.Base {
		f.addf("retry.max_backoff", "must be at least retry.base (%s), got %s", durationText(r.Base), durationText(r.MaxBackoff))
	}
	f.schedule("retry.schedule", r.Strategy, r.Schedule)
}

// schedule checks a list of delays against the strategy that it is for.
func (f *faults) schedule(key, strategy string, list []time.Duration) {
	switch {
	case strategy != strategySchedule && len(list) > 0:
		f.addf(key, "is for strategy schedule only, not for %s", strategy)
	case strategy == strategySchedule && len(list) == 0:
		f.addf(key, "is required for strategy schedule: a list of delays")
	case len(list) > maxSchedule:
		f.addf(key, "must have at most %d delays, got %d", maxSchedule, len(list))
	}
	for _, d := range list {
		f.wholeMillis(key, d)
	}
}

// types checks each entry on its own, and what it makes with what it inherits.
func (f *faults) types(c Orchestrator) {
	for _, typ := range slices.Sorted(maps.Keys(c.Types)) {
		key, t := typeKey(typ), c.Types[typ]
		if !taskType.MatchString(typ) {
			f.addf(key, "a task type must be 1 to 128 of A-Z a-z 0-9 . _ - : /")
		}
		v := structOf(t)
		for _, k := range Keys(t) {
			field := v.FieldByIndex(k.index)
			if msg := k.rule.check(field); msg != "" {
				f.addf(key+"."+k.Name, "%s", msg)
			}
			if d, ok := field.Interface().(*time.Duration); ok && d != nil {
				f.wholeMillis(key+"."+k.Name, *d)
			}
		}
		r := c.DefaultsOf(typ).Retry
		if t.Strategy != nil || t.Schedule != nil {
			list := t.Schedule
			if list == nil {
				list = r.Schedule
			}
			f.schedule(key+".schedule", r.Strategy, list)
		}
		f.backoff(key, t, r)
	}
}

// backoff faults a base above the largest delay where one of them is the
// type's own. r is the policy with what it inherits.
func (f *faults) backoff(key string, t Type, r Retry) {
	if r.MaxBackoff >= r.Base {
		return
	}
	base, limit := durationText(r.Base), durationText(r.MaxBackoff)
	switch {
	case t.MaxBackoff != nil && t.Base != nil:
		f.addf(key+".max_backoff", "must be at least base (%s), got %s", base, limit)
	case t.MaxBackoff != nil:
		f.addf(key+".max_backoff", "must be at least retry.base (%s), got %s; set base too", base, limit)
	case t.Base != nil:
		f.addf(key+".base", "must be at most retry.max_backoff (%s), got %s; set max_backoff too", limit, base)
	}
}

// schemas makes the names of schema files complete and checks that each can be
// used. They are relative to the directory of the configuration file, so that
// both can be moved together.
func (l *loader) schemas(types map[string]Type, file string) {
	for _, typ := range slices.Sorted(maps.Keys(types)) {
		t := types[typ]
		if t.Schema == "" {
			continue
		}
		if !filepath.IsAbs(t.Schema) {
			t.Schema = filepath.Join(filepath.Dir(file), t.Schema)
			types[typ] = t
		}
		if _, err := jsonschema.Load(t.Schema); err != nil {
			l.faults.addf(typeKey(typ)+".schema", "%v", err)
		}
	}
}
