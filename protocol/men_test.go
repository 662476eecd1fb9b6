package protocol

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The task scheduling contract's example of a state event.
const menExample = `{
  "type": "task_state_changed",
  "source": "gateway.scheduler",
  "session_key": "scheduler:default",
  "event_id": "evt_task_1",
  "payload": {
    "task_id": "task_20260225_0001",
    "from_state": "running",
    "to_state": "failed",
    "occurred_at": "2026-02-25T12:00:30Z",
    "attempt": 3,
    "reason_code": "TASK_RETRY_EXHAUSTED",
    "reason_message": "start_to_close timeout exhausted retries",
    "idempotent_hit": false
  }
}`

// menExampleTask lives the example's life: max_retries 2, three timeouts.
func menExampleTask(t *testing.T) *sim {
	t.Helper()
	s := newSim(t, NameID(DefaultTenant, "task_20260225_0001"), scenarioSeed, &scenario{born: StatePending, maxRetries: 2})
	timeout := outcome(OutcomeFailed, func(o *Outcome) { o.Code, o.Error, o.Retryable = CodeTimeout, "start_to_close timeout", true })
	for _, f := range []step{dispatch, claim, timeout, dispatch, claim, timeout, dispatch, claim, timeout} {
		s.run(f)
	}
	s.env.Now = time.Date(2026, 2, 25, 13, 0, 30, 0, time.FixedZone("CET", 3600))
	bury(s)
	return s
}

// menOf renders a log.
func menOf(v MENView, events []*Event) []MENEvent {
	var out []MENEvent
	for _, e := range events {
		if m, ok := v.Add(e); ok {
			out = append(out, m)
		}
	}
	return out
}

// The failed transition has the example's names, in its order, with its types
// and, where they don't depend on ids and texts of ours, its values.
func TestMENEventExample(t *testing.T) {
	t.Parallel()
	s := menExampleTask(t)
	all := menOf(MENView{TaskID: "task_20260225_0001"}, s.events)
	got, err := json.MarshalIndent(all[len(all)-1], "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	last := s.events[len(s.events)-1]
	want := strings.ReplaceAll(menExample, `"evt_task_1"`, fmt.Sprintf("%q", last.EventID()))
	want = strings.ReplaceAll(want, `"start_to_close timeout exhausted retries"`, `"TASK_TIMEOUT: start_to_close timeout"`)
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if strings.Count(menExample, "\n") != strings.Count(string(got), "\n") || last.EventID() != fmt.Sprintf("evt_%s_%d", s.task.ID, s.task.Seq) {
		t.Errorf("event_id %s", last.EventID())
	}
	if back := (MENEvent{}); json.Unmarshal([]byte(menExample), &back) != nil || back.Payload.Attempt != 3 || back.Payload.ReasonCode != CodeRetryExhausted {
		t.Errorf("the example reads as %+v", back)
	}
}

// MEN's attempt table: with max_retries 2 there are attempts 1, 2 and 3; the
// third failure ends in failed with TASK_RETRY_EXHAUSTED and the cause in the
// reason.
func TestMENAttemptTable(t *testing.T) {
	t.Parallel()
	s := menExampleTask(t)
	var got []string
	for _, m := range menOf(MENView{}, s.events) {
		p := m.Payload
		got = append(got, fmt.Sprintf("%s→%s attempt %d %s", p.FromState, p.ToState, p.Attempt, p.ReasonCode))
	}
	want := []string{
		"→pending attempt 1 ", "pending→ready attempt 1 ",
		"ready→running attempt 1 ", "running→ready attempt 2 TASK_TIMEOUT",
		"ready→running attempt 2 ", "running→ready attempt 3 TASK_TIMEOUT",
		"ready→running attempt 3 ", "running→failed attempt 3 TASK_RETRY_EXHAUSTED",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s.task.State != StateFailed || s.task.Attempt != 3 || s.task.Code != CodeRetryExhausted || s.task.Reason != "TASK_TIMEOUT: start_to_close timeout" {
		t.Errorf("task %+v", *s.task)
	}
	var attempts []int
	for _, x := range wantSound(t, scenarioSeed, s.events).Executions {
		attempts = append(attempts, x.Attempt)
	}
	if !slices.Equal(attempts, []int{1, 2, 3}) {
		t.Errorf("attempts %v", attempts)
	}
}

func TestMENEventDefaultsAndParameters(t *testing.T) {
	t.Parallel()
	s := simulate(t, testID(1), scenarioSeed, &scenario{steps: []step{succeed}})
	for _, m := range menOf(MENView{}, s.events) {
		if m.Source != "gateway.scheduler" || m.SessionKey != "scheduler:default" || m.Payload.TaskID != testID(1).String() || m.Payload.IdempotentHit {
			t.Errorf("defaults: %+v", m)
		}
	}
	for _, m := range menOf(MENView{Source: "here", SessionKey: "scheduler:tenant_a", TaskID: "order-1", IdempotentHit: true}, s.events) {
		if m.Source != "here" || m.SessionKey != "scheduler:tenant_a" || m.Payload.TaskID != "order-1" || !m.Payload.IdempotentHit {
			t.Errorf("parameters: %+v", m)
		}
	}
}

// The events are the projection's moves, one each, and every one has all of the
// example's names.
func TestMENEventsAreTheProjection(t *testing.T) {
	t.Parallel()
	var example map[string]any
	if err := json.Unmarshal([]byte(menExample), &example); err != nil {
		t.Fatal(err)
	}
	names := func(m map[string]any) []string {
		payload, _ := m["payload"].(map[string]any)
		return append(slices.Sorted(maps.Keys(m)), slices.Sorted(maps.Keys(payload))...)
	}
	rapid.Check(t, func(t *rapid.T) {
		events := legalHistory(t)
		var pairs [][2]string
		for _, m := range menOf(MENView{}, events) {
			pairs = append(pairs, [2]string{m.Payload.FromState, m.Payload.ToState})
			b, err := json.Marshal(m)
			var got map[string]any
			if err != nil || json.Unmarshal(b, &got) != nil || !slices.Equal(names(got), names(example)) {
				t.Fatalf("%s, error %v", b, err)
			}
		}
		if want := VocabularyMEN.Moves(statesOf(events)); !reflect.DeepEqual(pairs, want) {
			t.Fatalf("moves %v, want %v", pairs, want)
		}
	})
}
