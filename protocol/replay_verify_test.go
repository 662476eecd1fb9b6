package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// mixedLog has every source of a delay, a re-dispatch while retrying, a reclaim,
// a refused outcome and a dead letter:
//
//	1 created, 2 claimed, 3 retry (policy), 4 redispatched, 5 claimed,
//	6 retry (retry_after), 7 claimed, 8 retry (snooze), 9 rejected, 10 claimed,
//	11 reclaimed, 12 interrupted, 13 queued, 14 claimed, 15 dlq, 16 dlq, 17 failed
func mixedLog(t testingT) []*Event {
	t.Helper()
	events := simulate(t, testID(1), scenarioSeed, &scenario{
		maxRetries: 2,
		steps: []step{
			claim, fail, redispatch, retryAfter(time.Minute), snooze(time.Second), late,
			claim, reclaim, dispatch, claim, fail, bury,
		},
	}).events
	if len(events) != 17 || events[16].Type != EventFailed {
		t.Fatalf("the log has %d events and ends with %s", len(events), events[len(events)-1].Type)
	}
	return events
}

// alter changes the data of an event as if it had been written so.
func alter[T any](e *Event, f func(*T)) {
	var d T
	if err := json.Unmarshal(e.Data, &d); err != nil {
		panic(err)
	}
	f(&d)
	e.Data = data(d)
}

// forgeries change one event of mixedLog.
var forgeries = []struct {
	name  string
	seq   int
	forge func(*Event)
	want  []string // "field: recorded → recomputed"
}{
	{"delay of a policy", 3, func(e *Event) { e.BackoffDelay += time.Millisecond }, []string{
		"next_retry_at: 2026-02-25T12:00:01.516014Z → 2026-02-25T12:00:01.517014Z", "backoff_delay_ms: 1017 → 1016",
	}},
	{"delay and time of a policy", 3, func(e *Event) { e.BackoffDelay += time.Hour; e.NextRetryAt = e.NextRetryAt.Add(time.Hour) }, []string{
		"backoff_delay_ms: 3601016 → 1016", "4 next_retry_at: 2026-02-25T12:00:01.516014Z → 2026-02-25T13:00:01.516014Z",
	}},
	{"delay missing", 3, func(e *Event) { e.BackoffDelay = -1 }, []string{"backoff_delay_ms: none → the delay"}},
	{"jitter", 3, func(e *Event) { alter(e, func(d *RetryData) { d.JitterMS++ }) }, []string{"jitter_ms: 17 → 16"}},
	{"base of the policy", 3, func(e *Event) { alter(e, func(d *RetryData) { d.Policy.BaseMS-- }) }, []string{"backoff_delay_ms: 1016 → 1015"}},
	{"jitter of the policy", 3, func(e *Event) { alter(e, func(d *RetryData) { d.Policy.JitterMaxMS = 0 }) }, []string{"jitter_ms: 16 → 0", "backoff_delay_ms: 1016 → 1000"}},
	{"invalid policy", 3, func(e *Event) { alter(e, func(d *RetryData) { d.Policy = &RetryPolicy{} }) }, []string{
		`policy: {"strategy":"","base_ms":0,"max_backoff_ms":0,"jitter_max_ms":0} → a valid policy (TASK_INPUT_INVALID: retry_policy.strategy: is "", want exponential, linear, fixed or schedule)`,
	}},
	{"policy missing", 3, func(e *Event) { alter(e, func(d *RetryData) { d.Policy = nil }) }, []string{"policy: none → the policy in force"}},
	{"source unheard of", 3, func(e *Event) { alter(e, func(d *RetryData) { d.DelaySource = "dice" }) }, []string{
		`delay_source: "dice" → policy or retry_after`,
		`policy: {"strategy":"exponential","base_ms":1000,"max_backoff_ms":30000,"jitter_max_ms":300} → none`, "jitter_ms: 16 → 0",
	}},
	{"failure that says snooze", 6, func(e *Event) { alter(e, func(d *RetryData) { d.DelaySource = DelayFromSnooze }) }, []string{`delay_source: "snooze" → policy or retry_after`}},
	{"snooze that says retry_after", 8, func(e *Event) { alter(e, func(d *RetryData) { d.DelaySource = DelayFromRetryAfter }) }, []string{`delay_source: "retry_after" → snooze`}},
	{"time of a retry_after", 6, func(e *Event) { e.NextRetryAt = e.NextRetryAt.Add(time.Microsecond) }, []string{
		"next_retry_at: 2026-02-25T12:01:01.767025Z → 2026-02-25T12:01:01.767024Z",
	}},
	{"time of a snooze", 8, func(e *Event) { e.BackoffDelay = 0 }, []string{
		"next_retry_at: 2026-02-25T12:01:02.768027Z → 2026-02-25T12:01:01.768027Z",
	}},
	{"time carried on", 4, func(e *Event) { e.NextRetryAt = e.NextRetryAt.Add(-time.Second) }, []string{
		"next_retry_at: 2026-02-25T12:00:00.516014Z → 2026-02-25T12:00:01.516014Z",
	}},
	{"time carried on by a side event", 9, func(e *Event) { e.NextRetryAt = e.NextRetryAt.Add(time.Second) }, []string{
		"next_retry_at: 2026-02-25T12:01:03.768027Z → 2026-02-25T12:01:02.768027Z",
	}},
	{"data missing", 3, func(e *Event) { e.Data = nil }, []string{"data: none → a JSON object"}},
	{"data is null", 8, func(e *Event) { e.Data = json.RawMessage("null") }, []string{`delay_source: "" → snooze`}},
	{"data cut off", 3, func(e *Event) { e.Data = e.Data[:9] }, []string{`data: "{\"delay_s" → a JSON object (unexpected end of JSON input)`}},
	{"data of another shape", 6, func(e *Event) { e.Data = json.RawMessage(`[]`) }, []string{
		`data: "[]" → a JSON object (json: cannot unmarshal array into Go value of type protocol.RetryData)`,
	}},
	{"delay of what is no retry", 5, func(e *Event) { e.BackoffDelay = 0 }, []string{"backoff_delay_ms: 0 → none"}},
	{"refusal without data", 9, func(e *Event) { e.Data = nil }, []string{"data: none → a JSON object"}},
	{"reclaim without data", 11, func(e *Event) { e.Data = nil }, []string{"data: none → a JSON object"}},
	{"dead letter without data", 15, func(e *Event) { e.Data = nil }, []string{"data: none → a JSON object"}},
	{"step of the dead letter", 16, func(e *Event) { alter(e, func(d *DLQData) { d.Step = StateDLQPending }) }, []string{`step: "dlq_pending" → "dlq_recorded"`}},
	{"another's dead letter", 15, func(e *Event) { alter(e, func(d *DLQData) { d.DLQID = ID{}.String() }) }, []string{
		`dlq_id: "00000000-0000-0000-0000-000000000000" → ` + DLQID(testID(1)).String(),
	}},
}

func TestVerifyNamesTheDifference(t *testing.T) {
	t.Parallel()
	for _, tt := range forgeries {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			events := mixedLog(t)
			tt.forge(events[tt.seq-1])
			r, err := ReplayLog([]byte(scenarioSeed), events)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range r.Differences {
				text := fmt.Sprintf("%s: %s → %s", d.Field, d.Recorded, d.Recomputed)
				if d.Seq != tt.seq {
					text = fmt.Sprintf("%d %s", d.Seq, text)
				}
				got = append(got, text)
				if d.TaskID != testID(1) || d.String() != fmt.Sprintf("task %s, event %d: %s is %s, recomputed %s", testID(1), d.Seq, d.Field, d.Recorded, d.Recomputed) {
					t.Errorf("%+v prints as %q", d, d)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("differences\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// All differences of a log are found, and a replay still tells its history as
// it was recorded.
func TestVerifyFindsAll(t *testing.T) {
	t.Parallel()
	events := mixedLog(t)
	wantSound(t, scenarioSeed, events)
	events[2].Data, events[5].NextRetryAt, events[14].Data = nil, epoch, nil
	alter(events[7], func(d *RetryData) { d.JitterMS = 5 })
	r, err := ReplayLog([]byte(scenarioSeed), events)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fieldsOf(r.Differences), []string{"data", "next_retry_at", "jitter_ms", "data"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	want := []string{
		"1/1 retried EXECUTION_FAILED 1016 ", "2/2~ redispatched", "2/3 retried EXECUTION_FAILED 60000 retry_after", "3/4 snoozed 1000 snooze",
		"3/5 lost WORKER_LOST", "3/6 dead RETRY_EXHAUSTED",
	}
	if got := told(r.Executions); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestReplayRefusesWhatFoldRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		at     int // the event that can't have happened
		damage func(events []*Event) []*Event
	}{
		{"gap", 4, func(es []*Event) []*Event { return slices.Delete(es, 3, 4) }},
		{"another task's event", 8, func(es []*Event) []*Event { es[7].TaskID = testID(2); return es }},
		{"attempt", 6, func(es []*Event) []*Event { es[5].Attempt++; return es }},
		{"no creation", 1, func(es []*Event) []*Event { return es[1:] }},
	} {
		events := tt.damage(mixedLog(t))
		events[12].BackoffDelay = 0 // found in spite of the error
		r, err := ReplayLog([]byte(scenarioSeed), events)
		fe, ok := errors.AsType[*FoldError](err)
		if !ok || fe.Seq != events[tt.at-1].Seq {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if r.Seq != tt.at-1 || len(r.Differences) != 1 || r.Differences[0].Seq != events[12].Seq {
			t.Errorf("%s: replayed to event %d, differences %v", tt.name, r.Seq, r.Differences)
		}
		if again := r.Add(events[0]); again != err {
			t.Errorf("%s: then %v", tt.name, again)
		}
	}
}

// The log wins: a replay under another policy and configuration tells what was
// recorded, and recomputes with the recorded policy.
func TestReplayTakesTheRecordedPolicy(t *testing.T) {
	t.Parallel()
	s := newSim(t, testID(1), scenarioSeed, &scenario{maxRetries: 2})
	s.run(fail)
	s.task.Policy = RetryPolicy{Strategy: StrategyFixed, BaseMS: 5, MaxBackoffMS: 5}
	s.restart()
	s.run(fail)
	r := wantSound(t, scenarioSeed, s.events)
	first, second := r.Executions[0].Retry, r.Executions[1].Retry
	if first.Policy.Strategy != StrategyExponential || first.Delay != 1016*time.Millisecond || first.JitterMS != 16 {
		t.Errorf("first %+v", first)
	}
	if second.Policy.Strategy != StrategyFixed || second.Delay != 5*time.Millisecond || second.JitterMS != 0 {
		t.Errorf("second %+v", second)
	}
}

// Times that Postgres has kept meet times that it has not: the microsecond counts.
func TestVerifyTakesMicroseconds(t *testing.T) {
	t.Parallel()
	s := newSim(t, testID(1), scenarioSeed, &scenario{maxRetries: 1})
	s.env.Now = s.env.Now.Add(999 * time.Nanosecond)
	s.run(fail)
	s.task.NextRetryAt = s.task.NextRetryAt.Truncate(time.Microsecond)
	s.run(redispatch)
	wantSound(t, scenarioSeed, s.events)
}

// A retry whose delay is missing has none; it is not the context's last.
func TestReplayWithoutADelay(t *testing.T) {
	t.Parallel()
	events := simulate(t, testID(1), scenarioSeed, &scenario{maxRetries: 2, steps: []step{fail, fail}}).events
	last := events[len(events)-1]
	last.BackoffDelay = -time.Second
	r, err := ReplayLog([]byte(scenarioSeed), events)
	if err != nil || len(r.Differences) != 1 {
		t.Fatalf("error %v, differences %v", err, r.Differences)
	}
	if c := r.RetryContext(); c != (RetryContext{CurrentAttempt: 3}) || r.Executions[1].Retry.Delay >= 0 {
		t.Errorf("context %+v, execution %+v", c, r.Executions[1])
	}
}

// An execution names who had the task: the claimer, else who handed it back or
// was lost with it.
func TestReplayNamesTheWorker(t *testing.T) {
	t.Parallel()
	s := simulate(t, testID(1), scenarioSeed, &scenario{
		maxRetries: 1, steps: []step{handBack(""), dispatch, reclaim, dispatch, redispatch, fail, claim, reclaim, dispatch, claim},
	})
	r := wantSound(t, scenarioSeed, s.events)
	var got []string
	for _, x := range r.Executions {
		got = append(got, fmt.Sprintf("%s %s", x.End, x.WorkerID))
	}
	want := []string{"released worker-1", "lost worker-x", "redispatched ", "retried worker-4", "lost worker-5"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	open, ok := r.Running()
	if !ok || open.WorkerID != "worker-6" || open.Attempt != 2 || open.Delivery != 6 || open.ClaimedAt.IsZero() || !open.EndedAt.IsZero() {
		t.Errorf("running %t: %+v", ok, open)
	}
}
