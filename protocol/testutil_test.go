package protocol

import (
	"fmt"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// epoch is the moment at which the tests' tasks are created.
var epoch = time.Date(2026, 2, 25, 12, 0, 0, 0, time.UTC)

func testEnv() Env {
	return Env{Now: epoch, Seed: []byte("seed of the tests"), MaxInterruptions: 3}
}

func testID(n byte) ID {
	return ID{0x01, 0x9c, 0x94, 0x5a, 0xc8, 0x00, 0x70, 0, 0x80, 0, 0, 0, 0, 0, 0, n}
}

// born makes a task in state s, one of the three in which a task can be
// created, with its first event.
func born(s State, maxRetries int) (*Task, []*Event) {
	t := &Task{ID: testID(1), Attempt: 1, Delivery: 1, MaxRetries: maxRetries, Policy: DefaultRetryPolicy(), TraceID: "trace-1"}
	if s == StatePending {
		t.DueAt = epoch
	}
	e := t.move(s, EventCreated, testEnv(), ActorAPI)
	return t, []*Event{e}
}

// history is a task with all of its events, for tests that tell a story.
type history struct {
	t      *testing.T
	task   *Task
	events []*Event
	env    Env
}

func newHistory(t *testing.T, maxRetries int) *history {
	t.Helper()
	task, events := born(StateQueued, maxRetries)
	return &history{t: t, task: task, events: events, env: testEnv()}
}

// outcome is one of the task's current delivery.
func (h *history) outcome(kind OutcomeKind) *Outcome {
	return &Outcome{
		ID: h.task.ID, Delivery: h.task.Delivery, Kind: kind, WorkerID: "worker-1", MessageID: "1-0",
		StartedAt: epoch, FinishedAt: epoch.Add(time.Second), Delay: -1,
	}
}

func (h *history) failure(retryable bool) *Outcome {
	o := h.outcome(OutcomeFailed)
	o.Code, o.Error, o.Retryable = CodeExecutionFailed, "no route to host", retryable
	return o
}

// apply gives the outcome to the task and wants a verdict; it returns the new
// events.
func (h *history) apply(o *Outcome, want Verdict) []*Event {
	h.t.Helper()
	events, got := h.task.ApplyOutcome(o, h.env)
	if got != want {
		h.t.Fatalf("outcome %s of delivery %d is %s, want %s", o.Kind, o.Delivery, got, want)
	}
	h.keep(events)
	return events
}

// do wants a decision to have been possible.
func (h *history) do(events []*Event, ok bool) []*Event {
	h.t.Helper()
	if !ok {
		h.t.Fatalf("refused in state %s", h.task.State)
	}
	h.keep(events)
	return events
}

func (h *history) keep(events []*Event) {
	h.t.Helper()
	h.events = append(h.events, events...)
	if err := foldsTo(h.events, h.task); err != nil {
		h.t.Fatal(err)
	}
}

func (h *history) wantState(want State) {
	h.t.Helper()
	if h.task.State != want {
		h.t.Fatalf("task is %s, want %s", h.task.State, want)
	}
}

// states lists the states that the task went through, without StateNone.
func (h *history) states() []State { return statesOf(h.events) }

func statesOf(events []*Event) []State {
	var out []State
	for _, e := range events {
		if e.Changes() {
			out = append(out, e.To)
		}
	}
	return out
}

// foldsTo checks that the events imply the task.
func foldsTo(events []*Event, t *Task) error {
	f, err := Fold(events)
	if err != nil {
		return err
	}
	terminals := 0
	if t.State.Terminal() {
		terminals = 1
	}
	want := Folded{
		State: t.State, Attempt: t.Attempt, Delivery: t.Delivery,
		Interruptions: t.Interruptions, Seq: t.Seq, Terminals: terminals,
	}
	if f != want {
		return fmt.Errorf("the events imply %+v, the task is %+v", f, want)
	}
	return nil
}

// wire turns XADD's field-value pairs into what go-redis returns for the entry:
// a map of strings.
func wire(values []any) map[string]any {
	m := make(map[string]any, len(values)/2)
	for i := 0; i < len(values); i += 2 {
		if b, ok := values[i+1].([]byte); ok {
			m[values[i].(string)] = string(b)
		} else {
			m[values[i].(string)] = fmt.Sprint(values[i+1])
		}
	}
	return m
}

// wantFault wants err to be an *Error with TASK_INPUT_INVALID about field.
func wantFault(t testingT, err error, field string) {
	t.Helper()
	e, ok := err.(*Error)
	if !ok {
		t.Fatalf("field %s: got error %v (%T), want an *Error", field, err, err)
	}
	if e.Code != CodeInputInvalid || e.Field != field || e.Message == "" {
		t.Fatalf("got %+v, want code %s, field %s and a message", e, CodeInputInvalid, field)
	}
	if !utf8.ValidString(e.Error()) {
		t.Fatalf("the error's text is not valid UTF-8: %q", e.Error())
	}
}

// testingT is what *testing.T and *rapid.T have in common here.
type testingT interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Generators.

func genID() *rapid.Generator[ID] {
	return rapid.Custom(func(t *rapid.T) ID {
		var id ID
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bytes"))
		return id
	})
}

// genName makes names as callers choose them, at most limit bytes.
func genName(least, limit int) *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[a-z][a-z0-9._:-]{0,30}`),
		rapid.SampledFrom([]string{"默认租户", "naïve-键", "order 1001", "<a&b>", "\u2028", "'; --"}),
		rapid.StringN(max(least, 1), -1, limit).Filter(func(s string) bool { return storable(s) && len(s) >= least }),
	)
}

func genText(limit int) *rapid.Generator[string] {
	return rapid.StringN(0, -1, limit).Filter(storable)
}

// storable: text that a Postgres column holds.
func storable(s string) bool {
	for _, r := range s {
		if r == 0 {
			return false
		}
	}
	return utf8.ValidString(s)
}

// genTime makes moments in whole milliseconds.
func genTime() *rapid.Generator[time.Time] {
	return rapid.Map(rapid.Int64Range(1, 4_000_000_000_000), func(ms int64) time.Time { return time.UnixMilli(ms).UTC() })
}

func genPolicy() *rapid.Generator[RetryPolicy] {
	return rapid.Custom(func(t *rapid.T) RetryPolicy {
		p := RetryPolicy{
			Strategy:    rapid.SampledFrom([]Strategy{StrategyExponential, StrategyLinear, StrategyFixed, StrategySchedule}).Draw(t, "strategy"),
			BaseMS:      rapid.Int64Range(1, maxDelayMS).Draw(t, "base"),
			JitterMaxMS: rapid.Int64Range(0, maxDelayMS).Draw(t, "jitter"),
		}
		p.MaxBackoffMS = rapid.Int64Range(p.BaseMS, maxDelayMS).Draw(t, "max")
		if p.Strategy == StrategySchedule {
			p.ScheduleMS = rapid.SliceOfN(rapid.Int64Range(1, maxDelayMS), 1, 5).Draw(t, "schedule")
		}
		return p
	})
}
