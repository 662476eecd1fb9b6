package enqueue

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/schema"
	"github.com/penstock-dev/penstock/protocol"
)

func ptr[T any](v T) *T { return &v }

// TestOverride: what an override leaves unset is the type's.
func TestOverride(t *testing.T) {
	t.Parallel()
	exponential := protocol.RetryPolicy{Strategy: protocol.StrategyExponential, BaseMS: 20, MaxBackoffMS: 100, JitterMaxMS: 7}
	schedule := protocol.RetryPolicy{Strategy: protocol.StrategySchedule, BaseMS: 20, MaxBackoffMS: 100, JitterMaxMS: 7, ScheduleMS: []int64{10, 30}}
	for name, tt := range map[string]struct {
		o    PolicyOverride
		def  protocol.RetryPolicy
		want protocol.RetryPolicy
	}{
		"nothing":               {PolicyOverride{}, exponential, exponential},
		"nothing of a schedule": {PolicyOverride{}, schedule, schedule},
		"strategy":              {PolicyOverride{Strategy: "linear"}, exponential, protocol.RetryPolicy{Strategy: "linear", BaseMS: 20, MaxBackoffMS: 100, JitterMaxMS: 7}},
		"base":                  {PolicyOverride{BaseMS: ptr(int64(5))}, exponential, protocol.RetryPolicy{Strategy: "exponential", BaseMS: 5, MaxBackoffMS: 100, JitterMaxMS: 7}},
		"base raises max":       {PolicyOverride{BaseMS: ptr(int64(500))}, exponential, protocol.RetryPolicy{Strategy: "exponential", BaseMS: 500, MaxBackoffMS: 500, JitterMaxMS: 7}},
		"max":                   {PolicyOverride{MaxBackoffMS: ptr(int64(21))}, exponential, protocol.RetryPolicy{Strategy: "exponential", BaseMS: 20, MaxBackoffMS: 21, JitterMaxMS: 7}},
		"no jitter":             {PolicyOverride{JitterMaxMS: ptr(int64(0))}, exponential, protocol.RetryPolicy{Strategy: "exponential", BaseMS: 20, MaxBackoffMS: 100}},
		"own schedule":          {PolicyOverride{ScheduleMS: []int64{1}}, schedule, protocol.RetryPolicy{Strategy: "schedule", BaseMS: 20, MaxBackoffMS: 100, JitterMaxMS: 7, ScheduleMS: []int64{1}}},
		"away from schedule":    {PolicyOverride{Strategy: "fixed"}, schedule, protocol.RetryPolicy{Strategy: "fixed", BaseMS: 20, MaxBackoffMS: 100, JitterMaxMS: 7}},
		"to a schedule":         {PolicyOverride{Strategy: "schedule", ScheduleMS: []int64{1}}, exponential, protocol.RetryPolicy{Strategy: "schedule", BaseMS: 20, MaxBackoffMS: 100, JitterMaxMS: 7, ScheduleMS: []int64{1}}},
		"all":                   {*OverrideAll(schedule), exponential, schedule},
	} {
		lim := limits
		lim.Types = map[string]*Defaults{"x": {Timeout: time.Second, Policy: tt.def}}
		before := lim.Types["x"].Policy
		it, err := validate(&Request{Type: "x", Policy: &tt.o}, &lim, time.Now())
		if err != nil || !reflect.DeepEqual(*it.policy, tt.want) {
			t.Errorf("%s: %+v, %v; want %+v", name, it, err, tt.want)
		}
		if !reflect.DeepEqual(lim.Types["x"].Policy, before) {
			t.Errorf("%s: the type's policy changed", name)
		}
	}
}

// TestOverrideRefused: each wrong value is refused with its field's name, the
// ones below the type's too.
func TestOverrideRefused(t *testing.T) {
	t.Parallel()
	lim := limits
	lim.Types = map[string]*Defaults{"x": {Timeout: time.Second, Policy: protocol.RetryPolicy{Strategy: "linear", BaseMS: 20, MaxBackoffMS: 100}}}
	for name, tt := range map[string]struct {
		o     PolicyOverride
		field string
	}{
		"zero base":                 {PolicyOverride{BaseMS: ptr(int64(0))}, "base_ms"},
		"negative base":             {PolicyOverride{BaseMS: ptr(int64(-1))}, "base_ms"},
		"zero max":                  {PolicyOverride{MaxBackoffMS: ptr(int64(0))}, "max_backoff_ms"},
		"max below the type's base": {PolicyOverride{MaxBackoffMS: ptr(int64(19))}, "max_backoff_ms"},
		"negative jitter":           {PolicyOverride{JitterMaxMS: ptr(int64(-1))}, "jitter_max_ms"},
		"zero in a schedule":        {PolicyOverride{Strategy: "schedule", ScheduleMS: []int64{1, 0}}, "schedule_ms"},
		"no schedule to take":       {PolicyOverride{Strategy: "schedule"}, "schedule_ms"},
		"schedule of linear":        {PolicyOverride{ScheduleMS: []int64{1}}, "schedule_ms"},
		"strategy":                  {PolicyOverride{Strategy: "random"}, "strategy"},
	} {
		_, err := validate(&Request{Type: "x", Policy: &tt.o}, &lim, time.Now())
		e, ok := errors.AsType[*protocol.Error](err)
		if !ok || e.Code != protocol.CodeInputInvalid || e.Field != "retry_policy."+tt.field {
			t.Errorf("%s: %v, want retry_policy.%s", name, err, tt.field)
		}
	}
}

// TestTypeLimits: a type's timeout and max_retries, 0 among them, are taken
// where the request says nothing, and do not count as given.
func TestTypeLimits(t *testing.T) {
	t.Parallel()
	lim := limits
	lim.Types = map[string]*Defaults{"email.send": {Timeout: 90 * time.Second}, "email": {Timeout: time.Second, MaxRetries: 1000}}
	for _, tt := range []struct {
		r                   Request
		timeout, maxRetries int32
		given               int16
	}{
		{Request{Type: "email.send"}, 90_000, 0, 0},
		{Request{Type: "email"}, 1000, 1000, 0},
		{Request{Type: "other"}, 60_000, 3, 0},
		{Request{Type: "email.send", MaxRetries: ptr(int32(2))}, 90_000, 2, givenMaxRetries},
		{Request{Type: "email.send", TimeoutMS: ptr(int32(5))}, 5, 0, givenTimeout},
	} {
		it, err := validate(&tt.r, &lim, time.Now())
		if err != nil || it.timeoutMS != tt.timeout || it.maxRetries != tt.maxRetries || it.given != tt.given || it.policy != nil {
			t.Errorf("%s: %+v, %v", tt.r.Type, it, err)
		}
	}
}

func TestCheckPayload(t *testing.T) {
	t.Parallel()
	sch, err := schema.Compile([]byte(`{"type": "object", "required": ["to"], "properties": {"to": {"type": "array", "items": {"type": "string"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	lim := limits
	lim.Types = map[string]*Defaults{"email.send": {Timeout: time.Second, Schema: sch}}
	s := New(Options{Limits: lim})
	for _, tt := range []struct{ typ, payload, want, fails string }{
		{"email.send", ` {"to": ["a"]}`, ` {"to": ["a"]}`, ""},
		{"email.send", `{"to": ["s3cr3t", 2, {}, [], null]}`, "", "does not follow the schema of its type: at /to/1: want string, got number; at /to/2: want string, got object; at /to/3: want string, got array; and 1 more"},
		{"email.send", ``, "", "at /: want object, got null"},
		{"email.send", `{"to": `, "", "is not one JSON value"},
		{"email.send", `{"to": ["\u0000"]}`, "", "contains the character NUL"},
		{"email.send", strings.Repeat("[", 9) + strings.Repeat("]", 9), "", "is nested deeper than 8 levels"},
		{"email.send", `{"to": ["` + strings.Repeat("s3cr3t", 200) + `"]}`, "", "at most 1024 are allowed"},
		{"other", `{"to": [2]}`, `{"to": [2]}`, ""},
		{"other", ``, `null`, ""},
	} {
		got, err := s.CheckPayload(tt.typ, []byte(tt.payload))
		if tt.fails == "" {
			if err != nil || string(got) != tt.want {
				t.Errorf("%s %s: %s, %v", tt.typ, tt.payload, got, err)
			}
			continue
		}
		e, ok := errors.AsType[*protocol.Error](err)
		if !ok || e.Code != protocol.CodeInputInvalid || e.Field != "payload" || !strings.Contains(e.Message, tt.fails) || strings.Contains(e.Message, "s3cr3t") {
			t.Errorf("%s %.40s: %v, want %q", tt.typ, tt.payload, err, tt.fails)
		}
	}
}
