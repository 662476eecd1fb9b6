package protocol

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// lines writes a log as one JSON row a line, so that damage to one leaves the
// others.
func lines(t testingT, events []*Event) string {
	t.Helper()
	var out []byte
	for _, r := range stored(events) {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("row has no JSON: %v", err)
		}
		out = append(append(out, b...), '\n')
	}
	return string(out)
}

// readLines reads what lines wrote: what is no JSON is left out, fields of a
// wrong type are zero.
func readLines(text string) []*Event {
	var events []*Event
	for line := range strings.Lines(text) {
		var r row
		err := json.Unmarshal([]byte(line), &r)
		if _, wrongType := errors.AsType[*json.UnmarshalTypeError](err); err == nil || wrongType {
			events = append(events, r.event())
		}
	}
	return events
}

// Whatever a log holds, replaying it ends with a history, differences or a
// *FoldError, and the same ones each time.
func FuzzReplay(f *testing.F) {
	for i := range scenarios {
		f.Add(lines(f, simulate(f, testID(1), scenarioSeed, &scenarios[i]).events), []byte(scenarioSeed))
	}
	for _, data := range []string{
		`null`, `[]`, `{"delay_source":"policy"}`, `{"delay_source":"policy","jitter_ms":9223372036854775807,"policy":{"strategy":"schedule","schedule_ms":[]}}`,
		`{"delay_source":"policy","policy":{"strategy":"linear","base_ms":-9223372036854775808,"max_backoff_ms":9223372036854775807,"jitter_max_ms":9223372036854775807}}`,
	} {
		events := mixedLog(f)
		events[2].Data = json.RawMessage(data)
		f.Add(lines(f, events), []byte{})
	}
	f.Add(`{"seq":1,"type":"task.created","status":"queued","attempt":1,"delivery":1,"occurred_at":"9999-12-31T23:59:59Z"}
		{"seq":2,"type":"task.claimed","previous_status":"queued","status":"running","attempt":1,"delivery":1,"occurred_at":"0001-01-01T00:00:00Z"}
		{"seq":3,"type":"task.retry_scheduled","previous_status":"running","status":"retrying","attempt":1,"delivery":2,"backoff_delay_ms":9223372036854775807,"next_retry_at":"0001-01-01T00:00:00.000000001Z","occurred_at":"9999-12-31T23:59:59Z"}`, []byte(nil))
	f.Fuzz(func(t *testing.T, text string, seed []byte) {
		events := readLines(text)
		r, err := ReplayLog(seed, events)
		again, errAgain := ReplayLog(seed, events)
		if !reflect.DeepEqual(r, again) || (err == nil) != (errAgain == nil) {
			t.Fatal("the same log replays differently")
		}
		fold, foldErr := Fold(events)
		if err == nil && (foldErr != nil || fold != r.Folded) {
			t.Fatalf("replayed to %+v, folded to %+v (%v)", r.Folded, fold, foldErr)
		}
		if fe, ok := errors.AsType[*FoldError](err); err != nil && (!ok || fe.Error() == "") {
			t.Fatalf("error %v (%T)", err, err)
		}
		for _, d := range r.Differences {
			if d.Field == "" || d.Recorded == "" || d.Recomputed == "" || d.String() == "" {
				t.Fatalf("difference %+v", d)
			}
		}
		if task := r.Task(); task.State != r.State || task.Seq != r.Seq || len(r.Executions) > r.Seq {
			t.Fatalf("task %+v, %d executions", task, len(r.Executions))
		}
		if _, err := json.Marshal(r.RetryContext()); err != nil {
			t.Fatal(err)
		}
		var v MENView
		for _, e := range events {
			if m, ok := v.Add(e); ok && m.Payload.FromState == m.Payload.ToState {
				t.Fatalf("event %d: MEN shows no move: %+v", e.Seq, m)
			}
		}
	})
}
