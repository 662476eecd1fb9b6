package client

import (
	"errors"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// TestRetryPolicy: only what is set is sent, zero jitter if it is asked for,
// and nothing that the server must refuse becomes something that it accepts.
func TestRetryPolicy(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		r    task.Retry
		want *penstockv1.RetryPolicy
	}{
		"nothing": {task.Retry{}, &penstockv1.RetryPolicy{}},
		"all": {task.Retry{Strategy: "linear", Base: time.Second, MaxBackoff: time.Minute, JitterMax: 5 * time.Millisecond},
			&penstockv1.RetryPolicy{Strategy: "linear", BaseMs: proto.Int64(1000), MaxBackoffMs: proto.Int64(60_000), JitterMaxMs: proto.Int64(5)}},
		"no jitter": {task.Retry{NoJitter: true}, &penstockv1.RetryPolicy{JitterMaxMs: proto.Int64(0)}},
		"schedule": {task.Retry{Strategy: "schedule", Schedule: []time.Duration{time.Second, 0, -time.Second}},
			&penstockv1.RetryPolicy{Strategy: "schedule", ScheduleMs: []int64{1000, 0, -1000}}},
		"negative":  {task.Retry{Base: -time.Microsecond, JitterMax: math.MinInt64}, &penstockv1.RetryPolicy{BaseMs: proto.Int64(-1), JitterMaxMs: proto.Int64(-9223372036854)}},
		"too short": {task.Retry{Base: time.Microsecond}, &penstockv1.RetryPolicy{BaseMs: proto.Int64(0)}},
	} {
		q, err := request(&task.Request{Type: "x", Retry: &tt.r})
		if err != nil || !proto.Equal(q.RetryPolicy, tt.want) {
			t.Errorf("%s: %v, %v; want %v", name, q.GetRetryPolicy(), err, tt.want)
		}
	}
	if q, err := request(&task.Request{Type: "x"}); err != nil || q.RetryPolicy != nil {
		t.Errorf("without a policy: %v, %v", q, err)
	}
	for field, r := range map[string]task.Retry{
		"retry_policy.jitter_max_ms": {NoJitter: true, JitterMax: 1},
		"retry_policy.strategy":      {Strategy: "\xff"},
	} {
		_, err := request(&task.Request{Type: "x", Retry: &r})
		if e, ok := errors.AsType[*protocol.Error](err); !ok || e.Code != protocol.CodeInputInvalid || e.Field != field {
			t.Errorf("%+v: %v, want %s", r, err, field)
		}
	}
}
