package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/inject"
	"github.com/penstock-dev/penstock/task"
)

// injector fails as the payload says.
type injector struct {
	simulate bool // leave the task instead of killing the process
	log      *slog.Logger
}

func newInject(simulate bool, log *slog.Logger) *injector { return &injector{simulate, log} }

// run works for the time that the payload names and then fails if the payload
// chooses this execution. Otherwise it returns the execution's attempt and
// task id.
func (i *injector) run(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
	plan, work, err := injectPlan(payloadOf(r))
	if err != nil {
		return nil, task.InvalidInput(err)
	}
	dies := plan != nil && plan.Mode == inject.ProcessRestartInterrupt && plan.Fails(r.Info)
	h := func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
		if err := pause(ctx, work); err != nil {
			return nil, err
		}
		if dies && !i.simulate {
			i.log.Warn("killing this process: the task's payload asks for it", logAttrs(r))
		}
		return json.Marshal(struct {
			Attempt int    `json:"attempt"`
			TaskID  string `json:"task_id"`
		}{r.Attempt, r.TaskID})
	}
	if plan == nil {
		return h(ctx, r)
	}
	plan.AfterHandler = true
	if dies && i.simulate {
		plan.Restart = func() {} // the worker says so in its log
	}
	return inject.Wrap(*plan, h)(ctx, r)
}

// pause waits for d. If ctx ends first it returns the cause.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// injectPayload is the payload of an inject task. What is not chosen by times,
// attempts or probability succeeds; if none of them is there, every execution
// is chosen.
type injectPayload struct {
	Mode        *inject.Mode `json:"mode"`
	Times       *int         `json:"times"`
	Attempts    *[]int       `json:"attempts"`
	Probability *float64     `json:"probability"`
	Seed        *uint64      `json:"seed"`
	Text        *string      `json:"text"`
	WorkMS      *int64       `json:"work_ms"`
}

// injectPlan decodes the payload of an inject task. The plan is nil if nothing
// is to fail. The error names the key that is wrong.
func injectPlan(payload []byte) (*inject.Plan, time.Duration, error) {
	var p injectPayload
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
			return nil, 0, fmt.Errorf("inject: %s can't be a %s", e.Field, e.Value)
		}
		return nil, 0, fmt.Errorf("inject: payload is no object of known keys: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, 0, errors.New("inject: payload has more than one JSON value")
	}
	work := value(p.WorkMS)
	if work < 0 || work > maxSleep.Milliseconds() {
		return nil, 0, fmt.Errorf("inject: work_ms is %d, want 0 to %d", work, maxSleep.Milliseconds())
	}
	plan, err := p.plan()
	return plan, time.Duration(work) * time.Millisecond, err
}

// plan makes a valid plan of the payload. Zeros that a plan takes for "not
// set" are refused where they were written out.
func (p *injectPayload) plan() (*inject.Plan, error) {
	for _, k := range []struct {
		key      string
		set, bad bool
		want     string
	}{
		{"times", p.Times != nil, value(p.Times) == 0, "is 0, want at least 1"},
		{"attempts", p.Attempts != nil, len(value(p.Attempts)) == 0, "is empty, want a list such as [1, 2]"},
		{"probability", p.Probability != nil, value(p.Probability) == 0, "is 0, want above 0 and at most 1"},
		{"seed", p.Seed != nil, p.Probability == nil, "is for probability only"},
		{"text", p.Text != nil, false, ""},
	} {
		switch {
		case k.set && p.Mode == nil:
			return nil, fmt.Errorf("inject: mode is missing, but %s is set", k.key)
		case k.set && k.bad:
			return nil, fmt.Errorf("inject: %s %s", k.key, k.want)
		}
	}
	if p.Mode == nil {
		return nil, nil
	}
	plan := &inject.Plan{
		Mode: *p.Mode, Always: p.Times == nil && p.Attempts == nil && p.Probability == nil, Times: value(p.Times),
		Attempts: value(p.Attempts), Probability: value(p.Probability), Seed: value(p.Seed), Text: value(p.Text),
	}
	return plan, plan.Validate()
}

// value is what the pointer points to, else the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
