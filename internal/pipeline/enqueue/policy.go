package enqueue

import (
	"encoding/json"
	"slices"

	"github.com/penstock-dev/penstock/protocol"
)

// PolicyOverride is a caller's own retry policy. What it leaves unset is that
// of the task's type: an empty Strategy, a nil pointer, an empty ScheduleMS
// with strategy schedule.
type PolicyOverride struct {
	Strategy                          protocol.Strategy
	BaseMS, MaxBackoffMS, JitterMaxMS *int64
	ScheduleMS                        []int64
}

// OverrideAll makes an override that leaves nothing to the type.
func OverrideAll(p protocol.RetryPolicy) *PolicyOverride {
	return &PolicyOverride{
		Strategy: p.Strategy, BaseMS: &p.BaseMS, MaxBackoffMS: &p.MaxBackoffMS, JitterMaxMS: &p.JitterMaxMS, ScheduleMS: p.ScheduleMS,
	}
}

// over returns the whole policy, which need not be valid. A base above the
// type's largest delay raises that, unless the caller gave one.
func (o *PolicyOverride) over(def protocol.RetryPolicy) *protocol.RetryPolicy {
	p := def
	if o.Strategy != "" {
		p.Strategy = o.Strategy
	}
	if o.BaseMS != nil {
		p.BaseMS = *o.BaseMS
		p.MaxBackoffMS = max(p.MaxBackoffMS, p.BaseMS)
	}
	if o.MaxBackoffMS != nil {
		p.MaxBackoffMS = *o.MaxBackoffMS
	}
	if o.JitterMaxMS != nil {
		p.JitterMaxMS = *o.JitterMaxMS
	}
	switch {
	case len(o.ScheduleMS) > 0:
		p.ScheduleMS = o.ScheduleMS
	case p.Strategy != protocol.StrategySchedule:
		p.ScheduleMS = nil // the type's, for its own strategy
	}
	return &p
}

// is reports whether a task's stored policy, empty if it has none of its own, may
// come from this override. What the override leaves unset does not count: it was
// the type's policy then, which may be another one now.
func (o *PolicyOverride) is(stored []byte) bool {
	if o == nil || len(stored) == 0 {
		return o == nil && len(stored) == 0
	}
	var p protocol.RetryPolicy
	if json.Unmarshal(stored, &p) != nil {
		return false
	}
	q := o.over(p)
	return p.Strategy == q.Strategy && p.BaseMS == q.BaseMS && p.MaxBackoffMS == q.MaxBackoffMS && p.JitterMaxMS == q.JitterMaxMS && slices.Equal(p.ScheduleMS, q.ScheduleMS)
}
